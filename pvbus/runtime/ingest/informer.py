"""One kind, observed: list, diff, mark, watch, and again.

Rows go to `emit` in the order that makes absence believable: `syncing` before the first row of a
list, upserts, tombstones of what is no longer there, then `ok`. A list that equals what the bus has
is no news: nothing is written, so a restart of a converged system writes nothing. A kind that is
not served is `unavailable`, which is something else than empty.

A check request (`pvbus.core.ingest.checks`) is answered after a read that began after it arrived. Few
names are read one by one. A read object whose resourceVersion is the last one seen proves that every older
event of it is here already, and that its rows are up to date. Anything else (another version, not found)
says only that the watch is behind. resourceVersions have no order, so nothing would distinguish older events
that are still to come from newer ones; then, and for whole kinds, the kind is listed, its difference is
written as at every list, and the watch goes on from the list's version. The answer follows these rows.

A list without a resourceVersion comes from an aggregated API such as Porch's, which promises less:
it may leave objects out, its watches begin with everything that is there, and deletions may go
untold. There, an object is gone only when it is asked for by name and not found.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.ingest.checks import CHECK_RETRY_SECONDS, Batch, Checks, names_of
from pvbus.core.ingest.published import Emission, Emit, KindRows, Name
from pvbus.core.ingest.rows import (
    WHOLE_KINDS,
    KindName,
    ObservedRow,
    injectable_row,
    presence_row,
    rows_of,
)
from pvbus.core.keys import okey
from pvbus.core.records import INJECTABLES, OBJECTS, CheckAnswer, CheckRequest, SyncMarker
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster, GoneError, Kind, Resource, SilentError, WatchEvent
from pvbus.runtime.backoff import Backoff, Jitter, uniform
from pvbus.runtime.failures import causes
from pvbus.runtime.ingest.patience import Patient
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

UNAVAILABLE_PROBE_SECONDS = 60.0
DEFINED_PROBE_SECONDS = 1.0  # a definition is told before it is served: look again soon, then ever later
UNWATCHED_SECONDS = 30.0  # without a watch for so long, absence is no longer believed
BACKOFF_SECONDS = (0.2, 30.0)
RESUME_SECONDS = (0.2, 5.0)  # between two tries of a watch: many of them before its rows are in doubt
STEADY_SECONDS = 5.0  # a watch that ends sooner is begun again with a backoff: it may end at once for ever
NAMES_MAX = 10  # so many objects are read by name, or this share of the kind: beyond, a list costs less
NAMES_SHARE_MAX = 0.02
READS_INFLIGHT_MAX = 8
REPLAY_SILENCE_SECONDS = 5.0  # a replay that sends no bookmark is over when nothing came for so long
REPLAY_RELIST_SECONDS = 600.0  # how long a deletion that was never told can go unnoticed
REPLAY_END = "k8s.io/initial-events-end"


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
        markers: dict[str, SyncMarker],
        content: frozenset[Name],
        checks: Batch | None = None,
        jitter: Jitter = uniform,
    ) -> None:
        """known, markers: digests the bus has, per topic. content: (namespace, name) whose content is
        asked for; an empty name asks whether the namespace has any object of the kind. checks: the check
        requests of this kind that are open already."""
        self.kind = kind
        self.topics = topics
        self.content = content
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        self._rows = KindRows(kind, emit, partitions=partitions, known=known, markers=markers)
        self._versions_seen: dict[str, dict[str, str]] = {}  # namespace -> name -> resourceVersion
        self._told: set[Name] = set()
        self._live_resource: Resource | None = None
        self.observed = False  # whether it was listed once, or is known not to be served
        self._position = ""
        self._trouble = ""
        self._listed_at = math.inf
        self._lost_at: float | None = None
        self._jitter = jitter
        self._list_backoff = Backoff(*BACKOFF_SECONDS, jitter)
        self._watch_backoff = Backoff(*RESUME_SECONDS, jitter)
        self._probe = asyncio.Event()
        self._patience_seconds = UNAVAILABLE_PROBE_SECONDS
        self._look_at = math.inf
        self._look_seconds = DEFINED_PROBE_SECONDS
        self._attention = asyncio.Event()
        self._checks = Checks()
        self._log = get_logger("ingest")
        for key, request in (checks or {}).items():
            self.check(key, request)

    # ------------------------------------------------------------ requests

    @property
    def whole(self) -> bool:
        """Whether bodies are needed, or metadata will do."""
        return self.kind in WHOLE_KINDS or bool(self.content)

    @property
    def is_served(self) -> bool:
        return self._live_resource is not None

    def probe(self) -> None:
        """Look again how the kind is served, and in which versions: its definition changed."""
        self._patience_seconds = self._look_seconds = DEFINED_PROBE_SECONDS
        self._look_at = self._clock.monotonic()
        self._probe.set()
        self._attention.set()

    def check(self, key: str, request: CheckRequest) -> None:
        """Answer a check request by a read that begins after this."""
        self._checks.ask(key, request, self._clock.monotonic())
        self._attention.set()

    def uncheck(self, key: str) -> None:
        self._checks.drop(key)

    def recheck(self, key: str, request: CheckRequest) -> None:
        """Answer a check request again, later: what the read had found could not be written."""
        self.check(key, request)
        self._checks.failed(self._clock.monotonic())

    async def change_content(self, content: frozenset[Name]) -> bool:
        """Follow other named objects without listing again; False when that is not possible."""
        resource = self._live_resource
        if resource is None or not self.whole or not (content or self.kind in WHOLE_KINDS):
            return False
        more, less = content - self.content, self.content - content
        self.content = content
        for namespace, name in less:
            self._rows.tombstone(INJECTABLES, okey(*self.kind, namespace, name))
        for namespace, name in sorted(more):
            if not name:
                self._rows.upsert(presence_row(self.kind, namespace, exists=self._has_any(namespace)))
                continue
            self._told.discard((namespace, name))
            obj = await self._cluster.get(resource, namespace, name)
            if (namespace, name) not in self._told:  # else the watch was quicker, and knows better
                self._rows.upsert(injectable_row(self.kind, namespace, name, obj))
        if content:
            self._rows.mark(INJECTABLES, "ok")
        return True

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        while True:
            self._probe.clear()  # before the question: one that comes while it is asked must count
            try:
                resource = await self._cluster.resource(Kind(*self.kind))
                if resource is None:
                    await self._unavailable("")
                    continue
                is_replaying = await self._list(resource)
                self._listed_at = self._clock.monotonic()
                self._live_resource = resource
                await self._watch(resource, is_replaying=is_replaying)
            except GoneError:
                metrics.WATCH_RESTARTS.labels("gone").inc()
                await self._clock.sleep(self._list_delay())
            except PermanentError as exc:
                await self._unavailable(str(exc))
            except (TransientError, ConflictError) as exc:
                delay = self._list_delay(exc)
                self._log.warning(
                    "kind cannot be read; trying again",
                    kind=str(self.kind),
                    error=str(exc),
                    retry_seconds=delay,
                )
                metrics.WATCH_RESTARTS.labels("error").inc()
                self._doubt()
                await self._clock.sleep(delay)
            finally:
                self._live_resource = None

    def _list_delay(self, error: Exception | None = None) -> float:
        """Return when to list again. A list whose watch ended at once counts as a failure."""
        if self._clock.monotonic() - self._listed_at > STEADY_SECONDS:
            self._list_backoff.reset()
        self._listed_at = math.inf
        return self._list_backoff.next_seconds(error)

    def _doubt(self) -> bool:
        """Note that there is no watch; after a while, say that rows may be stale, and return True."""
        now = self._clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at <= UNWATCHED_SECONDS:
            return False
        for topic in self.topics:
            self._rows.mark(topic, "syncing")
        return True

    async def _unavailable(self, message: str) -> None:
        """Say so, and wait for a while or a change of CustomResourceDefinitions."""
        message = message or f'no matches for kind "{self.kind.kind}" in group "{self.kind.group}"'
        self._live_resource = None
        for topic in (*self.topics, *((INJECTABLES,) if self.content else ())):
            self._rows.mark(topic, "unavailable", message)
        self.observed = True
        if message != self._trouble:
            self._trouble = message
            self._log.warning("kind cannot be observed", kind=str(self.kind), reason=message)
        patience = self._patience_seconds
        self._patience_seconds = min(UNAVAILABLE_PROBE_SECONDS, 2 * patience)
        await self._first(self._probe, patience - self._jitter(0, patience / 10))
        self._cluster.forget_resources()

    async def _first(
        self, event: asyncio.Event, seconds: float, task: "asyncio.Task[None] | None" = None
    ) -> None:
        """Wait for an event, a time or a task, whatever comes first."""
        waiting: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait())]
        if seconds < math.inf:
            waiting.append(asyncio.create_task(self._clock.sleep(seconds)))
        try:
            await asyncio.wait([*waiting, *((task,) if task else ())], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    # ------------------------------------------------------------ listing

    async def _list(self, resource: Resource) -> bool:
        """List, write the difference under markers, and answer the requests that were open before.

        The watch goes on from here. Returns whether it will replay everything, as the list has no version.
        """
        metrics.WATCH_RESTARTS.labels("list").inc()
        batch = self._checks.open_now()
        versions = await self._cluster.versions(Kind(*self.kind))
        listing = await self._cluster.list(resource, metadata_only=not self.whole)
        items = listing.items
        if not listing.resource_version:
            items = items + await self._left_out(resource, items, names_of(batch) or ())
        self._lost_at = None
        self._rows.versions = versions
        self._position = listing.resource_version
        rows: dict[str, dict[str, ObservedRow]] = {topic: {} for topic in self.topics}
        contents: dict[Name, Mapping[str, Any]] = {}
        self._versions_seen = {}
        for obj in items:
            name = self._note(obj)
            for row in rows_of(self.kind, obj, self.topics):
                rows[row.topic][row.key] = row
            if name in self.content:
                contents[name] = obj
        for topic in self.topics:
            self._rows.replace(topic, rows[topic])
        self._write_content(contents)
        self.observed = True
        self._answer(batch)
        if self._trouble:
            self._trouble = ""
            self._log.info("kind is observed again", kind=str(self.kind))
        return not listing.resource_version

    def _answer(self, batch: Batch) -> None:
        for key, request in self._checks.close(batch, self._clock.monotonic()):
            value = msgspec.json.encode(CheckAnswer(nonce=request.nonce))
            self._emit(Emission(OBJECTS, key, value, request.nonce))

    def _note(self, obj: Mapping[str, Any]) -> Name:
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        self._versions_seen.setdefault(namespace, {})[name] = meta.get("resourceVersion", "")
        return namespace, name

    def _has_any(self, namespace: str) -> bool:
        return bool(self._versions_seen.get(namespace))

    def _write_content(self, contents: Mapping[Name, Mapping[str, Any]]) -> None:
        wanted = set()
        self._told |= self.content
        for namespace, name in sorted(self.content):
            if name:
                row = injectable_row(self.kind, namespace, name, contents.get((namespace, name)))
            else:
                row = presence_row(self.kind, namespace, exists=self._has_any(namespace))
            wanted.add(row.key)
            self._rows.upsert(row)
        for key in [key for key in self._rows.keys(INJECTABLES) if key not in wanted]:
            self._rows.tombstone(INJECTABLES, key)
        if self.content:
            self._rows.mark(INJECTABLES, "ok")

    # ------------------------------------------------------------ watching

    async def _watch(self, resource: Resource, *, is_replaying: bool) -> None:
        """Follow the watch, and read for check requests meanwhile, until it must be listed again."""
        follow = self._follow_replays if is_replaying else self._follow
        while True:
            following = asyncio.create_task(follow(resource))
            try:
                if not await self._read_beside(following, resource):
                    return
            finally:
                following.cancel()
                await asyncio.wait({following})
            if not following.cancelled():
                following.result()  # it has ended meanwhile: an error is the caller's
            try:
                await self._list(resource)
            except (TransientError, ConflictError) as exc:  # the watch goes on from where it was
                self._check_failed(exc)

    async def _read_beside(self, following: "asyncio.Task[None]", resource: Resource) -> bool:
        """Answer check requests by name while the watch is followed.

        Returns True when the list must be read for them. Returns False, or raises what the watch raised,
        when the watch has ended, or the kind is served in other versions than before.
        """
        while True:
            self._attention.clear()
            now = self._clock.monotonic()
            due, look = self._checks.seconds_until_due(now), self._look_at - now
            if following.done():
                following.result()
                return False
            if look <= 0:
                if await self._has_other_versions():
                    return False
            elif due > 0:
                await self._first(self._attention, min(due, look), following)
            elif not await self._answer_by_name(resource):
                return True

    async def _has_other_versions(self) -> bool:
        """Look whether the kind is served in other versions; discovery follows a definition after a while."""
        seconds = self._look_seconds
        self._look_at = self._clock.monotonic() + seconds - self._jitter(0, seconds / 2)
        self._look_seconds *= 2
        if self._look_seconds > 2 * UNAVAILABLE_PROBE_SECONDS:
            self._look_at = math.inf
        self._cluster.forget_resources()
        try:
            return await self._cluster.versions(Kind(*self.kind)) != self._rows.versions
        except (TransientError, ConflictError, PermanentError) as exc:
            self._log.info("versions cannot be read", kind=str(self.kind), error=str(exc))
            return False

    async def _answer_by_name(self, resource: Resource) -> bool:
        """Answer the open requests if they name a few objects that are as they were seen."""
        batch = self._checks.open_now()
        names = names_of(batch)
        count = sum(len(versions) for versions in self._versions_seen.values())
        if names is None or len(names) > max(NAMES_MAX, int(count * NAMES_SHARE_MAX)):
            return False
        gate = asyncio.Semaphore(READS_INFLIGHT_MAX)

        async def is_as_seen(namespace: str, name: str) -> bool:
            async with gate:
                obj = await self._cluster.get(resource, namespace, name)
                return obj is not None and self._is_seen(obj)

        try:
            async with asyncio.TaskGroup() as tasks:
                reads = [tasks.create_task(is_as_seen(*name)) for name in sorted(names)]
        except ExceptionGroup as group:
            match next(causes(group)):
                case TransientError() | ConflictError() as error:
                    self._check_failed(error)
                    return True
                case PermanentError():  # there may be the right to list, and none to get
                    return False
            raise
        if all(read.result() for read in reads):
            self._answer(batch)
            return True
        return False

    def _is_seen(self, obj: Mapping[str, Any]) -> bool:
        """Tell whether an object is the one whose rows were written last."""
        meta = obj["metadata"]
        version = meta.get("resourceVersion", "")
        seen = self._versions_seen.get(meta.get("namespace", ""), {}).get(meta["name"])
        rows = rows_of(self.kind, obj, self.topics)
        return bool(version) and seen == version and all(self._rows.is_written(row) for row in rows)

    def _check_failed(self, error: Exception) -> None:
        self._log.warning("check request cannot be answered yet", kind=str(self.kind), error=str(error))
        asked = error.retry_after_seconds if isinstance(error, TransientError) else None
        wait = max(CHECK_RETRY_SECONDS, asked or 0.0)
        self._checks.failed(self._clock.monotonic(), self._jitter(wait, 1.1 * wait))

    async def _follow(self, resource: Resource) -> None:
        """Follow the watch until it must be listed again; a stream that ends is resumed."""
        while True:
            metrics.WATCH_RESTARTS.labels("watch").inc()
            began = sign_at = self._clock.monotonic()
            error: Exception | None = None
            try:
                stream = self._cluster.watch(resource, self._position, metadata_only=not self.whole)
                async for event in stream:
                    self._lost_at, sign_at = None, self._clock.monotonic()
                    self._position = event.object["metadata"].get("resourceVersion") or self._position
                    self._take(event)
            except (TransientError, ConflictError) as exc:
                self._log.info("watch interrupted", kind=str(self.kind), error=str(exc))
                error = exc
            lasted = self._clock.monotonic() - began
            if isinstance(error, SilentError):  # a quiet kind or a dead connection: the next try shows which
                self._lost_at = sign_at
            elif lasted > (UNWATCHED_SECONDS if error else STEADY_SECONDS):
                self._lost_at = None  # it was there all the time, with nothing to tell
            elif self._doubt():
                return
            if lasted > STEADY_SECONDS:
                self._watch_backoff.reset()
            if lasted <= STEADY_SECONDS or (error and not isinstance(error, SilentError)):
                await self._clock.sleep(self._watch_backoff.next_seconds(error))
            await asyncio.sleep(0)

    def _take(self, event: WatchEvent) -> None:
        if event.type != "BOOKMARK":
            self._event(event.object, deleted=event.type == "DELETED")

    def _event(self, obj: Mapping[str, Any], *, deleted: bool) -> None:
        namespace, name = self._note(obj)
        if deleted:
            del self._versions_seen[namespace][name]
            for row in rows_of(self.kind, obj, self.topics):
                self._rows.tombstone(row.topic, row.key)
        else:
            for row in rows_of(self.kind, obj, self.topics):
                self._rows.upsert(row)
        if (namespace, name) in self.content:
            self._told.add((namespace, name))
            self._rows.upsert(injectable_row(self.kind, namespace, name, None if deleted else obj))
        if (namespace, "") in self.content:
            self._rows.upsert(presence_row(self.kind, namespace, exists=self._has_any(namespace)))

    # ------------------------------------------------------------ watching an aggregated API

    async def _follow_replays(self, resource: Resource) -> None:
        """Follow one watch, which begins with a replay; return when it is time to list again."""
        metrics.WATCH_RESTARTS.labels("watch").inc()
        until = self._clock.monotonic() + REPLAY_RELIST_SECONDS
        seen: set[Name] | None = set()
        stream = Patient(self._cluster.watch(resource, "", metadata_only=not self.whole))
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
        except (StopAsyncIteration, SilentError):
            await self._clock.sleep(self._list_delay())
        finally:
            await stream.close()

    async def _left_out(self, resource: Resource, items: list[Any], asked: Iterable[Name]) -> list[Any]:
        """Return the objects that are known or asked about, not in this list, and there all the same."""
        listed = {(o["metadata"].get("namespace", ""), o["metadata"]["name"]) for o in items}
        found = []
        for namespace, name in sorted((self._rows.names(self.topics) | set(asked)) - listed):
            obj = await self._cluster.get(resource, namespace, name)
            if obj is not None:
                found.append(obj)
        return found

    async def _confirm_gone(self, resource: Resource, seen: set[Name]) -> None:
        """Ask for what a replay did not show; what is not found was deleted while nobody watched."""
        for namespace, name in sorted(self._rows.names(self.topics) - seen):
            obj = await self._cluster.get(resource, namespace, name)
            gone = {"metadata": {"namespace": namespace, "name": name}}
            self._event(gone if obj is None else obj, deleted=obj is None)
