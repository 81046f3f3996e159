"""The newest records that this process has written, by lane: its readers share them.

A process that hosts several services reads most of what it writes, some of it several times. What a reader
gets from here was encoded once, is not read from the file, and has the same bytes in each table that has the
row.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from pvbus.ports.bus import Record

TAIL_BYTES_MAX = 4_000_000
"""Keys and values that the tails of all lanes have. A step writes up to 2 MB, and readers of one process are
hardly further behind; a reader that is further behind reads the file."""


class _Lane:
    """The records of a lane from one offset on; None for each that a later one of its key replaced."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.records: deque[Record | None] = deque()
        self.newest: dict[bytes, int] = {}

    @property
    def end(self) -> int:
        return self.start + len(self.records)


class Tail:
    """The last records of each lane, without gaps from the first of them on, except by compaction.

    Readers get from here what the file has. Of a compacted lane that is the last record of each key: a former
    one, read after its tombstone has expired in the file, would never be taken back.
    """

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._order: deque[tuple[int, Record]] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max

    def add(self, lane: int, records: Sequence[Record], *, is_compacted: bool = False) -> None:
        """Add records that were committed, in the order of their offsets; the oldest of all lanes go."""
        for record in records:
            own = self._lanes.get(lane)
            if own is None or own.end != record.offset:  # another process wrote in between
                own = self._lanes[lane] = _Lane(record.offset)
            if is_compacted:
                if (former := own.newest.get(record.key)) is not None:
                    own.records[former - own.start] = None
                own.newest[record.key] = record.offset
            own.records.append(record)
            self._order.append((lane, record))
            self._bytes += _size(record)
        while self._bytes > self._bytes_max:
            self._drop_oldest()

    def clear(self) -> None:
        """Forget all records: some of them have expired."""
        self._lanes.clear()
        self._order.clear()
        self._bytes = 0

    def _drop_oldest(self) -> None:
        lane, record = self._order.popleft()
        self._bytes -= _size(record)
        own = self._lanes[lane]
        if own.start == record.offset:  # else it went when another process had written
            own.records.popleft()
            own.start += 1
            if own.newest.get(record.key) == record.offset:
                del own.newest[record.key]

    def read(self, lane: int, start: int, end: int, limit: int) -> list[Record] | None:
        """Return at most `limit` records from `start` on; None if some before `end` are not here."""
        own = self._lanes.get(lane)
        if own is None or own.start > start or own.end < end:
            return None
        present = (r for r in islice(own.records, start - own.start, end - own.start) if r is not None)
        return list(islice(present, limit))


def _size(record: Record) -> int:
    return len(record.key) + len(record.value or b"")
