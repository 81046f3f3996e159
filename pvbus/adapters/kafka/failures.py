"""What Kafka's errors mean to us: one table."""

import asyncio
from collections.abc import Iterator

from aiokafka import errors

from pvbus.core.errors import FencedError, PermanentError, PvbusError, TooLargeError, TransientError

FENCED: tuple[type[Exception], ...] = (
    errors.ProducerFenced,
    errors.InvalidProducerEpoch,
    errors.InvalidProducerIdMapping,  # the transactional id has another producer id now
)
TOO_LARGE: tuple[type[Exception], ...] = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
)
PERMANENT: tuple[type[Exception], ...] = (
    errors.UnsupportedVersionError,
    errors.IncompatibleBrokerVersion,
    errors.InvalidTopicError,
    errors.InvalidPartitionsError,
    errors.InvalidReplicationFactorError,
    errors.InvalidConfigurationError,
    errors.PolicyViolationError,
    errors.InconsistentGroupProtocolError,
    errors.InvalidSessionTimeoutError,
)
"""Everything else may pass by itself: broker away, timeout, no right yet."""

UNAUTHORIZED: tuple[type[Exception], ...] = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
    errors.ClusterAuthorizationFailedError,
)
"""Transient: whoever gave too few rights can give them while we run."""

HINTS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (UNAUTHORIZED, "`pvbus topics --acls` lists what each service must be allowed"),
    (
        (errors.NodeNotReadyError,),
        "brokers are reached at the addresses that they advertise (advertised.listeners): "
        "look whether these work from here",
    ),
    (
        (errors.InvalidReplicationFactorError,),
        "PVBUS_KAFKA_REPLICATION, if set, is at most the number of brokers",
    ),
    (
        (errors.InvalidSessionTimeoutError,),
        "PVBUS_KAFKA_SESSION_SECONDS is within what the brokers take (group.min.session.timeout.ms, 6 s, to "
        "group.max.session.timeout.ms, 1800 s, if not told otherwise)",
    ),
)
"""What a person can do about it, who sees only our text."""

FOREIGN: tuple[type[Exception], ...] = (
    errors.KafkaError,
    errors.ConsumerStoppedError,
    errors.IllegalOperation,  # a transaction that failed in the background while we still send to it
    TimeoutError,
    asyncio.TimeoutError,
    OSError,
)
"""What calls of the library raise, and `translate` takes. Two of its own are no KafkaErrors."""


def translate(error: BaseException, doing: str) -> PvbusError:
    """Return our error for one of `FOREIGN`. `doing` is what was tried, for the text."""
    chain = tuple(_chain(error))
    hints = [words for types, words in HINTS if any(isinstance(each, types) for each in chain)]
    text = ": ".join((doing, repr(error), *hints))
    if any(isinstance(each, UNAUTHORIZED) for each in chain):
        return TransientError(text)
    if any(isinstance(each, FENCED) for each in chain):
        return FencedError(text)
    if any(isinstance(each, TOO_LARGE) for each in chain):
        return TooLargeError(text)
    if any(isinstance(each, PERMANENT) for each in chain):
        return PermanentError(text, reason="KafkaRefused")
    return TransientError(text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: the library wraps what its background tasks met."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__
