"""Translates the library's errors by one table, limits calls, and explains failed connections."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiokafka import errors

from pvbus.adapters.kafka.settings import TRANSACTION_SECONDS, KafkaSettings, Scram
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
"""Every other error can be temporary: a broker is down, a call timed out, an ACL is still missing."""

UNAUTHORIZED: tuple[type[Exception], ...] = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
    errors.ClusterAuthorizationFailedError,
)
"""Transient: an administrator can add the ACL while we run."""

HINTS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    (UNAUTHORIZED, "`pvbus topics --acls` lists what each service must be allowed"),
    (
        (errors.NodeNotReadyError,),
        "brokers are reached at the addresses that they advertise (advertised.listeners): "
        "check that these work from here",
    ),
    (
        (errors.InvalidReplicationFactorError,),
        "PVBUS_KAFKA_REPLICATION, if set, is at most the number of brokers",
    ),
    (
        (errors.InvalidSessionTimeoutError,),
        "PVBUS_KAFKA_SESSION_SECONDS is within the brokers' limits (group.min.session.timeout.ms, 6 s, to "
        "group.max.session.timeout.ms, 1800 s, by default)",
    ),
)
"""Advice for the operator, by error class; appended to the message."""

FOREIGN: tuple[type[Exception], ...] = (
    errors.KafkaError,
    errors.ConsumerStoppedError,
    errors.IllegalOperation,  # the transaction failed in the background while we were still sending
    TimeoutError,
    asyncio.TimeoutError,
    OSError,
)
"""The errors that library calls raise and `translate` accepts. Two of the library's are not KafkaErrors."""


def translate(error: BaseException, doing: str) -> PvbusError:
    """Return our error for one of `FOREIGN`.

    doing: the attempted operation, for the message
    """
    chain = tuple(_chain(error))

    def has(types: tuple[type[Exception], ...]) -> bool:
        return any(isinstance(each, types) for each in chain)

    text = ": ".join((doing, repr(error), *(words for types, words in HINTS if has(types))))
    if has(UNAUTHORIZED):
        return TransientError(text)
    if has(FENCED):
        return FencedError(text)
    if has(TOO_LARGE):
        return TooLargeError(text)
    if has(PERMANENT):
        return PermanentError(text, reason="KafkaRefused")
    return TransientError(text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes: the library wraps the errors of its background tasks."""
    each: BaseException | None = error
    while each is not None:
        yield each
        each = each.__cause__


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Translate the errors that library calls raise."""
    try:
        yield
    except FOREIGN as exc:
        raise translate(exc, doing) from exc


@asynccontextmanager
async def with_deadline(doing: str, seconds: float = TRANSACTION_SECONDS) -> AsyncIterator[None]:
    """Give library calls a deadline, and translate the errors that they raise."""
    with translated(doing):
        async with asyncio.timeout(seconds):
            yield


# Failed connections


def unreachable(error: BaseException, reasons: Mapping[str, object], settings: KafkaSettings) -> PvbusError:
    """Return our error for a failed connection.

    reasons: the reason of each address, from `library.collect_reasons`; {} if none is known
    """
    if not reasons:
        return translate(error, f"connecting to {', '.join(settings.bootstrap)}")
    reported = (f"{address}: {_explain(reason, settings)}" for address, reason in reasons.items())
    return TransientError(f"connecting to {'; '.join(reported)}")


def _explain(reason: object, settings: KafkaSettings) -> str:
    """Describe the problem with one address, and the setting to change."""
    match reason:
        case ssl.SSLCertVerificationError(verify_message=words):
            return (
                f"its certificate is not accepted ({words.rstrip('.')}): PVBUS_KAFKA_CA_FILE must hold the "
                "authority that signed it, and the address must be one that it is for"
            )
        case errors.UnsupportedSaslMechanismError():
            return "it does not support this kind of login: choose another PVBUS_KAFKA_SASL"
        case errors.IllegalSaslStateError():
            return "this port takes no login: leave PVBUS_KAFKA_SASL unset, or give the port that takes one"
        case errors.SaslAuthenticationFailed():
            return f"it refused {_login(settings)}"
        case ConnectionRefusedError():
            return "connection refused: no broker listens there"
        case TimeoutError():
            return "no answer"
        case errors.KafkaConnectionError() | ssl.SSLError() | ConnectionError():
            return f"it closed the connection: {_expectations(settings)}"
        case OSError(strerror=str(words)):
            return words
        case _:
            return str(reason) or repr(reason)


def _login(settings: KafkaSettings) -> str:
    if isinstance(settings.sasl, Scram):
        return f'the user "{settings.sasl.username}", or the password in PVBUS_KAFKA_PASSWORD_FILE'
    return "the token in PVBUS_KAFKA_TOKEN_FILE"


def _expectations(settings: KafkaSettings) -> str:
    """List what the port may require: a broker gives no reason when it closes a connection."""
    tls = settings.tls
    ways = ["has TLS (PVBUS_KAFKA_TLS=true)" if tls is None else "has no TLS (PVBUS_KAFKA_TLS=false)"]
    if tls is not None and not tls.certificate_file:
        ways.append("wants a certificate of ours (PVBUS_KAFKA_CERTIFICATE_FILE)")
    if settings.sasl is None:
        ways.append("wants a login (PVBUS_KAFKA_SASL)")
    return f"perhaps this port {', or '.join(ways)}"
