"""When a failed key is reconciled again, by class of error."""

import random
import re
from typing import NamedTuple

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff

BACKOFF_SECONDS = (0.2, 60.0)
ECHO_SECONDS = 10.0  # how long a lost echo can delay a key
PERMANENT_RETRY_SECONDS = 60.0


_OBJECT = re.compile(r'^[A-Z]+ /\S+(?: \(watch\))?: |"[^"]*"')
"""What names an object in a message of the Kubernetes adapter: method and path, and quoted names."""


class Retry(NamedTuple):
    """What follows a failure of a key.

    outcome: one of `metrics.OUTCOMES`
    seconds: the time until the next attempt, unless an event comes first
    """

    outcome: str
    seconds: float


def retry_of(error: Exception, attempt: int) -> Retry:
    """Decide by the class of the error.

    An error that no port raises is a bug in the decision of one key: the other keys continue.

    attempt: the number of failures in a row, 1 for the first
    """
    match error:
        case TransientError():
            backoff = Backoff(*BACKOFF_SECONDS, random.uniform, failures=attempt - 1)
            return Retry("transient", max(error.retry_after_seconds or 0.0, backoff.next_seconds()))
        case ConflictError():
            return Retry("conflict", ECHO_SECONDS)
        case PermanentError():
            return Retry("permanent", PERMANENT_RETRY_SECONDS)
    return Retry("defect", PERMANENT_RETRY_SECONDS)


def cause_of(error: Exception) -> str:
    """Return the cause of a failure without the object that failed: keys with the same cause get one line."""
    return f"{type(error).__name__} {_OBJECT.sub('', str(error))}"
