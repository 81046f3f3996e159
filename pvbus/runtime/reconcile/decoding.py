"""Whether a record can be one of ours, before it is put into a table.

Controllers decode most rows when they load them, and keep a few as bytes until they need them; those would
fail later, in the middle of a decision, where nobody knows any more which record it was. A key that stands
in another partition than its own (another program's way to choose one) would be a second row of its name.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.keys import partition as partition_of
from pvbus.core.markers import is_marker
from pvbus.core.records import (
    CHECK_PREFIX,
    CONDITIONS,
    DESIRED,
    INJECTABLES,
    LATEST,
    OBJECTS,
    RESULTS,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildResult,
    DeadLetter,
    InjectableRow,
    ResultRow,
    SetResult,
    partition_key,
)
from pvbus.ports.bus import Record

LETTER_BYTES_MAX = 600_000
"""What is kept of a value. As JSON it takes a third more, and all of it must fit into a record of a million;
other programs may write larger ones."""

_PARTS: Mapping[str, frozenset[int]] = {
    OBJECTS: frozenset({3}),
    INJECTABLES: frozenset({3}),
    SETS: frozenset({1}),
    VARIANTS: frozenset({1}),
    WATCHES: frozenset({2, 4}),
    UNROLL: frozenset({2}),
    TARGETS: frozenset({2}),
    DESIRED: frozenset({1}),
    RESULTS: frozenset({1}),
    SETRESULTS: frozenset({1, 2}),
    CONDITIONS: frozenset({2}),
    LATEST: frozenset({3}),
}
"""How many parts the keys of a topic have. The names in them have no bars."""
CHECK_PARTS = 3

_KEPT_AS_BYTES: Mapping[tuple[str, int], "msgspec.json.Decoder[Any]"] = {
    (SETS, 1): msgspec.json.Decoder(PackageVariantSet),
    (VARIANTS, 1): msgspec.json.Decoder(PackageVariant),
    (INJECTABLES, 3): msgspec.json.Decoder(InjectableRow),
    (RESULTS, 1): msgspec.json.Decoder(ResultRow),
    (SETRESULTS, 1): msgspec.json.Decoder(SetResult),
    (SETRESULTS, 2): msgspec.json.Decoder(ChildResult),
}

_check = msgspec.json.Decoder(CheckRequest)
_answer = msgspec.json.Decoder(CheckAnswer)


def checked_key(record: Record, partitions: int) -> str:
    """Return a record's key. Raises ValueError or MsgspecError for what is no record of its topic."""
    key = record.key.decode()
    if not key:
        raise ValueError("it has no key")
    if is_marker(key):
        return key
    parts = key.count("|") + 1
    is_check = key.startswith(CHECK_PREFIX)
    if is_check:
        if record.topic not in (OBJECTS, WATCHES) or parts != CHECK_PARTS:
            raise ValueError(f"a key of {record.topic} does not look like {key!r}")
    elif parts not in _PARTS.get(record.topic, (parts,)):
        raise ValueError(f"a key of {record.topic} does not look like {key!r}")
    own = partition_of(partition_key(record.topic, key), partitions)
    if own != record.partition:
        raise ValueError(f"key {key!r} belongs to partition {own}")
    decoder = _KEPT_AS_BYTES.get((record.topic, parts))
    if is_check:
        decoder = _check if record.topic == WATCHES else _answer
    if decoder is not None and record.value is not None:
        decoder.decode(record.value)
    return key


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Return what is kept of a record that cannot be decoded."""
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
