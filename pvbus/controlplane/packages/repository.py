"""Syncs one Repository: its mirror, its package revisions as objects, its condition.

One task does all work on the remote in sequence: waiting changes are pushed together, and in between
the remote is checked. Objects follow the catalog; an object with a request in progress is left to that
request (`writes`) and checked again afterwards. Nothing is removed because a remote is unreachable.
"""

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pygit2
import structlog

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION as PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import StoreError, UnavailableError
from pvbus.controlplane.packages import answers, layout, leftovers, operations, skipping
from pvbus.controlplane.packages.bounds import ContentError
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.catalog import Catalog
from pvbus.controlplane.packages.damage import DAMAGE, read_whole, unreadable
from pvbus.controlplane.packages.filesets import File
from pvbus.controlplane.packages.fingerprint import ref_fingerprint
from pvbus.controlplane.packages.gitcommand import Credentials, Failure, Git, GitError
from pvbus.controlplane.packages.gitrepo import Author, BareMirror
from pvbus.controlplane.packages.journal import Note, Notes
from pvbus.controlplane.packages.operations import Staging, commit_all
from pvbus.controlplane.packages.queueing import Change, Changes, settle
from pvbus.controlplane.packages.reporting import REPOSITORY as REPOSITORY
from pvbus.controlplane.packages.reporting import report
from pvbus.controlplane.packages.revisions import Revision, name_of
from pvbus.controlplane.packages.settings import (
    Pins,
    RepositorySettings,
    StoreOptions,
    pins_of,
    present_credentials,
)
from pvbus.controlplane.packages.shown import ERROR_CHARACTERS_MAX, ShownRevisions
from pvbus.controlplane.packages.timing import FullSyncs
from pvbus.controlplane.packages.updating import ObjectUpdater
from pvbus.core.errors import NO_MEMORY, lacks_memory
from pvbus.core.kernel.backoff import Backoff
from pvbus.ports.cluster import Object

MIRROR = "mirror.git"
CATALOG = "catalog"
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
_T = TypeVar("_T")


class RepositorySync:
    """The sync of one Repository, between `start` and `stop`. Call all methods on the event loop's thread.

    One task (`_run`) repeats a pass: it pushes the waiting changes in one batch, updates objects whose
    requests have ended, and reads the remote if that is due. So a push and a fetch never overlap. After a
    push, the objects that no request is writing follow git before the requests get their answers. Where a
    pass fails because of objects or unexpectedly, the next one compares all objects (`_compare_all`), as any
    of them may be behind.

    problem: why requests cannot be served now, "" if they can
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
        self.problem = "it has not been read yet"
        self.journal = notes
        self.revisions = ShownRevisions(
            objects, settings.facts, self.journal, lambda older, newer: self.mirror.is_ancestor(older, newer)
        )
        self.writes = self.revisions.writes
        self._updater = ObjectUpdater(settings, self.revisions, notes)
        self._objects = objects
        self._folder = folder
        self._executor = executor
        self._options = options
        self._load = load
        self._git: Git | None = None
        self._credentials: Credentials | None = None
        self._mirror: BareMirror | None = None
        self._catalog: Catalog | None = None
        self._changes = Changes(load)
        self._first_sync = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Future[Any] | None = None
        self._stopped = False
        self._is_suspect = False
        self._fingerprint: int | None = None
        self._backoff = Backoff(FAILURE_SECONDS_MIN, options.fetch_seconds, random.uniform)
        self._next_look = 0.0
        self._next_fetch = 0.0
        self._times = FullSyncs(settings.schedule, self._stored())
        self._compare_all = True
        self._leftovers: list[str] = []
        self._skipped: Mapping[str, str] = {}
        self._waiting: list[asyncio.Future[None]] = []
        self._logged = {"namespace": settings.facts.namespace, "repository": settings.facts.name}

    # Life cycle.

    def start(self, after: "RepositorySync | None" = None) -> None:
        """Start the task.

        after: the sync of the same folder that is stopping, which is awaited first; None if there is none
        """
        self._load.keepers += 1
        self._task = asyncio.create_task(self._run(after), name=f"repository {self.settings.facts.name}")

    async def stop(self) -> None:
        """End the task and its git processes; waiting requests get 503."""
        if not self._stopped:
            self._load.keepers -= 1
        self._stopped = True
        if self._git is not None:
            self._git.interrupt()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        self._changes.refuse()
        self._answer_waiting(self._waiting)

    # Other replicas.

    def compare(self, name: str, package: str, workspace: str) -> None:
        """Read the remote soon if the object of a revision differs from the mirror. It was just written."""
        if self._catalog is None:
            return
        directory = layout.join(self.settings.directory, package)
        obj, revision = self.revisions.get(name), self.catalog.find(directory, workspace)
        if obj is None and revision is None:
            return
        if obj is None or not self.revisions.agree(obj, revision):
            self._updater.later.add((directory, workspace))
            self.look_soon()

    def look_soon(self) -> None:
        if not self._updater.is_behind:
            self._updater.is_behind = True
            self._changes.nudge()

    async def catch_up(self) -> None:
        """Wait until the remote was read by a fetch that begins after this call.

        Raises: StatusError if it cannot be read.
        """
        if not self.journal.is_shared or self._stopped:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.look_soon()
        await done
        if self.problem:
            raise answers.unavailable(f'repository "{self.settings.facts.name}" is not ready: {self.problem}')

    async def up_to_date(self) -> None:
        """Wait until the catalog has what the objects of other replicas have announced."""
        if self._updater.is_behind:
            await self.catch_up()

    def _answer_waiting(self, waiting: list["asyncio.Future[None]"]) -> None:
        for done in waiting:
            if not done.done():
                done.set_result(None)

    async def report_last(self) -> None:
        """After `stop`, write the catalog and the current status, so that the next start need not."""
        if self._catalog is not None:
            await self.in_thread(self._catalog.save)
        if self._catalog is not None and not self.problem:
            await self._report("True", "Ready", self.catalog.readiness())

    async def ready(self) -> None:
        """Wait for the first sync with the remote. Raises: StatusError if there is no catalog yet."""
        if not self._first_sync.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._first_sync.wait(), self._options.first_sync_seconds)
        if self._catalog is None:
            name = self.settings.facts.name
            raise answers.unavailable(f'repository "{name}" is not ready: {self.problem}')

    @property
    def is_read(self) -> bool:
        """Whether the first sync with the remote has ended, well or not."""
        return self._first_sync.is_set()

    @property
    def catalog(self) -> Catalog:
        assert self._catalog is not None, "wait for ready() first"
        return self._catalog

    @property
    def mirror(self) -> BareMirror:
        assert self._mirror is not None, "wait for ready() first"
        return self._mirror

    async def is_leftover(self, directory: str) -> bool:
        """Return whether a directory has only the folder that a deleted package left on the branch."""
        present = self.catalog.by_directory.get(directory, {}).values()
        if not present or not all(item.is_placeholder for item in present):
            return False
        return bool(await self.in_thread(self.catalog.leftovers, directory))

    def annotations(self) -> Mapping[str, str]:
        """Return the annotations of the Repository."""
        return ((self._stored() or {}).get("metadata") or {}).get("annotations") or {}

    def branch(self, user: str) -> operations.Branch:
        return operations.Branch(self.mirror, self.catalog.branch_ref, Author(*self.settings.author_of(user)))

    async def in_thread(self, function: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    async def _exclusive(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run work on the remote in a thread; `stop` waits until it is done."""
        work = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        self._work = work
        return await asyncio.shield(work)

    async def files(self, revision: Revision) -> Mapping[str, File]:
        """Read the content of a revision. The mapping is shared: do not change it.

        Raises: StatusError for content beyond the limits of a package.
        """
        if (found := self._load.files.find(revision.tree)) is not None:
            return found
        try:
            return await self.in_thread(self._read_files, revision.tree)
        except ContentError as exc:
            name = name_of(revision, self.settings.facts)
            raise answers.invalid(name, "spec.resources", str(exc)) from exc
        except DAMAGE as exc:
            self._is_suspect, self._next_look, self._next_fetch = True, 0.0, 0.0
            self._changes.nudge()
            raise answers.unavailable(unreadable(self.settings.facts.name, exc)) from exc

    def _read_files(self, tree: str) -> Mapping[str, File]:
        return self._load.files.get(tree, lambda: self.mirror.files(tree))

    async def change_noted(self, name: str, note: Note, build: Callable[[Staging], str]) -> None:
        """Like `change`, with a change of the object's metadata: after a crash both are there, or none.

        Once this returns, the object must be stored while `writes` has it.

        note: the change without its commit, which `build` returns
        Raises: StatusError.
        """
        written = threading.Event()

        def build_noted(refs: Staging) -> None:
            self.journal.write(name, note._replace(commit=build(refs)))
            written.set()

        await self._change_reserved(name, note, build_noted, written)

    async def change_reserved(self, name: str, note: Note, build: Callable[[Staging], _T]) -> _T:
        """Like `change_noted`, for a change that leaves the object's metadata as it is, or no object."""
        return await self._change_reserved(name, note, build, threading.Event())

    async def _change_reserved(
        self, name: str, note: Note, build: Callable[[Staging], _T], written: threading.Event
    ) -> _T:
        await self.journal.reserve(name, note)
        try:
            return await self.change(name, build)
        except StatusError as exc:
            if exc.code == answers.UNAVAILABLE:
                self.journal.interrupt(name)
            else:
                await self.journal.release(name, is_noted=written.is_set())
            raise

    async def write(self, name: str, files: Mapping[str, File]) -> str:
        """Write the files of a revision into the mirror, for a later change; return their tree.

        Raises: StatusError.
        """
        try:
            return await self.in_thread(self.mirror.write_package, files)
        except ContentError as exc:
            raise answers.invalid(name, "spec.resources", str(exc)) from exc
        except (OSError, pygit2.GitError) as exc:
            raise self._not_written(exc) from exc

    def _not_written(self, error: Exception) -> StatusError:
        return answers.internal(f"cannot write to {self._folder} ({error}): check the disk")

    async def change(self, name: str, build: Callable[[Staging], _T]) -> _T:
        """Change refs of the remote; return the result of the last call of `build`.

        build: stages the change and does nothing else, in a thread, perhaps several times
        Raises: StatusError; then no part of this change is at the remote.
        """
        if self._stopped:
            raise answers.unavailable("the package store is shutting down")
        try:
            result: _T = await self._changes.put(build)
        except GitError as exc:
            raise answers.of_git_error(exc, name) from exc
        except (OSError, pygit2.GitError) as exc:
            raise self._not_written(exc) from exc
        return result

    async def _run(self, after: "RepositorySync | None") -> None:
        if after is not None:
            await after.stop()
            self.journal.open()
        while not self._stopped:  # before Python 3.12 `wait_for` can swallow a cancellation
            self._plan()
            pause = min(PAUSE_SECONDS_MAX, max(0.0, self._next_look - time.monotonic()))
            batch = await self._changes.batch(min(pause, LATER_SECONDS) if self._updater.later else pause)
            try:
                if batch:
                    await self._commit(batch)
                elif self._updater.later and not self._updater.is_behind:
                    await self._updater.update(self.catalog, set())
                is_behind = self._updater.is_behind and (not self.problem or bool(self._waiting))
                if is_behind or time.monotonic() >= self._next_look:
                    await self._look()
            except UnavailableError as exc:
                _log.warning("objects cannot be written", error=str(exc), **self._logged)
                self._compare_all = True
                self._next_look = time.monotonic() + self._backoff.next_seconds()
            except Exception as exc:
                # One bad repository must not stop the others; the next check starts over.
                await self._pass_failed(exc)

    async def wake(self) -> None:
        """Make the task read its Repository object again: it requests a sync."""
        if self._catalog is not None and not self.problem:  # else a sync is still to come
            await self._report("True", "Ready", self.catalog.readiness())
            self._changes.nudge()

    def _plan(self) -> None:
        """Check the remote no later than when the next full sync is due."""
        seconds = self._times.seconds_left(self._stored(), datetime.now(UTC))
        if seconds is not None:
            self._next_look = min(self._next_look, time.monotonic() + seconds)

    async def _pass_failed(self, error: Exception) -> None:
        """Report the failure in the condition, if that can be stored, and do a full sync later."""
        if lacks_memory(error) or isinstance(error, OSError | StoreError):
            why = NO_MEMORY if lacks_memory(error) else str(error)[:ERROR_CHARACTERS_MAX]
            self.problem = f"reading it failed: {why}"
            _log.error("repository pass failed", error=self.problem, **self._logged)
        else:
            self.problem = f"reading it failed unexpectedly ({type(error).__name__}); see the log"
            text = str(error)[:ERROR_CHARACTERS_MAX]
            _log.error("repository pass failed", error=text, exc_info=error, **self._logged)
        self._first_sync.set()
        self._compare_all = True
        self._next_look = time.monotonic() + self._backoff.next_seconds()
        with suppress(StoreError):  # the disk is full, which the log reports already
            await self._report("False", "Error", self.problem)

    async def _commit(self, batch: list[Change]) -> None:
        try:
            outcomes, changed = await self._exclusive(self._commit_in_thread, [item.build for item in batch])
        except BaseException as exc:
            for item in batch:
                settle(item, answers.unavailable(f"the change was abandoned: {exc}"))
            raise
        try:
            await self._updater.update(self.catalog, changed)  # so whoever made a change sees all of it
        finally:
            for item, outcome in zip(batch, outcomes, strict=True):
                settle(item, outcome)
                if isinstance(outcome, GitError) and outcome.failure is Failure.UNREACHABLE:
                    self._next_look, self._fingerprint = 0.0, None  # the condition says so; was it pushed?
        if not self.problem and any(self.catalog.find(*each) is None for each in changed):
            await self._report("True", "Ready", self.catalog.readiness())  # there may be a leftover folder

    def _commit_in_thread(
        self, builds: list[Callable[[Staging], object]]
    ) -> tuple[list[object], set[tuple[str, str]]]:
        outcomes = commit_all(self.mirror, builds)
        if self.catalog.head and self.catalog.branch_ref not in self.mirror.refs:
            self._next_look = 0.0  # which reports that the remote has lost its branch
            return outcomes, set()
        changed = self.catalog.apply(self.mirror.refs)
        if any(self.catalog.find(*each) is None for each in changed):
            self._leftovers = self.catalog.leftovers()
        return outcomes, changed

    async def _look(self) -> None:
        """Check whether the remote has changed, and sync the changes."""
        now, started = time.monotonic(), datetime.now(UTC)
        due = self._times.begin(self._stored(), started)
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
        if local is not None and not (by_time or self.problem):
            if await self.in_thread(ref_fingerprint, local) == self._fingerprint:
                await self._updater.update(self.catalog, set())
                self._next_look = now + self._poll_seconds()
                return
        mark = self.journal.mark()
        try:
            changed = await self._exclusive(
                self._sync, await present_credentials(self._objects, self.settings), self._pins_now()
            )
        except (GitError, OSError) as exc:
            await self._fail(str(exc))
            self._next_look = time.monotonic() + self._backoff.next_seconds()
            return
        self._backoff.reset()
        self.problem = ""
        self.revisions.mark = mark
        await self._updater.finish_interrupted(self.catalog)
        self._first_sync.set()
        if full:
            await self._updater.update_all(self.catalog)
            self._compare_all = False
        else:
            await self._updater.update(self.catalog, changed)
        if due:
            self._times.done(started)
        await self._report("True", "Ready", self.catalog.readiness())
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

    def _sync(self, credentials: Credentials | None, pins: Pins) -> set[tuple[str, str]]:
        """Fetch and read; a mirror that is damaged is fetched anew. Raises: GitError."""
        is_suspect, self._is_suspect = self._is_suspect, False
        return read_whole(
            lambda: self._mirror, lambda: self._fetch_and_read(credentials, pins), is_suspect, self._logged
        )

    def _fetch_and_read(self, credentials: Credentials | None, pins: Pins) -> set[tuple[str, str]]:
        """Fetch and read (in a thread, so nothing here touches objects). Raises: GitError."""
        mirror = self._open(credentials)
        self._fingerprint = ref_fingerprint(self.settings.local) if self.settings.local else None
        mirror.fetch()
        catalog = self._catalog or Catalog(
            mirror, self.settings.directory, self.settings.branch, pins.commits, self._folder / CATALOG
        )
        if catalog.branch_ref not in mirror.refs:
            had_branch = pins.had_branch or bool(catalog.head)
            operations.require_branch(mirror, catalog.branch_ref, self.settings, had_branch=had_branch)
        changed = catalog.apply(mirror.refs)
        self._catalog = catalog
        self._leftovers, self._skipped = catalog.leftovers(), catalog.skipped()
        return changed

    def _open(self, credentials: Credentials | None) -> BareMirror:
        if self._git is None or credentials != self._credentials:
            self._git, self._credentials = Git(credentials, self.settings.url), credentials
            if self._mirror is not None:
                self._mirror.use(self._git)
        if self._mirror is None:
            self._mirror = BareMirror(self._folder / MIRROR, self.settings.url, self._git)
            self._mirror.pack()
        return self._mirror

    def _pins_now(self) -> Pins:
        revisions = [] if self._catalog is not None else self.revisions.all()
        return pins_of(self.settings, self._stored(), revisions)

    def _stored(self) -> Object | None:
        facts = self.settings.facts
        return self._objects.get(REPOSITORY, facts.namespace, facts.name)

    async def _fail(self, message: str) -> None:
        if self.problem != message:
            _log.warning("repository not ready", repository=self.settings.facts.name, problem=message)
        self.problem = message
        self._first_sync.set()
        await self._report("False", "Error", message)

    async def _report(self, status: str, reason: str, message: str) -> None:
        extra: dict[str, Any] = {}
        if self._catalog is not None:
            extra["packageCount"] = sum(len(found) for found in self._catalog.by_directory.values())
            extra["gitCommitHash"] = self._catalog.head
        facts = self.settings.facts
        extra |= self._times.status(self._stored())
        conditions = [{"type": "Ready", "status": status, "reason": reason, "message": message}]
        if self._catalog is not None:
            paths = [
                layout.package_path(directory, self.settings.directory) or directory
                for directory in self._leftovers
            ]
            if counted := leftovers.condition(facts.name, self.settings.branch, paths):
                conditions.append(counted)
            if skipped := skipping.condition(self._skipped):
                conditions.append(skipped)
        await report(self._objects, facts.namespace, facts.name, conditions, extra)
