"""Tracks the objects that requests are writing, so that the sync does not write them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

PENDING_SECONDS = 5.0
"""How long after a request's response its object may be stored; after that, git decides."""


class _Pending(NamedTuple):
    """An object that a request is about to write. resource_version: before the write."""

    resource_version: str
    until: float


class Writes:
    """The pending writes of one Repository. Call all methods on the event loop's thread."""

    def __init__(self, version: Callable[[str], str]) -> None:
        """version: returns the resourceVersion of an object by name, "" if there is none."""
        self._version = version
        self._pending: dict[str, _Pending] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Reserve an object for a request's write, until the server has stored it."""
        self._pending[name] = _Pending(self._version(name), float("inf"))
        try:
            yield
        except BaseException:
            self.written(name)
            raise
        self._pending[name] = self._pending[name]._replace(until=time.monotonic() + PENDING_SECONDS)

    def written(self, name: str) -> None:
        """End a write: the object will not change any more."""
        self._pending.pop(name, None)

    async def settled(self, name: str) -> None:
        """Wait until an earlier request's object is stored."""
        # The server's own write ends the wait, and it sends no notification.
        while self.is_pending(name):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)

    def is_pending(self, name: str) -> bool:
        pending = self._pending.get(name)
        if pending is None:
            return False
        if self._version(name) == pending.resource_version and time.monotonic() < pending.until:
            return True
        if pending.until == float("inf"):
            return True
        del self._pending[name]
        return False
