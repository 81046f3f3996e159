"""The bus contract, on the SQLite bus in memory and in a file, in virtual time."""

import asyncio
import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.membership import SqliteMembership
from pvbus.adapters.sqlite.reader import SqliteReader
from pvbus.core.errors import FencedError
from pvbus.ports.bus import Assigned, GroupState, Lease, Output, Revoked, TopicPartition
from tests.contract.bus.harness import FileHarness, MemoryHarness
from tests.kit import bus_contract, bus_contract_churn, bus_contract_groups
from tests.kit.bus_contract import Check
from tests.kit.processes import run_simulated

CHECKS = bus_contract.CHECKS | bus_contract_groups.CHECKS | bus_contract_churn.CHECKS


def run(check: Check, harness: MemoryHarness) -> list[dict[str, Any]]:
    """Run a check; return the errors that nobody took notice of."""
    unnoticed: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unnoticed.append(context))
        try:
            await check(harness)
        finally:
            await harness.close()

    try:
        run_simulated(main())
    finally:
        gc.collect()  # tasks whose errors nobody took are reported when they go
    return unnoticed


@pytest.fixture(params=["memory", "file"])
def make_harness(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., MemoryHarness]:
    """A harness for the bus, or for a subclass of it that is given."""
    if request.param == "memory":
        return MemoryHarness
    return lambda *args: FileHarness(tmp_path / "bus.db", *args)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract(check: Check, make_harness: Callable[..., MemoryHarness]) -> None:
    """Every check holds (its docstring is the claim), and no task fails unnoticed."""
    assert run(check, make_harness()) == []


# The suite finds what it is there to find: for each known defect, a bus that has it, and the checks
# that must fail on it.


class TwoTransactions(SqliteBus):
    """Commits the outputs first, and the offset in a transaction of its own."""

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        await super().step(lease, outputs)
        await super().step(lease, (), offsets)


class OffsetBeforeFence(SqliteBus):
    """Reads a lease's offsets when it joins, before older epochs have been fenced."""

    async def join(self, group: str, topics: Sequence[str], **callbacks: Any) -> SqliteMembership:
        self.early = {n: self._store.committed(group, n)[1] for n in range(bus_contract.PARTITIONS)}
        return await super().join(group, topics, **callbacks)

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        await super().committed(lease, topics)
        return {topic: self.early[lease.partition].get(topic, 0) for topic in topics}


class NoFence(SqliteBus):
    """Lets any epoch step: takes the newest one there is."""

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        epoch = self._store.epoch(lease.group, lease.partition) or 0
        await super().step(msgspec.structs.replace(lease, epoch=epoch), outputs, offsets)


class NoBarrier(SqliteBus):
    """Frees a lease at once, and runs `revoked` when somebody else may hold it."""

    async def join(
        self, group: str, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> SqliteMembership:
        async def later(lease: Lease) -> None:
            self.late = asyncio.create_task(quietly(lease))

        async def quietly(lease: Lease) -> None:
            with contextlib.suppress(FencedError):
                await revoked(lease)

        return await super().join(group, topics, assigned=assigned, revoked=later)


class OffsetsMayGoBack(SqliteBus):
    """Moves offsets wherever a step says."""

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        for topic in offsets or {}:
            self._store.db.execute("DELETE FROM offsets WHERE topic = ?", (topic,))
        await super().step(lease, outputs, offsets)


class SizeCheckedLate(SqliteBus):
    """Writes the records before an oversize one."""

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        for output in outputs:
            await super().step(lease, [output])
        await super().step(lease, (), offsets)


class TombstonesGoAtOnce(SqliteBus):
    """Forgets a tombstone as soon as it is written."""

    def _now_ms(self) -> int:
        self._store.db.execute("UPDATE log SET expires_ms = 0 WHERE value IS NULL")
        return super()._now_ms()


class DeafReaders(SqliteBus):
    """Wakes readers only when they look again by themselves."""

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> SqliteReader:
        reader = super().reader(positions)
        reader.note_growth = lambda lane: None  # type: ignore[method-assign]  # the defect to find
        return reader


class DescribesOnce(SqliteBus):
    """Tells of a group what it saw when it was first asked."""

    async def describe(self, group: str, topics: Sequence[str]) -> GroupState:
        self.seen: GroupState = getattr(self, "seen", None) or await super().describe(group, topics)
        return self.seen


DEFECTS: tuple[tuple[type[SqliteBus], str], ...] = (
    (TwoTransactions, "outputs_and_offset_together"),
    (TwoTransactions, "crash_at_every_await"),
    (OffsetBeforeFence, "offsets_are_read_after_the_fence"),
    (NoFence, "old_lease_cannot_step"),
    (NoFence, "churn_3"),
    (NoBarrier, "revoke_barrier"),
    (NoBarrier, "churn_1"),
    (OffsetsMayGoBack, "offsets_are_monotone"),
    (SizeCheckedLate, "failed_step_leaves_nothing"),
    (TombstonesGoAtOnce, "tombstones_stay_and_go"),
    (DeafReaders, "readers_wake_at_once"),
    (DescribesOnce, "groups_are_described"),
)


@pytest.mark.parametrize(("defect", "name"), DEFECTS, ids=lambda value: getattr(value, "__name__", value))
def test_the_contract_finds(
    defect: type[SqliteBus], name: str, make_harness: Callable[..., MemoryHarness]
) -> None:
    """A bus with this defect fails this check, by a claim of the check and by nothing else."""
    with pytest.raises(AssertionError):
        run(CHECKS[name], make_harness(defect))
