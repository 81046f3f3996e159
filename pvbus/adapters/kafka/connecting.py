"""Why no broker could be reached, in words that say what to do.

Of an address that does not work the library logs the reason and goes on to the next one; what it raises in
the end names none. So the reasons are taken from its log, where they would only come a second time.
"""

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from aiokafka import errors

from pvbus.adapters.kafka.failures import translate
from pvbus.adapters.kafka.settings import KafkaSettings, Scram
from pvbus.core.errors import PvbusError, TransientError

_LOG = logging.getLogger("aiokafka")
_MESSAGES = ('Unable connect to "%s:%s": %s', 'Unable to request metadata from "%s:%s": %s')

_reasons: ContextVar[dict[str, object] | None] = ContextVar("reasons", default=None)


class _Collector(logging.Filter):
    """Takes what is told of an address to the one who is connecting, if anybody is."""

    def filter(self, record: logging.LogRecord) -> bool:
        reasons = _reasons.get()
        if reasons is None or record.msg not in _MESSAGES or not isinstance(record.args, tuple):
            return True
        host, port, reason = record.args
        reasons[f"{host}:{port}"] = reason
        return False


_collector = _Collector()


@contextmanager
def collected_reasons() -> Iterator[dict[str, object]]:
    """Collect what keeps this task from connecting, by address; if another address works, it is logged."""
    # First, or a filter that holds back what is said again would keep the reasons of a second attempt.
    _LOG.filters[:] = [_collector, *(each for each in _LOG.filters if each is not _collector)]
    reasons: dict[str, object] = {}
    token = _reasons.set(reasons)
    try:
        yield reasons
    finally:
        _reasons.reset(token)
    for address, reason in reasons.items():
        _LOG.warning("no connection to %s: %s", address, reason)


def unreachable(error: BaseException, reasons: dict[str, object], settings: KafkaSettings) -> PvbusError:
    """Return why a connection failed as our error, with a sentence about each address."""
    if not reasons:
        return translate(error, f"connecting to {', '.join(settings.bootstrap)}")
    reported = (f"{address}: {_words(reason, settings)}" for address, reason in reasons.items())
    return TransientError(f"connecting to {'; '.join(reported)}")


def _words(reason: object, settings: KafkaSettings) -> str:
    match reason:
        case ssl.SSLCertVerificationError(verify_message=words):
            return (
                f"its certificate is not accepted ({words.rstrip('.')}): PVBUS_KAFKA_CA_FILE names who "
                "signed it, and the address must have the name that it is for"
            )
        case errors.UnsupportedSaslMechanismError():
            return "it takes no login of this kind: choose another PVBUS_KAFKA_SASL"
        case errors.IllegalSaslStateError():
            return "nobody logs in there: leave PVBUS_KAFKA_SASL unset, or give the port where users do"
        case errors.SaslAuthenticationFailed():
            return f"it refused {_login(settings)}"
        case ConnectionRefusedError():
            return "nobody listens there"
        case TimeoutError():
            return "no answer"
        case errors.KafkaConnectionError() | ssl.SSLError() | ConnectionError():
            return f"it closed the connection: {_what_it_may_want(settings)}"
        case OSError(strerror=str(words)):
            return words
        case _:
            return str(reason) or repr(reason)


def _login(settings: KafkaSettings) -> str:
    if isinstance(settings.sasl, Scram):
        return f'the user "{settings.sasl.username}", or the password in PVBUS_KAFKA_PASSWORD_FILE'
    return "the token in PVBUS_KAFKA_TOKEN_FILE"


def _what_it_may_want(settings: KafkaSettings) -> str:
    """A broker says nothing to who speaks otherwise than its port does."""
    tls = settings.tls
    ways = ["has TLS (PVBUS_KAFKA_TLS=true)" if tls is None else "has no TLS (PVBUS_KAFKA_TLS=false)"]
    if tls is not None and not tls.certificate_file:
        ways.append("wants a certificate of ours (PVBUS_KAFKA_CERTIFICATE_FILE)")
    if settings.sasl is None:
        ways.append("wants a login (PVBUS_KAFKA_SASL)")
    return f"perhaps this port {', or '.join(ways)}"
