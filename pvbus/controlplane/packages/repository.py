"""Syncs one Repository: decides when its remote is read and written, and when objects follow.

One task does all work on the remote in sequence: waiting changes are pushed together, and in between
the remote is checked. Objects follow the catalog; an object with a request in progress is left to that
request (`writes`) and checked again afterwards. Nothing is removed because a remote is unreachable.
"""

import asyncio
import math
import random
import time
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.store import StoreError, UnavailableError
from pvbus.controlplane.packages import answers, layout
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.clone import RepositoryClone
from pvbus.controlplane.packages.gitcommand import Failure, GitError
from pvbus.controlplane.packages.journal import Notes
from pvbus.controlplane.packages.objectsync import ObjectUpdater
from pvbus.controlplane.packages.queueing import Change, Changes, settle
from pvbus.controlplane.packages.settings import (
    Pins,
    RepositorySettings,
    StoreOptions,
    pins_of,
    present_credentials,
)
from pvbus.controlplane.packages.shown import ERROR_CHARACTERS_MAX, ShownRevisions
from pvbus.controlplane.packages.status import RepositoryStatus
from pvbus.core.errors import NO_MEMORY, lacks_memory
from pvbus.core.kernel.backoff import Backoff
from pvbus.telemetry.structured import structlog

JOURNAL = "creating"

CROWD = 100
"""Repository syncs that may check their folders at the full rate, for one or two percent of a core."""

PAUSE_SECONDS_MAX = 60.0
"""The time between looks at the clock: it may be set, or the machine may sleep, before a schedule's next
time."""

FAILURE_SECONDS_MIN = 2.0
"""The time between a failed pass and the next one; it doubles each time, up to the interval between
fetches."""

LATER_SECONDS = 0.2
"""Delay until objects with requests in progress are checked again."""

_log = structlog.get_logger(__name__)


class RepositorySync:
    """The sync of one Repository, between `start` and `stop`. Call all methods on the event loop's thread.

    One task (`_run`) repeats a pass: it pushes the waiting changes in one batch, updates objects whose
    requests have ended, and reads the remote if that is due. So a push and a fetch never overlap. After a
    push, the objects that no request is writing follow git before the requests get their answers. Where a
    pass fails because of objects or unexpectedly, the next one compares all objects (`_compare_all`), as any
    of them may be behind.

    journal: the changes of metadata that are not stored yet
    clone: the local clone of the remote
    status: the Repository's status
    revisions: the objects of its revisions
    writes: the requests that write these objects now
    changes: what requests change at the remote
    """

    def __init__(
        self,
        objects: Objects,
        settings: RepositorySettings,
        folder: Path,
        executor: Executor,
        options: StoreOptions,
        load: StoreActivity,
        notes: Notes,
    ) -> None:
        self.settings = settings
        self.journal = notes
        self.clone = RepositoryClone(settings, folder, executor, load.files, self._look_at_once)
        self.status = RepositoryStatus(objects, settings, self.clone)
        self.revisions = ShownRevisions(
            objects, settings.facts, notes, lambda older, newer: self.clone.mirror.is_ancestor(older, newer)
        )
        self.writes = self.revisions.writes
        self.changes = Changes(load, notes, folder)
        self._updater = ObjectUpdater(settings, self.revisions, notes)
        self._objects = objects
        self._options = options
        self._load = load
        self._first_sync = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(FAILURE_SECONDS_MIN, options.fetch_seconds, random.uniform)
        self._next_look = 0.0
        self._next_fetch = 0.0
        self._compare_all = True
        self._waiting: list[asyncio.Future[None]] = []

    # Life cycle.

    def start(self, after: "RepositorySync | None" = None) -> None:
        """Start the task.

        after: the sync of the same folder that is stopping, which is awaited first; None if there is none
        """
        self._load.keepers += 1
        self._task = asyncio.create_task(self._run(after), name=f"repository {self.settings.facts.name}")

    async def stop(self) -> None:
        """End the task and its git processes; waiting requests get 503."""
        if not self.changes.is_closed:
            self._load.keepers -= 1
        self.changes.is_closed = True
        self.clone.interrupt()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.clone.await_idle()
        self.changes.refuse()
        self._answer_waiting(self._waiting)

    async def report_last(self) -> None:
        """After `stop`, write the catalog and the current status, so that the next start need not."""
        await self.clone.save()
        if self.clone.is_read and not self.status.problem:
            await self.status.report_ready()

    async def ready(self) -> None:
        """Wait for the first sync with the remote. Raises: StatusError if there is no catalog yet."""
        if not self._first_sync.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._first_sync.wait(), self._options.first_sync_seconds)
        if not self.clone.is_read:
            raise self._not_ready()

    def _not_ready(self) -> StatusError:
        name = self.settings.facts.name
        return answers.unavailable(f'repository "{name}" is not ready: {self.status.problem}')

    @property
    def is_read(self) -> bool:
        """Whether the first sync with the remote has ended, well or not."""
        return self._first_sync.is_set()

    async def wake(self) -> None:
        """Make the task read its Repository object again: it requests a sync."""
        if self.clone.is_read and not self.status.problem:  # else a sync is still to come
            await self.status.report_ready()
            self.changes.nudge()

    # Other replicas.

    def compare(self, name: str, package: str, workspace: str) -> None:
        """Read the remote soon if the object of a revision differs from the mirror. It was just written."""
        if not self.clone.is_read:
            return
        directory = layout.join(self.settings.directory, package)
        obj, revision = self.revisions.get(name), self.clone.catalog.find(directory, workspace)
        if obj is None and revision is None:
            return
        if obj is None or not self.revisions.agree(obj, revision):
            self._updater.later.add((directory, workspace))
            self.look_soon()

    def look_soon(self) -> None:
        if not self._updater.is_behind:
            self._updater.is_behind = True
            self.changes.nudge()

    async def catch_up(self) -> None:
        """Wait until the remote was read by a fetch that begins after this call.

        Raises: StatusError if it cannot be read.
        """
        if not self.journal.is_shared or self.changes.is_closed:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.look_soon()
        await done
        if self.status.problem:
            raise self._not_ready()

    async def up_to_date(self) -> None:
        """Wait until the catalog has what the objects of other replicas have announced."""
        if self._updater.is_behind:
            await self.catch_up()

    def _answer_waiting(self, waiting: list["asyncio.Future[None]"]) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(None)

    # The task.

    async def _run(self, after: "RepositorySync | None") -> None:
        if after is not None:
            await after.stop()
            self.journal.open()
        while not self.changes.is_closed:  # before Python 3.12 `wait_for` can swallow a cancellation
            self._plan()
            pause = min(PAUSE_SECONDS_MAX, max(0.0, self._next_look - time.monotonic()))
            batch = await self.changes.batch(min(pause, LATER_SECONDS) if self._updater.later else pause)
            try:
                if batch:
                    await self._commit(batch)
                elif self._updater.later and not self._updater.is_behind:
                    await self._updater.update(self.clone.catalog, set())
                is_behind = self._updater.is_behind and (not self.status.problem or bool(self._waiting))
                if is_behind or time.monotonic() >= self._next_look:
                    await self._look()
            except UnavailableError as exc:
                _log.warning("objects cannot be written", error=str(exc), **self.settings.logged)
                self._compare_all = True
                self._next_look = time.monotonic() + self._backoff.next_seconds()
            except Exception as exc:
                # One bad repository must not stop the others; the next check starts over.
                await self._pass_failed(exc)

    def _plan(self) -> None:
        """Check the remote no later than when the next full sync is due."""
        seconds = self.status.full_syncs.seconds_left(self.status.stored(), datetime.now(UTC))
        if seconds is not None:
            self._next_look = min(self._next_look, time.monotonic() + seconds)

    def _look_at_once(self) -> None:
        self._next_look, self._next_fetch = 0.0, 0.0
        self.changes.nudge()

    async def _pass_failed(self, error: Exception) -> None:
        """Report the failure in the condition, if that can be stored, and do a full sync later."""
        if lacks_memory(error) or isinstance(error, OSError | StoreError):
            why = NO_MEMORY if lacks_memory(error) else str(error)[:ERROR_CHARACTERS_MAX]
            self.status.problem = f"reading it failed: {why}"
            _log.error("repository pass failed", error=self.status.problem, **self.settings.logged)
        else:
            self.status.problem = f"reading it failed unexpectedly ({type(error).__name__}); see the log"
            text = str(error)[:ERROR_CHARACTERS_MAX]
            _log.error("repository pass failed", error=text, exc_info=error, **self.settings.logged)
        self._first_sync.set()
        self._compare_all = True
        self._next_look = time.monotonic() + self._backoff.next_seconds()
        with suppress(StoreError):  # the disk is full, which the log reports already
            await self.status.report_problem()

    async def _commit(self, batch: list[Change]) -> None:
        try:
            outcomes, changed = await self.clone.commit([change.build for change in batch])
        except BaseException as exc:
            for change in batch:
                settle(change, answers.unavailable(f"the change was abandoned: {exc}"))
            raise
        if self.clone.has_lost_branch:
            self._next_look = 0.0  # which reports it
        catalog = self.clone.catalog
        try:
            await self._updater.update(catalog, changed)  # so whoever made a change sees all of it
        finally:
            for change, outcome in zip(batch, outcomes, strict=True):
                settle(change, outcome)
                if isinstance(outcome, GitError) and outcome.failure is Failure.UNREACHABLE:
                    self._next_look = 0.0  # the condition says so; was it pushed?
                    self.clone.forget_refs()
        if not self.status.problem and any(catalog.find(*key) is None for key in changed):
            await self.status.report_ready()  # there may be a leftover folder

    async def _look(self) -> None:
        """Check whether the remote has changed, and sync the changes."""
        now, started = time.monotonic(), datetime.now(UTC)
        due = self.status.full_syncs.begin(self.status.stored(), started)
        full = due or self._compare_all
        waiting, self._waiting = self._waiting, []
        by_time = full or self._updater.is_behind or now >= self._next_fetch
        self._updater.is_behind = False
        try:
            await self._look_at(full=full, due=due, by_time=by_time, now=now, started=started)
        finally:
            self._answer_waiting(waiting)

    async def _look_at(self, *, full: bool, due: bool, by_time: bool, now: float, started: datetime) -> None:
        local = self.settings.local
        if local is not None and not (by_time or self.status.problem):
            if not await self.clone.has_moved(local):
                await self._updater.update(self.clone.catalog, set())
                self._next_look = now + self._poll_seconds()
                return
        mark = self.journal.mark()
        try:
            credentials = await present_credentials(self._objects, self.settings)
            changed = await self.clone.sync(credentials, self._pins())
        except (GitError, OSError) as exc:
            await self._fail(str(exc))
            self._next_look = time.monotonic() + self._backoff.next_seconds()
            return
        self._backoff.reset()
        self.status.problem = ""
        self.revisions.mark = mark
        await self._updater.finish_interrupted(self.clone.catalog)
        self._first_sync.set()
        if full:
            await self._updater.update_all(self.clone.catalog)
            self._compare_all = False
        else:
            await self._updater.update(self.clone.catalog, changed)
        if due:
            self.status.full_syncs.note_success(started)
        await self.status.report_ready()
        self._next_fetch = time.monotonic() + self._options.fetch_seconds
        # Checking a repository with many refs must not take most of the time. A check of a path by time, the
        # first one above all, is rare enough already.
        cost = 0.0 if local is not None and by_time else time.monotonic() - now
        self._next_look = time.monotonic() + max(self._pause(), 20 * cost)

    def _pause(self) -> float:
        """Return the seconds between checks; a URL with a schedule is fetched at its times only."""
        if self.settings.local is not None:
            return self._poll_seconds()
        return math.inf if self.settings.schedule else self._options.fetch_seconds

    def _poll_seconds(self) -> float:
        return self._options.poll_seconds * max(1.0, self._load.keepers / CROWD)

    def _pins(self) -> Pins:
        revisions = [] if self.clone.is_read else self.revisions.all()
        return pins_of(self.settings, self.status.stored(), revisions)

    async def _fail(self, message: str) -> None:
        if self.status.problem != message:
            _log.warning("repository not ready", repository=self.settings.facts.name, problem=message)
        self.status.problem = message
        self._first_sync.set()
        await self.status.report_problem()
