"""One kind, observed: list, diff, mark, watch, and again.

Rows go to `emit` in the order that makes absence believable: `syncing` before the first row of a
list, upserts, tombstones of what is no longer there, then `ok`. A list that equals what the bus has
is no news: nothing is written, so a restart of a converged system writes nothing. A kind that is
not served is `unavailable`, which is something else than empty.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.observe import (
    WHOLE_KINDS,
    KindName,
    ObservedRow,
    injectable_row,
    presence_row,
    rows_of,
)
from pvbus.core.records import INJECTABLES, SyncMarker, sync_key
from pvbus.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster, GoneError, Kind, Resource
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

UNAVAILABLE_PROBE_SECONDS = 60.0
UNWATCHED_SECONDS = 30.0  # without a watch for so long, absence is no longer believed
BACKOFF_SECONDS = (0.2, 30.0)


class Emission(NamedTuple):
    """A row to write. partition None: to its key's partition; else to this one (markers)."""

    topic: str
    key: str
    value: bytes | None
    digest: str
    partition: int | None = None


Emit = Callable[[Emission], None]


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
        content: frozenset[tuple[str, str]],
    ) -> None:
        """known, markers: digests the bus has, per topic. content: (namespace, name) whose content is
        asked for; an empty name asks whether the namespace has any object of the kind."""
        self.kind = kind
        self.topics = topics
        self.content = content
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        self._partitions = partitions
        self._known = known
        self._markers = markers
        self._epoch = max((int(d.split("|")[1]) for d in markers.values() if d), default=0)
        self._names: dict[str, set[str]] = {}
        self._versions: tuple[str, ...] = ()
        self._live_resource: Resource | None = None
        self.observed = False  # whether it was listed once, or is known not to be served
        self._watched_at = clock.monotonic()
        self._probe = asyncio.Event()
        self._log = get_logger("ingest")

    # ------------------------------------------------------------ requests

    @property
    def whole(self) -> bool:
        """Whether bodies are needed, or metadata will do."""
        return self.kind in WHOLE_KINDS or bool(self.content)

    def probe(self) -> None:
        """Look again whether the kind is served: a CustomResourceDefinition changed."""
        self._probe.set()

    async def add_content(self, names: frozenset[tuple[str, str]]) -> bool:
        """Take on more named objects without listing again; False when that is not possible."""
        resource = self._live_resource
        if resource is None or not self.whole:
            return False
        self.content |= names
        for namespace, name in sorted(names):
            if name:
                obj = await self._cluster.get(resource, namespace, name)
                self._upsert(injectable_row(self.kind, namespace, name, obj))
            else:
                self._upsert(presence_row(self.kind, namespace, exists=bool(self._names.get(namespace))))
        self._mark_topic(INJECTABLES, "ok")
        return True

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        attempt = 0
        while True:
            try:
                resource = await self._cluster.resource(Kind(*self.kind))
                if resource is None:
                    await self._unavailable("")
                    continue
                version = await self._list(resource)
                attempt = 0
                self._live_resource = resource
                await self._watch(resource, version)
            except GoneError:
                metrics.WATCH_RESTARTS.labels("gone").inc()
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

    def _doubt(self) -> None:
        """Without a watch for a while, say that rows may be stale."""
        if self._clock.monotonic() - self._watched_at > UNWATCHED_SECONDS:
            for topic in self.topics:
                self._mark_topic(topic, "syncing")

    async def _unavailable(self, message: str) -> None:
        """Say so, and wait for a minute or a change of CustomResourceDefinitions."""
        message = message or f'no matches for kind "{self.kind.kind}" in group "{self.kind.group}"'
        for topic in (*self.topics, *((INJECTABLES,) if self.content else ())):
            self._mark_topic(topic, "unavailable", message)
        self.observed = True
        self._probe.clear()
        waiting = asyncio.create_task(self._probe.wait())
        timer = asyncio.create_task(self._clock.sleep(UNAVAILABLE_PROBE_SECONDS))
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
        self._watched_at = self._clock.monotonic()
        self._names = {}
        rows: dict[str, dict[str, ObservedRow]] = {topic: {} for topic in self.topics}
        contents: dict[tuple[str, str], Mapping[str, Any]] = {}
        for obj in listing.items:
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
        told_ok = self._markers.get(topic, "").split("|")
        if fresh or gone or told_ok[0] != "ok" or told_ok[2] != ",".join(self._versions):
            self._epoch += 1
            self._mark_topic(topic, "syncing")
            for row in fresh:
                self._upsert(row)
            for key in gone:
                self._tombstone(topic, key)
            self._mark_topic(topic, "ok")

    def _note(self, obj: Mapping[str, Any]) -> tuple[str, str]:
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

    def _write_content(self, contents: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
        wanted = set()
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
            try:
                stream = self._cluster.watch(resource, version, metadata_only=not self.whole)
                async for event in stream:
                    self._watched_at = self._clock.monotonic()
                    for topic in self.topics:
                        if self._markers[topic].startswith("syncing"):
                            self._mark_topic(topic, "ok")
                    version = event.object["metadata"].get("resourceVersion") or version
                    if event.type != "BOOKMARK":
                        self._event(event.object, deleted=event.type == "DELETED")
            except (TransientError, ConflictError) as exc:
                self._log.info("watch interrupted", kind=str(self.kind), error=str(exc))
                self._doubt()
                await self._clock.sleep(1.0)
            await asyncio.sleep(0)

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
            self._upsert(injectable_row(self.kind, namespace, name, None if deleted else obj))
        if (namespace, "") in self.content:
            self._upsert(presence_row(self.kind, namespace, exists=bool(self._names[namespace])))
