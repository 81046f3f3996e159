"""Reads where a partition begins for a receiver that knows nothing: its latest events, then the changes.

The events of the table are sent before the changes. An event that is among the changes, too, is left out of
the table: it comes in its place among them, so a key's order holds even if the process is killed between.
"""

from collections.abc import Callable

from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.ports.bus import Bus, Reader, Record, TopicPartition

POLL_SECONDS = 1.0
_ID = "ce_id"


async def read_beginning(
    bus: Bus, partition: int, offset: int, progress: Callable[[int, int], None]
) -> list[Record]:
    """Read the latest events of a partition, in the order in which they were written.

    Events that are among the changes from `offset` on are left out. A step is on both topics at once, so the
    table shows everything before an offset of the changes that a reader has reached: no step that writes
    below it is open any more.

    offset: an end of the changes, the current or a former one
    progress: called with (offsets read, offsets to read)
    Raises TransientError.
    """
    changes: TopicPartition = (CONDITIONS, partition)
    reader = bus.reader({changes: max(0, offset - 1)})
    try:
        later = await _ids(reader, changes, offset, offset)
        rows = await _rows(bus, (LATEST, partition), progress)
        end = (await bus.end_offsets([changes]))[changes]
        later |= await _ids(reader, changes, offset, end)
    finally:
        await reader.close()
    table = sorted(rows.values(), key=lambda record: record.offset)
    return [row for row in table if dict(row.headers).get(_ID) not in later]


async def _ids(reader: Reader, changes: TopicPartition, offset: int, end: int) -> set[bytes | None]:
    """Read up to `end`; return the ids of the events from `offset` on."""
    found: set[bytes | None] = set()
    while reader.position(changes) < end:
        for record in await reader.poll(timeout_seconds=POLL_SECONDS):
            if record.offset >= offset:
                found.add(dict(record.headers).get(_ID))
    return found


async def _rows(
    bus: Bus, partition: TopicPartition, progress: Callable[[int, int], None]
) -> dict[bytes, Record]:
    end = (await bus.end_offsets([partition]))[partition]
    rows: dict[bytes, Record] = {}
    reader = bus.reader({partition: 0})
    try:
        while reader.position(partition) < end:
            for record in await reader.poll(timeout_seconds=POLL_SECONDS):
                if record.value is None:
                    rows.pop(record.key, None)
                else:
                    rows[record.key] = record
            progress(reader.position(partition), end)
    finally:
        await reader.close()
    return rows
