"""The door to a time series database that answers PromQL."""

from typing import Protocol

from pvbus.core.kernel.effects import Range


class Monitoring(Protocol):
    """One Prometheus, or another server with its HTTP API."""

    async def query(self, expression: str, *, start: float, end: float, step_seconds: float) -> Range:
        """Evaluate an expression at steps from start to end, in seconds since 1970.

        Raises PermanentError if the expression or the address is wrong, TransientError if nothing of use
        was answered.
        """
        ...

    async def close(self) -> None: ...
