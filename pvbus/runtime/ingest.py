"""The ingest service: one watch per kind, spread over the group's claims, rows to the bus.

Every kind belongs to the claim of its partition: the static kinds always, others while somebody
asks for them in `pvbus.watches`. Rows gather while a step is under way; of one key only the last
counts. When a step's outcome is unknown, the claim's watches begin again from what the bus has.
"""

import asyncio
from collections.abc import Mapping

import msgspec

from pvbus.core.ids import partition as partition_of
from pvbus.core.observe import CRD, STATIC_KINDS, KindName, topics_of
from pvbus.core.records import (
    INJECTABLES,
    OBJECTS,
    SETS,
    VARIANTS,
    WATCHES,
    SyncMarker,
    WatchRequest,
    partition_key,
    sync_key,
)
from pvbus.errors import FencedError, PermanentError, PvbusError, TransientError
from pvbus.ports.bus import Bus, Claim, Membership, Output, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.runtime.kindwatch import Emission, KindWatch
from pvbus.runtime.mirror import DIGEST_HEADER, Mirror
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

STEP_RECORDS_MAX = 2_000
SETTLE_SECONDS = 0.05  # requests that arrive together are answered together

_request = msgspec.json.Decoder(WatchRequest)


class Watched:
    """A running watch of one kind."""

    def __init__(self, watch: KindWatch, task: "asyncio.Task[None]") -> None:
        self.watch = watch
        self.task = task


class IngestClaim:
    """What one claim observes, and the rows that wait for a step."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.requests: dict[str, WatchRequest] = {}
        self.watches: dict[KindName, Watched] = {}
        self.pending: dict[tuple[str, str, int], Emission] = {}
        self.wake = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.ready = False
        self.changed = asyncio.Event()
        self.stepping = False


class IngestWorker:
    """Runs ingest for the claims it holds. `run` returns after `stop`."""

    name = "ingest"

    def __init__(self, bus: Bus, cluster: Cluster, clock: Clock, *, partitions: int) -> None:
        self.partitions = partitions
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._log = get_logger(self.name)
        self._claims: dict[int, IngestClaim] = {}
        self._mirror = Mirror(bus, (OBJECTS, SETS, VARIANTS, INJECTABLES), partitions)
        self._mirroring = asyncio.Lock()
        self._membership: Membership | None = None
        self._stopping = asyncio.Event()
        self._failed: BaseException | None = None
        self._reader = bus.reader()
        self._tasks: asyncio.TaskGroup | None = None

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                reading = tasks.create_task(self._reading())
                self._membership = await self._bus.join(
                    "pvbus-ingest", (WATCHES,), assigned=self._assigned, revoked=self._revoked
                )
                await self._stopping.wait()
                await self._membership.leave()
                reading.cancel()
        finally:
            await self._reader.close()
            await self._mirror.close()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def ready(self) -> bool:
        return bool(self._claims) and all(c.ready for c in self._claims.values())

    @property
    def observed(self) -> bool:
        """Whether every kind that is asked for was listed by this worker, or is known not to be served."""
        return self.ready and all(w.watch.observed for c in self._claims.values() for w in c.watches.values())

    @property
    def idle(self) -> bool:
        return self.ready and not any(
            c.pending or c.stepping or c.changed.is_set() for c in self._claims.values()
        )

    @property
    def next_timer_seconds(self) -> float | None:
        return None

    def positions(self) -> Mapping[TopicPartition, int]:
        return {
            (WATCHES, number): self._reader.position((WATCHES, number))
            for number, opened in self._claims.items()
            if opened.ready
        }

    @property
    def dirty_keys(self) -> int:
        return sum(len(c.pending) for c in self._claims.values())

    # ------------------------------------------------------------ claims

    async def _assigned(self, claim: Claim) -> None:
        opened = IngestClaim(claim)
        self._claims[claim.partition] = opened
        assert self._tasks is not None
        opened.tasks = [self._tasks.create_task(self._hold(opened))]

    async def _hold(self, opened: IngestClaim) -> None:
        """Restore the requests, then keep the watches and the stepper of one claim."""
        number = opened.claim.partition
        try:
            await self._restore(opened)
        except FencedError:
            return
        if self._claims.get(number) is not opened:
            return
        assert self._tasks is not None
        opened.tasks.append(self._tasks.create_task(self._stepping(opened)))
        opened.tasks.append(self._tasks.create_task(self._following(opened)))

    async def _restore(self, opened: IngestClaim) -> None:
        number = opened.claim.partition
        await self._bus.committed(opened.claim, (WATCHES,))
        end = (await self._bus.end_offsets([(WATCHES, number)]))[WATCHES, number]
        reader = self._bus.reader({(WATCHES, number): 0})
        try:
            while reader.position((WATCHES, number)) < end:
                for record in await reader.poll(timeout_seconds=1.0):
                    if record.offset < end:
                        self._take_request(opened, record.key.decode(), record.value)
        finally:
            await reader.close()
        async with self._mirroring:
            await self._mirror.catch_up()
        self._reader.assign({(WATCHES, number): end})

    async def _revoked(self, claim: Claim) -> None:
        opened = self._claims.pop(claim.partition, None)
        if opened is None:
            return
        self._reader.unassign([(WATCHES, claim.partition)])
        for watched in opened.watches.values():
            watched.task.cancel()
        for task in opened.tasks:
            task.cancel()

    async def _reopen(self, opened: IngestClaim) -> None:
        await self._clock.sleep(0.5)
        await self._revoked(opened.claim)
        if self._membership and opened.claim.partition in self._membership.claims():
            await self._assigned(self._membership.claims()[opened.claim.partition])

    # ------------------------------------------------------------ requests

    async def _reading(self) -> None:
        while True:
            for record in await self._reader.poll(timeout_seconds=1.0):
                opened = self._claims.get(record.partition)
                if opened is not None:
                    self._take_request(opened, record.key.decode(), record.value)
                    opened.changed.set()
            await asyncio.sleep(0)

    def _take_request(self, opened: IngestClaim, key: str, value: bytes | None) -> None:
        if value is None:
            opened.requests.pop(key, None)
            return
        try:
            opened.requests[key] = _request.decode(value)
        except msgspec.DecodeError as exc:
            metrics.DEAD_LETTERS.labels(WATCHES).inc()
            self._log.error("request cannot be decoded", key=key, error=str(exc))

    def _wanted(self, opened: IngestClaim) -> dict[KindName, frozenset[tuple[str, str]]]:
        """Return the kinds of this claim, each with the objects whose content is asked for."""
        wanted: dict[KindName, set[tuple[str, str]]] = {
            kind: set() for kind in STATIC_KINDS if self._place(kind) == opened.claim.partition
        }
        for request in opened.requests.values():
            names = wanted.setdefault(KindName(request.group, request.kind), set())
            if request.content:
                names.add((request.namespace, request.name))
                names.add((request.namespace, ""))
        return {kind: frozenset(names) for kind, names in wanted.items()}

    def _place(self, kind: KindName) -> int:
        return partition_of(str(kind), self.partitions)

    async def _following(self, opened: IngestClaim) -> None:
        """Start, change and end watches as requests come and go."""
        while True:
            opened.changed.clear()
            wanted = self._wanted(opened)
            for kind in [kind for kind in opened.watches if kind not in wanted]:
                await self._end_watch(opened, kind)
            for kind, content in wanted.items():
                await self._keep_watch(opened, kind, content)
            opened.ready = True
            await opened.changed.wait()
            await self._clock.sleep(SETTLE_SECONDS)

    async def _keep_watch(
        self, opened: IngestClaim, kind: KindName, content: frozenset[tuple[str, str]]
    ) -> None:
        watched = opened.watches.get(kind)
        if watched is not None:
            if watched.watch.content == content:
                return
            more = content - watched.watch.content
            try:
                if watched.watch.content < content and await watched.watch.add_content(more):
                    return
            except PvbusError as exc:
                self._log.info("content cannot be read; listing again", kind=str(kind), error=str(exc))
            await self._cancel(watched)
        await self._start_watch(opened, kind, content)

    async def _start_watch(
        self, opened: IngestClaim, kind: KindName, content: frozenset[tuple[str, str]]
    ) -> None:
        while opened.pending or opened.stepping:  # what the mirror shows must be what was emitted
            await self._clock.sleep(0.01)
        async with self._mirroring:
            await self._mirror.catch_up()
        topics = topics_of(
            kind, requested=any(KindName(r.group, r.kind) == kind for r in opened.requests.values())
        )
        known = {t: self._mirror.of_kind(t, f"{kind}|" if t == OBJECTS else "") for t in topics}
        known[INJECTABLES] = self._mirror.of_kind(INJECTABLES, f"{kind}|")
        markers = {t: self._mirror.marker(t, sync_key(*kind)) for t in (*topics, INJECTABLES)}
        watch = KindWatch(
            kind,
            self._cluster,
            self._clock,
            lambda emission: self._emit(opened, emission),
            partitions=self.partitions,
            topics=topics,
            known=known,
            markers=markers,
            content=content,
        )
        assert self._tasks is not None
        opened.watches[kind] = Watched(watch, self._tasks.create_task(watch.run()))

    @staticmethod
    async def _cancel(watched: Watched) -> None:
        watched.task.cancel()
        await asyncio.wait({watched.task})

    async def _end_watch(self, opened: IngestClaim, kind: KindName) -> None:
        """Say `unwatched` first, and drop the rows, in one step."""
        watched = opened.watches.pop(kind)
        await self._cancel(watched)
        while opened.pending or opened.stepping:
            await self._clock.sleep(0.01)
        async with self._mirroring:
            await self._mirror.catch_up()
        for topic in (*watched.watch.topics, INJECTABLES):
            told = self._mirror.marker(topic, sync_key(*kind))
            if not told:
                continue
            epoch = int(told.split("|")[1]) + 1
            value = msgspec.json.encode(SyncMarker(state="unwatched", epoch=epoch))
            for partition in range(self.partitions):
                mark = Emission(topic, sync_key(*kind), value, f"unwatched|{epoch}||", partition)
                self._emit(opened, mark)
            for key in self._mirror.of_kind(topic, f"{kind}|" if topic in (OBJECTS, INJECTABLES) else ""):
                self._emit(opened, Emission(topic, key, None, ""))

    # ------------------------------------------------------------ stepping

    def _emit(self, opened: IngestClaim, emission: Emission) -> None:
        if emission.topic == OBJECTS and emission.key.startswith(f"{CRD}|"):
            self._probe_all()
        number = emission.partition
        if number is None:
            number = partition_of(partition_key(emission.topic, emission.key), self.partitions)
        place = (emission.topic, emission.key, number)
        opened.pending.pop(place, None)  # the last place in the order is the one that counts
        opened.pending[place] = emission
        opened.wake.set()

    def _probe_all(self) -> None:
        self._cluster.forget_resources()
        for opened in self._claims.values():
            for watched in opened.watches.values():
                watched.watch.probe()

    async def _stepping(self, opened: IngestClaim) -> None:
        while True:
            await opened.wake.wait()
            opened.wake.clear()
            while opened.pending:
                places = list(opened.pending)[:STEP_RECORDS_MAX]
                outputs = [self._output(place, opened.pending.pop(place)) for place in places]
                opened.stepping = True
                try:
                    await self._bus.step(opened.claim, outputs)
                except FencedError:
                    self._log.info("claim lost", partition=opened.claim.partition)
                    return
                except TransientError as exc:
                    self._log.warning("outcome of a step unknown", error=str(exc))
                    assert self._tasks is not None
                    self._tasks.create_task(self._reopen(opened))
                    return
                except PermanentError as exc:
                    await self._step_each(opened, outputs, exc)
                finally:
                    opened.stepping = False
                metrics.STEPS.labels(self.name, "done").inc()
                for output in outputs:
                    metrics.RECORDS_WRITTEN.labels(output.topic).inc()

    async def _step_each(self, opened: IngestClaim, outputs: list[Output], error: Exception) -> None:
        """Leave out the row that is too large, and say which object it is."""
        for output in outputs:
            try:
                await self._bus.step(opened.claim, [output])
            except PermanentError:
                self._log.error(
                    "object is too large for the bus: make it smaller, or raise the bus's record limit",
                    topic=output.topic,
                    key=output.key.decode(),
                    error=str(error),
                )

    @staticmethod
    def _output(place: tuple[str, str, int], emission: Emission) -> Output:
        topic, key, number = place
        headers = ((DIGEST_HEADER, emission.digest.encode()),) if emission.digest else ()
        return Output(topic, number, key.encode(), emission.value, headers)
