"""Tracks applied positions, waits for offsets, and detects stale tables.

A position counts when the records before it were applied to the tables, not when they arrived.
Compaction leaves gaps, so it is the reader's position that tells, never the last record's offset.

Compaction takes a record away as soon as its key is written again. Who reads up to where a partition ended
a while ago may meet neither: the older record is gone, and the newer one is behind that end. So the ends
are asked for again, until they have been read already.

Tombstones go some time after they were written. Tables that lack something written half of that time
ago may never hear of a deletion, so from then on `poll` refuses to add to them.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pvbus.core.errors import TransientError
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.clock import Stopwatch

POLL_SECONDS = 1.0
LOOK_SECONDS = 60.0  # how often it is looked whether reading keeps up: one request; far below any limit
ROUNDS_MAX = 10  # a partition that always grows must not keep anybody waiting; later rounds take milliseconds
STALE_SECONDS = 43_200.0  # where no topic says how long it keeps tombstones


class StaleError(Exception):
    """The tables were behind for too long: they must be emptied and read from the beginning."""


class _Goal(NamedTuple):
    """Where partitions ended once. Whoever has read so far has all that is older than `asked` says."""

    asked: Stopwatch
    ends: Mapping[TopicPartition, int]


class _Waiter:
    """Who waits until partitions are read up to these ends. is_lost: one of them is read no more."""

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = ends
        self.over = asyncio.Event()
        self.is_lost = False


class TableReader:
    """One reader, the positions that are applied, and who waits for them."""

    def __init__(self, bus: Bus, clock: Clock, *, pausable: Iterable[str] = ()) -> None:
        """pausable: the topics that `pause` stops."""
        self._bus = bus
        self._clock = clock
        self._reader = bus.reader()
        self._waiting: list[_Waiter] = []
        self._pausable = frozenset(pausable)
        self.is_paused = False
        self._held_back: set[TopicPartition] = set()
        self._looked: Stopwatch | None = None
        self._goal: _Goal | None = None
        self._fresh = Stopwatch(clock)  # everything that was written before this was made is applied
        self._stale_seconds = STALE_SECONDS
        self.positions: dict[TopicPartition, int] = {}

    async def close(self) -> None:
        await self._reader.close()

    # ------------------------------------------------------------ what is read

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        if not self.positions:
            self._fresh, self._goal, self._looked = Stopwatch(self._clock), None, None
        self._reader.assign(positions)
        self.positions.update(positions)
        self._release()

    def unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions. Unknown partitions are ignored."""
        known = [partition for partition in partitions if partition in self.positions]
        if known:
            self._reader.unassign(known)
            for partition in known:
                del self.positions[partition]
            self._held_back.difference_update(known)
            for waiter in self._waiting:
                if not waiter.ends.keys().isdisjoint(known):
                    waiter.is_lost = True
                    waiter.over.set()

    def pause(self) -> None:
        """Read no more of the pausable topics: there is more to do than memory should hold.

        What somebody waits for is read nevertheless: else all that is to be done may wait for it.
        """
        if not self.is_paused:
            self.is_paused = True
            self._hold_back()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._hold_back()

    def _hold_back(self) -> None:
        """Bring the reader's pauses in line."""
        wanted: set[TopicPartition] = set()
        if self.is_paused:
            wanted.update(partition for partition in self.positions if partition[0] in self._pausable)
            for waiter in self._waiting:
                ends = waiter.ends.items()
                wanted.difference_update(p for p, end in ends if self.positions.get(p, 0) < end)
        if news := wanted - self._held_back:
            self._reader.pause(sorted(news))
        if olds := self._held_back - wanted:
            self._reader.resume(sorted(olds))
        self._held_back = wanted

    # ------------------------------------------------------------ reading

    async def poll(self, apply: Callable[[Record], None]) -> bool:
        """Read once and apply what came; tell whether anything did.

        Raises TransientError; then nothing is lost, the reader stands where the tables do. Raises
        StaleError, having applied nothing.
        """
        try:
            if self._looked is None or self._looked.seconds >= LOOK_SECONDS:
                await self._look()
            records = await self._reader.poll(timeout_seconds=POLL_SECONDS)
        except TransientError:
            self._reader.assign(self.positions)  # it may have moved over records it never returned
            self._reader.pause(sorted(self._held_back))
            raise
        if self.positions and self._fresh.seconds > self._stale_seconds:
            raise StaleError("behind for too long")
        for record in records:
            apply(record)
        for partition in self.positions:
            self.positions[partition] = self._reader.position(partition)
        if self._waiting:
            self._release()
        return bool(records)

    async def _look(self) -> None:
        """Find out up to when everything is applied."""
        if not self.positions:
            return
        if self._looked is None:
            specs = [spec for name, spec in (await self._bus.topics()).items() if spec.cleanup == "compact"]
            retained = min((spec.tombstone_seconds for spec in specs), default=2 * STALE_SECONDS)
            self._stale_seconds = retained / 2
        self._looked = Stopwatch(self._clock)
        if self._goal is not None:
            ends = self._goal.ends
            if not all(self.positions[p] >= end for p, end in ends.items() if p in self.positions):
                return
            self._fresh = self._goal.asked
        asked = Stopwatch(self._clock)
        self._goal = _Goal(asked, await self._bus.end_offsets(list(self.positions)))

    async def replay(
        self,
        ends: Mapping[TopicPartition, int],
        apply: Callable[[Record], object],
        progress: Callable[[int, int], None],
    ) -> dict[TopicPartition, int]:
        """Apply everything from 0 up to these ends, and what was written meanwhile, with a reader of its own.

        Returns where reading goes on. progress: told how many offsets are behind, and of how many. Raises
        TransientError, and StaleError when this took for so long that tombstones may have gone meanwhile.
        """
        begun = Stopwatch(self._clock)
        left = {partition: end for partition, end in ends.items() if end > 0}
        total = sum(left.values())
        progress(0, total)
        topic_partitions = list(left)
        reader = self._bus.reader(dict.fromkeys(topic_partitions, 0))
        try:
            for _ in range(ROUNDS_MAX):
                asked = list(left)
                while left:
                    for record in await reader.poll(timeout_seconds=POLL_SECONDS):
                        apply(record)
                    left = {tp: end for tp, end in left.items() if reader.position(tp) < end}
                    progress(total - sum(end - reader.position(tp) for tp, end in left.items()), total)
                left = await self._behind(asked, reader.position)
                total += sum(end - reader.position(tp) for tp, end in left.items())
            reached = {**ends, **{tp: reader.position(tp) for tp in topic_partitions}}
        finally:
            await reader.close()
        if begun.seconds > self._stale_seconds:
            raise StaleError("behind for too long")
        return reached

    async def _behind(
        self, topic_partitions: Iterable[TopicPartition], position: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        """Return the partitions that are not read up to where they end now, with these ends."""
        ends = await self._bus.end_offsets(list(topic_partitions))
        return {tp: end for tp, end in ends.items() if position(tp) < end}

    # ------------------------------------------------------------ waiting

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self.positions.get(partition, 0) >= end for partition, end in ends.items())

    async def catch_up(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Return when everything that these partitions hold now was applied. Raises TransientError."""
        for _ in range(ROUNDS_MAX):
            ends = await self._behind(topic_partitions, lambda tp: self.positions.get(tp, 0))
            if not ends:
                return
            await self.wait_for(ends)
            topic_partitions = ends

    async def wait_for(self, ends: Mapping[TopicPartition, int]) -> None:
        """Return when everything before these ends was applied.

        Raises TransientError when one of the partitions ceases to be read.
        """
        if self.has_reached(ends):
            return
        waiter = _Waiter(ends)
        self._waiting.append(waiter)
        self._hold_back()
        try:
            await waiter.over.wait()
            if waiter.is_lost:
                raise TransientError("what was waited for is read no more")
        finally:
            self._waiting = [other for other in self._waiting if other is not waiter]
            self._hold_back()

    def _release(self) -> None:
        """Let go on who waits for what is read by now."""
        for waiter in self._waiting:
            if self.has_reached(waiter.ends):
                waiter.over.set()
        self._hold_back()
