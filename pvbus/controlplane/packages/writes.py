"""Which objects requests are writing just now, so that the keeper leaves them alone."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

PENDING_SECONDS = 5.0
"""How long an answered request may take until its object is stored; then git decides."""


class _Pending(NamedTuple):
    """An object that a request is about to write. resource_version: before it."""

    resource_version: str
    until: float


class Writes:
    """All methods are for the event loop's thread."""

    def __init__(self, version: Callable[[str], str]) -> None:
        """version: returns the resourceVersion of the object of a name, "" where there is none."""
        self._version = version
        self._pending: dict[str, _Pending] = {}

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """Leave an object alone while a request writes it, until the server has stored it."""
        self._pending[name] = _Pending(self._version(name), float("inf"))
        try:
            yield
        except BaseException:
            self.written(name)
            raise
        self._pending[name] = self._pending[name]._replace(until=time.monotonic() + PENDING_SECONDS)

    def written(self, name: str) -> None:
        """The request is over and its object is what it will be."""
        self._pending.pop(name, None)

    async def settled(self, name: str) -> None:
        """Wait until an earlier request's object is stored."""
        # What ends it is the server's own write, of which it tells nobody.
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
