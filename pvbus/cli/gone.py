"""Says when and why a variant or a set went, from the events on the bus: for as long as it keeps them."""

from collections.abc import Iterator
from typing import Any

import msgspec

from pvbus.cli.progress import SET
from pvbus.cli.reading import read_topic, topic_on
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import Key, SubjectKey
from pvbus.core.kernel.records import CONDITIONS
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Kind

Document = dict[str, Any]
DAY_SECONDS = 86_400

_event = msgspec.json.Decoder(ConditionEvent)


async def read_gone(bus: Bus, kind: Kind, key: Key) -> Document:
    """Return when and why an object that is not there went, as plain values.

    at: when it went, "" if no event is left
    why: why it went, "" if no event is left
    set: the set that made a variant
    setAt: when that set went itself
    keptDays: how many days events are retained, 0 for ever
    """
    retention = (await topic_on(bus, CONDITIONS)).retention_seconds or 0
    last = await _last_event(bus, kind, key)
    document = {"at": "", "why": "", "set": "", "setAt": "", "keptDays": retention / DAY_SECONDS}
    if last is None:
        return document
    document |= {"at": last.time, "why": last.condition.message, "set": last.cause.set}
    if last.cause.set:
        end_of_set = await _last_event(bus, SET, Key(key.namespace, last.cause.set))
        document["setAt"] = end_of_set.time if end_of_set is not None else ""
    return document


async def _last_event(bus: Bus, kind: Kind, key: Key) -> ConditionEvent | None:
    """Return the last event of an object that is gone; None if it is there, or has no event."""
    subject = str(SubjectKey(kind.kind, str(key))).encode()
    records = [each for each in await read_topic(bus, CONDITIONS, key=str(key)) if each.key == subject]
    events = [_event.decode(record.value) for record in records if record.value is not None]
    latest = {event.condition.type: event for event in events}
    if not latest or not all(event.last for event in latest.values()):
        return None
    return max(latest.values(), key=lambda event: event.time)


def gone_lines(kind: str, name: str, gone: Document) -> Iterator[str]:
    """Yield the lines about the end of an object."""
    if not gone["at"]:
        retention = f", which keeps events for {gone['keptDays']:g} days," if gone["keptDays"] else ""
        unknown = f"no such {kind}, and the bus{retention} has no event of it"
        yield f"  {name}: {unknown}; check namespace and name"
        return
    yield f"  gone since {gone['at']}: {gone['why'] or 'the event does not say why'}"
    if gone["setAt"]:
        yield f"  its PackageVariantSet {gone['set']} is gone since {gone['setAt']}"
