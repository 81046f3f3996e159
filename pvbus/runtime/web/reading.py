"""Reads the fleet from the bus once, as it is now or as it was at a position, and what came after."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.records import META, MetaRow
from pvbus.core.web.model import TOPICS, Model
from pvbus.ports.bus import Bus, Reader, Record, TopicPartition

POLL_SECONDS = 1.0
RECORDS_MAX = 10_000
Positions = Mapping[TopicPartition, int]
_meta = msgspec.json.Decoder(MetaRow)


class Fleet(NamedTuple):
    """The fleet at a position of the bus.

    positions: the next offset of each partition of the model's topics
    incarnation: the id of the installation, "" before its first start
    unreadable: how many records could not be read
    """

    model: Model
    positions: Positions
    incarnation: str
    unreadable: int


class _Resume(msgspec.Struct, array_like=True):
    incarnation: str
    offsets: list[list[int]]


_resume = msgspec.json.Decoder(_Resume)


async def read_fleet(bus: Bus, until: Positions | None = None) -> Fleet:
    """Read the model's topics. until: the positions to stop at; None for the present ends.

    Raises: UsageError if nothing of pvbus is on the bus, PermanentError if it ends before `until`
    """
    present = await bus.topics()
    if missing := [topic for topic in TOPICS if topic not in present]:
        raise UsageError(f"the bus has no topic {missing[0]}: start the services, or check its address")
    partitions = present[TOPICS[0]].partitions
    wanted = [(topic, number) for topic in TOPICS for number in range(partitions)]
    ends = dict(await bus.end_offsets(wanted))
    if until is not None and any(ends.get(each, 0) < offset for each, offset in until.items()):
        raise PermanentError(ANOTHER_BUS)
    stops = dict(until if until is not None else ends)
    model, unreadable = Model(partitions), 0
    reader = bus.reader({each: 0 for each, stop in stops.items() if stop > 0})
    try:
        while any(reader.position(each) < stop for each, stop in stops.items() if stop > 0):
            records = await reader.poll(timeout_seconds=POLL_SECONDS, max_records=RECORDS_MAX)
            unreadable += load_records(model, records, stops)
    finally:
        await reader.close()
    model.publish()
    return Fleet(model, stops, await _incarnation(bus), unreadable)


def load_records(model: Model, records: list[Record], stops: Positions | None = None) -> int:
    """Apply records before some positions; return how many could not be read."""
    unreadable = 0
    for record in records:
        if stops is not None and record.offset >= stops[record.topic, record.partition]:
            continue
        try:
            model.load(record.topic, record.partition, record.key.decode(errors="replace"), record.value)
        except (ValueError, msgspec.MsgspecError):
            unreadable += 1
    return unreadable


async def _incarnation(bus: Bus) -> str:
    end = (await bus.end_offsets([(META, 0)])).get((META, 0), 0) if META in await bus.topics() else 0
    if not end:
        return ""
    reader = bus.reader({(META, 0): 0})
    try:
        while reader.position((META, 0)) < end:
            for record in await reader.poll(timeout_seconds=POLL_SECONDS):
                if record.value is not None:
                    return _meta.decode(record.value).incarnation
    finally:
        await reader.close()
    return ""


# ------------------------------------------------------------ where to go on

ANOTHER_BUS = "this token comes from another bus, or from this one before it was emptied: list anew"


def resume_token(fleet: Fleet) -> str:
    """Return what `resumed` reads: all positions, as text of some hundred characters."""
    positions = sorted(fleet.positions.items())
    offsets = [[TOPICS.index(topic), number, offset] for (topic, number), offset in positions]
    packed = zlib.compress(msgspec.json.encode(_Resume(fleet.incarnation, offsets)), 9)
    return base64.urlsafe_b64encode(packed).decode()


async def read_resumed(bus: Bus, token: str) -> Fleet:
    """Read the fleet as it was when a token was given. Raises UsageError, PermanentError."""
    try:
        resume = _resume.decode(zlib.decompress(base64.urlsafe_b64decode(token)))
        positions = {(TOPICS[topic], number): offset for topic, number, offset in resume.offsets}
    except (msgspec.MsgspecError, binascii.Error, zlib.error, ValueError, IndexError) as exc:
        raise UsageError(
            f'"{token[:40]}" resumes nothing: take the token that a list or a watch gave'
        ) from exc
    fleet = await read_fleet(bus, positions)
    if fleet.incarnation != resume.incarnation:
        raise PermanentError(ANOTHER_BUS)
    return fleet


def positions_of(reader: Reader, positions: Positions) -> Positions:
    return {each: reader.position(each) for each in positions}
