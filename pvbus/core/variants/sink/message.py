"""Turns records of the public topics into CloudEvents over HTTP.

Source: CloudEvents 1.0.2, HTTP Protocol Binding, sections 3.1 (binary) and 3.2 (structured).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import msgspec

from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import ConditionKey, SubjectKey
from pvbus.core.kernel.records import LATEST

Mode = Literal["binary", "structured"]

STRUCTURED_TYPE = "application/cloudevents+json; charset=utf-8"
_PREFIX = "ce_"
_REQUIRED = ("specversion", "id", "source", "type")
_UNQUOTED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""What a header shows as it is: printable ASCII without space, quote and percent."""

_event = msgspec.json.Decoder(ConditionEvent)
_encode = msgspec.json.Encoder().encode


class Event(NamedTuple):
    """A public event.

    key: the object, as `<Kind>|<namespace>/<name>`; order counts among the events of one key
    kind: the kind of the object
    type: the type of its condition
    attributes: CloudEvents attribute, without a prefix -> its value
    data: the event's data as JSON
    """

    key: str
    kind: str
    type: str
    attributes: Mapping[str, str]
    data: bytes


class Message(NamedTuple):
    """Headers and body of a POST."""

    headers: Mapping[str, str]
    body: bytes


def event_of(topic: str, key: bytes, value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> Event:
    """Return the event of a record of either public topic.

    Raises ValueError (or msgspec's errors, which are such) if the record is no event of pvbus.
    """
    if value is None:
        raise ValueError("it has no value")
    text = key.decode()
    subject = ConditionKey.parse(text).subject if topic == LATEST else text
    decoded = _event.decode(value)
    if str(SubjectKey(decoded.kind, f"{decoded.namespace}/{decoded.name}")) != subject:
        raise ValueError(f"its key {text!r} is not that of its object")
    attributes = {
        name.removeprefix(_PREFIX): data.decode() for name, data in headers if name.startswith(_PREFIX)
    }
    if missing := [name for name in _REQUIRED if not attributes.get(name)]:
        raise ValueError(f"it has no header {_PREFIX}{missing[0]}")
    return Event(subject, decoded.kind, decoded.condition.type, attributes, value)


def message_of(event: Event, mode: Mode) -> Message:
    """Return the request for an event."""
    if mode == "binary":
        headers = {f"ce-{name}": quote(value, safe=_UNQUOTED) for name, value in event.attributes.items()}
        return Message({**headers, "Content-Type": "application/json"}, event.data)
    document: dict[str, Any] = {
        **event.attributes,
        "datacontenttype": "application/json",
        "data": msgspec.Raw(event.data),
    }
    return Message({"Content-Type": STRUCTURED_TYPE}, _encode(document))


class Filter(NamedTuple):
    """The events that are sent. kinds, types: whose objects and conditions count; empty for all."""

    kinds: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def wants(self, event: Event) -> bool:
        return (not self.kinds or event.kind in self.kinds) and (not self.types or event.type in self.types)
