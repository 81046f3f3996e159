"""The requests that events become, and the records that are no events."""

import json

import pytest

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.variants.publishing import Publisher
from pvbus.core.variants.sink.message import Event, Filter, event_of, message_of

SOURCE = "/pvbus/prod%eu \N{LATIN SMALL LETTER U WITH DIAERESIS}"
CONDITION = Condition(type="Ready", status="True", reason="Ready", message="ok")
PUTS = Publisher(SOURCE).changed("PackageVariant|default/web", "u", [CONDITION], {}, 1_700_000_000).puts


def event(number: int = 0) -> Event:
    put = PUTS[number]
    return event_of(put.topic, put.key.encode(), encode_row(put.row), put.headers)


def test_both_topics_have_the_same_event() -> None:
    """With the object as the key, within which order counts."""
    assert [put.topic for put in PUTS] == [CONDITIONS, LATEST]
    assert event(0) == event(1)
    assert (event().key, event().kind, event().type) == (
        "PackageVariant|default/web",
        "PackageVariant",
        "Ready",
    )


def test_binary_mode() -> None:
    """Attributes are headers, percent-encoded as the binding says; the body is the data as it is."""
    message = message_of(event(), "binary")
    assert isinstance(PUTS[0].row, ConditionEvent)
    assert message.body == encode_row(PUTS[0].row)
    assert message.headers == {
        "ce-specversion": "1.0",
        "ce-id": PUTS[0].row.id,
        "ce-source": "/pvbus/prod%25eu%20%C3%BC",
        "ce-type": "dev.pvbus.condition.changed.v1",
        "ce-subject": "PackageVariant/default/web/Ready",
        "ce-time": PUTS[0].row.time,
        "Content-Type": "application/json",
    }


def test_structured_mode() -> None:
    """One document has attributes and data."""
    message = message_of(event(), "structured")
    assert message.headers == {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    document = json.loads(message.body)
    assert document.pop("data") == json.loads(event().data)
    assert document == {**event().attributes, "datacontenttype": "application/json"}
    assert document["source"] == SOURCE


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (b"PackageVariant|default/web", None, PUTS[0].headers),
        (b"PackageVariant|default/web", b"{}", PUTS[0].headers),
        (b"PackageVariant|default/web", b"\xff", PUTS[0].headers),
        (b"PackageVariant|default/other", encode_row(PUTS[0].row), PUTS[0].headers),
        (b"web", encode_row(PUTS[0].row), PUTS[0].headers),
        (b"\xff", encode_row(PUTS[0].row), PUTS[0].headers),
        (b"PackageVariant|default/web", encode_row(PUTS[0].row), ()),
        (b"PackageVariant|default/web", encode_row(PUTS[0].row), (*PUTS[0].headers, ("ce_id", b"\xff"))),
    ],
)
def test_records_of_others_are_no_events(
    key: bytes, value: bytes | None, headers: tuple[tuple[str, bytes], ...]
) -> None:
    """Another program may write anything to the topic; it has one class of error."""
    with pytest.raises(ValueError, match=r"\w"):
        event_of(CONDITIONS, key, value, headers)


def test_filters() -> None:
    """By kind and by condition; an empty filter is none."""
    assert Filter().wants(event())
    assert Filter(frozenset({"PackageVariant"}), frozenset({"Ready"})).wants(event())
    assert not Filter(kinds=frozenset({"Repository"})).wants(event())
    assert not Filter(types=frozenset({"Stalled"})).wants(event())
