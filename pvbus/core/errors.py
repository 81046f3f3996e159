"""The classes of failure, and the shells' reaction to each.

Adapters translate foreign errors into these, each by one table beside it. Matching is by class and
`reason`, never by text. Texts go to logs, conditions, events and answers, so secrets in them are replaced.
"""

import errno

from pvbus.core.redaction import without_secrets

FORBIDDEN = "Forbidden"
"""The reason of a 403: mostly a missing right."""

PROGRAM_MISSING = "ProgramMissing"
"""The reason of what needs a program that this machine does not have."""

RETRY_AFTER_SECONDS_MAX = 300.0
"""Upper limit for a server's request: a wrong `Retry-After: 86400` must not stop a worker for a day."""


NO_MEMORY = "no memory is left for this process: give it more (the limit of its container, or ulimit -v)"


def lacks_memory(error: BaseException) -> bool:
    """Return whether memory was refused: to Python, a process, the stack of a thread, or a library."""
    match error:
        case OSError():
            return error.errno == errno.ENOMEM
        case ImportError():
            return "failed to map segment" in str(error)
        case RuntimeError():
            return str(error) == "can't start new thread"
    return isinstance(error, MemoryError)


class PvbusError(Exception):
    """Base of everything pvbus raises on purpose."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class TransientError(PvbusError):
    """The same input may work later: broker or API server away, timeout, 429, 5xx, 401, 403.

    retry_after_seconds: the delay that the server requested, at most `RETRY_AFTER_SECONDS_MAX`; None if the
        caller chooses its own backoff
    is_expected: whether every start has this error and it ends by itself, so that the log has no warning
    """

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, is_expected: bool = False
    ) -> None:
        super().__init__(message)
        self.is_expected = is_expected
        if retry_after_seconds is not None:
            retry_after_seconds = min(max(0.0, retry_after_seconds), RETRY_AFTER_SECONDS_MAX)
        self.retry_after_seconds = retry_after_seconds


class RejectedError(TransientError):
    """The API server does not know the credentials (401): others, or renewed ones, may work."""


class ConflictError(PvbusError):
    """Our view was stale (409, failed precondition): wait for the echo and decide again."""


class AlreadyExistsError(ConflictError):
    """An object of that name exists already."""


class NotOwnedError(ConflictError):
    """A live object does not belong to the writer; nothing was written."""


class PermanentError(PvbusError):
    """No retry of this input helps. `reason` is a CamelCase word from a closed set."""

    def __init__(self, message: str, *, reason: str = "Invalid") -> None:
        super().__init__(message)
        self.reason = reason


class InvariantError(PvbusError):
    """Our own bug: an impossible transition. The process dies with it."""


class FencedError(PvbusError):
    """The lease has a newer owner; nothing of the step is visible."""


class TooLargeError(PermanentError):
    """A record is above the bus's limit; the bus stays usable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="TooLarge")


class UsageError(PvbusError):
    """The command line or the configuration is wrong (exit code 2)."""
