"""Tables read from the beginning, any number of them at once, through one reader.

Claims come together, at a start and at a rebalance. A reader of its own for each would cost connections and
requests, and would have some of them finished early while the others wait. Whoever waits reads for all, one
at a time; so a failure ends the replay of whoever met it, and the others go on.
"""

import asyncio
from collections.abc import Callable, Mapping

from pvbus.ports.bus import Bus, Reader, Record, TopicPartition

POLL_SECONDS = 1.0

Progress = Callable[[int, int], None]
"""Told how many offsets are behind, and of how many."""


class _Replay:
    """One of those under way. left: the ends of what is not read up to there yet."""

    def __init__(
        self, ends: Mapping[TopicPartition, int], apply: Callable[[Record], object], progress: Progress
    ) -> None:
        self.left = {place: end for place, end in ends.items() if end > 0}
        self.apply = apply
        self._total = sum(self.left.values())
        self._progress = progress
        progress(0, self._total)

    def tell(self, positions: Mapping[TopicPartition, int]) -> None:
        missing = sum(end - positions[place] for place, end in self.left.items())
        self._progress(self._total - missing, self._total)


class Replays:
    """Replays of partitions; no partition is in two of them at once."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reader: Reader | None = None
        self._replays: dict[TopicPartition, _Replay] = {}  # by what is left of them
        self._positions: dict[TopicPartition, int] = {}  # what is applied, of the same
        self._turn = asyncio.Lock()

    async def replay(
        self,
        ends: Mapping[TopicPartition, int],
        apply: Callable[[Record], object],
        progress: Progress,
    ) -> None:
        """Apply everything from 0 up to these ends. Raises TransientError."""
        mine = _Replay(ends, apply, progress)
        if not mine.left:
            return
        try:
            self._begin(mine)
            while mine.left:
                async with self._turn:
                    if mine.left:
                        await self._read()
        finally:
            await self._end(mine)

    def _begin(self, mine: _Replay) -> None:
        if self._reader is None:
            self._reader = self._bus.reader()
        self._replays.update(dict.fromkeys(mine.left, mine))
        start = dict.fromkeys(mine.left, 0)
        self._positions.update(start)
        self._reader.assign(start)
        self._reader.resume(list(start))  # an earlier replay of the same may have left them

    async def _read(self) -> None:
        """Read once, for all. Whatever ends this, the reader stands where the tables do."""
        reader = self._reader
        assert reader is not None
        try:
            records = await reader.poll(timeout_seconds=POLL_SECONDS)
        except BaseException:
            reader.assign(self._positions)
            raise
        for record in records:
            replay = self._replays.get((record.topic, record.partition))
            if replay is not None and record.offset < replay.left[record.topic, record.partition]:
                replay.apply(record)
        self._advance(reader)

    def _advance(self, reader: Reader) -> None:
        read: list[TopicPartition] = []
        for place, replay in self._replays.items():
            position = self._positions[place] = reader.position(place)
            if position >= replay.left[place]:
                read.append(place)
        replays = set(self._replays.values())
        for place in read:
            del self._replays[place].left[place]
        for replay in replays:
            replay.tell(self._positions)
        self._leave(reader, read)

    def _leave(self, reader: Reader, places: list[TopicPartition]) -> None:
        """Read no more of these. To take them from the reader would drop what it has fetched of others."""
        reader.pause(places)
        for place in places:
            del self._replays[place], self._positions[place]

    async def _end(self, mine: _Replay) -> None:
        reader = self._reader
        if reader is None:
            return  # it ended with another one
        self._leave(reader, [place for place in mine.left if self._replays.get(place) is mine])
        if not self._replays:
            self._reader = None
            await reader.close()
