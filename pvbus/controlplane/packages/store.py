"""The package store: package revisions in git, behind an API server that stores the objects.

`package_revisions` and `repositories` are the hooks of those kinds and `resources` is the kind
PackageRevisionResources. Between `start` and `stop`, a RepositorySync follows the git repository of every
Repository object. Git stores the whole package; the objects store only the metadata that git cannot
(labels, annotations, owners, finalizers).

After the functions changed, by a setting or with a new version of pvbus, it renders failed drafts again, as
nobody else would: to its variant a draft is complete, and only its pipeline failed. A file in the data folder
has the digest of the functions with which all failed drafts were tried.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import StoreError
from pvbus.controlplane.packages import layout
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.clone import MIRROR
from pvbus.controlplane.packages.computing import PureWork
from pvbus.controlplane.packages.content import RENDERED
from pvbus.controlplane.packages.journal import Journal, Notes
from pvbus.controlplane.packages.permits import LocalFolders
from pvbus.controlplane.packages.render import Render
from pvbus.controlplane.packages.repository import JOURNAL, RepositorySync
from pvbus.controlplane.packages.repository_hooks import RepositoryHooks
from pvbus.controlplane.packages.requests import RevisionRequests
from pvbus.controlplane.packages.resources import ResourcesKind
from pvbus.controlplane.packages.revision_hooks import RevisionHooks
from pvbus.controlplane.packages.settings import RepositorySettings, StoreOptions, settings_of
from pvbus.controlplane.packages.status import report
from pvbus.controlplane.packages.timing import run_once_at
from pvbus.controlplane.packages.upstreams import Upstreams
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.backoff import spread
from pvbus.core.kernel.codec import prepare_types
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Object
from pvbus.telemetry.structured import structlog

TRIED = "functions-tried"
_UNAVAILABLE = 503


async def render_failed_again(objects: Objects, resources: ResourcesKind, file: Path, functions: str) -> None:
    """Save each failed draft again, unless all were tried with these functions.

    file: the file with the digest of the functions of the last try
    functions: the digest of the functions that can run now
    """
    if _read(file) == functions:
        return
    failed = [obj for obj in objects.list(PACKAGE_REVISION) if _has_failed(obj)]
    outcomes = [await _is_tried(resources, obj) for obj in failed]
    if all(outcomes):
        with suppress(OSError):  # the next start tries again
            file.write_text(functions)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _has_failed(revision: Object) -> bool:
    conditions = (revision.get("status") or {}).get("conditions") or ()
    is_draft = revision["spec"].get("lifecycle") == layout.DRAFT
    return is_draft and any(
        each.get("type") == RENDERED and each.get("status") == "False" for each in conditions
    )


async def _is_tried(resources: ResourcesKind, revision: Object) -> bool:
    """Return whether a draft was rendered, or has a problem of its own that another start would not solve."""
    metadata = revision["metadata"]
    try:
        files = await resources.get(metadata.get("namespace", ""), metadata["name"])
        if files is not None:
            annotated = {**files["metadata"], "annotations": {layout.CAUSE: layout.FUNCTIONS_CHANGED}}
            await resources.update({**files, "metadata": annotated}, user="")
    except StatusError as exc:
        return exc.code != _UNAVAILABLE
    return True


THREADS_MAX = 8
"""Threads mostly wait for git; more would only queue at the interpreter's lock."""

_log = structlog.get_logger(__name__)


class PackageStore:
    """The package store; see the module. Call all methods on the event loop's thread.

    syncs: what reads each Repository, by its namespace and name
    """

    def __init__(
        self,
        objects: Objects,
        data: Path,
        *,
        render: Render,
        options: StoreOptions | None = None,
        notes: Callable[[str, str], Notes] | None = None,
        is_admitting: bool = True,
    ) -> None:
        """Read nothing yet.

        data: the data folder; mirrors are in its subfolder `repositories`
        render: renders a package
        options: the options of all Repositories, None for the defaults
        notes: makes the notes of a Repository, by its namespace and name; None puts them into `data`
        is_admitting: whether `repositories` sees every new Repository. If not, anybody may have stored one,
            and a path in it is read only in the folders of the options.
        """
        self._notes_of = notes or (
            lambda namespace, name: Journal(self._folder_of(namespace, name) / JOURNAL)
        )
        self._objects = objects
        self._folder = data / "repositories"
        self._options = options or StoreOptions()
        prepare_types()
        self._executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="packages")
        self.syncs: dict[tuple[str, str], RepositorySync] = {}
        self._settings: dict[tuple[str, str], tuple[Object, RepositorySettings]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False
        self._has_listed = False
        self._load = StoreActivity()
        self._work = PureWork(render, self._executor, self._load)
        requests = RevisionRequests(objects, self._work, self._sync_of, self._load)
        upstreams = data / "upstreams"
        self._is_admitting = is_admitting
        self._local = LocalFolders(self._options.local_folders, [data])
        own = LocalFolders(["/"], [self._folder, upstreams])
        self._upstreams = Upstreams(
            objects, upstreams, self._executor, self._local, is_admitting=is_admitting
        )
        self.package_revisions = RevisionHooks(requests, self._upstreams)
        self.repositories = RepositoryHooks(objects, self._local, own)
        self.resources = ResourcesKind(requests)

    async def start(self) -> None:
        """Begin to follow the Repository objects; their first sync runs in the background."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._upstreams.start()
        self._tasks = [asyncio.create_task(self._follow(), name="package store")]
        if self._options.functions:
            file = self._folder.parent / TRIED
            again = render_failed_again(self._objects, self.resources, file, self._options.functions)
            self._tasks.append(asyncio.create_task(again, name="failed drafts"))

    async def stop(self) -> None:
        """End all tasks and processes. Waiting requests get 503."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._upstreams.stop()
        await asyncio.gather(*(sync.stop() for sync in self.syncs.values()), *self._ending)
        with contextlib.suppress(StoreError):  # the disk is full: the next start reports it
            await asyncio.gather(*(sync.report_last() for sync in self.syncs.values()))
        self.syncs.clear()
        await self._work.stop()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def unread(self) -> str:
        """Return which Repositories have had no first sync yet, in words, "" if all have had one."""
        if not self._has_listed:
            return "the Repositories are not listed yet"
        names = ["/".join(key) for key, sync in self.syncs.items() if not sync.is_read]
        return f"the first sync of {', '.join(sorted(names))} has not ended yet" if names else ""

    def changed_elsewhere(self, revision: Object) -> None:
        """Follow a PackageRevision that another process has written or removed; our own are known here."""
        spec = revision.get("spec") or {}
        namespace = revision["metadata"].get("namespace", "")
        sync = self.syncs.get((namespace, spec.get("repository", "")))
        if sync is not None:
            sync.compare(revision["metadata"]["name"], spec["packageName"], spec["workspaceName"])

    def look(self, namespace: str, repository: str) -> None:
        """Read the remote of a Repository soon."""
        sync = self.syncs.get((namespace, repository))
        if sync is not None:
            sync.look_soon()

    async def _follow(self) -> None:
        while True:
            try:
                async for event in self._objects.watch(REPOSITORY):
                    match event.type:
                        case "ADDED" | "MODIFIED":
                            await self._keep(event.object)
                        case "DELETED":
                            await self._release(event.object)
                        case "BOOKMARK":
                            await self._remove_orphans()
                            self._has_listed = True
            except Exception as exc:  # one failure must not stop following the others
                _log.error("following repositories failed", error=str(exc), exc_info=exc)
            await asyncio.sleep(spread(1.0, random.uniform))

    async def _keep(self, repository: Object) -> None:
        try:
            self._settings_of(repository)
        except PermanentError as exc:
            metadata = repository["metadata"]
            condition = {"type": "Ready", "status": "False", "reason": "Error", "message": str(exc)}
            await report(self._objects, metadata.get("namespace", ""), metadata["name"], [condition], {})
        present = self.syncs.get(_key(repository))
        sync = self._sync_of(repository)
        if sync is not None and sync is present and run_once_at(repository):
            await sync.wake()

    def _sync_of(self, repository: Object) -> RepositorySync | None:
        """Return the started sync for a Repository's present settings, None if they are invalid."""
        key = _key(repository)
        present = self.syncs.get(key)
        try:
            settings = self._settings_of(repository)
        except PermanentError:
            return None
        if present is not None and present.settings == settings:
            return present
        if self._stopped:
            return None
        if present is not None:
            self._end(present)
        namespace, name = key
        folder = self._folder_of(namespace, name)
        notes = self._notes_of(namespace, name)
        sync = RepositorySync(
            self._objects, settings, folder, self._executor, self._options, self._load, notes
        )
        self.syncs[key] = sync
        sync.start(after=present)
        return sync

    def _settings_of(self, repository: Object) -> RepositorySettings:
        """Read a Repository's settings, once per version of it. Raises: PermanentError."""
        key = _key(repository)
        version, settings = self._settings.get(key, (None, None))
        if version is not repository or settings is None:
            settings = settings_of(repository)
            if not self._is_admitting and settings.local is not None:
                if problem := self._local.problem(settings.local):
                    raise PermanentError(f"spec.git.repo: {problem}")
            self._settings[key] = repository, settings
        return settings

    def _end(self, sync: RepositorySync) -> None:
        task = asyncio.create_task(sync.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _release(self, repository: Object) -> None:
        """Remove a deleted Repository's objects and mirror; git is not changed.

        The metadata that only the objects have is noted, so that drafts get their owners back if the
        Repository is recreated.
        """
        key = _key(repository)
        await self._objects.refresh(REPOSITORY, *key)
        if self._objects.get(REPOSITORY, *key) is not None:
            return  # recreated meanwhile
        self._settings.pop(key, None)
        sync = self.syncs.pop(key, None)
        if sync is not None:
            await sync.stop()
        revisions = self._objects.list(PACKAGE_REVISION, key[0])
        await self._forget([obj for obj in revisions if obj["spec"].get("repository") == key[1]])
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().run_in_executor(
                self._executor, shutil.rmtree, self._folder_of(*key) / MIRROR
            )

    def _folder_of(self, namespace: str, name: str) -> Path:
        return self._folder / (namespace or "_") / name

    async def _forget(self, revisions: Sequence[Object]) -> None:
        """Keep the metadata of package revisions, then remove the objects; git is not changed."""
        notes: dict[tuple[str, str], Notes] = {}
        for obj in revisions:
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
            key = (namespace, obj["spec"].get("repository", ""))
            if key not in notes:
                notes[key] = self._notes_of(*key)
            if not await notes[key].retain(obj):
                await self._objects.remove(PACKAGE_REVISION, namespace, name)

    async def _remove_orphans(self) -> None:
        """Remove package revisions whose Repository was deleted while the store was stopped."""
        orphans = [obj for obj in self._objects.list(PACKAGE_REVISION) if not self._has_repository(obj)]
        for key in {(obj["metadata"].get("namespace", ""), obj["spec"]["repository"]) for obj in orphans}:
            await self._objects.refresh(REPOSITORY, *key)
        await self._forget([obj for obj in orphans if not self._has_repository(obj)])

    def _has_repository(self, revision: Object) -> bool:
        folder_key = (revision["metadata"].get("namespace", ""), revision["spec"].get("repository", ""))
        return self._objects.get(REPOSITORY, *folder_key) is not None


def _key(repository: Object) -> tuple[str, str]:
    metadata = repository["metadata"]
    return metadata.get("namespace", ""), metadata["name"]
