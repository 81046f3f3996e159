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


class Tail:
    """The last records of each lane, without gaps from the first of them on."""

    def __init__(self, bytes_max: int = TAIL_BYTES_MAX) -> None:
        self._lanes: dict[int, deque[Record]] = {}
        self._order: deque[tuple[int, Record]] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max

    def add(self, lane: int, records: Sequence[Record]) -> None:
        """Add records that were committed, in the order of their offsets; the oldest of all lanes go."""
        for record in records:
            own = self._lanes.setdefault(lane, deque())
            if own and own[-1].offset + 1 != record.offset:  # another process wrote in between
                own.clear()
            own.append(record)
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
        if own and own[0] is record:  # else it went when another process had written
            own.popleft()

    def read(self, lane: int, start: int, end: int, limit: int) -> list[Record] | None:
        """Return at most `limit` records from `start` on; None if some before `end` are not here."""
        own = self._lanes.get(lane)
        if not own or own[0].offset > start or own[-1].offset + 1 < end:
            return None
        first = start - own[0].offset
        return list(islice(own, first, first + min(limit, end - start)))


def _size(record: Record) -> int:
    return len(record.key) + len(record.value or b"")
