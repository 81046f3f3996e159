"""When a key is reconciled again without an event: after a failure, by class of error, and at a set time."""

import heapq
import re
from typing import Generic, NamedTuple, TypeVar

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.kernel.echo import ECHO_SECONDS

BACKOFF_SECONDS = (0.2, 60.0)
PERMANENT_RETRY_SECONDS = 60.0

_OBJECT = re.compile(r'^[A-Z]+ /\S+(?: \(watch\))?: |"[^"]*"')
"""What names an object in a message of the Kubernetes adapter: method and path, and quoted names."""

K = TypeVar("K", str, tuple[int, str])
"""A key, or (partition, key)."""
SPARE = 100
"""Outdated times that the heap may hold beyond one per key before it is rebuilt: so rebuilds cost little."""


class Retry(NamedTuple):
    """What follows a failure of a key.

    outcome: one of `metrics.OUTCOMES`
    seconds: the time until the next attempt, unless an event comes first
    """

    outcome: str
    seconds: float


def retry_of(error: Exception, attempt: int, jitter: Jitter) -> Retry:
    """Decide by the class of the error.

    An error that no port raises is a bug in the decision of one key: the other keys continue.

    attempt: the number of failures in a row, 1 for the first
    jitter: the source of the randomness of the wait
    """
    match error:
        case TransientError():
            backoff = Backoff(*BACKOFF_SECONDS, jitter, failures=attempt - 1)
            return Retry("transient", max(error.retry_after_seconds or 0.0, backoff.next_seconds()))
        case ConflictError():
            return Retry("conflict", ECHO_SECONDS)
        case PermanentError():
            return Retry("permanent", PERMANENT_RETRY_SECONDS)
    return Retry("defect", PERMANENT_RETRY_SECONDS)


def cause_of(error: Exception) -> str:
    """Return the cause of a failure without the object that failed: keys with the same cause get one line."""
    return f"{type(error).__name__} {_OBJECT.sub('', str(error))}"


class Timers(Generic[K]):
    """Times at which keys are reconciled without an event: one per key, the last one that was set.

    Each reconciliation of a key, whatever its cause, cancels its time and may set a new one. So times never
    accumulate, however often a key is touched.
    """

    def __init__(self) -> None:
        self._times: dict[K, float] = {}
        self._heap: list[tuple[float, K]] = []

    def set(self, key: K, time: float) -> None:
        self._times[key] = time
        heapq.heappush(self._heap, (time, key))
        if len(self._heap) > 2 * len(self._times) + SPARE:
            self._heap = [(time, key) for key, time in self._times.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: K) -> None:
        self._times.pop(key, None)

    def due(self, now: float) -> list[K]:
        """Remove and return the keys whose time has come, the earliest first."""
        keys = []
        while (time := self.next()) is not None and time <= now:
            key = heapq.heappop(self._heap)[1]
            del self._times[key]
            keys.append(key)
        return keys

    def next(self) -> float | None:
        """Return the earliest time, None if there is none."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # its key was cancelled, or has another time
        return self._heap[0][0] if self._heap else None
