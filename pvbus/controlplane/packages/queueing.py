"""Queues the changes of one remote: those that wait are pushed together, noted in the journal until then."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pygit2

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import answers
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.gitcommand import GitError
from pvbus.controlplane.packages.journal import Note, Notes
from pvbus.controlplane.packages.operations import Build, Staging
from pvbus.controlplane.packages.together import Groups

BATCH_MAX = 64
"""Changes in one push: more would delay the first, fewer gain nothing (2 ms each)."""

GATHER_SECONDS = 0.015
"""How long a push waits for requests in preparation: half the cost of one more push. A single request
never waits."""

SHUTTING_DOWN = "the package store is shutting down"

_T = TypeVar("_T")


class Change(NamedTuple):
    """A change that waits for a push.

    build: stages it
    future: gets the result of the last build, or the error
    """

    build: Build
    future: "asyncio.Future[Any]"


class Changes:
    """The waiting changes. Call all methods on the event loop's thread.

    is_closed: whether new changes are refused
    groups: the changes that wait for others, as they are made together
    """

    def __init__(self, load: StoreActivity, journal: Notes, folder: Path) -> None:
        """Begin without changes.

        folder: where the clone is, for messages
        """
        self.is_closed = False
        self._load = load
        self._journal = journal
        self._folder = folder
        self._queue: asyncio.Queue[Change] = asyncio.Queue()
        self.groups = Groups(self._put, load.seats)

    # Requests.

    async def make(
        self, name: str, build: Callable[[Staging], _T], mates: frozenset[str] = frozenset()
    ) -> _T:
        """Change refs of the remote; return the result of the last call of `build`.

        build: stages the change and does nothing else, in a thread, perhaps several times
        mates: the names of the revisions whose changes are made with this one, or none of them
        Raises: StatusError; then no part of this change is at the remote.
        """
        if self.is_closed:
            raise answers.unavailable(SHUTTING_DOWN)
        try:
            result: _T = await self.groups.join(mates | {name}, name, build)
        except GitError as exc:
            raise answers.of_git_error(exc, name) from exc
        except (OSError, pygit2.GitError) as exc:
            raise answers.not_written(self._folder, exc) from exc
        return result

    async def make_noted(
        self, name: str, note: Note, build: Callable[[Staging], str], mates: frozenset[str] = frozenset()
    ) -> None:
        """Like `make`, with a change of the object's metadata: after a crash both are there, or none.

        Once this returns, the object must be stored while `writes` has it.

        note: the change without its commit, which `build` returns
        mates: see `make`
        Raises: StatusError.
        """
        written = threading.Event()

        def build_noted(refs: Staging) -> None:
            self._journal.write(name, note._replace(commit=build(refs)))
            written.set()

        await self._make_reserved(name, note, build_noted, written, mates)

    async def make_reserved(self, name: str, note: Note, build: Callable[[Staging], _T]) -> _T:
        """Like `make_noted`, for a change that leaves the object's metadata as it is, or no object."""
        return await self._make_reserved(name, note, build, threading.Event())

    async def _make_reserved(
        self,
        name: str,
        note: Note,
        build: Callable[[Staging], _T],
        written: threading.Event,
        mates: frozenset[str] = frozenset(),
    ) -> _T:
        await self._journal.reserve(name, note)
        try:
            return await self.make(name, build, mates)
        except StatusError as exc:
            if exc.code == answers.UNAVAILABLE:
                self._journal.interrupt(name)
            else:
                await self._journal.release(name, is_noted=written.is_set())
            raise

    # The task that pushes.

    def _put(self, build: Build) -> "asyncio.Future[Any]":
        """Add a change; the future gets the result of its last build."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(Change(build, future))
        return future

    def nudge(self) -> None:
        """End the wait of `batch` with a change of nothing."""
        future = self._put(lambda refs: None)
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
        self.groups.refuse_all(answers.unavailable(SHUTTING_DOWN))
        while not self._queue.empty():
            settle(self._queue.get_nowait(), answers.unavailable(SHUTTING_DOWN))


def settle(change: Change, outcome: object) -> None:
    """Set the result of a change, or its error, if somebody still waits for it."""
    if change.future.done():
        return
    if isinstance(outcome, Exception):
        change.future.set_exception(outcome)
    else:
        change.future.set_result(outcome)
