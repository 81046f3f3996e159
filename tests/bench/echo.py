"""A cluster that is not there: writes are answered, and what was written is echoed onto the bus.

It stands in for the API server and for ingest where only the services between them are measured. It
keeps no object.
"""

import asyncio
import itertools
from types import TracebackType
from typing import Any, Self

from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.objectrows import POLICY, VARIANT, rows_of, topics_of
from pvbus.core.kernel.records import VARIANTS
from pvbus.core.kernel.topics import partition_key
from pvbus.ports.bus import Bus, Lease, Output
from pvbus.ports.cluster import Kind, Listing, Object, Resource
from pvbus.runtime.process.assembly import partition_count

ECHO_RECORDS_MAX = 2_000


class BusWriter:
    """Writes rows under a lease of a group of its own. An async context manager."""

    def __init__(self, bus: Bus, group: str) -> None:
        self._bus = bus
        self._group = group
        self._partitions = partition_count()
        self._lease: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._membership: Any = None

    async def __aenter__(self) -> Self:
        self._membership = await self._bus.join(
            self._group, [VARIANTS], assigned=self._assigned, revoked=self._revoked
        )
        await self._lease
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._membership.leave()

    async def _assigned(self, lease: Lease) -> None:
        if not self._lease.done():
            self._lease.set_result(lease)

    async def _revoked(self, lease: Lease) -> None:
        """There is one member only: the lease goes when it leaves."""

    def to_everywhere(self, topic: str, key: str, value: bytes) -> list[Output]:
        return [Output(topic, number, key.encode(), value) for number in range(self._partitions)]

    def output(self, topic: str, key: str, value: bytes | None) -> Output:
        return Output(topic, partition_of(partition_key(topic, key), self._partitions), key.encode(), value)

    async def write(self, outputs: list[Output]) -> None:
        for first in range(0, len(outputs), ECHO_RECORDS_MAX):
            await self._bus.step(self._lease.result(), outputs[first : first + ECHO_RECORDS_MAX])


class EchoCluster:
    """The part of `pvbus.ports.cluster.Cluster` that render needs to create PackageVariants, and rollout to
    write the status of RolloutPolicies and to keep their specs."""

    def __init__(self, bus: Bus, *, active: bool, answer_seconds: float = 0.0) -> None:
        """active: False where nobody writes, so no lease is taken. answer_seconds: the time of a create."""
        self._answer_seconds = answer_seconds
        self.created_bytes_max = 0
        self._writer = BusWriter(bus, "bench-echo") if active else None
        self._numbers = itertools.count(1)
        self._pending: list[Output] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._writer is not None:
            await self._writer.__aenter__()
            self._task = asyncio.create_task(self._echo(self._writer))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None and self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            await self._writer.__aexit__(kind, error, trace)

    async def _echo(self, writer: BusWriter) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            rows, self._pending = self._pending, []
            await writer.write(rows)

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        return Resource(kind.group, version or "v1alpha1", kind.kind, f"{kind.kind.lower()}s", True)

    async def create(self, resource: Resource, obj: Object) -> Object:
        if self._answer_seconds:
            await asyncio.sleep(self._answer_seconds)
        number = next(self._numbers)
        meta = {
            **obj["metadata"],
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number),
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        stored = {**obj, "metadata": meta}
        if resource.kind == VARIANT.kind:
            self._tell(VARIANT, stored)
        return stored

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return None

    async def list(self, resource: Resource, namespace: str | None = None, **selectors: Any) -> Listing:
        return Listing("1", [])

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        stored = {**obj, "metadata": {**obj["metadata"], "resourceVersion": f"e{next(self._numbers)}"}}
        self._tell(POLICY, stored)
        return stored

    def _tell(self, kind: Kind, stored: Object) -> None:
        assert self._writer is not None
        for row in rows_of(kind, stored, topics_of(kind, requested=False)):
            value = row.value or b""
            self.created_bytes_max = max(self.created_bytes_max, len(value))
            self._pending.append(self._writer.output(row.topic, row.key, value))
        self._wake.set()
