"""Faults from one seed: a cluster and a bus that misbehave like real ones, one view per worker.

The real guarantees stay true: preconditions hold, one key's events stay in order, a watch resumes where it
ended. Everything else may go wrong; `Faults.calm` ends the faults.

Once a request is sent, the server carries it out independently of the sending process, which may be frozen
or killed meanwhile. A killed process sends nothing. Readers see the partitions of the bus at different
times: a partition that has grown may lag.
"""

import asyncio
import contextvars
import copy
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.reader import SqliteReader
from pvbus.adapters.sqlite.store import Store
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.errors import FORBIDDEN, ConflictError, PermanentError, TransientError
from pvbus.ports.bus import Lease, Output, Record, TopicPartition
from pvbus.ports.cluster import Cluster, GoneError, Kind, Listing, Object, Resource, WatchEvent
from tests.kit.clocks import ProcessClock
from tests.kit.processes import Process, outside

T = TypeVar("T")
LATE_SECONDS = (5.0, 40.0)
"""Delay until a request that its sender has given up is carried out after all."""
LAG_SECONDS = (0.1, 4.0)
"""Delay until a lagging partition shows its new records."""


class Faults:
    """The rates of the faults: shares of calls, 0 to 1, the same for all workers.

    Each is named after its effect on the caller; `lost` is a write that was applied and answered with an
    error, `late` one that is applied long after its sender got an error. lag: of a partition that has
    grown, for one reader. replays: watches of Porch's aggregated kinds ignore the given version and begin
    with all objects, and its lists have no version; the real server does so, and `calm` leaves it on.
    partial: of its lists that lack an object. counts: what went wrong, by name.
    granted: the namespaces that ingest may read; None for all, and for cluster-scoped kinds.
    refuses: whether the bus refuses a record, as one does whose file is damaged where the record belongs;
    neither `storm` nor `calm` changes it.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.readers = itertools.count()
        self.counts: Counter[str] = Counter()
        self.conflict = self.throttled = self.unavailable = self.lost = self.late = self.slow = 0.0
        self.ended = self.gone = self.repeated = self.bus = self.lag = self.partial = 0.0
        self.replays = False
        self.granted: set[str] | None = None
        self.refuses: Callable[[Output], bool] = lambda output: False
        self.throttled_until: dict[str, float] = {}
        self.broken: list[str] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    def storm(self) -> None:
        """Set every fault to a small rate."""
        self.conflict = self.throttled = self.unavailable = self.lost = 0.03
        self.late, self.slow, self.ended, self.repeated = 0.02, 0.05, 0.05, 0.1
        self.gone, self.bus, self.lag = 0.02, 0.01, 0.2
        self.partial = 0.1

    def calm(self) -> None:
        """End all faults. Late requests may still arrive; `settle` waits for them."""
        self.conflict = self.throttled = self.unavailable = self.lost = self.late = self.slow = 0.0
        self.ended = self.gone = self.repeated = self.bus = self.lag = self.partial = 0.0

    async def settle(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)

    def hits(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def served(self, serving: "asyncio.Task[Any]") -> None:
        """Forget a request; its sender handles the error, unless it is gone."""
        self.tasks.discard(serving)
        if not serving.cancelled():
            serving.exception()

    def later(self, work: Awaitable[object]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(self.random.uniform(*LATE_SECONDS))
            try:
                await work
            except (ConflictError, PermanentError, TransientError):
                return  # the sender no longer waits

        task = outside(arrive())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class FaultyCluster:
    """One worker's view of a cluster. Implements `pvbus.ports.cluster.Cluster`.

    strict: whether the worker must honour Retry-After and never write one object twice at once. on_send:
    called when the worker sends a write, before any delay: (verb, object, subresource).
    """

    def __init__(
        self,
        cluster: MemoryCluster,
        clock: ProcessClock,
        faults: Faults,
        process: Process,
        *,
        strict: bool,
        on_send: Callable[[str, Object, str], None] = lambda verb, obj, subresource: None,
    ) -> None:
        self._cluster: Cluster = cluster
        self._clock = clock
        self._faults = faults
        self._process = process
        self._worker = process.name
        self._strict = strict
        self._on_send = on_send
        self._writing: set[tuple[str, str, str, str]] = set()
        self.calls = 0

    async def _call(self, work: Callable[[], Awaitable[T]], *, write: bool) -> T:
        """Send a request, and wait for its response without a timeout."""
        faults, now = self._faults, self._clock.monotonic()
        self.calls += 1
        if self._strict and now < faults.throttled_until.get(self._worker, 0.0):
            faults.broken.append(f"{self._worker} sent a request before its Retry-After passed, at {now:.3f}")
        await asyncio.sleep(faults.random.uniform(0.001, 0.02))  # frozen here: sent later
        if self._process.dead:
            raise TransientError("the process was killed")
        serving = outside(self._serve(work, write=write))
        faults.tasks.add(serving)
        serving.add_done_callback(faults.served, context=contextvars.Context())
        try:
            return await asyncio.shield(serving)
        except TransientError as exc:
            if exc.retry_after_seconds is not None:  # it counts from when the worker reads it
                until = self._clock.monotonic() + exc.retry_after_seconds
                faults.throttled_until[self._worker] = until
            raise

    async def _serve(self, work: Callable[[], Awaitable[T]], *, write: bool) -> T:
        """Do the network's and the server's part, independently of the sender."""
        faults = self._faults
        await asyncio.sleep(faults.random.uniform(0.001, 0.02))
        if faults.hits(faults.slow):
            await asyncio.sleep(faults.random.uniform(0.5, 8.0))
        if faults.hits(faults.throttled):
            seconds = float(faults.random.randint(1, 3))
            raise TransientError("429 TooManyRequests", retry_after_seconds=seconds)
        if faults.hits(faults.unavailable):
            raise TransientError("503 ServiceUnavailable")
        if write and faults.hits(faults.conflict):
            raise ConflictError("409 Conflict")
        if write and faults.hits(faults.late):
            faults.later(work())
            raise TransientError("timeout, and the request is still in flight")
        result = await work()
        await asyncio.sleep(faults.random.uniform(0.001, 0.02))
        if write and faults.hits(faults.lost):
            raise TransientError("connection reset after the write")
        return result

    async def _write(
        self,
        verb: str,
        resource: Resource,
        obj: Object,
        subresource: str,
        work: Callable[[], Awaitable[T]],
    ) -> T:
        meta = obj["metadata"]
        target = (resource.kind, meta.get("namespace", ""), meta.get("name", ""), subresource)
        if self._strict and target in self._writing and target[2]:
            self._faults.broken.append(f"{self._worker} writes {target} twice at once")
        self._writing.add(target)
        self._on_send(verb, obj, subresource)
        try:
            return await self._call(work, write=True)
        finally:
            self._writing.discard(target)

    # ------------------------------------------------------------ the port

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        return await self._cluster.resource(kind, version=version)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        return await self._cluster.versions(kind)

    def forget_resources(self) -> None:
        self._cluster.forget_resources()

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        is_followed: bool = False,
        keep: Callable[[Object], Object] | None = None,
    ) -> Listing:
        async def work() -> Listing:
            found = await self._cluster.list(
                *(resource, namespace),
                label_selector=label_selector,
                field_selector=field_selector,
                keep=keep,
            )
            return self._as_porch_lists(found) if self._is_replayed(resource) else found

        await self._served(resource)
        self._permit(resource, namespace)
        return await self._call(work, write=False)

    def _permit(self, resource: Resource, namespace: str | None) -> None:
        """Refuse what the roles of ingest do not cover. Raises PermanentError."""
        granted = self._faults.granted
        if not self._strict and granted is not None and namespace not in granted:
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise PermanentError(f"403: {resource.plural} is forbidden {where}", reason=FORBIDDEN)

    def _is_replayed(self, resource: Resource) -> bool:
        return self._faults.replays and resource.group == PORCH_GROUP

    def _as_porch_lists(self, found: Listing) -> Listing:
        """Return a list like Porch's: without a version, and sometimes without an object."""
        items = list(found.items)
        if items and not self._strict and self._faults.hits(self._faults.partial):
            self._faults.counts["lists without an object"] += 1
            del items[self._faults.random.randrange(len(items))]
        return Listing("", items)

    async def _served(self, resource: Resource) -> None:
        if await self._cluster.resource(Kind(resource.group, resource.kind)) is None:
            raise PermanentError("404: the server could not find the requested resource", reason="NotFound")

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        faults, version = self._faults, resource_version
        await self._served(resource)
        self._permit(resource, namespace)
        if faults.hits(faults.gone):
            raise GoneError("410: too old resource version")
        if self._is_replayed(resource):
            faults.counts["watches replayed"] += 1
            listing = await self._cluster.list(resource, namespace)
            version = listing.resource_version
            for obj in listing.items:
                await self._clock.sleep(faults.random.uniform(0.0, 0.02))
                yield WatchEvent("ADDED", obj)
        while True:
            batch = await self._events(resource, version)
            await self._served(resource)
            self._permit(resource, namespace)
            if batch:
                version = batch[-1].object["metadata"]["resourceVersion"]
            for event in self._mixed(batch):
                if namespace not in (None, event.object["metadata"].get("namespace", "")):
                    continue
                await self._clock.sleep(faults.random.uniform(0.0, 0.02))
                yield event
            if faults.hits(faults.ended):
                return
            if faults.hits(faults.unavailable):
                raise TransientError("watch: connection reset")
            if faults.hits(faults.gone):
                raise GoneError("410: too old resource version")

    async def _events(self, resource: Resource, version: str) -> Sequence[WatchEvent]:
        """Wait for events, at most a minute; the watch ends if the server stops serving the kind."""
        found: list[WatchEvent] = []

        async def read() -> None:
            async for event in self._cluster.watch(resource, version):
                found.append(event)
                if len(found) == 1:
                    asyncio.get_running_loop().call_later(0.01, reading.cancel)

        reading = asyncio.ensure_future(read())
        try:
            await asyncio.wait({reading}, timeout=60.0)
        finally:
            reading.cancel()
        await asyncio.wait({reading})
        if not found and not reading.cancelled() and (error := reading.exception()) is not None:
            raise error
        return found

    def _mixed(self, batch: Sequence[WatchEvent]) -> Sequence[WatchEvent]:
        """Reorder events of different keys, and repeat some; events of one key stay in order."""
        faults = self._faults
        if not faults.hits(faults.repeated * 5):
            return list(batch)
        by_key: dict[tuple[str, str], list[WatchEvent]] = {}
        for event in batch:
            meta = event.object["metadata"]
            events = by_key.setdefault((meta.get("namespace", ""), meta["name"]), [])
            events.append(event)
            if faults.hits(faults.repeated):
                events.append(event)
        mixed = []
        while by_key:
            key = faults.random.choice(sorted(by_key))
            mixed.append(by_key[key].pop(0))
            if not by_key[key]:
                del by_key[key]
        return mixed

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return await self._call(lambda: self._cluster.get(resource, namespace, name), write=False)

    def acting(self, *, as_user: str = "", is_dry_run: bool = False) -> "FaultyCluster":
        other = copy.copy(self)
        other._cluster = self._cluster.acting(as_user=as_user, is_dry_run=is_dry_run)
        return other

    async def create(self, resource: Resource, obj: Object) -> Object:
        return await self._write("create", resource, obj, "", lambda: self._cluster.create(resource, obj))

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        return await self._write(
            "update",
            resource,
            obj,
            subresource,
            lambda: self._cluster.update(resource, obj, subresource=subresource),
        )

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        obj = {"kind": resource.kind, "metadata": {"namespace": namespace, "name": name}, "patch": patch}
        return await self._write(
            "patch",
            resource,
            obj,
            subresource,
            lambda: self._cluster.patch(resource, namespace, name, patch, subresource=subresource),
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
    ) -> bool:
        obj = {"kind": resource.kind, "metadata": {"namespace": namespace, "name": name, "uid": uid}}
        return await self._write(
            "delete",
            resource,
            obj,
            "",
            lambda: self._cluster.delete(
                resource, namespace, name, uid=uid, resource_version=resource_version
            ),
        )

    async def close(self) -> None:
        return


class FaultyReader(SqliteReader):
    """A reader of a bus that is sometimes unreachable, and whose partitions lag independently."""

    faults: Faults

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._lagging: set[int] = set()
        self.number = 0

    def __hash__(self) -> int:
        return self.number  # the store keeps readers in a set: its order must not depend on addresses

    __eq__ = object.__eq__

    def note_growth(self, lane: int) -> None:
        """Show a lane's new records, now or after a lag. The order within a lane stays."""
        if lane in self._lagging:
            return
        if not self.faults.hits(self.faults.lag):
            super().note_growth(lane)
            return
        self.faults.counts["partitions lagging"] += 1
        self._lagging.add(lane)
        seconds = self.faults.random.uniform(*LAG_SECONDS)
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self._shown, lane, context=contextvars.Context())

    def _shown(self, lane: int) -> None:
        self._lagging.discard(lane)
        if lane in self._positions:
            super().note_growth(lane)

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        records = await super().poll(timeout_seconds=timeout_seconds, max_records=max_records)
        if records and self.faults.hits(self.faults.bus):
            raise TransientError("bus: the answer was lost")
        return records


class FaultyBus(SqliteBus):
    """A peer bus whose steps sometimes fail, before or after their commit.

    process: the process of this peer; None outside of all. on_step: called with the outputs of each
    committed step. step_records_max: recommended size of a step; a small one splits outcomes into chunks.
    """

    faults: Faults
    process: Process | None = None
    step_records_max = SqliteBus.step_records_max
    on_step: Callable[[Lease, Sequence[Output]], None] = staticmethod(lambda lease, outputs: None)

    def _alive(self) -> None:
        if self.process is not None and self.process.dead:
            raise TransientError("the process was killed")

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> SqliteReader:
        reader = FaultyReader(self._store)
        reader.faults, reader.number = self.faults, next(self.faults.readers)
        reader.assign(positions or {})
        return reader

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: no answer")
        return await super().end_offsets(partitions)

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        await asyncio.sleep(0)
        self._alive()
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: not sent")
        if any(map(self.faults.refuses, outputs)):
            raise PermanentError("the bus's file is damaged", reason="Corrupt")
        await super().step(lease, outputs, offsets)
        self.on_step(lease, outputs)
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: the answer was lost")
