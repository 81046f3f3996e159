"""Wakes those who wait for a change, some at a time, and those of each user in turn.

Ten thousand watches take seconds to send one event. If all of them were woken at once, nobody else would be
answered in that time; if in the order of their waiting, a service would wait for a user's thousand watches.
Apart from `store`, as it knows nothing of objects.
"""

import asyncio
from collections import deque

WOKEN_MAX = 32
"""Woken in one turn of the event loop; in each turn, requests go on, too. A request takes about ten turns."""


class Waiters:
    """Waits for the next `notify`. Whoever waits already is woken by it."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[bool], str] = {}
        self._due: dict[str, deque[asyncio.Future[bool]]] = {}

    async def wait(self, seconds: float, user: str = "") -> bool:
        """Return True once notified, False after a time. Nothing is awaited before it waits."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting[waiter] = user
        timer = loop.call_later(seconds, _expire, waiter)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiting.pop(waiter, None)

    def notify(self) -> None:
        """Wake all who wait now, soon."""
        is_waking = bool(self._due)
        for waiter, user in self._waiting.items():
            self._due.setdefault(user, deque()).append(waiter)
        self._waiting.clear()
        if self._due and not is_waking:
            self._wake()

    def _wake(self) -> None:
        woken = 0
        while self._due and woken < WOKEN_MAX:
            user, waiters = next(iter(self._due.items()))
            waiter = waiters.popleft()
            del self._due[user]
            if waiters:
                self._due[user] = waiters  # behind those of the others
            if not waiter.done():
                waiter.set_result(True)
                woken += 1
        if self._due:
            asyncio.get_running_loop().call_soon(self._wake)


def _expire(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)
