"""Reads the SQLite bus: positions, and a queue of the partitions with unread records.

The store reports which partitions have grown, so a poll looks only at partitions with records, in turn,
and an idle reader costs nothing.
"""

import asyncio
from collections.abc import Mapping, Sequence

from pvbus.adapters.sqlite.store import Store
from pvbus.ports.bus import Record, TopicPartition


class SqliteReader:
    """Implements `pvbus.ports.bus.Reader`.

    A lane is in `_ready` if and only if it is not paused and has records behind its position. The store calls
    `note_growth` for each lane that a commit has extended. A lane that a poll does not read to its end goes
    behind the others.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lanes: dict[TopicPartition, int] = {}
        self._names: dict[int, TopicPartition] = {}
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()
        self._ready: dict[int, None] = {}  # in the order of their turns
        self._wake = asyncio.Event()

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        lanes = {partition: self._store.lane(*partition) for partition in positions}
        for partition, lane in lanes.items():
            self._lanes[partition] = lane
            self._names[lane] = partition
            self._positions[lane] = positions[partition]
            self._ready.pop(lane, None)
            self._store.listen(lane, self)
            self.note_growth(lane)

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            if (lane := self._lanes.pop(partition, None)) is not None:
                self._store.unlisten(lane, self)
                self._ready.pop(lane, None)
                self._paused.discard(lane)
                del self._names[lane], self._positions[lane]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            lane = self._lanes[partition]
            self._paused.add(lane)
            self._ready.pop(lane, None)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            lane = self._lanes[partition]
            self._paused.discard(lane)
            self.note_growth(lane)

    def position(self, partition: TopicPartition) -> int:
        return self._positions[self._lanes[partition]]

    def note_growth(self, lane: int) -> None:
        """Add a lane to the queue if it has unread records. Caller: the store."""
        if lane not in self._paused and self._positions[lane] < self._store.ends[lane]:
            self._ready[lane] = None
            self._wake.set()

    def wake(self) -> None:
        """End the wait, so that the poll raises an error of the store. Caller: the store."""
        self._wake.set()

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        await asyncio.sleep(0)  # a busy reader must not block the event loop
        while True:
            self._store.refresh()
            if self._ready:
                return self._read(max_records)
            self._wake.clear()
            try:
                with self._store.watching():
                    async with asyncio.timeout_at(deadline):
                        await self._wake.wait()
            except TimeoutError:
                return []

    def _read(self, max_records: int) -> list[Record]:
        records: list[Record] = []
        for lane in tuple(self._ready):
            limit = max_records - len(records)
            if limit <= 0:
                break
            topic, partition = self._names[lane]
            end = self._store.ends[lane]
            found = self._store.read(topic, partition, lane, self._positions[lane], end, limit)
            records += found
            # Fewer than `limit`: the rest up to the end are gaps left by compaction.
            position = found[-1].offset + 1 if len(found) == limit else end
            self._positions[lane] = position
            del self._ready[lane]
            if position < end:
                self._ready[lane] = None
        return records

    async def close(self) -> None:
        self.unassign(tuple(self._lanes))
