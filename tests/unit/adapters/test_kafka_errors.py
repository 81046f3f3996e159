"""The table of Kafka's errors."""

import pytest
from aiokafka import errors

from pvbus.adapters.kafka.errors import FOREIGN, translate
from pvbus.core.errors import FencedError, PermanentError, TooLargeError, TransientError


def caused(outer: Exception, inner: Exception) -> Exception:
    outer.__cause__ = inner
    return outer


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ProducerFenced(), FencedError),
        (errors.InvalidProducerEpoch(), FencedError),
        (caused(errors.KafkaError("unexpected"), errors.InvalidProducerIdMapping()), FencedError),
        (errors.MessageSizeTooLargeError(), TooLargeError),
        (errors.InvalidTopicError(), PermanentError),
        (errors.InconsistentGroupProtocolError(), PermanentError),
        (errors.KafkaTimeoutError(), TransientError),
        (errors.OutOfOrderSequenceNumber(), TransientError),
        (errors.TopicAuthorizationFailedError("t"), TransientError),
        (errors.KafkaConnectionError("away"), TransientError),
        (TimeoutError(), TransientError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_translation(error: Exception, expected: type[Exception]) -> None:
    """Each kind of error has its class, also behind the library's own wrapper."""
    assert type(translate(error, "trying")) is expected


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.GroupAuthorizationFailedError("g"), "pvbus topics --acls"),
        (errors.NodeNotReadyError("1"), "advertised.listeners"),
        (errors.InvalidReplicationFactorError("3"), "PVBUS_KAFKA_REPLICATION"),
        (errors.InvalidSessionTimeoutError("3"), "PVBUS_KAFKA_SESSION_SECONDS"),
    ],
)
def test_what_a_person_can_mend_is_told(error: Exception, words: str) -> None:
    """The text says what was tried, what came of it, and where to look."""
    reported = str(translate(error, "listing topics"))
    assert reported.startswith("listing topics: ")
    assert type(error).__name__ in reported
    assert words in reported


def test_every_error_of_the_library_is_foreign() -> None:
    """What the library raises never ends a process as a bug of ours, not even what is no KafkaError: a worker
    that wakes up late meets IllegalOperation between two batches of its step."""
    own = [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and each.__module__ == errors.__name__
    ]
    raised = [each for each in own if issubclass(each, Exception)]
    assert errors.IllegalOperation in raised
    assert [each for each in raised if not issubclass(each, FOREIGN)] == []
