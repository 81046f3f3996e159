"""Tracks applied positions, waits for offsets, and detects stale tables.

A position counts when the records before it were applied to the tables, not when they arrived.
Compaction leaves gaps, so the reader's position counts, never the last record's offset.

Compaction may delete a record as soon as its key is written again. A reader that stops at a former end may
see neither: the older record is gone, and the newer one is after that end. So the ends are fetched again,
until they have already been read.

Tombstones are deleted some time after they are written. Tables that lack a record of half that age may miss
a deletion, so from then on `poll` refuses to add to them.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pvbus.adapters.clock import Stopwatch
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Bus, Reader, Record, TopicPartition
from pvbus.ports.clock import Clock

POLL_SECONDS = 1.0
LOOK_SECONDS = 60.0  # between two checks whether reading keeps up: one request; far below any limit
ROUNDS_MAX = 10  # a partition that always grows must not block a caller; later rounds take milliseconds
SNAPSHOTS_MAX = 4  # in memory at a time
TURN_RECORDS = 200  # of a snapshot, before others have a turn
STALE_SECONDS = 43_200.0  # if no topic declares how long it keeps tombstones


class StaleError(Exception):
    """The tables were behind for too long: they must be emptied and read from the beginning."""


class _Goal(NamedTuple):
    """Former end offsets. A reader that has reached them has every record older than `asked`."""

    asked: Stopwatch
    ends: Mapping[TopicPartition, int]


class _Waiter:
    """A wait until partitions are read up to some ends.

    ends: the end offset of each partition
    over: set when the wait is over
    lost: the partition that was unassigned, if one was
    """

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self.ends = ends
        self.over = asyncio.Event()
        self.lost: TopicPartition | None = None


class _Replays:
    """The restores under way, which share a reader: one for each lease costs connections and requests.

    A restore that waits for records reads for all of them, one restore at a time.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reader: Reader | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._apply: dict[TopicPartition, Callable[[Record], object]] = {}
        self._turn = asyncio.Lock()

    def begin(self, positions: Mapping[TopicPartition, int], apply: Callable[[Record], object]) -> None:
        """Read partitions from these positions on, which no other restore reads."""
        self._positions.update(positions)
        self._apply.update(dict.fromkeys(positions, apply))
        if self._reader is None:
            self._reader = self._bus.reader(positions)
        else:
            self._reader.assign(positions)

    def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    def left(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the partitions that are not read up to these ends, with them."""
        return {tp: end for tp, end in ends.items() if self._positions[tp] < end}

    async def read(self, ends: Mapping[TopicPartition, int]) -> None:
        """Read once, unless these ends were reached meanwhile. Raises TransientError: nothing is lost."""
        async with self._turn:
            if self._reader is None or not self.left(ends):
                return
            try:
                records = await self._reader.poll(timeout_seconds=POLL_SECONDS)
            except TransientError:
                self._reader.assign(self._positions)  # it may have moved past records it never returned
                raise
            for record in records:
                if (apply := self._apply.get((record.topic, record.partition))) is not None:
                    apply(record)
            for partition in self._positions:
                self._positions[partition] = self._reader.position(partition)

    async def end(self, partitions: Iterable[TopicPartition], apply: Callable[[Record], object]) -> None:
        """Stop what `begin` began, unless the partitions began anew; close the reader with the last ones."""
        known = [partition for partition in partitions if self._apply.get(partition) is apply]
        for partition in known:
            del self._positions[partition], self._apply[partition]
        reader = self._reader
        if self._positions and reader is not None:
            reader.unassign(known)
        elif reader is not None:
            self._reader = None
            await reader.close()


class TableReader:
    """One reader, its applied positions, and the waits for them.

    To know how old the tables are, `_look` notes the end offsets and the time (`_goal`) once a minute. When
    the positions have passed these ends, everything written before that time is applied, and `_fresh` begins
    at it.

    positions: the offset behind the last record applied, of each partition that is read
    is_paused: whether the pausable topics are paused
    """

    def __init__(
        self, bus: Bus, clock: Clock, *, pausable: Iterable[str] = (), is_table: bool = True
    ) -> None:
        """Read nothing until `assign`.

        pausable: the topics that `pause` stops
        is_table: whether records become rows, which a tombstone must remove. If not, to be behind does no
            harm.
        """
        self._bus = bus
        self._clock = clock
        self._reader = bus.reader()
        self._replays = _Replays(bus)
        self._snapshots_turn = asyncio.Lock()
        self._waiting: list[_Waiter] = []
        self._pausable = frozenset(pausable)
        self.is_paused = False
        self._held_back: set[TopicPartition] = set()
        self._looked: Stopwatch | None = None
        self._goal: _Goal | None = None
        self._fresh = Stopwatch(clock)  # everything that was written before its start is applied
        self._is_table = is_table
        self._stale_seconds = STALE_SECONDS if is_table else math.inf
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
                waiter.lost = next(iter(waiter.ends.keys() & known), waiter.lost)
                if waiter.lost is not None:
                    waiter.over.set()

    def pause(self) -> None:
        """Stop reading the pausable topics, to bound the memory of pending work.

        Partitions that a wait needs are still read: all pending work may depend on them.
        """
        if not self.is_paused:
            self.is_paused = True
            self._hold_back()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._hold_back()

    def _hold_back(self) -> None:
        """Update the pauses of the reader."""
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
        """Read once and apply the records; return whether there were any.

        Raises TransientError, after which the reader is at the positions of the tables: nothing is lost.
        Raises StaleError before it applies anything.
        """
        try:
            if self._looked is None or self._looked.seconds >= LOOK_SECONDS:
                await self._look()
            records = await self._reader.poll(timeout_seconds=POLL_SECONDS)
        except TransientError:
            self._reader.assign(self.positions)  # it may have moved past records it never returned
            self._reader.pause(sorted(self._held_back))
            raise
        if self.positions and self._fresh.seconds > self._stale_seconds:
            raise StaleError("the tables were behind for too long")
        for record in records:
            apply(record)
        for partition in self.positions:
            self.positions[partition] = self._reader.position(partition)
        if self._waiting:
            self._release()
        return bool(records)

    async def _look(self) -> None:
        """Update the time up to which everything is applied."""
        if not self.positions or not self._is_table:
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
        """Apply everything from 0 up to these ends, and what was written meanwhile, beside other reading.

        What a snapshot has is not read. Its age, and the time that the rest took, are each at most half of
        the time that tombstones stay.

        Returns the positions where reading continues.

        ends: the end offset of each partition
        apply: called with each record, in the order of its partition
        progress: called with (offsets read, offsets to read)
        Raises TransientError, and StaleError if this took so long that tombstones may be gone.
        """
        begun = Stopwatch(self._clock)
        left = {partition: end for partition, end in ends.items() if end > 0}
        total = sum(left.values())
        progress(0, total)
        if not left:
            return dict(ends)
        topic_partitions, replays = list(left), self._replays
        positions = {**dict.fromkeys(left, 0), **await self._apply_snapshots(topic_partitions, apply)}
        replays.begin(positions, apply)
        try:
            for _ in range(ROUNDS_MAX):
                asked = list(left)
                while left:
                    await replays.read(left)
                    left = replays.left(left)
                    progress(total - sum(end - replays.position(tp) for tp, end in left.items()), total)
                left = await self._behind(asked, replays.position)
                total += sum(end - replays.position(tp) for tp, end in left.items())
            reached = {**ends, **{tp: replays.position(tp) for tp in topic_partitions}}
        finally:
            await replays.end(topic_partitions, apply)
        if begun.seconds > self._stale_seconds:
            raise StaleError("the tables were behind for too long")
        return reached

    async def _apply_snapshots(
        self, topic_partitions: Sequence[TopicPartition], apply: Callable[[Record], object]
    ) -> dict[TopicPartition, int]:
        """Apply what is known without reading; return where to read on.

        A few partitions have their turn at a time, of all that are restored: else memory would hold every
        table twice.
        """
        positions: dict[TopicPartition, int] = {}
        for first in range(0, len(topic_partitions), SNAPSHOTS_MAX):
            async with self._snapshots_turn:
                some = topic_partitions[first : first + SNAPSHOTS_MAX]
                positions.update(await self._apply_some_snapshots(some, apply))
        return positions

    async def _apply_some_snapshots(
        self, topic_partitions: Sequence[TopicPartition], apply: Callable[[Record], object]
    ) -> dict[TopicPartition, int]:
        snapshots = await self._bus.snapshots(topic_partitions)
        for snapshot in snapshots.values():
            for number, record in enumerate(snapshot.records):
                apply(record)
                if not number % TURN_RECORDS:
                    await asyncio.sleep(0)
        return {partition: snapshot.position for partition, snapshot in snapshots.items()}

    async def _behind(
        self, topic_partitions: Iterable[TopicPartition], position: Callable[[TopicPartition], int]
    ) -> dict[TopicPartition, int]:
        """Return the partitions that are not read up to their current ends, with these ends."""
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

        Raises TransientError if one of the partitions is unassigned.
        """
        if self.has_reached(ends):
            return
        waiter = _Waiter(ends)
        self._waiting.append(waiter)
        self._hold_back()
        try:
            await waiter.over.wait()
            if waiter.lost is not None:
                topic, number = waiter.lost
                raise TransientError(
                    f"{topic}-{number}: partition unassigned while waiting for offset {ends[waiter.lost]}; "
                    "retrying"
                )
        finally:
            self._waiting = [other for other in self._waiting if other is not waiter]
            self._hold_back()

    def _release(self) -> None:
        """End the waits whose ends are reached."""
        for waiter in self._waiting:
            if self.has_reached(waiter.ends):
                waiter.over.set()
        self._hold_back()
