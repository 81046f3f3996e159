"""Translates HTTP errors of an API server to `pvbus.core.errors`: one table.

Porch's aggregated server reports stale resourceVersions and business rules as 500. The messages that its
contract names distinguish them; no other decision depends on text.
"""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from pvbus.adapters.httpfailures import failure_of
from pvbus.core.errors import (
    AlreadyExistsError,
    ConflictError,
    PermanentError,
    PvbusError,
    RejectedError,
    TransientError,
)
from pvbus.ports.cluster import GoneError

_STALE = "the object has been modified; please apply your changes to the latest version"
_AGAIN_ON_ECHO = ("workspaceNames must be unique", "already exists", "already in progress")
_PACKAGE_EXISTS = "cannot create a new revision for package"
_REJECTED = (
    "the server rejects the credentials: check the user of the kubeconfig or the pod's account (a token "
    "written into a kubeconfig is read at the start only; a tokenFile or a credential plugin is renewed)"
)
_BUSINESS_RULES = (
    "cannot update a package revision with lifecycle value",
    "may not be the placeholder",
    "source revision must be",
    "error rendering package",
)


class _Details(msgspec.Struct):
    retry_after_seconds: float | None = msgspec.field(default=None, name="retryAfterSeconds")


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""
    details: _Details | None = None


def error_of(
    code: int, body: bytes, *, method: str, where: str = "", retry_after: str | None = None
) -> PvbusError | GoneError:
    """Translate a response with code 400 or above.

    The caller handles 404 of a read or a delete, which means None there. 404 of an update means that the
    object is gone, so the caller's view was stale.

    where: the request, for the message
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        status = _Status(message=body[:300].decode(errors="replace"))
    message = f"{code} {status.reason or 'error'}: {status.message or 'no message'}"
    if where:
        message = f"{where}: {message}"
    seconds = seconds_of(retry_after)
    if seconds is None and status.details is not None:
        seconds = status.details.retry_after_seconds
    if code == 409:
        if status.reason == "AlreadyExists":
            return AlreadyExistsError(message)
        return ConflictError(message)
    if code == 404 and method in ("PUT", "PATCH"):
        return ConflictError(message)
    if code == 410:
        return GoneError(message)
    if code == 401:
        return RejectedError(f"{message}; {_REJECTED}", retry_after_seconds=seconds)
    if code in (408, 429):
        return TransientError(message, retry_after_seconds=seconds)
    if code < 500 or code == 501:
        return PermanentError(message, reason=status.reason or "Invalid")
    if _PACKAGE_EXISTS in status.message:  # "... that already exists in repo ...": a retry cannot succeed
        return PermanentError(message, reason="PackageExists")
    if _STALE in status.message or any(text in status.message for text in _AGAIN_ON_ECHO):
        return ConflictError(message)
    if any(text in status.message for text in _BUSINESS_RULES):
        return PermanentError(message, reason="Refused")
    return TransientError(message, retry_after_seconds=seconds)


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None if it is neither."""
    if not retry_after:
        return None
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after[:10])
    try:
        until = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def lost(where: str, server: str, error: Exception, seconds: float) -> TransientError:
    """Return the error for a request without a response.

    where: the request, for the message
    server: the URL of the server
    seconds: the timeout of the request
    """
    return TransientError(f"{where}: {_loss(server, error, seconds)}")


def _loss(server: str, error: Exception, seconds: float) -> str:
    """Say what happened to the connection, and what to check."""
    text = failure_of(error)
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return (
                f"no TLS connection with {server} ({text}); check certificate-authority, tls-server-name and "
                "the client certificate of the kubeconfig"
            )
        case aiohttp.ClientHttpProxyError() | aiohttp.ClientProxyConnectionError():
            return f"the proxy makes no connection to {server} ({text}); check proxy-url of the kubeconfig"
        case aiohttp.ClientConnectorDNSError():
            return f"the name of {server} is not found ({text}); check the server of the kubeconfig, and DNS"
        case aiohttp.ClientConnectorError():
            return f"no connection to {server} ({text}); check that it runs, and the server of the kubeconfig"
        case TimeoutError():
            detail = f" ({error})" if str(error) else ""
            return (
                f"no answer from {server} within {seconds:g} s{detail}; check that it is not overloaded, and "
                "that no firewall drops its packets"
            )
    # TLS 1.3 refuses a client's certificate after the handshake, and the reason is lost with the connection.
    certificate = ", or not accept the client certificate of the kubeconfig" if "https:" in server else ""
    return f"the connection to {server} ended without an answer ({text}); it may be restarting{certificate}"
