"""Empties namespaces and definitions before their deletion.

Both terminate first, which prevents new objects in them. The cleaner deletes the existing objects, waits for
their finalizers, and then removes the namespace or the definition.
"""

from typing import NamedTuple

from pvbus.controlplane.apiserver.crds import CLEANUP_FINALIZER
from pvbus.controlplane.apiserver.entries import Change, Entry
from pvbus.controlplane.apiserver.garbage import USER, Worklist, without_finalizer
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.kinds import from_crd
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, Registry, is_established
from pvbus.controlplane.apiserver.requests import DeleteOptions, Options
from pvbus.controlplane.apiserver.revisions import begin
from pvbus.controlplane.apiserver.store import Store
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.ports.cluster import Kind, Object

INITIAL = ("default", "kube-system")


class Container(NamedTuple):
    """A terminating namespace or CustomResourceDefinition."""

    kind: Kind
    name: str


class Cleaner:
    """Follows every change; `work.run()` deletes the objects."""

    def __init__(self, store: Store, registry: Registry, writer: Writer) -> None:
        self._store = store
        self._registry = registry
        self._writer = writer
        self._terminating: set[Container] = set()
        self.work = Worklist("clean up", self._handle)
        store.observe(self._observe)

    def begin(self) -> None:
        """Serve the stored definitions; resume the deletion of terminating definitions and namespaces."""
        for entry in self._store.table(CRD).in_order():
            self._registry.set_crd(entry.decode())
        for kind in (NAMESPACE, CRD):
            for entry in self._store.table(kind).in_order():
                self._note(Container(kind, entry.key[1]), entry)

    def _observe(self, change: Change) -> None:
        namespace, name = change.entry.key
        if change.kind in (NAMESPACE, CRD):
            container = Container(change.kind, name)
            if change.kind == CRD:
                self._serve(change)
            if change.type == "DELETED":
                self._terminating.discard(container)
            else:
                self._note(container, change.entry)
        elif self._terminating and change.type == "DELETED":
            for container in self._terminating:
                if container.kind == CRD or container.name == namespace:
                    self.work.add(container)

    def _serve(self, change: Change) -> None:
        if change.type == "DELETED":
            self._registry.drop_crd(change.entry.key[1])
            for entry in self._store.table(CRD).in_order():
                if not is_established(entry.share()):
                    self.work.add(Container(CRD, entry.key[1]))
        else:
            self._registry.set_crd(change.entry.decode())

    def _note(self, container: Container, entry: Entry) -> None:
        if entry.terminating:
            self._terminating.add(container)
            self.work.add(container)

    async def _handle(self, container: Container) -> bool:
        entry = self._store.get(container.kind, ("", container.name))
        if entry is None:
            return True
        if container.kind == CRD:
            return await (self._empty_definition if entry.terminating else self._accept_names)(entry)
        return not entry.terminating or await self._empty_namespace(entry)

    async def _accept_names(self, entry: Entry) -> bool:
        """Check again whether a definition's names are free: an unchanged write sets its conditions anew."""
        endpoint = self._registry.storage(CRD)
        if endpoint is not None:
            await self._writer.update(endpoint, entry.key, lambda crd: crd, Options(USER, []))
        return True

    async def _empty_namespace(self, entry: Entry) -> bool:
        if await self._delete_all(self._store.kinds(), entry.key[1]):
            return False
        obj = entry.decode()
        if obj["metadata"].get("finalizers"):
            return True
        self._store.remove(NAMESPACE, entry.key)
        await self._store.durable()
        return True

    async def _empty_definition(self, entry: Entry) -> bool:
        served = from_crd(entry.decode())
        if await self._delete_all([Kind(served.group, served.kind)], None):
            return False
        endpoint = self._registry.storage(CRD)
        if endpoint is not None:
            change = without_finalizer(CLEANUP_FINALIZER)
            await self._writer.update(endpoint, entry.key, change, Options(USER, []))
        return True

    async def _delete_all(self, kinds: list[Kind], namespace: str | None) -> bool:
        """Delete the objects of these kinds, in one namespace or in all; return whether any remain."""
        remain = False
        for kind in kinds:
            endpoint = self._registry.storage(kind)
            entries = [] if kind == NAMESPACE else self._store.table(kind).in_order(namespace)
            for entry in entries:
                if endpoint is None or (namespace is not None and not endpoint.served.namespaced):
                    break
                if not entry.terminating:
                    try:
                        await self._writer.delete(endpoint, entry.key, DeleteOptions())
                    except StatusError as exc:
                        # A hook may refuse for now (a published package): the deletion is retried.
                        remain = remain or exc.code != 404
                remain = remain or self._store.get(kind, entry.key) is not None
        return remain


async def create_initial(store: Store, strategy: Strategy) -> None:
    """Create the namespaces in `INITIAL`, which every cluster has."""
    for name in INITIAL:
        if store.head(NAMESPACE, ("", name)) is None:
            store.put(NAMESPACE, strategy.prepare(_namespace(name), None))
    await store.durable()


def _namespace(name: str) -> Object:
    metadata: Object = {"name": name}
    begin(metadata, counts=False)
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
