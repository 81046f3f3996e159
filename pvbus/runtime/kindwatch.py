"""One kind, observed: list, diff, mark, watch, and again.

Rows go to `emit` in the order that makes absence believable: `syncing` before the first row of a
list, upserts, tombstones of what is no longer there, then `ok`. A list that equals what the bus has
is no news: nothing is written, so a restart of a converged system writes nothing. A kind that is
not served is `unavailable`, which is something else than empty.

A list without a resourceVersion comes from an aggregated API such as Porch's, which promises less:
it may leave objects out, its watches begin with everything that is there, and deletions may go
untold. There, an object is gone only when it is asked for by name and not found.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.ids import okey, parse_okey
from pvbus.core.observe import (
    CRD,
    WHOLE_KINDS,
    KindName,
    ObservedRow,
    injectable_row,
    presence_row,
    rows_of,
)
from pvbus.core.records import INJECTABLES, OBJECTS, SyncMarker, sync_key
from pvbus.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster, GoneError, Kind, Resource, WatchEvent
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

UNAVAILABLE_PROBE_SECONDS = 60.0
DEFINED_PROBE_SECONDS = 1.0  # a definition is told before it is served: look again soon, then ever later
UNWATCHED_SECONDS = 30.0  # without a watch for so long, absence is no longer believed
BACKOFF_SECONDS = (0.2, 30.0)
RESUME_SECONDS = 1.0  # between two tries of a watch
REPLAY_SILENCE_SECONDS = 5.0  # a replay that sends no bookmark is over when nothing came for so long
REPLAY_RELIST_SECONDS = 600.0  # how long a deletion that was never told can go unnoticed
REPLAY_END = "k8s.io/initial-events-end"


class Emission(NamedTuple):
    """A row to write. partition None: to its key's partition; else to this one (markers)."""

    topic: str
    key: str
    value: bytes | None
    digest: str
    partition: int | None = None


Emit = Callable[[Emission], None]
Name = tuple[str, str]
"""(namespace, name); an empty name stands for whatever the namespace has of the kind."""


class KindWatch:
    """Observes one kind for one claim. `run` until cancelled."""

    def __init__(
        self,
        kind: KindName,
        cluster: Cluster,
        clock: Clock,
        emit: Emit,
        *,
        partitions: int,
        topics: tuple[str, ...],
        known: dict[str, dict[str, str]],
        markers: dict[str, str],
        content: frozenset[Name],
        definitions_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """known, markers: digests the bus has, per topic. content: (namespace, name) whose content is
        asked for; an empty name asks whether the namespace has any object of the kind.
        definitions_changed: called when a CustomResourceDefinition was seen to change."""
        self.kind = kind
        self.topics = topics
        self.content = content
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        self._partitions = partitions
        self._known = known
        self._markers = markers
        self._definitions_changed = definitions_changed
        self._epoch = max((int(d.split("|")[1]) for d in markers.values() if d), default=0)
        self._names: dict[str, set[str]] = {}
        self._told: set[Name] = set()
        self._versions: tuple[str, ...] = ()
        self._live_resource: Resource | None = None
        self.observed = False  # whether it was listed once, or is known not to be served
        self._lost_at: float | None = None
        self._probe = asyncio.Event()
        self._patience_seconds = UNAVAILABLE_PROBE_SECONDS
        self._log = get_logger("ingest")

    # ------------------------------------------------------------ requests

    @property
    def whole(self) -> bool:
        """Whether bodies are needed, or metadata will do."""
        return self.kind in WHOLE_KINDS or bool(self.content)

    def probe(self) -> None:
        """Look again whether the kind is served: a CustomResourceDefinition changed."""
        self._patience_seconds = DEFINED_PROBE_SECONDS
        self._probe.set()

    async def change_content(self, content: frozenset[Name]) -> bool:
        """Follow other named objects without listing again; False when that is not possible."""
        resource = self._live_resource
        if resource is None or not self.whole or not (content or self.kind in WHOLE_KINDS):
            return False
        more, less = content - self.content, self.content - content
        self.content = content
        for namespace, name in less:
            self._tombstone(INJECTABLES, okey(*self.kind, namespace, name))
        for namespace, name in sorted(more):
            if not name:
                self._upsert(presence_row(self.kind, namespace, exists=bool(self._names.get(namespace))))
                continue
            self._told.discard((namespace, name))
            obj = await self._cluster.get(resource, namespace, name)
            if (namespace, name) not in self._told:  # else the watch was quicker, and knows better
                self._upsert(injectable_row(self.kind, namespace, name, obj))
        if content:
            self._mark_topic(INJECTABLES, "ok")
        return True

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        attempt = 0
        while True:
            self._probe.clear()  # before the question: one that comes while it is asked must count
            try:
                resource = await self._cluster.resource(Kind(*self.kind))
                if resource is None:
                    await self._unavailable("")
                    continue
                version = await self._list(resource)
                attempt = 0
                self._live_resource = resource
                if version:
                    await self._watch(resource, version)
                else:
                    await self._watch_replays(resource)
            except GoneError:
                metrics.WATCH_RESTARTS.labels("gone").inc()
                await self._clock.sleep(BACKOFF_SECONDS[0])
            except PermanentError as exc:
                await self._unavailable(str(exc))
            except (TransientError, ConflictError) as exc:
                attempt += 1
                least, most = BACKOFF_SECONDS
                delay = min(most, least * 2.0 ** min(attempt, 16))
                self._log.warning("list failed", kind=str(self.kind), error=str(exc), retry_seconds=delay)
                metrics.WATCH_RESTARTS.labels("error").inc()
                self._doubt()
                await self._clock.sleep(delay)
            finally:
                self._live_resource = None

    def _doubt(self) -> bool:
        """Note that there is no watch; after a while, say that rows may be stale, and return True."""
        now = self._clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at <= UNWATCHED_SECONDS:
            return False
        for topic in self.topics:
            self._mark_topic(topic, "syncing")
        return True

    async def _unavailable(self, message: str) -> None:
        """Say so, and wait for a while or a change of CustomResourceDefinitions."""
        message = message or f'no matches for kind "{self.kind.kind}" in group "{self.kind.group}"'
        self._live_resource = None
        for topic in (*self.topics, *((INJECTABLES,) if self.content else ())):
            self._mark_topic(topic, "unavailable", message)
        self.observed = True
        waiting = asyncio.create_task(self._probe.wait())
        timer = asyncio.create_task(self._clock.sleep(self._patience_seconds))
        self._patience_seconds = min(UNAVAILABLE_PROBE_SECONDS, 2 * self._patience_seconds)
        try:
            await asyncio.wait({waiting, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            timer.cancel()
        self._cluster.forget_resources()

    # ------------------------------------------------------------ marking

    def _mark_topic(self, topic: str, state: str, message: str = "") -> None:
        """Write a marker to all partitions, unless it says what the bus has already."""
        versions = self._versions if state == "ok" else ()
        told = f"{state}|{self._epoch}|{','.join(versions)}|{message}"
        if self._markers.get(topic, "") == told:
            return
        self._markers[topic] = told
        marker = SyncMarker(
            state=state,  # type: ignore[arg-type]  # callers pass words of the field's type
            epoch=self._epoch,
            versions=versions,
            message=message,
        )
        value, key = msgspec.json.encode(marker), sync_key(*self.kind)
        for partition in range(self._partitions):
            self._emit(Emission(topic, key, value, told, partition))

    # ------------------------------------------------------------ listing

    async def _list(self, resource: Resource) -> str:
        """List, write the difference under markers; return where the watch goes on."""
        metrics.WATCH_RESTARTS.labels("list").inc()
        self._versions = await self._cluster.versions(Kind(*self.kind))
        listing = await self._cluster.list(resource, metadata_only=not self.whole)
        self._lost_at = None
        rows: dict[str, dict[str, ObservedRow]] = {topic: {} for topic in self.topics}
        contents: dict[Name, Mapping[str, Any]] = {}
        items = listing.items
        if not listing.resource_version:
            items = items + await self._left_out(resource, items)
        self._names = {}
        for obj in items:
            name = self._note(obj)
            for row in rows_of(self.kind, obj, self.topics):
                rows[row.topic][row.key] = row
            if name in self.content:
                contents[name] = obj
        for topic in self.topics:
            self._write_list(topic, rows[topic])
        self._write_content(contents)
        self.observed = True
        return listing.resource_version

    def _write_list(self, topic: str, rows: dict[str, ObservedRow]) -> None:
        known = self._known[topic]
        fresh = [row for row in rows.values() if known.get(row.key) != row.digest]
        gone = [key for key in known if key not in rows]
        state, _, versions, _ = (self._markers.get(topic) or "|||").split("|", 3)
        if fresh or gone or state != "ok" or versions != ",".join(self._versions):
            self._epoch += 1
            self._mark_topic(topic, "syncing")
            for row in fresh:
                self._upsert(row)
            for key in gone:
                self._tombstone(topic, key)
            self._mark_topic(topic, "ok")

    def _note(self, obj: Mapping[str, Any]) -> Name:
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        self._names.setdefault(namespace, set()).add(name)
        return namespace, name

    def _upsert(self, row: ObservedRow) -> None:
        if self._known[row.topic].get(row.key) != row.digest:
            self._known[row.topic][row.key] = row.digest
            self._emit(Emission(row.topic, row.key, row.value, row.digest))

    def _tombstone(self, topic: str, key: str) -> None:
        if self._known[topic].pop(key, None) is not None:
            self._emit(Emission(topic, key, None, ""))

    def _write_content(self, contents: Mapping[Name, Mapping[str, Any]]) -> None:
        wanted = set()
        self._told |= self.content
        for namespace, name in sorted(self.content):
            if name:
                row = injectable_row(self.kind, namespace, name, contents.get((namespace, name)))
            else:
                row = presence_row(self.kind, namespace, exists=bool(self._names.get(namespace)))
            wanted.add(row.key)
            self._upsert(row)
        for key in [key for key in self._known[INJECTABLES] if key not in wanted]:
            self._tombstone(INJECTABLES, key)
        if self.content:
            self._mark_topic(INJECTABLES, "ok")

    # ------------------------------------------------------------ watching

    async def _watch(self, resource: Resource, version: str) -> None:
        """Follow the watch until it must be listed again; a stream that ends is resumed."""
        while True:
            metrics.WATCH_RESTARTS.labels("watch").inc()
            began = self._clock.monotonic()
            try:
                stream = self._cluster.watch(resource, version, metadata_only=not self.whole)
                async for event in stream:
                    self._lost_at = None
                    version = event.object["metadata"].get("resourceVersion") or version
                    self._take(event)
                self._lost_at = None
            except (TransientError, ConflictError) as exc:
                self._log.info("watch interrupted", kind=str(self.kind), error=str(exc))
                if self._clock.monotonic() - began > UNWATCHED_SECONDS:
                    self._lost_at = None  # it was there all the time, with nothing to tell
                if self._doubt():
                    return
                await self._clock.sleep(RESUME_SECONDS)
            await asyncio.sleep(0)

    def _take(self, event: WatchEvent) -> None:
        if event.type != "BOOKMARK":
            self._event(event.object, deleted=event.type == "DELETED")
            if self.kind == CRD:
                self._definitions_changed()

    def _event(self, obj: Mapping[str, Any], *, deleted: bool) -> None:
        namespace, name = self._note(obj)
        if deleted:
            self._names[namespace].discard(name)
            for row in rows_of(self.kind, obj, self.topics):
                self._tombstone(row.topic, row.key)
        else:
            for row in rows_of(self.kind, obj, self.topics):
                self._upsert(row)
        if (namespace, name) in self.content:
            self._told.add((namespace, name))
            self._upsert(injectable_row(self.kind, namespace, name, None if deleted else obj))
        if (namespace, "") in self.content:
            self._upsert(presence_row(self.kind, namespace, exists=bool(self._names[namespace])))

    # ------------------------------------------------------------ watching an aggregated API

    async def _watch_replays(self, resource: Resource) -> None:
        """Follow one watch, which begins with a replay; return when it is time to list again."""
        metrics.WATCH_RESTARTS.labels("watch").inc()
        until = self._clock.monotonic() + REPLAY_RELIST_SECONDS
        seen: set[Name] | None = set()
        stream = _Patient(self._cluster.watch(resource, "", metadata_only=not self.whole))
        try:
            while (now := self._clock.monotonic()) < until:
                event = await stream.next_within(REPLAY_SILENCE_SECONDS if seen is not None else until - now)
                if event is not None:
                    self._take(event)
                if seen is None:
                    continue
                if event is not None and event.type != "BOOKMARK":
                    meta = event.object["metadata"]
                    seen.add((meta.get("namespace", ""), meta["name"]))
                elif event is None or REPLAY_END in (event.object["metadata"].get("annotations") or {}):
                    await self._confirm_gone(resource, seen)
                    seen = None
        except StopAsyncIteration:
            await self._clock.sleep(RESUME_SECONDS)
        finally:
            await stream.close()

    def _known_names(self) -> set[Name]:
        keys = (parse_okey(key) for key in self._known[OBJECTS])
        return {(key.namespace, key.name) for key in keys}

    async def _left_out(self, resource: Resource, items: list[Any]) -> list[Any]:
        """Return the objects that are known, not in this list, and there all the same."""
        listed = {(o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in items}
        found = []
        for namespace, name in sorted(self._known_names() - listed):
            obj = await self._cluster.get(resource, namespace, name)
            if obj is not None:
                found.append(obj)
        return found

    async def _confirm_gone(self, resource: Resource, seen: set[Name]) -> None:
        """Ask for what a replay did not show; what is not found was deleted while nobody watched."""
        for namespace, name in sorted(self._known_names() - seen):
            obj = await self._cluster.get(resource, namespace, name)
            gone = {"metadata": {"namespace": namespace, "name": name}}
            self._event(gone if obj is None else obj, deleted=obj is None)


class _Patient:
    """A watch that can be waited for without ending it: cancelling an iterator's step would."""

    def __init__(self, stream: AsyncIterator[WatchEvent]) -> None:
        self._stream = stream
        self._step: asyncio.Future[WatchEvent] | None = None

    async def next_within(self, seconds: float) -> WatchEvent | None:
        """Return the next event, None when none came in time. Raises StopAsyncIteration at the end."""
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self._stream))
        await asyncio.wait({self._step}, timeout=seconds)
        if not self._step.done():
            return None
        step, self._step = self._step, None
        return step.result()

    async def close(self) -> None:
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait({self._step})
