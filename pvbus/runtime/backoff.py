"""How long to wait before the next try of something that failed."""

import random
from collections.abc import Callable

from pvbus.core.errors import TransientError

Jitter = Callable[[float, float], float]
"""Returns a number between two others. A simulation passes one with a seed."""

uniform: Jitter = random.uniform


class Backoff:
    """Exponential, with full jitter: many workers that failed together do not return together."""

    def __init__(self, seconds_min: float, seconds_max: float, jitter: Jitter) -> None:
        self._least = seconds_min
        self._most = seconds_max
        self._jitter = jitter
        self._attempt = 0

    def reset(self) -> None:
        self._attempt = 0

    def next_seconds(self, error: Exception | None = None) -> float:
        """Count a failure and return the wait. What the other side asked for is a lower limit."""
        self._attempt += 1
        ceiling = min(self._most, self._least * 2.0 ** min(self._attempt, 16))
        seconds = self._jitter(self._least, ceiling)
        if isinstance(error, TransientError) and error.retry_after_seconds is not None:
            asked = error.retry_after_seconds
            return max(seconds, self._jitter(asked, 1.1 * asked))
        return seconds
