"""The system clock, and a stopwatch."""

import asyncio
import time

from pvbus.ports.clock import Clock


class SystemClock:
    """Real time: implements `pvbus.ports.clock.Clock`."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


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
