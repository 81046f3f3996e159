"""The package store with its objects in a cluster: what an aggregated API server serves.

To serve it:

    state = AggregatedState(cluster, folder, render=...)
    await state.start()                     # returns at once; the lists are read in the background
    state.problem()                         # "" once it may be ready, else why not (for /readyz)
    answer = await state.resources.answer(call)
    ... watching.stream(state.store, state.registry, answer)   # for an answer that is a WatchPlan
    await state.stop()

`resources.answer` takes a `Call` whose `user` is the name of the authenticated caller; authentication and
authorization are the front's. It raises `StatusError`, and `UnavailableError` (a `StoreError`) if the cluster
cannot be written or read: answer 503. The registry has the kinds of porch.kpt.dev only, so discovery and
OpenAPI made from it are those of the aggregated group.

`folder` is a cache: mirrors of the git repositories. Nothing in it is needed, and no two processes may share
it. Any number of processes may use the same cluster and the same git repositories.

`ClusterNotes` are the changes under way, in the PackageRevs: every replica reads them, and finishes what
another one has begun and cannot finish. A change is noted before anything is pushed, so the note does not
know its commit. Git has the change if the revision is not any more what the object shows.
"""

import asyncio
from contextlib import suppress
from functools import partial
from pathlib import Path

from pvbus.controlplane.aggregated import packagerevs
from pvbus.controlplane.aggregated.store import ABANDONED_SECONDS, ClusterStore
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.entries import ObjectKey
from pvbus.controlplane.apiserver.objects import StoredObjects
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, PACKAGE_REVISION, Registry
from pvbus.controlplane.apiserver.resources import Resources
from pvbus.controlplane.apiserver.store import StaleError, UnavailableError
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.controlplane.packages import answers
from pvbus.controlplane.packages.journal import IsAncestor, Note
from pvbus.controlplane.packages.render import Render
from pvbus.controlplane.packages.revisions import Revision
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.backoff import Jitter
from pvbus.ports.cluster import Cluster, Object, WatchEvent
from pvbus.telemetry.structured import structlog


class ClusterNotes:
    """The `Notes` of one Repository."""

    is_shared = True

    def __init__(self, store: ClusterStore, namespace: str, repository: str) -> None:
        self._store = store
        self._namespace = namespace
        self._repository = repository
        self._own: dict[str, str] = {}

    def _key(self, name: str) -> tuple[str, str]:
        return self._namespace, name

    def _change(self, name: str) -> packagerevs.Change | None:
        rev = self._store.rev(self._key(name))
        return packagerevs.change_of(rev) if rev is not None else None

    # Changes under way.

    async def reserve(self, name: str, note: Note) -> None:
        try:
            self._own[name] = await self._store.begin(self._key(name), self._repository, note)
        except StaleError as exc:
            raise answers.modified(name) from exc
        except UnavailableError as exc:
            raise answers.unavailable(str(exc)) from exc

    async def release(self, name: str, *, is_noted: bool) -> None:
        reservation = self._own.pop(name, "")
        if reservation:
            with suppress(UnavailableError):  # it ends when it counts as abandoned
                await self._store.end(self._key(name), reservation)

    def interrupt(self, name: str) -> None:
        self._own.pop(name, None)
        self._store.interrupt(self._key(name))

    def write(self, name: str, note: Note) -> None:
        """Do nothing: the change was noted when it was reserved."""

    def drop(self, name: str) -> None:
        """Do nothing: the write of the object has ended the change."""
        self._own.pop(name, None)

    def open(self) -> None:
        """Do nothing: the notes are in the cluster."""

    def names(self) -> list[str]:
        return []

    def version_noted(self, name: str) -> str | None:
        change = self._change(name)
        return change.version if change is not None else None

    def applied(self, name: str, revision: Revision, is_ancestor: IsAncestor) -> Note | None:
        rev = self._store.rev(self._key(name))
        if rev is None:
            return None
        change, shown = packagerevs.change_of(rev), packagerevs.shown(rev)
        if change is None:
            # It was hidden with its Repository, or Porch's server made it.
            return Note("", dict(packagerevs.kept_metadata(rev))) if shown is None else None
        if change.note.lifecycle not in ("", revision.lifecycle):
            return None
        if shown is not None and _position(shown) == (revision.commit, revision.lifecycle):
            return None
        return change.note

    def interrupted(self) -> list[str]:
        return [
            name
            for namespace, name in self._store.abandoned()
            if namespace == self._namespace and self._repository_of(name) == self._repository
        ]

    def _repository_of(self, name: str) -> str:
        rev = self._store.rev(self._key(name))
        return packagerevs.repository_of(rev) if rev is not None else ""

    def is_unknown(self, name: str) -> bool:
        return self._change(name) is not None

    def is_held(self, name: str) -> bool:
        return self._store.is_held(self._key(name))

    async def settle(self, name: str, *, is_in_git: bool) -> None:
        if self._change(name) is None:
            return
        if is_in_git:
            await self._store.end(self._key(name))
        else:
            await self._store.discard(PACKAGE_REVISION, self._key(name))

    def remote_read(self) -> None:
        """Do nothing: a change that git had not got has ended, and a late push is followed like any other."""

    # Objects of a Repository that is gone.

    async def retain(self, obj: Object) -> bool:
        await self._store.withdraw(self._key(obj["metadata"]["name"]))
        return True

    def hidden(self) -> list[str]:
        return [
            name
            for (namespace, name), rev in self._store.revs().items()
            if namespace == self._namespace
            and packagerevs.is_withdrawn(rev)
            and packagerevs.repository_of(rev) == self._repository
        ]

    # Other replicas.

    def mark(self) -> int:
        return self._store.rv

    def is_unchanged_since(self, name: str, mark: int) -> bool:
        return self._store.is_followed_since(self._key(name), mark)


def _position(obj: Object) -> tuple[str, str]:
    lock = (obj.get("status", {}).get("selfLock") or {}).get("git") or {}
    return str(lock.get("commit", "")), str((obj.get("spec") or {}).get("lifecycle", ""))


SETTLE_SECONDS = 1.0

_log = structlog.get_logger(__name__)


class AggregatedState:
    """The package store on a cluster; see the module. Create, `start`, use, `stop`."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *,
        render: Render,
        jitter: Jitter,
        options: StoreOptions | None = None,
        abandoned_seconds: float = ABANDONED_SECONDS,
    ) -> None:
        """Follow nothing until `start`.

        cluster: stays open after `stop`
        folder: the cache of mirrors
        render: renders a package
        jitter: the source of the randomness of all waits, `pvbus.runtime.backoff.uniform`
        options: the options of the package store, None for the defaults
        abandoned_seconds: how long a change may be under way before it counts as abandoned
        """
        self.store = ClusterStore(cluster, jitter=jitter, abandoned_seconds=abandoned_seconds)
        self.registry = Registry(kind for kind in BUILTIN_KINDS if kind.group == PORCH_GROUP)
        objects = StoredObjects()
        objects.bind(self.store)
        self._packages = PackageStore(
            objects,
            folder,
            render=render,
            options=options,
            notes=partial(ClusterNotes, self.store),
            is_admitting=False,
        )
        self.store.listen(self._changed)
        hooks = {PACKAGE_REVISION: self._packages.package_revisions}
        writer = Writer(self.store, self.registry, {}, hooks)
        virtual = {PACKAGE_RESOURCES: self._packages.resources}
        self.resources = Resources(self.store, self.registry, writer, virtual)
        self._tasks: list[asyncio.Task[None]] = []
        self._beginning: asyncio.Task[None] | None = None
        self._deleted: asyncio.Queue[ObjectKey] = asyncio.Queue()

    async def start(self) -> None:
        """Begin to follow the cluster; the Repositories follow once their list is complete."""
        followers = self.store.followers.values()
        self._tasks = [
            asyncio.create_task(each.run(), name=f"following {each.kind.kind}") for each in followers
        ]
        self._tasks.append(asyncio.create_task(self.store.expire_forever(), name="expiry"))
        self._tasks.append(asyncio.create_task(self._settle_forever(), name="abandoned changes"))
        self._tasks.append(asyncio.create_task(self._restore_forever(), name="deleted PackageRevs"))
        self._beginning = asyncio.create_task(self._begin(), name="package store")

    async def _begin(self) -> None:
        for follower in self.store.followers.values():
            await follower.listed.wait()
        await self._packages.start()

    async def stop(self) -> None:
        """End all tasks and git processes. Waiting requests get 503."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        await self._packages.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.stop()

    def _changed(self, event: WatchEvent) -> None:
        rev = event.object
        if event.type != "DELETED" and packagerevs.is_deleted_by_hand(rev):
            self._deleted.put_nowait((rev["metadata"].get("namespace", ""), rev["metadata"]["name"]))
        revision = packagerevs.last_shown(rev)
        if revision is not None:
            self._packages.changed_elsewhere(revision)

    async def _settle_forever(self) -> None:
        """Fetch the remotes of abandoned changes from time to time; their syncs then complete the changes."""
        while True:
            await asyncio.sleep(SETTLE_SECONDS)
            for key in self.store.abandoned():
                rev = self.store.rev(key)
                if rev is not None:
                    self._packages.look(key[0], packagerevs.repository_of(rev))

    async def _restore_forever(self) -> None:
        while True:
            key = await self._deleted.get()
            try:
                await self.store.restore(key)
            except UnavailableError as exc:  # of a namespace that is being deleted, as a rule
                _log.warning("a deleted PackageRev was not made again", name="/".join(key), error=str(exc))

    def problem(self) -> str:
        """Return why requests may fail, or answers may be outdated; "" if nothing is known."""
        return self.store.problem() or self._packages.unread()
