"""Queues the changes of one remote: those that wait are pushed together."""

import asyncio
from typing import Any, NamedTuple

from pvbus.controlplane.packages import answers
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.operations import Build

BATCH_MAX = 64
"""Changes in one push: more would delay the first, fewer gain nothing (2 ms each)."""

GATHER_SECONDS = 0.015
"""How long a push waits for requests in preparation: half the cost of one more push. A single request
never waits."""


class Change(NamedTuple):
    """A change that waits for a push.

    build: stages it
    future: gets the result of the last build, or the error
    """

    build: Build
    future: "asyncio.Future[Any]"


class Changes:
    """The waiting changes. Call all methods on the event loop's thread."""

    def __init__(self, load: StoreActivity) -> None:
        self._load = load
        self._queue: asyncio.Queue[Change] = asyncio.Queue()

    def put(self, build: Build) -> "asyncio.Future[Any]":
        """Add a change; the future gets the result of its last build."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Change(build, future))
        return future

    def nudge(self) -> None:
        """End the wait of `batch` with a change of nothing."""
        future = self.put(lambda refs: None)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def batch(self, seconds: float) -> list[Change]:
        """Wait for changes and return those of one push; none after a time."""
        try:
            batch = [await asyncio.wait_for(self._queue.get(), seconds)]
        except TimeoutError:
            return []
        self._take(batch)
        if self._load.requests > len(batch):
            await asyncio.sleep(GATHER_SECONDS)
            self._take(batch)
        return batch

    def _take(self, batch: list[Change]) -> None:
        while len(batch) < BATCH_MAX and not self._queue.empty():
            batch.append(self._queue.get_nowait())

    def refuse(self) -> None:
        """Answer all waiting changes with 503."""
        while not self._queue.empty():
            settle(self._queue.get_nowait(), answers.unavailable("the package store is shutting down"))


def settle(change: Change, outcome: object) -> None:
    """Set the result of a change, or its error, if somebody still waits for it."""
    if change.future.done():
        return
    if isinstance(outcome, Exception):
        change.future.set_exception(outcome)
    else:
        change.future.set_result(outcome)
