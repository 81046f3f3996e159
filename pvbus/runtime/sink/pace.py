"""Limits the requests to the receiver: how many at a time, and fewer while it fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.variants.sink.answers import Accepted, Answer, Failed, Refused
from pvbus.ports.clock import Clock

FAILING_MIN = 5
"""Failures in a row after which the receiver counts as failing: one request at a time, until one succeeds."""


class Pace:
    """The pace of the requests of all events.

    accepted: the number of events that the receiver has accepted
    """

    def __init__(
        self, clock: Clock, in_flight_max: int, backoff_seconds: tuple[float, float], jitter: Jitter
    ) -> None:
        """Begin with a receiver that works.

        in_flight_max: the number of requests at a time
        backoff_seconds: the shortest and the longest wait while the receiver fails
        """
        self._clock = clock
        self._slots = asyncio.Semaphore(in_flight_max)
        self._probing = asyncio.Lock()
        self._backoff = Backoff(*backoff_seconds, jitter)
        self._not_before = clock.monotonic()
        self._failures = 0
        self._failure = ""
        self._failing_since = 0.0
        self.accepted = 0

    @property
    def is_failing(self) -> bool:
        return self._failures >= FAILING_MIN

    @property
    def problem(self) -> str:
        """Return why the receiver takes no events, "" if it does."""
        if not self.is_failing:
            return ""
        seconds = self._clock.monotonic() - self._failing_since
        return f"it has taken no event for {seconds:.0f} s: {self._failure}"

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until a request may be sent."""
        async with self._slots:
            if not self.is_failing:
                await self._wait()
                yield
                return
            async with self._probing:
                await self._wait()
                yield

    async def _wait(self) -> None:
        while (seconds := self._not_before - self._clock.monotonic()) > 0:
            await self._clock.sleep(seconds)

    def note(self, answer: Answer) -> None:
        """Learn from an answer. A refusal of one event shows that the receiver works."""
        now = self._clock.monotonic()
        match answer:
            case Failed():
                if not self._failures:
                    self._failing_since = now
                self._failures += 1
                self._failure = answer.message
                if self.is_failing or answer.retry_after_seconds is not None:
                    seconds = self._backoff.next_seconds(answer)
                    self._not_before = max(self._not_before, now + seconds)
            case Accepted() | Refused():
                self.accepted += isinstance(answer, Accepted)
                self._failures, self._failure = 0, ""
                self._backoff.reset()
