"""A group member for the checks of the bus contract."""

from collections.abc import Awaitable, Callable, Sequence

from pvbus.ports.bus import Bus, Lease, Membership
from tests.kit.bus_contract import GROUP, PARTITIONS, TOPICS, Harness, ignore, settled


class Worker:
    """A member that records its assigned and revoked leases, and runs a check's code in its callbacks."""

    def __init__(self, harness: Harness, bus: Bus) -> None:
        self.harness = harness
        self.bus = bus
        self.membership: Membership | None = None
        self.given: list[Lease] = []
        self.taken: list[Lease] = []
        self.on_assigned: Callable[[Lease], Awaitable[None]] = ignore
        self.on_revoked: Callable[[Lease], Awaitable[None]] = ignore

    @classmethod
    async def open(cls, harness: Harness) -> "Worker":
        bus = await harness.open()
        await bus.create_topics(TOPICS)
        return cls(harness, bus)

    async def join(self) -> "Worker":
        self.membership = await self.bus.join(
            GROUP, ["table"], assigned=self._assigned, revoked=self._revoked
        )
        return self

    async def _assigned(self, lease: Lease) -> None:
        self.given.append(lease)
        await self.on_assigned(lease)

    async def _revoked(self, lease: Lease) -> None:
        await self.on_revoked(lease)
        self.taken.append(lease)

    def leases(self) -> dict[int, Lease]:
        return dict(self.membership.leases()) if self.membership else {}

    async def leave(self) -> None:
        assert self.membership
        await self.membership.leave()

    async def holds(self, count: int, within_seconds: float) -> None:
        await settled(lambda: len(self.leases()) == count, within_seconds, f"a worker holds {count} leases")


async def all_owned(workers: Sequence[Worker], within_seconds: float) -> None:
    """Wait until every partition has one holder among these workers, and loads differ by at most one."""

    def is_so() -> bool:
        held = [number for worker in workers for number in worker.leases()]
        loads = [len(worker.leases()) for worker in workers]
        return sorted(held) == list(range(PARTITIONS)) and max(loads) - min(loads) <= 1

    await settled(is_so, within_seconds, "every partition has one owner, and all have their shares")
