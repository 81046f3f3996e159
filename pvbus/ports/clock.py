"""The clock of the shells. The core takes `now` as an argument instead."""

from typing import Protocol


class Clock(Protocol):
    """Wall and monotonic time, in seconds."""

    def now(self) -> float:
        """Return the wall clock: seconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return a time that never goes back; only differences are meaningful."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait. A simulated clock advances by itself when all tasks wait."""
        ...
