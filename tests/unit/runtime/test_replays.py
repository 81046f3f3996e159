"""Replays: any number of tables through one reader, each as if it were alone."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from pvbus.errors import TransientError
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.runtime.replays import Replays

ENDS: Mapping[TopicPartition, int] = {("a", 0): 7, ("a", 1): 3, ("b", 0): 0, ("b", 1): 5}
GAPS = {("a", 0): {2, 6}}
"""What compaction took, the last one before an end among it."""
BATCH = 2


class LogReader:
    """Reads logs of one record per offset, two records of a partition at a time, and some beyond any end."""

    def __init__(self, bus: "LogBus") -> None:
        self.bus = bus
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.is_closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self.positions.update(positions)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        assert self.positions.keys() >= set(partitions)
        self.paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused.difference_update(partitions)

    def position(self, partition: TopicPartition) -> int:
        return self.positions[partition]

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        assert not self.is_closed
        assert not self.bus.is_polled, "polls must not overlap"
        self.bus.is_polled = True
        try:
            await asyncio.sleep(0)
        finally:
            self.bus.is_polled = False
        records: list[Record] = []
        for place, position in self.positions.items():
            if place not in self.paused:
                self.positions[place] = position + BATCH
                offsets = set(range(position, position + BATCH)) - GAPS.get(place, set())
                records += [Record(*place, offset, b"key", b"value") for offset in sorted(offsets)]
        if self.bus.failures:  # after the positions moved, as at a lost answer
            self.bus.failures -= 1
            raise TransientError("no answer")
        return records

    async def close(self) -> None:
        self.is_closed = True


class LogBus:
    def __init__(self) -> None:
        self.readers: list[LogReader] = []
        self.is_polled = False
        self.failures = 0

    def reader(self) -> LogReader:
        self.readers.append(LogReader(self))
        return self.readers[-1]


class Table:
    """Replays some partitions, and keeps what was applied and told."""

    def __init__(self, replays: Replays, *places: TopicPartition) -> None:
        self.ends = {place: ENDS[place] for place in places}
        self.found: list[tuple[str, int, int]] = []
        self.progress: list[tuple[int, int]] = []
        self._replays = replays

    async def replay(self) -> None:
        await self._replays.replay(self.ends, self._take, lambda *told: self.progress.append(told))

    def _take(self, record: Record) -> None:
        self.found.append((record.topic, record.partition, record.offset))

    def check(self) -> None:
        """Everything before the ends was applied, in order within each partition, and once."""
        wanted = {
            (*place, offset)
            for place, end in self.ends.items()
            for offset in set(range(end)) - GAPS.get(place, set())
        }
        assert set(self.found) == wanted
        assert len(self.found) == len(wanted)
        for place in self.ends:
            offsets = [offset for *where, offset in self.found if tuple(where) == place]
            assert offsets == sorted(offsets)
        total = sum(self.ends.values())
        assert self.progress[0] == (0, total)
        assert self.progress[-1] == (total, total)
        assert self.progress == sorted(self.progress)


@pytest.fixture
def bus() -> LogBus:
    return LogBus()


@pytest.fixture
def replays(bus: LogBus) -> Replays:
    return Replays(cast(Bus, cast(Any, bus)))


async def test_replays_of_one_moment_share_a_reader(bus: LogBus, replays: Replays) -> None:
    """Each is given its own records up to its own ends; the reader goes with the last of them."""
    tables = [Table(replays, *places) for places in ([("a", 0), ("b", 0)], [("a", 1)], [("b", 1)])]
    await asyncio.gather(*(table.replay() for table in tables))
    for table in tables:
        table.check()
    assert [reader.is_closed for reader in bus.readers] == [True]
    again = Table(replays, ("a", 0))
    await again.replay()
    again.check()


async def test_nothing_to_read_needs_no_reader(bus: LogBus, replays: Replays) -> None:
    """Empty tables are restored at once."""
    table = Table(replays, ("b", 0))
    await table.replay()
    table.check()
    assert bus.readers == []


@pytest.mark.parametrize("turns", range(1, 8))
async def test_one_that_comes_later_is_read_along(bus: LogBus, replays: Replays, turns: int) -> None:
    """Whenever it comes, both are whole."""
    first, second = Table(replays, ("a", 0)), Table(replays, ("a", 1), ("b", 1))
    running = asyncio.create_task(first.replay())
    for _ in range(turns):
        await asyncio.sleep(0)
    await second.replay()
    await running
    first.check()
    second.check()
    assert all(reader.is_closed for reader in bus.readers)


@pytest.mark.parametrize("turns", range(1, 8))
@pytest.mark.parametrize("ended", [0, 1, 2])
async def test_one_that_ends_early_leaves_the_others_alone(
    bus: LogBus, replays: Replays, turns: int, ended: int
) -> None:
    """A claim that goes takes nothing with it, even while it reads for all; and may come again at once."""
    tables = [Table(replays, place) for place in (("a", 0), ("a", 1), ("b", 1))]
    running = [asyncio.create_task(table.replay()) for table in tables]
    for _ in range(turns):
        await asyncio.sleep(0)
    running[ended].cancel()
    await asyncio.wait({running[ended]})
    tables[ended] = Table(replays, *tables[ended].ends)
    await tables[ended].replay()
    await asyncio.gather(*(task for task in running if not task.cancelled()))
    for table in tables:
        table.check()
    assert all(reader.is_closed for reader in bus.readers)


@pytest.mark.parametrize("failures", [1, 2])
async def test_an_error_ends_who_met_it_and_costs_the_others_nothing(
    bus: LogBus, replays: Replays, failures: int
) -> None:
    """What was fetched and not given out before the error is read again."""
    tables = [Table(replays, place) for place in (("a", 0), ("a", 1), ("b", 1))]
    running = [asyncio.create_task(table.replay()) for table in tables]
    for _ in range(3):
        await asyncio.sleep(0)
    bus.failures = failures
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert [isinstance(end, TransientError) for end in ends].count(True) == failures
    for table, end in zip(tables, ends, strict=True):
        if end is None:
            table.check()
    assert all(reader.is_closed for reader in bus.readers)
