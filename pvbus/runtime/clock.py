"""The clock of the running services (defined with the adapters, which need it, too), and a stopwatch."""

from pvbus.adapters.clock import SystemClock
from pvbus.ports.clock import Clock

__all__ = ["Stopwatch", "SystemClock"]


class Stopwatch:
    """Measures the seconds since its creation, including the machine's sleep.

    A monotonic clock stands still while a machine sleeps, a wall clock may be set back: the larger value
    counts.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall = clock.now()
        self._monotonic = clock.monotonic()

    @property
    def seconds(self) -> float:
        return max(self._clock.now() - self._wall, self._clock.monotonic() - self._monotonic)
