"""How long to wait before the next try of something that failed.

Pure: `Backoff` gives the wait, the caller sleeps on its own clock and passes its own randomness.
"""

from collections.abc import Callable

DOUBLINGS_MAX = 16  # more would overflow in the end, and every wait is at its longest long before

Jitter = Callable[[float, float], float]
"""Returns a number between two others. A simulation passes one with a seed."""


def spread(seconds: float, jitter: Jitter) -> float:
    """Return a fixed wait, made up to half as long again."""
    return jitter(seconds, 1.5 * seconds)


class Backoff:
    """Exponential backoff. By its jitter, workers that failed together do not return together."""

    def __init__(self, seconds_min: float, seconds_max: float, jitter: Jitter, *, failures: int = 0) -> None:
        """failures: how many came before, for a caller that counts them itself."""
        self._least = seconds_min
        self._most = seconds_max
        self._jitter = jitter
        self._failures = failures

    def reset(self) -> None:
        self._failures = 0

    def next_seconds(self, failure: object = None) -> float:
        """Count a failure and return the wait before the next try.

        Each is between the shortest one and a limit that begins at twice the shortest one and doubles.
        failure: its `retry_after_seconds`, if any, is a lower limit.
        """
        seconds = self._least * 2.0 ** min(self._failures, DOUBLINGS_MAX)
        self._failures += 1
        seconds = self._jitter(self._least, min(self._most, 2 * seconds))
        asked: float | None = getattr(failure, "retry_after_seconds", None)
        return seconds if asked is None else max(seconds, self._jitter(asked, 1.1 * asked))
