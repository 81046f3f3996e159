"""Faults from one seed: a cluster and a bus that misbehave as real ones do, one view per worker.

What the real thing promises stays true: preconditions hold, one key's events stay in order, a watch
resumes where it ended. Everything else may go wrong, and `Faults.calm` ends it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pvbus.adapters.embedded.bus import SqliteBus
from pvbus.adapters.embedded.bus_reader import SqliteReader
from pvbus.adapters.embedded.cluster import MemoryCluster
from pvbus.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.bus import Claim, Output, Record, TopicPartition
from pvbus.ports.cluster import GoneError, Kind, Listing, Object, Resource, WatchEvent
from pvbus.testing.clock import FreezableClock

T = TypeVar("T")
LATE_SECONDS = (5.0, 40.0)
"""When a request that its sender has given up is carried out after all."""


class Faults:
    """How often what goes wrong: shares of calls, 0 to 1, the same for all workers.

    The names say what the caller meets; `lost` is a write that was applied and answered with an error,
    `late` one that is applied long after its sender was told that it failed.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.conflict = self.throttled = self.unavailable = self.lost = self.late = self.slow = 0.0
        self.ended = self.gone = self.repeated = self.bus = 0.0
        self.throttled_until: dict[str, float] = {}
        self.broken: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def storm(self) -> None:
        """Make everything go wrong now and then."""
        self.conflict = self.throttled = self.unavailable = self.lost = 0.03
        self.late, self.slow, self.ended, self.repeated = 0.02, 0.05, 0.05, 0.1
        self.gone, self.bus = 0.02, 0.01

    def calm(self) -> None:
        """End all faults. What was sent late may still arrive; `settle` waits for it."""
        self.conflict = self.throttled = self.unavailable = self.lost = self.late = self.slow = 0.0
        self.ended = self.gone = self.repeated = self.bus = 0.0

    async def settle(self) -> None:
        while self.tasks:
            await asyncio.wait(self.tasks)

    def hits(self, share: float) -> bool:
        return share > 0 and self.random.random() < share

    def later(self, work: Awaitable[object]) -> None:
        async def arrive() -> None:
            await asyncio.sleep(self.random.uniform(*LATE_SECONDS))
            try:
                await work
            except (ConflictError, PermanentError, TransientError):
                return  # nobody listens any more

        task = asyncio.ensure_future(arrive())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class FaultyCluster:
    """One worker's view of a cluster. Implements `pvbus.ports.cluster.Cluster`.

    worker: its name. strict: whether it must honour Retry-After and never write one object twice at once.
    """

    def __init__(
        self, cluster: MemoryCluster, clock: FreezableClock, faults: Faults, worker: str, *, strict: bool
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._faults = faults
        self._worker = worker
        self._strict = strict
        self._writing: set[tuple[str, str, str, str]] = set()
        self.calls = 0

    async def _call(self, work: Callable[[], Awaitable[T]], *, write: bool) -> T:
        faults, now = self._faults, self._clock.monotonic()
        self.calls += 1
        if self._strict and now < faults.throttled_until.get(self._worker, 0.0):
            faults.broken.append(f"{self._worker} sent a request while told to wait, at {now:.3f}")
        await asyncio.sleep(faults.random.uniform(0.001, 0.02))
        if faults.hits(faults.slow):
            await asyncio.sleep(faults.random.uniform(0.5, 8.0))
        if faults.hits(faults.throttled):
            seconds = float(faults.random.randint(1, 3))
            faults.throttled_until[self._worker] = self._clock.monotonic() + seconds
            raise TransientError("429 TooManyRequests", retry_after_seconds=seconds)
        if faults.hits(faults.unavailable):
            raise TransientError("503 ServiceUnavailable")
        if write and faults.hits(faults.conflict):
            raise ConflictError("409 Conflict")
        if write and faults.hits(faults.late):
            faults.later(work())
            raise TransientError("timeout, and the request is still under way")
        try:
            result = await work()
        finally:
            await self._clock.sleep(faults.random.uniform(0.001, 0.02))  # a frozen worker hears later
        if write and faults.hits(faults.lost):
            raise TransientError("connection reset after the write")
        return result

    async def _write(
        self, resource: Resource, obj: Object, subresource: str, work: Callable[[], Awaitable[T]]
    ) -> T:
        meta = obj["metadata"]
        place = (resource.kind, meta.get("namespace", ""), meta.get("name", ""), subresource)
        if self._strict and place in self._writing and place[2]:
            self._faults.broken.append(f"{self._worker} writes {place} twice at once")
        self._writing.add(place)
        try:
            return await self._call(work, write=True)
        finally:
            self._writing.discard(place)

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
    ) -> Listing:
        def work() -> Awaitable[Listing]:
            return self._cluster.list(
                resource, namespace, label_selector=label_selector, field_selector=field_selector
            )

        await self._served(resource)
        return await self._call(work, write=False)

    async def _served(self, resource: Resource) -> None:
        if await self._cluster.resource(Kind(resource.group, resource.kind)) is None:
            raise PermanentError("404: the server could not find the requested resource", reason="NotFound")

    async def watch(
        self, resource: Resource, resource_version: str, *, metadata_only: bool = False
    ) -> AsyncIterator[WatchEvent]:
        faults, version = self._faults, resource_version
        await self._served(resource)
        if faults.hits(faults.gone):
            raise GoneError("410: too old resource version")
        while True:
            batch = await self._events(resource, version)
            await self._served(resource)
            if batch:
                version = batch[-1].object["metadata"]["resourceVersion"]
            for event in self._mixed(batch):
                await self._clock.sleep(faults.random.uniform(0.0, 0.02))
                yield event
            if faults.hits(faults.ended):
                return
            if faults.hits(faults.unavailable):
                raise TransientError("watch: connection reset")
            if faults.hits(faults.gone):
                raise GoneError("410: too old resource version")

    async def _events(self, resource: Resource, version: str) -> Sequence[WatchEvent]:
        """Wait for events, at most a minute; none of a server that stopped serving the kind."""
        found = []
        kind = Kind(resource.group, resource.kind)

        async def read() -> None:
            async for event in self._cluster.watch(resource, version):
                found.append(event)
                if len(found) == 1:
                    asyncio.get_running_loop().call_later(0.01, reading.cancel)

        reading = asyncio.ensure_future(read())
        for _ in range(60):
            await asyncio.wait({reading}, timeout=1.0)
            if reading.done() or await self._cluster.resource(kind) is None:
                break
        reading.cancel()
        await asyncio.wait({reading})
        return found

    def _mixed(self, batch: Sequence[WatchEvent]) -> Sequence[WatchEvent]:
        """Let keys overtake each other, and repeat what was told before; one key stays in order."""
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

    async def create(self, resource: Resource, obj: Object) -> Object:
        return await self._write(resource, obj, "", lambda: self._cluster.create(resource, obj))

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        return await self._write(
            resource, obj, subresource, lambda: self._cluster.update(resource, obj, subresource=subresource)
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
        obj = {"metadata": {"namespace": namespace, "name": name}}
        return await self._write(
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
        propagation: str = "Background",
    ) -> bool:
        obj = {"metadata": {"namespace": namespace, "name": name}}
        return await self._write(
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
    """A reader of a bus that cannot be reached now and then."""

    faults: Faults

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        records = await super().poll(timeout_seconds=timeout_seconds, max_records=max_records)
        if records and self.faults.hits(self.faults.bus):
            raise TransientError("bus: the answer was lost")
        return records


class FaultyBus(SqliteBus):
    """A peer whose steps fail now and then, before or after they were committed."""

    faults: Faults

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> SqliteReader:
        reader = FaultyReader(self._store)
        reader.faults = self.faults
        reader.assign(positions or {})
        return reader

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: no answer")
        return await super().end_offsets(partitions)

    async def step(
        self, claim: Claim, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: not sent")
        await super().step(claim, outputs, offsets)
        if self.faults.hits(self.faults.bus):
            raise TransientError("bus: the answer was lost")
