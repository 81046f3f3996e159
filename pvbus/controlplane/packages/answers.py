"""Error responses to clients; texts and codes are Porch's where it has them."""

from pathlib import Path

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.gitcommand import Failure, GitError
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP

RETRY_SECONDS = 5
"""Retry-After for an unreachable remote: the store itself retries about as often."""

UNAVAILABLE = 503
"""The code of a request whose result is not known, or which was not tried."""

PLURAL = f"packagerevisions.{PORCH_GROUP}"


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def forbidden(name: str, message: str, *, plural: str = PLURAL) -> StatusError:
    return StatusError(403, "Forbidden", f'{plural} "{name}" is forbidden: {message}')


def not_found(name: str, *, plural: str = PLURAL) -> StatusError:
    return StatusError(404, "NotFound", f'{plural} "{name}" not found')


def conflict(name: str, message: str, *, plural: str = PLURAL) -> StatusError:
    return StatusError(409, "Conflict", f'Operation cannot be fulfilled on {plural} "{name}": {message}')


def modified(name: str, *, plural: str = PLURAL) -> StatusError:
    """Report a failed precondition of a write."""
    return conflict(
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
        plural=plural,
    )


def invalid(name: str, field: str, message: str, *, kind: str = "PackageRevision") -> StatusError:
    group = CONFIG_GROUP if kind == "Repository" else PORCH_GROUP
    return StatusError(
        422,
        "Invalid",
        f'{kind}.{group} "{name}" is invalid: {field}: {message}',
        causes=((field, "FieldValueInvalid", message),),
    )


def unusable(message: str) -> StatusError:
    """Report content that no retry makes usable: somebody has to change it."""
    return StatusError(422, "Invalid", message)


def internal(message: str) -> StatusError:
    """Report a violated rule of the package store, with Porch's code, 500."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")


def unavailable(message: str) -> StatusError:
    return StatusError(UNAVAILABLE, "ServiceUnavailable", message, retry_after_seconds=RETRY_SECONDS)


def not_written(folder: Path, error: Exception) -> StatusError:
    return internal(f"cannot write to {folder} ({error}): check the disk")


def of_git_error(error: GitError, name: str) -> StatusError:
    """Convert a git error; nothing was changed in git."""
    match error.failure:
        case Failure.MOVED:
            return conflict(name, str(error))
        case Failure.REFUSED:
            return internal(str(error))
        case Failure.UNREACHABLE:
            return unavailable(str(error))
