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
"""

import asyncio
from functools import partial
from pathlib import Path

from pvbus.controlplane.aggregated import packagerevs
from pvbus.controlplane.aggregated.notes import ClusterNotes
from pvbus.controlplane.aggregated.store import ABANDONED_SECONDS, ClusterStore
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.entries import ObjectKey
from pvbus.controlplane.apiserver.objects import StoredObjects
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, PACKAGE_REVISION, Registry
from pvbus.controlplane.apiserver.resources import Resources
from pvbus.controlplane.apiserver.store import UnavailableError
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.controlplane.packages.render import Render
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.backoff import Jitter
from pvbus.ports.cluster import Cluster, WatchEvent
from pvbus.telemetry.structured import structlog

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
