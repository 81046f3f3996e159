"""Checks that a record is valid before it is put into a table.

Controllers decode most rows when they load them, and a few only when they need them; those would fail later,
in a decision that no longer knows the record. A key in another partition than its own (another program may
choose partitions differently) would be a second row of its name.
"""

from sys import intern

from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import DeadLetter
from pvbus.core.kernel.topics import rows_of
from pvbus.ports.bus import Record

LETTER_BYTES_MAX = 600_000
"""Bytes of a value that a dead letter keeps. As JSON they take a third more, and the letter must fit into a
record of a million bytes; other programs may write larger values."""


def checked_key(record: Record, partitions: int) -> str:
    """Return a record's key. Raises ValueError or MsgspecError if the record is not valid in its topic."""
    key = intern(record.key.decode())  # all services of this process that have the row share it
    if not key:
        raise ValueError("it has no key")
    if is_marker(key):
        return key
    rows = rows_of(record.topic, key)
    if rows is None:
        raise ValueError(f"a key of {record.topic} does not look like {key!r}")
    own = partition_of(rows.partition_key(key), partitions)
    if own != record.partition and not rows.is_everywhere:
        raise ValueError(f"key {key!r} belongs to partition {own}")
    if rows.check is not None and record.value is not None:
        rows.check(record.value)
    return key


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Return the dead letter of a record that cannot be decoded."""
    value, text = record.value or b"", str(error)
    if len(value) > LETTER_BYTES_MAX:
        text = f"{text} (of its {len(value)} bytes, these are the first {LETTER_BYTES_MAX})"
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        error=text,
        value=value[:LETTER_BYTES_MAX],
    )
