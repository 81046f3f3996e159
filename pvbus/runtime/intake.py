"""What a worker has read, and waiting until it has read enough.

A position counts when the records before it were applied to the tables, not when they arrived.
Compaction leaves gaps, so it is the reader's position that tells, never the last record's offset.
"""

import asyncio
from collections.abc import Callable, Mapping

from pvbus.errors import TransientError
from pvbus.ports.bus import Bus, Record, TopicPartition

POLL_SECONDS = 1.0


class Intake:
    """One reader, the positions that are applied, and who waits for them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reader = bus.reader()
        self._waiting: list[tuple[Mapping[TopicPartition, int], asyncio.Event]] = []
        self._paused = False
        self.positions: dict[TopicPartition, int] = {}

    async def close(self) -> None:
        await self._reader.close()

    # ------------------------------------------------------------ what is read

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._reader.assign(positions)
        self.positions.update(positions)
        if self._paused:
            self._reader.pause(list(positions))
        self._release()

    def unassign(self, partitions: list[TopicPartition]) -> None:
        self._reader.unassign(partitions)
        for partition in partitions:
            self.positions.pop(partition, None)

    def pause(self) -> None:
        """Read nothing for a while: there is more to do than memory should hold."""
        if not self._paused:
            self._paused = True
            self._reader.pause(list(self.positions))

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._reader.resume(list(self.positions))

    # ------------------------------------------------------------ reading

    async def poll(self, apply: Callable[[Record], None]) -> bool:
        """Read once and apply what came; tell whether anything did.

        Raises TransientError; then nothing is lost, the reader stands where the tables do.
        """
        try:
            records = await self._reader.poll(timeout_seconds=POLL_SECONDS)
        except TransientError:
            self._reader.assign(self.positions)  # it may have moved over records it never returned
            if self._paused:
                self._reader.pause(list(self.positions))
            raise
        for record in records:
            apply(record)
        for partition in self.positions:
            self.positions[partition] = self._reader.position(partition)
        self._release()
        return bool(records)

    async def replay(
        self,
        ends: Mapping[TopicPartition, int],
        apply: Callable[[Record], object],
        progress: Callable[[int, int], None],
    ) -> None:
        """Apply everything from 0 up to these ends, with a reader of its own.

        progress: told how many offsets are behind, and of how many.
        """
        left = {partition: end for partition, end in ends.items() if end > 0}
        total = sum(left.values())
        progress(0, total)
        reader = self._bus.reader(dict.fromkeys(left, 0))
        try:
            while left:
                for record in await reader.poll(timeout_seconds=POLL_SECONDS):
                    if record.offset < ends[record.topic, record.partition]:
                        apply(record)
                left = {tp: end for tp, end in left.items() if reader.position(tp) < end}
                progress(total - sum(end - reader.position(tp) for tp, end in left.items()), total)
        finally:
            await reader.close()

    # ------------------------------------------------------------ waiting

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        return all(self.positions.get(partition, 0) >= end for partition, end in ends.items())

    async def wait_for(self, ends: Mapping[TopicPartition, int]) -> None:
        """Return when everything before these ends was applied."""
        if not self.has_reached(ends):
            event = asyncio.Event()
            self._waiting.append((ends, event))
            await event.wait()

    def _release(self) -> None:
        if not self._waiting:
            return
        still = []
        for ends, event in self._waiting:
            if self.has_reached(ends):
                event.set()
            else:
                still.append((ends, event))
        self._waiting = still
