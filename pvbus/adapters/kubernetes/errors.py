"""HTTP answers of an API server as errors of `pvbus.errors`: one table.

Porch's aggregated server reports stale resourceVersions and business rules as 500; they are told
apart by the sentences its contract names, which is the only place where text decides.
"""

import msgspec

from pvbus.errors import AlreadyExistsError, ConflictError, PermanentError, PvbusError, TransientError
from pvbus.ports.cluster import GoneError

_STALE = "the object has been modified; please apply your changes to the latest version"
_AGAIN_ON_ECHO = ("workspaceNames must be unique", "already exists", "already in progress")
_PACKAGE_EXISTS = "cannot create a new revision for package"
_BUSINESS_RULES = (
    "cannot update a package revision with lifecycle value",
    "may not be the placeholder",
    "source revision must be",
    "error rendering package",
)


class _Status(msgspec.Struct):
    message: str = ""
    reason: str = ""


def error_of(
    code: int, body: bytes, *, method: str, retry_after: str | None = None
) -> PvbusError | GoneError:
    """Translate an answer of 400 or above.

    404 of a read or a delete is the caller's: it means None there. 404 of an update means that the
    object vanished, so the view was stale.
    """
    try:
        status = msgspec.json.decode(body, type=_Status)
    except msgspec.DecodeError:
        status = _Status(message=body[:300].decode(errors="replace"))
    message = f"{code} {status.reason or 'error'}: {status.message}"
    seconds = float(retry_after) if retry_after and retry_after.isdigit() else None
    if code == 409:
        if status.reason == "AlreadyExists":
            return AlreadyExistsError(message)
        return ConflictError(message)
    if code == 404 and method in ("PUT", "PATCH"):
        return ConflictError(message)
    if code == 410:
        return GoneError(message)
    if code in (401, 408, 429):
        return TransientError(message, retry_after_seconds=seconds)
    if code < 500 or code == 501:
        return PermanentError(message, reason=status.reason or "Invalid")
    if _PACKAGE_EXISTS in status.message:  # "... that already exists in repo ...": nothing to wait for
        return PermanentError(message, reason="PackageExists")
    if _STALE in status.message or any(text in status.message for text in _AGAIN_ON_ECHO):
        return ConflictError(message)
    if any(text in status.message for text in _BUSINESS_RULES):
        return PermanentError(message, reason="Refused")
    return TransientError(message, retry_after_seconds=seconds)
