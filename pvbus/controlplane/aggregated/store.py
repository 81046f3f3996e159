"""The objects of the package store, in a cluster that other replicas write, too.

A kind that is followed is shown as the cluster's watch shows it, and in no other way: a write is visible
once the watch has it. So all replicas have the same changes in the same order, with the same
resourceVersions, and a list of one can be followed by a watch of another. `refresh` reads the cluster and
waits for the watch, which makes what another replica has just written readable here.

PackageRevisions are kept in PackageRevs (`packagerevs`). Of a Repository only the status is written.
"""

import asyncio
import math
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from pvbus.controlplane.aggregated import packagerevs
from pvbus.controlplane.aggregated.following import Follower
from pvbus.controlplane.aggregated.ownwrites import OwnWrites
from pvbus.controlplane.aggregated.packagerevs import PACKAGE_REV
from pvbus.controlplane.apiserver.entries import Change, Entry, ObjectKey
from pvbus.controlplane.apiserver.registry import NAMESPACE, PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import HeldError, StaleError, Store, UnavailableError
from pvbus.controlplane.packages.journal import Note
from pvbus.controlplane.packages.settings import SECRET
from pvbus.core.errors import ConflictError, InvariantError, PermanentError, TransientError
from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Cluster, Kind, Object, Resource, WatchEvent
from pvbus.telemetry.structured import structlog

SHOWN_SECONDS_MAX = 3.0
"""How long a request waits for the watch to show what the cluster already has: milliseconds as a rule.
After that, a write is answered all the same, and a read gets 503."""

ABANDONED_SECONDS = 15.0
"""How long a change may be under way before another replica asks git what became of it: a push takes less
than a second. If it is shorter, a slow push gets a conflict after it was done; if it is longer, a killed
replica's changes are refused for longer."""

DELETIONS_MAX = 10_000
TRIES_MAX = 8
_T = TypeVar("_T")

_log = structlog.get_logger(__name__)


class ClusterStore(Store):
    """A `Store` whose durable part is a cluster. Call its methods on one event loop.

    A change of a PackageRevision takes two writes of its PackageRev: `begin` notes the change, before
    anything is pushed, and `commit` stores its result, which ends it. Both have the resourceVersion as a
    precondition, so one of two replicas wins. Between them the object is shown as it was, with the former
    resourceVersion. A change whose replica is gone counts as abandoned after a time (`abandoned`), and any
    replica completes or ends it by git.
    """

    def __init__(
        self, cluster: Cluster, *, jitter: Jitter, abandoned_seconds: float = ABANDONED_SECONDS
    ) -> None:
        super().__init__(None)
        self._abandoned_seconds = abandoned_seconds
        self._mine: set[str] = set()
        self._cluster = cluster
        self._revs: dict[ObjectKey, Object] = {}
        self._deleted: deque[tuple[int, ObjectKey]] = deque(maxlen=DELETIONS_MAX)
        self._own = OwnWrites()
        self._begun: dict[ObjectKey, tuple[str, float]] = {}
        self._moved = asyncio.Event()
        self._listeners: list[Callable[[WatchEvent], None]] = []
        self.follower = Follower(cluster, PACKAGE_REV, self._take_revs, jitter=jitter)
        self.followers: Mapping[Kind, Follower] = {
            PACKAGE_REVISION: self.follower,
            REPOSITORY: Follower(cluster, REPOSITORY, self._taker(REPOSITORY), jitter=jitter),
            NAMESPACE: Follower(
                cluster, NAMESPACE, self._taker(NAMESPACE), jitter=jitter, metadata_only=True
            ),
        }

    def listen(self, listener: Callable[[WatchEvent], None]) -> None:
        """Call `listener` for each change of a PackageRev, once it is shown."""
        self._listeners.append(listener)

    def rev(self, key: ObjectKey) -> Object | None:
        """Return a PackageRev as the watch has shown it; the caller must not change it."""
        return self._revs.get(key)

    def revs(self) -> Mapping[ObjectKey, Object]:
        return self._revs

    def problem(self) -> str:
        """Return why the objects cannot be relied on, "" if they can."""
        return next((each.problem for each in self.followers.values() if each.problem), "")

    # What the watches show.

    def _take_revs(self, events: Sequence[WatchEvent], version: str, is_list: bool) -> None:
        changes: list[Change] = []
        for event in events:
            metadata = event.object["metadata"]
            key = (metadata.get("namespace", ""), metadata["name"])
            at = int(version if is_list and event.type == "DELETED" else metadata["resourceVersion"])
            if event.type == "DELETED":
                self._revs.pop(key, None)
                self._begun.pop(key, None)
                self._own.forget(key)
                self._deleted.append((at, key))
                changes += self._change(PACKAGE_REVISION, key, None, at)
            else:
                self._revs[key] = event.object
                self._observe_change(key, event.object)
                changes += self._change(PACKAGE_REVISION, key, packagerevs.shown(event.object), at)
        self._show(PACKAGE_REVISION, changes, int(version), is_list)
        self.rv = max(self.rv, int(version))
        for event in events:
            for listener in self._listeners:
                listener(event)

    def _observe_change(self, key: ObjectKey, rev: Object) -> None:
        """Remember since when this process has known of a change under way: clocks may differ."""
        change = packagerevs.change_of(rev)
        if change is None:
            self._begun.pop(key, None)
        elif self._begun.get(key, ("", 0.0))[0] != change.id:
            self._begun[key] = change.id, time.monotonic()

    def abandoned(self) -> list[ObjectKey]:
        """Return the PackageRevs with a change that has been under way for too long."""
        return [key for key in self._begun if not self._is_recent(key)]

    def _is_recent(self, key: ObjectKey) -> bool:
        _, since = self._begun.get(key, ("", math.inf))
        return time.monotonic() - since < self._abandoned_seconds

    def is_held(self, key: ObjectKey) -> bool:
        """Return whether another replica is changing a PackageRevision just now."""
        rev = self._revs.get(key)
        change = packagerevs.change_of(rev) if rev is not None else None
        return change is not None and change.id not in self._mine and self._is_recent(key)

    def _taker(self, kind: Kind) -> Callable[[Sequence[WatchEvent], str, bool], None]:
        def take(events: Sequence[WatchEvent], version: str, is_list: bool) -> None:
            changes: list[Change] = []
            for event in events:
                metadata = event.object["metadata"]
                key = (metadata.get("namespace", ""), metadata["name"])
                new = None if event.type == "DELETED" else event.object
                changes += self._change(kind, key, new, int(metadata["resourceVersion"]))
            self._show(kind, changes, int(version), is_list)

        return take

    def _change(self, kind: Kind, key: ObjectKey, new: Object | None, rv: int) -> list[Change]:
        old = self.table(kind).entries.get(key)
        if new is None:
            return [Change(kind, "DELETED", Entry.encode(old.decode(), rv), old)] if old else []
        shown = int(new["metadata"]["resourceVersion"])
        if old is not None and old.rv == shown:
            return []
        return [Change(kind, "MODIFIED" if old else "ADDED", Entry.encode(new, shown), old)]

    def _show(self, kind: Kind, changes: Sequence[Change], rv: int, is_list: bool) -> None:
        self.show(changes)
        if is_list:  # what was between is not known: watches and pages from before it end with 410
            table = self.table(kind)
            table.compact(len(table.changes))
            table.compacted = max(table.compacted, rv)
            table.notify()
        self._moved.set()
        self._moved = asyncio.Event()

    async def _until(self, is_shown: Callable[[], bool]) -> bool:
        try:
            async with asyncio.timeout(SHOWN_SECONDS_MAX):
                while not is_shown():
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    # Reads that are as new as the cluster.

    async def refresh(self, kind: Kind, key: ObjectKey | None = None) -> None:
        follower = self.followers.get(kind)
        if kind == SECRET and key is not None:
            await self._read_secret(key)
        if follower is None:
            return
        try:
            resource = await follower.resource()
            if key is None:
                await self._refresh_all(kind, resource)
                return
            live = await self._cluster.get(resource, *key)
        except (TransientError, PermanentError, ConflictError) as exc:
            raise UnavailableError(f"the API server of the cluster cannot be read: {exc}") from exc
        wanted = int(live["metadata"]["resourceVersion"]) if live is not None else None
        if not await self._until(lambda: self._is_as_new(kind, key, wanted)):
            raise UnavailableError(f"the watch of {kind.kind} is behind the cluster")

    async def _read_secret(self, key: ObjectKey) -> None:
        """Read one Secret: the right to list them all is more than the package store needs."""
        try:
            resource = await self._cluster.resource(SECRET)
            live = await self._cluster.get(resource, *key) if resource is not None else None
        except (TransientError, PermanentError, ConflictError) as exc:
            raise UnavailableError(str(exc)) from exc
        rv = int(live["metadata"]["resourceVersion"]) if live is not None else self.rv
        self.show(self._change(SECRET, key, live, rv))

    def _is_as_new(self, kind: Kind, key: ObjectKey, wanted: int | None) -> bool:
        present = self._version(kind, key)
        return present is None if wanted is None else present is not None and present >= wanted

    def _version(self, kind: Kind, key: ObjectKey) -> int | None:
        if kind == PACKAGE_REVISION:
            rev = self._revs.get(key)
            return int(rev["metadata"]["resourceVersion"]) if rev is not None else None
        entry = self.table(kind).entries.get(key)
        return entry.rv if entry is not None else None

    async def _refresh_all(self, kind: Kind, resource: Resource) -> None:
        listing = await self._cluster.list(resource, metadata_only=True)
        live = {
            (obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): int(
                obj["metadata"]["resourceVersion"]
            )
            for obj in listing.items
        }
        at = int(listing.resource_version)

        def is_shown() -> bool:
            if any(
                not self._is_as_new(kind, key, rv) and not self._is_gone(kind, key)
                for key, rv in live.items()
            ):
                return False
            keys = self._revs if kind == PACKAGE_REVISION else self.table(kind).entries
            return all(key in live or (self._version(kind, key) or 0) > at for key in keys)

        if not await self._until(is_shown):
            raise UnavailableError(f"the watch of {kind.kind} is behind the cluster")
        if kind == PACKAGE_REVISION:
            self.rv = max(self.rv, at)

    def _is_gone(self, kind: Kind, key: ObjectKey) -> bool:
        """Return whether the watch has shown a deletion: the object was there when the list was made."""
        return kind == PACKAGE_REVISION and any(key == deleted for _, deleted in self._deleted)

    async def reach(self, kind: Kind, rv: int) -> None:
        if kind != PACKAGE_REVISION or self.rv >= rv:
            return
        with suppress(UnavailableError):  # then the client is told that its version is too large
            await self.refresh(kind)

    def is_followed_since(self, key: ObjectKey, mark: int) -> bool:
        """Return whether nobody else has changed a PackageRev after a mark, an earlier `rv` of this store."""
        rev = self._revs.get(key)
        if rev is not None:
            return self._own.last_of_others(key, int(rev["metadata"]["resourceVersion"])) <= mark
        return not any(rv > mark and key == deleted for rv, deleted in self._deleted)

    # Writes.

    async def commit(self, kind: Kind, obj: Object) -> Entry:
        if kind == REPOSITORY:
            return await self._report(obj)
        if kind != PACKAGE_REVISION:
            raise InvariantError(f"the package store does not write {kind.kind} objects")
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        rev = self._revs.get(key)
        self._check_held(key)
        if rev is None and metadata.get("resourceVersion"):
            raise StaleError(f"PackageRevision {'/'.join(key)} is gone")
        if rev is not None and packagerevs.version(rev) != str(metadata.get("resourceVersion") or ""):
            if not packagerevs.is_withdrawn(rev) and packagerevs.shown(rev) is not None:
                raise StaleError(f"PackageRevision {'/'.join(key)}")
        answer = await self._put(packagerevs.written(obj, rev))
        self._forget_change(rev)
        shown = packagerevs.shown(answer)
        if shown is None:
            raise UnavailableError(
                "the CustomResourceDefinition packagerevs.config.porch.kpt.dev does not keep what the "
                "package store writes: it is not pvbus's, so install that (kubectl apply -k deploy/crds)"
            )
        return Entry.encode(shown, int(answer["metadata"]["resourceVersion"]))

    def _check_held(self, key: ObjectKey) -> None:
        if self.is_held(key):
            raise HeldError(f"PackageRevision {'/'.join(key)} is changed by another replica")

    def _forget_change(self, rev: Object | None) -> None:
        change = packagerevs.change_of(rev) if rev is not None else None
        if change is not None:
            self._mine.discard(change.id)

    async def _report(self, obj: Object) -> Entry:
        """Write the status of a Repository."""
        resource = await self._resource(REPOSITORY)
        answer = await self._send(self._cluster.update(resource, obj, subresource="status"))
        rv = int(answer["metadata"]["resourceVersion"])
        key = (answer["metadata"].get("namespace", ""), answer["metadata"]["name"])
        await self._until(
            lambda: self._is_as_new(REPOSITORY, key, rv) or key not in self.table(REPOSITORY).entries
        )
        return Entry.encode(answer, rv)

    async def discard(self, kind: Kind, key: ObjectKey) -> Entry | None:
        """Remove a PackageRevision, whatever else changed: git no longer has it."""
        if kind != PACKAGE_REVISION:
            raise InvariantError(f"the package store does not delete {kind.kind} objects")
        resource = await self._resource(PACKAGE_REVISION)
        for _ in range(TRIES_MAX):
            rev, old = self._revs.get(key), self.get(PACKAGE_REVISION, key)
            if rev is None:
                return None
            self._check_held(key)
            try:
                await self._delete(resource, rev)
            except StaleError:
                await self.refresh(kind, key)
                continue
            self._forget_change(rev)
            await self._until(lambda: key not in self._revs)
            return old
        raise UnavailableError(f"other clients keep changing PackageRev {'/'.join(key)}: try again")

    async def _delete(self, resource: Resource, rev: Object) -> None:
        metadata = rev["metadata"]
        if metadata.get("finalizers"):
            last = packagerevs.with_change(rev, packagerevs.change_of(rev), last=True)
            rev = await self._send(self._cluster.update(resource, last))
            if metadata.get("deletionTimestamp"):
                return  # that was the last finalizer
            metadata = rev["metadata"]
        await self._send(
            self._cluster.delete(
                resource,
                metadata.get("namespace", ""),
                metadata["name"],
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
            )
        )

    # Changes under way.

    async def begin(self, key: ObjectKey, repository: str, note: Note) -> str:
        """Reserve a PackageRevision for a change, before anything is pushed; return the reservation.

        note: what the change does; its `version` must be the object's resourceVersion
        Raises: StaleError if another change is under way or was made.
        """
        change = packagerevs.Change(id=uuid.uuid4().hex, note=note)
        rev = self._revs.get(key)
        if rev is None:
            rev = packagerevs.begun(change, *key, repository)
        elif packagerevs.change_of(rev) is not None or (
            packagerevs.shown(rev) is not None and packagerevs.version(rev) != note.version
        ):
            raise StaleError(f"PackageRevision {'/'.join(key)}")
        else:
            rev = packagerevs.with_change(rev, change)
        self._mine.add(change.id)
        try:
            await self._put(rev)
        except BaseException:
            self._mine.discard(change.id)
            raise
        return change.id

    async def end(self, key: ObjectKey, reservation: str = "") -> None:
        """End a change that was not made, unless it has ended.

        reservation: the id of the change, "" to end any
        """
        self._mine.discard(reservation)
        for _ in range(TRIES_MAX):
            rev = self._revs.get(key)
            change = packagerevs.change_of(rev) if rev is not None else None
            if rev is None or change is None or reservation not in ("", change.id):
                return
            try:
                if packagerevs.shown(rev) is None and not packagerevs.is_withdrawn(rev):
                    await self._delete(await self._resource(PACKAGE_REVISION), rev)
                    await self._until(lambda: key not in self._revs)
                else:
                    await self._put(packagerevs.with_change(rev, None))
                return
            except StaleError:
                await self.refresh(PACKAGE_REVISION, key)

    async def withdraw(self, key: ObjectKey) -> None:
        """Hide a PackageRevision whose Repository is gone, and keep its metadata."""
        for _ in range(TRIES_MAX):
            rev = self._revs.get(key)
            if rev is None or packagerevs.is_withdrawn(rev):
                return
            try:
                await self._put(packagerevs.withdrawn(packagerevs.with_change(rev, None)))
                return
            except StaleError:
                await self.refresh(PACKAGE_REVISION, key)

    async def restore(self, key: ObjectKey) -> None:
        """Make a PackageRev again that somebody has deleted: its package revision is still in git."""
        rev = self._revs.get(key)
        if rev is None or not packagerevs.is_deleted_by_hand(rev):
            return
        _log.warning("a PackageRev was deleted, and is made again", namespace=key[0], name=key[1])
        with suppress(StaleError):  # another replica does the same
            await self._delete(await self._resource(PACKAGE_REVISION), rev)
            await self._until(lambda: key not in self._revs)
            await self._put(packagerevs.remade(rev))

    async def _resource(self, kind: Kind) -> Resource:
        return await self._send(self.followers[kind].resource())

    async def _put(self, rev: Object) -> Object:
        """Create or replace a PackageRev, and wait until it is shown. Raises: StaleError, StoreError."""
        resource = await self._resource(PACKAGE_REVISION)
        is_new = "resourceVersion" not in rev["metadata"]
        send = self._cluster.create if is_new else self._cluster.update
        answer = await self._send(send(resource, rev))
        key = (answer["metadata"].get("namespace", ""), answer["metadata"]["name"])
        rv = int(answer["metadata"]["resourceVersion"])
        self._own.add(key, int(rev["metadata"].get("resourceVersion") or self._last_deletion(key)), rv)
        await self._until(
            lambda: self._is_as_new(PACKAGE_REVISION, key, rv) or self._is_gone(PACKAGE_REVISION, key)
        )
        return answer

    def _last_deletion(self, key: ObjectKey) -> int:
        return max((at for at, deleted in self._deleted if deleted == key), default=0)

    def interrupt(self, key: ObjectKey) -> None:
        """Leave a change under way whose outcome is unknown: git decides."""
        self._own.forget(key)

    async def _send(self, request: Awaitable[_T]) -> _T:
        try:
            return await request
        except ConflictError as exc:
            raise StaleError(str(exc)) from exc
        except (TransientError, PermanentError) as exc:
            raise UnavailableError(f"the API server of the cluster did not store it: {exc}") from exc
