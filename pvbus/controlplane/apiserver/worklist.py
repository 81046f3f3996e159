"""Things to do in the background until they are done, each remembered once."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import structlog

Item = TypeVar("Item", bound=Hashable)

TOGETHER_MAX = 200
"""Items handled at once, so that their writes share transactions."""

RETRY_SECONDS = (0.1, 10.0)
"""First and longest pause before an item that was not done is tried again."""

_log = structlog.get_logger(__name__)


class Worklist(Generic[Item]):
    """handle: returns whether the item is done. It may find that there is nothing to do."""

    def __init__(self, name: str, handle: Callable[[Item], Awaitable[bool]]) -> None:
        self._name = name
        self._handle = handle
        self._ready: deque[Item] = deque()
        self._queued: set[Item] = set()
        self._later: dict[Item, float] = {}
        self._tries: dict[Item, int] = {}
        self._wake = asyncio.Event()

    def add(self, item: Item) -> None:
        """Handle this soon, also when it waits for another try."""
        self._later.pop(item, None)
        if item not in self._queued:
            self._queued.add(item)
            self._ready.append(item)
            self._wake.set()

    async def run(self) -> None:
        """Handle items until cancelled."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for item in [item for item, due in self._later.items() if due <= now]:
                self.add(item)
            batch = [self._ready.popleft() for _ in range(min(TOGETHER_MAX, len(self._ready)))]
            if batch:
                self._queued.difference_update(batch)
                await asyncio.gather(*(self._try(item) for item in batch))
            else:
                await self._sleep(now)

    async def _try(self, item: Item) -> None:
        try:
            done = await self._handle(item)
        except Exception as exc:
            # One object that cannot be handled now must not stop the collection of the others.
            _log.warning("background work failed", work=self._name, item=str(item), error=str(exc))
            done = False
        if done:
            self._tries.pop(item, None)
        elif item not in self._queued:
            tries = self._tries[item] = self._tries.get(item, 0) + 1
            first, longest = RETRY_SECONDS
            self._later[item] = time.monotonic() + min(longest, first * 2 ** min(tries - 1, 10))

    async def _sleep(self, now: float) -> None:
        pause = min(self._later.values(), default=now + 3600) - now
        try:
            async with asyncio.timeout(max(pause, 0.001)):
                await self._wake.wait()
        except TimeoutError:
            pass
