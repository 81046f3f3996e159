"""Shared by the hooks: the syncs by Repository, one writer per revision, the renderer."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from pvbus.controlplane.apiserver.hooks import Objects, StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages import answers, layout, render
from pvbus.controlplane.packages.caching import StoreActivity
from pvbus.controlplane.packages.computing import PureWork
from pvbus.controlplane.packages.filesets import Files
from pvbus.controlplane.packages.render import Rendering
from pvbus.controlplane.packages.repository import RepositorySync
from pvbus.controlplane.packages.revisions import Revision, lock_address
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import TransientError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.core.kernel.objects import annotations_of
from pvbus.ports.cluster import Object

REPOSITORIES = f"repositories.{CONFIG_GROUP}"
MIGRATED = "porch.kpt.dev/v1alpha2-migration"


class RevisionRequests:
    """Finds the syncs and revisions of requests, and lets one request at a time write a revision."""

    def __init__(
        self,
        objects: Objects,
        work: PureWork,
        sync_of: Callable[[Object], RepositorySync | None],
        load: StoreActivity,
    ) -> None:
        """Hold no revision yet.

        work: renders and merges
        sync_of: returns a Repository's started sync; None if it is not a git repository
        load: counts the requests in progress
        """
        self.objects = objects
        self.work = work
        self._sync_of = sync_of
        self._load = load
        self._busy: set[tuple[str, str]] = set()

    @contextmanager
    def busy(self, namespace: str, name: str, subject: str = "") -> Iterator[None]:
        """Hold a revision for one request; reject a second one, as Porch does."""
        key = (namespace, name)
        if key in self._busy:
            subject = subject or f'package revision "{namespace}/{name}"'
            raise answers.conflict(name, f"another request is already in progress on {subject}")
        self._busy.add(key)
        self._load.requests += 1
        try:
            yield
        finally:
            self._load.requests -= 1
            self._busy.discard(key)

    async def sync(self, namespace: str, repository: str) -> RepositorySync:
        """Return a Repository's sync once its packages are known. Raises: StatusError."""
        obj = await self._repository(namespace, repository)
        if obj is None:
            raise answers.not_found(repository, plural=REPOSITORIES)
        if annotations_of(obj).get(MIGRATED) == "true":
            raise StatusError(
                410, "Gone", f'repository "{repository}" is managed by v1alpha2; use the v1alpha2 API'
            )
        sync = self._sync_of(obj)
        if sync is None:
            raise answers.unavailable(f'repository "{repository}" is not ready: see its condition Ready')
        await sync.ready()
        return sync

    async def check_uninterrupted(self, obj: Object) -> None:
        """Wait until git shows the outcome of an interrupted change of an object that is about to be written.

        Otherwise the metadata of that change would be lost. Raises: StatusError.
        """
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        repository = self.objects.get(REPOSITORY, namespace, obj["spec"]["repository"])
        sync = self._sync_of(repository) if repository is not None else None
        if sync is None or not sync.revisions.is_interrupted(obj):
            return
        if sync.journal.is_held(name):
            subject = f'package revision "{namespace}/{name}"'
            raise answers.conflict(name, f"another request is already in progress on {subject}")
        await sync.ready()
        if sync.revisions.is_interrupted(obj):
            problem = f": {sync.status.problem}" if sync.status.problem else ""
            raise answers.unavailable(
                f'a change of "{name}" was interrupted, and whether repository "{obj["spec"]["repository"]}" '
                f"has it is not known yet{problem}"
            )
        if sync.revisions.version(name) != obj["metadata"]["resourceVersion"]:
            raise answers.unavailable(f'an interrupted change of "{name}" was completed just now: try again')

    async def has_repository(self, revision: Object) -> bool:
        namespace = revision["metadata"].get("namespace", "")
        return await self._repository(namespace, revision["spec"]["repository"]) is not None

    async def _repository(self, namespace: str, name: str) -> Object | None:
        """Return a Repository; None only if there is none, not if its list has not been read yet."""
        obj = self.objects.get(REPOSITORY, namespace, name)
        if obj is None:
            await self.objects.refresh(REPOSITORY, namespace, name)
            obj = self.objects.get(REPOSITORY, namespace, name)
        return obj

    async def locate(self, obj: Object) -> tuple[RepositorySync, Revision | None]:
        """Return the sync and the revision of an object; the revision is None if git no longer has it."""
        spec = obj["spec"]
        sync = await self.sync(obj["metadata"].get("namespace", ""), spec["repository"])
        directory = layout.join(sync.settings.directory, spec["packageName"])
        revision = sync.clone.catalog.find(directory, spec["workspaceName"])
        if sync.journal.is_shared and not sync.revisions.agree(obj, revision):
            await sync.catch_up()
            revision = sync.clone.catalog.find(directory, spec["workspaceName"])
        return sync, revision

    async def current(self, obj: Object) -> tuple[RepositorySync, Revision]:
        """Like `locate`, but raise a conflict if git has changed since the object was written."""
        sync, revision = await self.locate(obj)
        shown = obj.get("status", {}).get("selfLock", {}).get("git", {}).get("commit")
        if revision is None or revision.commit != shown:
            raise answers.modified(obj["metadata"]["name"])
        return sync, revision

    async def find(self, namespace: str, name: str) -> tuple[RepositorySync, Revision] | None:
        await self.objects.refresh(PACKAGE_REVISION, namespace, name)
        obj = self.objects.get(PACKAGE_REVISION, namespace, name)
        if obj is None:
            return None
        sync, revision = await self.locate(obj)
        return (sync, revision) if revision is not None else None

    async def files_at(self, namespace: str, lock: Mapping[str, Any], revision: Revision) -> Files | None:
        """Return the files that an `upstreamLock` names; None if no Repository of the namespace has them.

        revision: the revision that has the lock
        Raises: StatusError.
        """
        git = lock.get("git") or {}
        for obj in self.objects.list(REPOSITORY, namespace):
            sync = self._sync_of(obj)
            if sync is None or lock_address(sync.settings.facts.address) != git.get("repo"):
                continue
            await sync.ready()
            commit = sync.clone.mirror.commit_of(git.get("commit", ""))
            tree = sync.clone.mirror.tree_of(commit, git.get("directory", "").strip("/"))
            if tree is not None:
                return await sync.clone.files(msgspec.structs.replace(revision, tree=tree))
        return None

    async def render(self, texts: Mapping[str, str]) -> Rendering:
        """Run the pipeline. Raises: StatusError if it can run later, when a container engine answers."""
        try:
            return await self.work.render(texts)
        except TransientError as exc:
            raise answers.unavailable(f"the package cannot be rendered now: {exc}") from exc

    async def make_files(
        self, wanted: Mapping[str, str], stored: Mapping[str, str], revision: Revision
    ) -> Rendering:
        """Return a draft's new files, rendered if they need it.

        stored: the draft's files now.
        """
        made = render.unrendered(wanted, stored, revision.note, revision.kptfile.own)
        return made or await self.render(wanted)
