"""Check requests and answers beside other rows: which keys are taken, and who does not care."""

import msgspec
import pytest

from pvbus.core.kernel.keys import check_key, partition
from pvbus.core.kernel.records import OBJECTS, TARGETS, WATCHES, CheckAnswer, CheckRequest
from pvbus.core.kernel.topics import partition_key
from pvbus.core.variants.inject.controller import InjectController
from pvbus.ports.bus import Record
from pvbus.runtime.reconcile.tables import checked_key

PARTITIONS = 3
REVISION = ("porch.kpt.dev", "PackageRevision")
KEY = check_key(*REVISION, "default/alpha")
REQUEST = msgspec.json.encode(CheckRequest(group=REVISION[0], kind=REVISION[1], nonce="n"))
ANSWER = msgspec.json.encode(CheckAnswer(nonce="n"))


def record(topic: str, key: str, value: bytes | None, *, number: int | None = None) -> Record:
    if number is None:
        number = partition(partition_key(topic, key), PARTITIONS)
    return Record(topic, number, 0, key.encode(), value, (), 0)


@pytest.mark.parametrize(("topic", "value"), [(WATCHES, REQUEST), (OBJECTS, ANSWER)])
def test_requests_and_answers_are_records_of_their_topics(topic: str, value: bytes) -> None:
    """The request goes to whoever watches the kind; the answer has a partition of its own."""
    assert checked_key(record(topic, KEY, value), PARTITIONS) == KEY
    assert checked_key(record(topic, KEY, None), PARTITIONS) == KEY
    assert partition_key(WATCHES, KEY) == "/".join(REVISION)
    assert partition_key(OBJECTS, KEY) == KEY


@pytest.mark.parametrize(
    ("topic", "key", "value", "why"),
    [
        (WATCHES, KEY, ANSWER, "an answer among the requests"),
        (OBJECTS, KEY, b"[]", "no object"),
        (OBJECTS, KEY, b'{"nonce":5}', "a nonce of a wrong type"),
        (OBJECTS, "check|porch.kpt.dev/PackageRevision", ANSWER, "no set"),
        (WATCHES, "check|porch.kpt.dev/PackageRevision|a|b", REQUEST, "too many parts"),
        (TARGETS, KEY, ANSWER, "a topic without checks"),
    ],
)
def test_what_is_neither_is_refused(topic: str, key: str, value: bytes, why: str) -> None:
    try:
        checked_key(record(topic, key, value), PARTITIONS)
    except (ValueError, msgspec.MsgspecError):
        return
    pytest.fail(f"{why} was taken")


def test_a_request_in_another_partition_is_refused() -> None:
    other = (partition(partition_key(WATCHES, KEY), PARTITIONS) + 1) % PARTITIONS
    with pytest.raises(ValueError, match="belongs to partition"):
        checked_key(record(WATCHES, KEY, REQUEST, number=other), PARTITIONS)


def test_inject_does_not_take_them_for_its_own() -> None:
    inject = InjectController(partitions=PARTITIONS, elapsed=lambda: 0.0)
    for topic, value in ((WATCHES, REQUEST), (OBJECTS, ANSWER), (WATCHES, None), (OBJECTS, None)):
        assert list(inject.load(topic, 0, KEY, value)) == []
