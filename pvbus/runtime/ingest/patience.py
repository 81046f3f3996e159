"""Waiting for a watch with a time limit."""

import asyncio
from collections.abc import AsyncIterator

from pvbus.ports.cluster import WatchEvent


class Patient:
    """A watch that can be waited for without ending it: cancelling an iterator's step would."""

    def __init__(self, stream: AsyncIterator[WatchEvent]) -> None:
        self._stream = stream
        self._step: asyncio.Future[WatchEvent] | None = None

    async def next_within(self, seconds: float) -> WatchEvent | None:
        """Return the next event, None when none came in time. Raises StopAsyncIteration at the end."""
        if self._step is None:
            self._step = asyncio.ensure_future(anext(self._stream))
        await asyncio.wait({self._step}, timeout=seconds)
        if not self._step.done():
            return None
        step, self._step = self._step, None
        return step.result()

    async def close(self) -> None:
        if self._step is not None:
            self._step.cancel()
            await asyncio.wait({self._step})
