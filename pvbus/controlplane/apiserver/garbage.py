"""Garbage collection by ownerReferences, as Kubernetes' controller does it.

An object whose owners are all gone is deleted; an object with a remaining owner loses its references to the
others. That also holds for objects created after their owner was deleted, and after a restart. Owners are
identified by uid; a reference must also have the owner's name, and the same namespace. A reference to a kind
that is not served counts as an existing owner, so such an object stays.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from pvbus.controlplane.apiserver.entries import Change, Entry, ObjectKey, Owner
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.registry import Registry
from pvbus.controlplane.apiserver.requests import DeleteOptions, Options
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.core.kernel.backoff import Backoff
from pvbus.ports.cluster import Kind, Object
from pvbus.telemetry.structured import structlog

Item = TypeVar("Item", bound=Hashable)

TOGETHER_MAX = 200
"""Items handled at once, so that their writes share transactions."""

RETRY_SECONDS = (0.1, 10.0)
"""First and longest pause before the retry of an item that is not done."""

_log = structlog.get_logger(__name__)


class Worklist(Generic[Item]):
    """A queue of items with retries.

    An item is in the queue once at most. One that is not done, or whose handling fails, waits in `_later` for
    a retry after a backoff.

    handle: returns whether the item is done; the item may need no work
    """

    def __init__(self, name: str, handle: Callable[[Item], Awaitable[bool]]) -> None:
        self._name = name
        self._handle = handle
        self._ready: deque[Item] = deque()
        self._queued: set[Item] = set()
        self._later: dict[Item, float] = {}
        self._backoffs: dict[Item, Backoff] = {}
        self._wake = asyncio.Event()

    def add(self, item: Item) -> None:
        """Handle this item soon, even if it waits for a retry."""
        self._later.pop(item, None)
        if item not in self._queued:
            self._queued.add(item)
            self._ready.append(item)
            self._wake.set()

    async def run(self) -> None:
        """Handle items until cancelled."""
        while True:
            self._wake.clear()
            now = time.monotonic()
            for item in [item for item, due in self._later.items() if due <= now]:
                self.add(item)
            batch = [self._ready.popleft() for _ in range(min(TOGETHER_MAX, len(self._ready)))]
            if batch:
                self._queued.difference_update(batch)
                await asyncio.gather(*(self._try(item) for item in batch))
            else:
                await self._sleep(now)

    async def _try(self, item: Item) -> None:
        try:
            done = await self._handle(item)
        except Exception as exc:
            # An error with one object must not stop the collection of the others.
            _log.warning("background work failed", work=self._name, item=str(item), error=str(exc))
            done = False
        if done:
            self._backoffs.pop(item, None)
        elif item not in self._queued:
            backoff = self._backoffs.setdefault(item, Backoff(*RETRY_SECONDS, random.uniform))
            self._later[item] = time.monotonic() + backoff.next_seconds()

    async def _sleep(self, now: float) -> None:
        pause = min(self._later.values(), default=now + 3600) - now
        try:
            async with asyncio.timeout(max(pause, 0.001)):
                await self._wake.wait()
        except TimeoutError:
            pass


USER = "system:serviceaccount:kube-system:generic-garbage-collector"
MANAGER = "kube-controller-manager"
"""The program that collects garbage in a cluster: it owns the fields that the collector writes."""


class Node(NamedTuple):
    """The identity of an object.

    kind: its kind
    key: its namespace and name
    """

    kind: Kind
    key: ObjectKey


class Collector:
    """Follows every change; `work.run()` deletes the objects.

    `_by_uid` has every present object, and `_dependents` every object by the uid of each owner that it names,
    whether that owner exists or not. So a deletion finds its dependents, and a new object with a dead owner
    is found when it is written. A change only adds to the work list; a node is judged by the objects of that
    moment.
    """

    def __init__(self, store: Store, registry: Registry, writer: Writer) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self._by_uid: dict[str, Node] = {}
        self._dependents: dict[str, set[Node]] = {}
        self.work = Worklist("garbage collection", self._handle)
        store.observe(self._observe)

    def begin(self) -> None:
        """Check all objects once: no log has the changes from before this start."""
        for kind in self._store.kinds():
            for entry in self._store.table(kind).in_order():
                self._link(Node(kind, entry.key), entry)
        for node in list(self._by_uid.values()):
            if (found := self._store.get(*node)) is not None:
                self._consider(node, found)

    def _consider(self, node: Node, entry: Entry) -> None:
        if entry.terminating or any(self._is_gone(owner, node) for owner in entry.owners):
            self.work.add(node)

    def _link(self, node: Node, entry: Entry) -> None:
        self._by_uid[entry.uid] = node
        for owner in entry.owners:
            self._dependents.setdefault(owner.uid, set()).add(node)

    def _unlink(self, node: Node, entry: Entry) -> None:
        for owner in entry.owners:
            nodes = self._dependents.get(owner.uid)
            if nodes is not None:
                nodes.discard(node)
                if not nodes:
                    del self._dependents[owner.uid]

    def _observe(self, change: Change) -> None:
        node = Node(change.kind, change.entry.key)
        if change.old is not None and change.old.owners:
            self._unlink(node, change.old)
        if change.type != "DELETED":
            self._link(node, change.entry)
            self._consider(node, change.entry)
            return
        if self._by_uid.get(change.entry.uid) == node:
            del self._by_uid[change.entry.uid]
        for dependent in self._dependents.get(change.entry.uid, ()):
            self.work.add(dependent)
        for owner in change.entry.owners:
            if owner.uid in self._by_uid:
                self.work.add(self._by_uid[owner.uid])

    async def _handle(self, node: Node) -> bool:
        entry = self._store.get(*node)
        if entry is None:
            return True
        if entry.terminating:
            return await self._finish(node, entry)
        return not entry.owners or await self._judge(node, entry)

    async def _judge(self, node: Node, entry: Entry) -> bool:
        """Delete an object whose owners are all gone, or remove its references to those that are."""
        endpoint = self._registry.storage(node.kind)
        if endpoint is None:
            return True
        gone = {owner for owner in entry.owners if self._is_gone(owner, node)}
        if not gone:
            return True
        if gone.issuperset(entry.owners):
            await self._writer.delete(endpoint, node.key, DeleteOptions(uid=entry.uid, user=USER))
        else:
            await self._release(node, {owner.uid for owner in gone})
        return True

    def _is_gone(self, owner: Owner, dependent: Node) -> bool:
        group = owner.api_version.rpartition("/")[0]
        endpoint = self._registry.storage(Kind(group, owner.kind))
        if endpoint is None:
            return False
        if endpoint.served.namespaced and not dependent.key[0]:
            return False  # a cluster-wide object cannot have an owner in a namespace: nothing is known of it
        namespace = dependent.key[0] if endpoint.served.namespaced else ""
        node = Node(endpoint.stored_kind, (namespace, owner.name))
        return self._by_uid.get(owner.uid) != node

    async def _finish(self, node: Node, entry: Entry) -> bool:
        """Process the finalizers `orphan` and `foregroundDeletion` of a terminating object."""
        endpoint = self._registry.storage(node.kind)
        finalizers: list[str] = entry.decode()["metadata"].get("finalizers", [])
        if endpoint is None or not {"orphan", "foregroundDeletion"} & set(finalizers):
            return True
        dependents = list(self._dependents.get(entry.uid, ()))
        if "orphan" in finalizers:
            for dependent in dependents:
                await self._release(dependent, {entry.uid})
            done = "orphan"
        else:
            if await self._delete_dependents(dependents, entry.uid):
                return False
            done = "foregroundDeletion"
        await self._writer.update(
            endpoint, node.key, without_finalizer(done), Options(USER, [], manager=MANAGER)
        )
        return True

    async def _delete_dependents(self, dependents: list[Node], owner: str) -> bool:
        """Delete the dependents without another owner; return whether any of them still blocks the owner."""
        blocked = False
        refused: StatusError | None = None
        for dependent in dependents:
            entry = self._store.get(*dependent)
            endpoint = self._registry.storage(dependent.kind)
            if entry is None or endpoint is None:
                continue
            if any(other.uid != owner for other in entry.owners):
                await self._release(dependent, {owner})
                continue
            blocked = blocked or any(reference.blocks for reference in entry.owners)
            if not entry.terminating:
                policy = "Foreground" if entry.uid in self._dependents else "Background"
                options = DeleteOptions(uid=entry.uid, propagation=policy, user=USER)
                try:
                    await self._writer.delete(endpoint, dependent.key, options)
                except StatusError as exc:  # the others go all the same
                    refused = refused or exc
        if refused is not None:
            raise refused
        return blocked

    async def _release(self, node: Node, owners: set[str]) -> None:
        """Remove the references to these owners from an object."""
        endpoint = self._registry.storage(node.kind)
        if endpoint is None or self._store.head(*node) is None:
            return

        def change(obj: Object) -> Object:
            metadata: dict[str, Any] = dict(obj["metadata"])
            retained = [owner for owner in metadata.get("ownerReferences", ()) if owner["uid"] not in owners]
            metadata["ownerReferences"] = retained
            return {**obj, "metadata": metadata}

        await self._writer.update(endpoint, node.key, change, Options(USER, [], manager=MANAGER))


def without_finalizer(finalizer: str) -> Any:
    def change(obj: Object) -> Object:
        metadata = dict(obj["metadata"])
        metadata["finalizers"] = [name for name in metadata.get("finalizers", ()) if name != finalizer]
        return {**obj, "metadata": metadata}

    return change
