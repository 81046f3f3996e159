"""The ingest service: one watch per kind, spread over the group's leases, rows to the bus.

Every kind belongs to the lease of its partition: the static kinds always, others while `pvbus.watches`
has a request for them. Rows gather while a step is under way; of one key only the last counts, but no
row moves past a marker, or a kind would be marked complete too early. If the outcome of a step is
unknown, the lease's watches restart from the state of the bus. After a lease is revoked, its watches stay
for a while: they continue if it returns and no other worker held it in between.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from functools import partial

import msgspec

from pvbus.adapters.namespaces import NamespacedReader
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import CHECK_PREFIX, sync_key
from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.markers import marker_kind
from pvbus.core.kernel.objectrows import CRD, STATIC_KINDS, Emission, topics_of
from pvbus.core.kernel.records import (
    DLQ,
    INJECTABLES,
    INSTALLS,
    OBJECTS,
    POLICIES,
    SETS,
    VARIANTS,
    WATCHES,
    SyncMarker,
)
from pvbus.core.kernel.topics import row_partition
from pvbus.core.variants.ingest.published import unwanted, withdrawal
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Reader
from pvbus.runtime.backoff import uniform
from pvbus.runtime.ingest.definitions import Definitions
from pvbus.runtime.ingest.digests import PublishedDigests
from pvbus.runtime.ingest.informer import InformerShell
from pvbus.runtime.ingest.lease import IngestLease, IngestSteps, Watched
from pvbus.runtime.ingest.requests import check_request, watch_request
from pvbus.runtime.reconcile.holder import LeaseHolder
from pvbus.runtime.reconcile.reader import TableReader
from pvbus.runtime.reconcile.tables import checked_key, dead_letter
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

SETTLE_SECONDS = 0.05  # requests that arrive together are answered together


class IngestWorker:
    """Runs ingest for the leases it holds. `run` returns after `stop`.

    A restore goes in this order: read the requests; catch up with the rows on the bus; withdraw kinds without
    a request; start the watches. So a watch compares its first list with all rows that were written before. A
    lease that returns skips the first part, and its watches have gone on meanwhile.

    holder: its leases, and its membership in the group
    """

    name = "ingest"
    inputs: tuple[str, ...] = (WATCHES,)

    def __init__(
        self,
        bus: Bus,
        cluster: Reader,
        clock: Clock,
        *,
        partitions: int,
        jitter: Jitter = uniform,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        """Build a worker that holds no lease yet.

        partitions: the partition count of the topics
        jitter: the source of the randomness of all waits
        namespaces: the namespaces to observe; () for all
        """
        if namespaces:
            cluster = NamespacedReader(cluster, namespaces, clock, jitter=jitter)
        self._static_kinds = tuple(kind for kind in STATIC_KINDS if kind != CRD or not namespaces)
        self.partitions = partitions
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._log = get_logger(self.name)
        self._leases: dict[int, IngestLease] = {}
        mirrored = (OBJECTS, SETS, VARIANTS, POLICIES, INSTALLS, INJECTABLES)
        self._mirror = PublishedDigests(bus, clock, mirrored, partitions)
        self._mirroring = asyncio.Lock()
        self._table_reader = TableReader(bus, clock)
        self._jitter = jitter
        self._definitions = Definitions(
            cluster, clock, self._probe_all, jitter=jitter, is_permitted=not namespaces
        )
        make = partial(IngestLease, clock=clock)
        self.holder = LeaseHolder(self, make, bus, clock, self._table_reader, self._leases, jitter=jitter)
        self._steps = IngestSteps(bus, self._log, self.holder.interrupting)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        try:
            await self.holder.run(self.inputs, self._definitions.run())
        finally:
            await self._mirror.close()

    def stop(self) -> None:
        self.holder.stop()

    @property
    def ready(self) -> bool:
        return self.holder.ready

    @property
    def observed(self) -> bool:
        """Whether this worker has listed every requested kind, or knows that it is not served."""
        return self.ready and all(w.watch.observed for c in self._leases.values() for w in c.watches.values())

    @property
    def idle(self) -> bool:
        return self.ready and not any(
            c.pending or c.stepping or c.following or c.changed.is_set() for c in self._leases.values()
        )

    @property
    def next_timer_seconds(self) -> float | None:
        return None

    def leases(self) -> Mapping[int, IngestLease]:
        """Return the leases held, by partition (for lag and health)."""
        return self._leases

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._table_reader.positions

    @property
    def dirty_keys(self) -> int:
        return sum(c.dirty_count for c in self._leases.values())

    # ------------------------------------------------------------ leases

    async def restore(self, opened: IngestLease) -> None:
        await self._bus.committed(opened.lease, (WATCHES,))
        positions = opened.positions
        if positions is None:
            opened.clear()
            ends = await self._bus.end_offsets([(WATCHES, opened.lease.partition)])
            positions = await self._table_reader.replay(ends, partial(self._load, opened), opened.restoring)
        self._table_reader.assign(positions)
        self.holder.spawn(opened, self._steps.run(opened))
        await self._definitions.wait_asked()
        await self._catch_up_mirror()
        opened.answers.update(
            key
            for key in self._mirror.headed(OBJECTS, CHECK_PREFIX[:-1])
            if row_partition(WATCHES, key, self.partitions) == opened.lease.partition
        )
        await self._withdraw_unwanted(opened)
        await self._follow(opened)
        self.holder.spawn(opened, self._following(opened))

    async def read(self) -> None:
        await self._table_reader.poll(self._consume)

    async def drain(self, opened: IngestLease) -> None:
        """Cancel the lease's tasks: a step that began now would leave rows neither written nor pending."""
        for task in opened.tasks:
            task.cancel()
        if opened.tasks:
            await asyncio.wait(opened.tasks)

    def close(self, opened: IngestLease) -> None:
        opened.end_watches()

    async def _catch_up_mirror(self) -> None:
        """Catch up with the emitted rows on the bus; the first time, this is most of a restore."""

        def progress(read: int, total: int) -> None:
            for opened in self._leases.values():
                if not opened.restored:
                    opened.restoring(read, total)

        async with self._mirroring:
            await self._mirror.catch_up(progress)

    # ------------------------------------------------------------ requests

    def _load(self, opened: IngestLease, record: Record) -> None:
        """Apply a record during a restore: one that cannot be decoded already has its dead letter."""
        with contextlib.suppress(msgspec.MsgspecError, ValueError):
            self._take_request(opened, record)

    def _consume(self, record: Record) -> None:
        opened = self._leases.get(record.partition)
        if opened is not None:
            try:
                self._take_request(opened, record)
            except (msgspec.MsgspecError, ValueError) as exc:
                self._dead_letter(opened, record, exc)
            opened.changed.set()

    def _take_request(self, opened: IngestLease, record: Record) -> None:
        opened.note_progress()
        key = checked_key(record, self.partitions)
        if key.startswith(CHECK_PREFIX):
            self._take_check(opened, key, record.value)
        elif record.value is None:
            opened.requests.pop(key, None)
        else:
            opened.requests[key] = watch_request(key, record.value)

    @staticmethod
    def _take_check(opened: IngestLease, key: str, value: bytes | None) -> None:
        """Pass a check request, or its withdrawal, to the watch of its kind, if there is one."""
        before = opened.checks.pop(key, None)
        watched = opened.watches.get(Kind(before.group, before.kind)) if before else None
        if watched is not None:
            watched.watch.uncheck(key)
        if value is None:
            return
        check = opened.checks[key] = check_request(key, value)
        watched = opened.watches.get(Kind(check.group, check.kind))
        if watched is not None:
            watched.watch.check(key, check)

    def _dead_letter(self, opened: IngestLease, record: Record, error: Exception) -> None:
        """Write a record that cannot be decoded to the dead-letter topic, for a person to inspect."""
        metrics.DEAD_LETTERS.labels(WATCHES).inc()
        key = record.key.decode(errors="replace")
        row_key = {"partition": record.partition, "offset": record.offset}
        self._log.error("request cannot be decoded", key=key, error=str(error), **row_key)
        self._emit(opened, Emission(DLQ, key, encode_row(dead_letter(record, error)), ""))

    def _wanted(self, opened: IngestLease) -> dict[Kind, frozenset[tuple[str, str]]]:
        """Return the kinds of this lease, each with the objects whose content is requested."""
        wanted: dict[Kind, set[tuple[str, str]]] = {
            kind: set() for kind in self._static_kinds if self._partition_of(kind) == opened.lease.partition
        }
        for request in opened.requests.values():
            names = wanted.setdefault(Kind(request.group, request.kind), set())
            if request.content:
                names.add((request.namespace, request.name))
                names.add((request.namespace, ""))
        return {kind: frozenset(names) for kind, names in wanted.items()}

    def _topics(self, opened: IngestLease, kind: Kind) -> tuple[str, ...]:
        requesters = [r.requester for r in opened.requests.values() if Kind(r.group, r.kind) == kind]
        has_readers = any(not requester.startswith("resolve-") for requester in requesters)
        return topics_of(kind, requested=bool(requesters), has_readers=has_readers)

    def _partition_of(self, kind: Kind) -> int:
        return partition_of(str(kind), self.partitions)

    async def _following(self, opened: IngestLease) -> None:
        """Start, change and end watches as requests come and go."""
        with self.holder.interrupting(opened):
            while True:
                await opened.changed.wait()
                await self._clock.sleep(SETTLE_SECONDS)
                await self._follow(opened)

    async def _follow(self, opened: IngestLease) -> None:
        """Update the watches to the requests."""
        opened.changed.clear()
        opened.following = True
        wanted = self._wanted(opened)
        for key in sorted(opened.answers - opened.checks.keys()):
            self._emit(opened, Emission(OBJECTS, key, None, ""))
        for kind in [kind for kind in opened.watches if kind not in wanted]:
            watched = opened.watches.pop(kind)
            await self._cancel(watched)
            await self._withdraw(opened, kind, (*watched.watch.topics, INJECTABLES))
        for kind, content in wanted.items():
            await self._keep_watch(opened, kind, content)
        opened.following = False

    async def _keep_watch(self, opened: IngestLease, kind: Kind, content: frozenset[tuple[str, str]]) -> None:
        watched = opened.watches.get(kind)
        if watched is not None:
            watch, topics = watched.watch, self._topics(opened, kind)
            if watch.topics == topics:
                if watch.content == content:
                    return
                try:
                    if await watch.change_content(content):
                        return
                except (ConflictError, PermanentError, TransientError) as exc:
                    self._log.info("content cannot be read; listing again", kind=str(kind), error=str(exc))
            await self._cancel(watched)
            dropped = tuple(topic for topic in watch.topics if topic not in topics)
            if dropped:
                await self._withdraw(opened, kind, dropped)
        await self._start_watch(opened, kind, content)

    async def _start_watch(
        self, opened: IngestLease, kind: Kind, content: frozenset[tuple[str, str]]
    ) -> None:
        await opened.wait_until_flushed(self._clock)  # the mirror must have every emitted row
        await self._catch_up_mirror()
        topics = self._topics(opened, kind)
        known = {topic: self._mirror.of_kind(topic, str(kind)) for topic in (*topics, INJECTABLES)}
        marked = {topic: self._mirror.marker(topic, sync_key(*kind)) for topic in known}
        markers = {topic: marker for topic, marker in marked.items() if marker is not None}
        watch = InformerShell(
            kind,
            self._cluster,
            self._clock,
            partial(self._emit, opened),
            partitions=self.partitions,
            topics=topics,
            known=known,
            markers=markers,
            content=content,
            checks=opened.checks_of(kind),
            jitter=self._jitter,
        )
        opened.watches[kind] = Watched(watch, self.holder.start(watch.run()))

    @staticmethod
    async def _cancel(watched: Watched) -> None:
        watched.task.cancel()
        await asyncio.wait({watched.task})

    async def _withdraw_unwanted(self, opened: IngestLease) -> None:
        """Withdraw kinds that a former worker watched and that have no request any more.

        That worker may have ended before it withdrew them. Their rows would then count as current when the
        kind is requested again.
        """
        wanted = self._wanted(opened)
        topics = {kind: (*self._topics(opened, kind), INJECTABLES) for kind in wanted}
        for kind, left in unwanted(self._markers_of(opened), topics).items():
            await self._withdraw(opened, kind, tuple(left))

    def _markers_of(self, opened: IngestLease) -> Iterator[tuple[str, Kind, SyncMarker]]:
        """Yield (topic, kind, marker) of the kinds of a lease that it does not watch yet."""
        for topic, key in self._mirror.markers():
            group, _, name = marker_kind(key).partition("/")
            kind = Kind(group, name)
            marker = self._mirror.marker(topic, key)
            if marker and self._partition_of(kind) == opened.lease.partition and kind not in opened.watches:
                yield topic, kind, marker

    async def _withdraw(self, opened: IngestLease, kind: Kind, topics: tuple[str, ...]) -> None:
        """Write `unwatched`, then tombstones of the rows, in one step if they fit."""
        await opened.wait_until_flushed(self._clock)
        await self._catch_up_mirror()
        for topic in topics:
            marker = self._mirror.marker(topic, sync_key(*kind))
            if marker is None:
                continue
            keys = self._mirror.of_kind(topic, str(kind))
            for emission in withdrawal(topic, kind, marker, keys, self.partitions):
                self._emit(opened, emission)

    # ------------------------------------------------------------ rows

    def _emit(self, opened: IngestLease, emission: Emission) -> None:
        number = emission.partition
        if number is None:
            number = row_partition(emission.topic, emission.key, self.partitions)
        opened.add(emission.topic, emission.key, number, emission)

    def _probe_all(self, group: str) -> None:
        """Probe the watched kinds of a group, and all others that are not served."""
        self._cluster.forget_resources()
        for opened in (*self._leases.values(), *self.holder.retained.values()):
            for kind, watched in opened.watches.items():
                if kind.group == group or not watched.watch.is_served:
                    watched.watch.probe()
