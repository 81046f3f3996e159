"""A cluster in memory: for `pvbus plan`, and for tests and simulations of the services.

It implements the contract of the cluster port: resourceVersions, preconditions, finalizers, status
separate from spec, watches with bookmarks. It simulates as much of Porch's server as a preview needs: it
names PackageRevisions, copies their PackageRevisionResources from the source, and deletes these with them.
By itself it renders nothing and enforces no lifecycle rules; `PackageRules` do. Garbage collection is off by
default.
"""

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pvbus.adapters.memory.kinds import CRD, ServedKinds
from pvbus.adapters.memory.objects import (
    RESOURCES,
    REVISION,
    copy_of,
    fields_match,
    merged,
    plain,
    resources_of,
    source_of,
    split_api_version,
    updated,
)
from pvbus.adapters.memory.packages import Files, PackageRules
from pvbus.adapters.memory.spill import Spill
from pvbus.adapters.memory.storage import Storage
from pvbus.adapters.memory.writes import SpilledWrites, Write
from pvbus.core.api.selectors import matches
from pvbus.core.api.selectortext import parse_label_selector
from pvbus.core.errors import AlreadyExistsError, ConflictError
from pvbus.core.kernel.keys import revision_name
from pvbus.ports.cluster import Kind, Listing, Object, Resource, WatchEvent

_UIDS = uuid.UUID("6a0d9e5e-52f7-49e5-9a3f-6d8a3f0f7f10")

GARBAGE_COLLECTOR = "garbage collector"


class MemoryCluster(ServedKinds):
    """Implements `pvbus.ports.cluster.Cluster`.

    now: returns the present time, as objects have it
    collects_garbage: whether an object's dependents are deleted with it
    writes: the writes with an effect, in order
    before_write: a hook for tests, called before each write is applied, and before a dry run; it may raise
    on_store: a hook, called with the kind, the namespace, the name and the new state of each object that is
        stored, None for one that is removed
    authorizes: a hook like `before_write`, called with the user ("" for the client itself), the verb and the
        object
    rules: the rules of the package server; None copies files and checks nothing
    without_files: (namespace, name) of the PackageRevisions whose files were requested and that have none
    """

    def __init__(
        self,
        objects: Iterable[Object] = (),
        *,
        now: Callable[[], str],
        collects_garbage: bool = False,
        spill: Spill | None = None,
    ) -> None:
        """spill: where objects and writes are, None for in memory; then writes are only to be iterated"""
        super().__init__()
        self.writes: list[Write] = SpilledWrites(spill) if spill is not None else []
        self.before_write: Callable[[str, Object], None] | None = None
        self.authorizes: Callable[[str, str, Object], None] | None = None
        self.on_store: Callable[[Kind, str, str, Object | None], None] = lambda *_: None
        self.rules: PackageRules | None = None
        self.without_files: set[tuple[str, str]] = set()
        self._now = now
        self._collects_garbage = collects_garbage
        self._storage = Storage(spill)
        self._user, self._is_dry_run = "", False
        for obj in objects:
            self.put(obj)

    def unserve(self, kind: Kind) -> None:
        """Stop serving a kind, as if its definition were deleted, and end its watches.

        Caller: deletes its objects.
        """
        self._drop(kind)
        self._storage.wake_watches()

    # ------------------------------------------------------------ objects

    def objects(self) -> Sequence[Object]:
        """Return all objects, ordered by kind, namespace and name."""
        return self._storage.all()

    def peek(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return an object as it is stored; the caller must not change it."""
        return self._storage.get(kind, namespace, name)

    def _present(self, kind: Kind, namespace: str, name: str) -> Object:
        obj = self.peek(kind, namespace, name)
        assert obj is not None, (kind, namespace, name)
        return obj

    def objects_of(self, kind: Kind) -> Iterable[Object]:
        """Return the objects of a kind as they are stored."""
        return self._storage.of_kind(kind)

    def package(self, namespace: str, repository: str, package: str) -> list[Object]:
        """Return the PackageRevisions of a package as they are stored, by name."""
        return self._storage.package(namespace, repository, package)

    def put(self, obj: Object) -> Object:
        """Add or replace an object as it is, and set missing server fields; no write is recorded."""
        group, version = split_api_version(obj["apiVersion"])
        kind = Kind(group, obj["kind"])
        resource = self._ensure_served(kind, version)
        if kind == CRD:
            self._serve_defined(obj)
        obj = plain(obj)
        meta = obj["metadata"]
        if resource.namespaced:
            meta.setdefault("namespace", "default")
        meta.setdefault("generation", 1)
        meta.setdefault("creationTimestamp", self._now())
        meta.setdefault("uid", str(uuid.uuid5(_UIDS, f"{kind}/{meta.get('namespace')}/{meta['name']}")))
        return self._store(kind, obj)

    def _store(self, kind: Kind, obj: Object) -> Object:
        self._storage.put(kind, obj)
        self.on_store(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"], obj)
        return copy_of(obj)

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Remove an object as a server does when the last finalizer is gone."""
        obj = self._storage.remove(kind, namespace, name)
        if obj is None:
            return
        self.on_store(kind, namespace, name, None)
        if kind == REVISION:
            self.remove(RESOURCES, namespace, name)
        if self._collects_garbage:
            self._collect(obj["metadata"].get("uid", ""))

    def _collect(self, uid: str) -> None:
        """Delete the dependents of this uid; a dependent with another owner only loses the reference."""
        for kind, namespace, name in self._storage.dependents(uid):
            obj = self._present(kind, namespace, name)
            new = copy_of(obj)
            others = [one for one in new["metadata"]["ownerReferences"] if one.get("uid") != uid]
            if others:
                new["metadata"]["ownerReferences"] = others
                self._store(kind, new)
            elif not obj["metadata"].get("deletionTimestamp"):
                self.terminate(kind, namespace, name, by=GARBAGE_COLLECTOR)

    def terminate(self, kind: Kind, namespace: str, name: str, *, by: str = "") -> None:
        """Delete an object as a server does: at once, or when its finalizers are gone."""
        current = self._present(kind, namespace, name)
        if by:
            self.writes.append(Write("delete", kind.kind, namespace, name, None, "", current, by))
        if current["metadata"].get("finalizers"):
            gone = copy_of(current)
            gone["metadata"]["deletionTimestamp"] = self._now()
            self._store(kind, gone)
        else:
            self.remove(kind, namespace, name)

    # ------------------------------------------------------------ reading

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
        is_followed: bool = False,
        keep: Callable[[Object], Object] | None = None,
    ) -> Listing:
        kind, wanted = Kind(resource.group, resource.kind), parse_label_selector(label_selector)
        items = [
            self._shown(kind, obj)
            for obj in self._candidates(kind, namespace, field_selector)
            if (namespace is None or obj["metadata"].get("namespace", "") == namespace)
            and matches(wanted, obj["metadata"].get("labels") or {})
            and fields_match(obj, field_selector)
        ]
        return Listing(str(self._storage.version), [*map(keep, items)] if keep is not None else items)

    def _candidates(self, kind: Kind, namespace: str | None, field_selector: str) -> Iterable[Object]:
        """Return the candidates for a list: only those of one package if the selector names it."""
        fields = dict(part.split("=", 1) for part in field_selector.split(",") if "=" in part)
        repository, package = (fields.get(f"spec.{field}") for field in ("repository", "packageName"))
        if kind == REVISION and namespace and repository and package:
            return self.package(namespace, repository, package)
        return self._storage.ordered(kind)

    def _shown(self, kind: Kind, obj: Object) -> Object:
        """Copy an object for a reader; a revision and its files share one version, as at Porch's server."""
        shown = copy_of(obj)
        if kind == RESOURCES:
            revision = self.peek(REVISION, obj["metadata"]["namespace"], obj["metadata"]["name"])
            if revision is not None:
                shown["metadata"]["resourceVersion"] = revision["metadata"]["resourceVersion"]
                shown["metadata"]["uid"] = revision["metadata"]["uid"]
        return shown

    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncIterator[WatchEvent]:
        kind = Kind(resource.group, resource.kind)
        position = int(resource_version or 0)
        return self._storage.watch(kind, position, namespace, lambda: self.serves(kind))

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        kind = Kind(resource.group, resource.kind)
        obj = self.peek(kind, namespace, name)
        if obj is None:
            if kind == RESOURCES and self.peek(REVISION, namespace, name) is not None:
                self.without_files.add((namespace, name))
            return None
        return self._shown(kind, obj)

    # ------------------------------------------------------------ writing

    def acting(self, *, as_user: str = "", is_dry_run: bool = False) -> "Acting":
        return Acting(self, as_user, is_dry_run)

    @contextmanager
    def in_place_of(self, user: str, *, is_dry_run: bool) -> Iterator[None]:
        """Make the writes inside the block in the name of a user, or as a dry run.

        No other write runs in between.
        """
        before = self._user, self._is_dry_run
        self._user, self._is_dry_run = user, is_dry_run
        try:
            yield
        finally:
            self._user, self._is_dry_run = before

    def _before(self, verb: str, obj: Object) -> None:
        if self.authorizes is not None:
            self.authorizes(self._user, verb, obj)
        if self.before_write is not None:
            self.before_write(verb, obj)

    def _wrote(
        self,
        verb: str,
        obj: Object,
        *,
        sent: Object | None,
        subresource: str = "",
        before: Object | None = None,
    ) -> None:
        meta = obj["metadata"]
        write = Write(
            verb, obj["kind"], meta.get("namespace", ""), meta["name"], sent, subresource, before, self._user
        )
        self.writes.append(write)

    async def create(self, resource: Resource, obj: Object) -> Object:
        self._before("create", obj)
        kind = Kind(resource.group, resource.kind)
        sent, obj = plain(obj), plain(obj)
        meta = obj["metadata"]
        files: Files | None = None
        if kind == REVISION:
            spec = obj["spec"]
            meta["name"] = revision_name(spec["repository"], spec["packageName"], spec["workspaceName"])
            if self.rules is not None:
                files = self.rules.create(obj)
                obj = copy_of(files.revision)
                meta = obj["metadata"]
            obj["spec"].setdefault("lifecycle", "Draft")
        namespace = meta.get("namespace", "")
        if self.peek(kind, namespace, meta["name"]) is not None:
            raise AlreadyExistsError(f'{resource.plural} "{meta["name"]}" already exists')
        key = (kind, namespace, meta["name"])
        meta["uid"] = str(uuid.uuid5(_UIDS, f"{self._storage.version}/{'/'.join(map(str, key))}"))
        meta["generation"] = 1
        meta["creationTimestamp"] = self._now()
        if files is None:
            obj.pop("status", None)
        if self._is_dry_run:
            return obj
        if kind == CRD:
            self._serve_defined(obj)
        stored = self._store(kind, obj)
        self._wrote("create", stored, sent=sent)
        if files is not None:
            self.put(resources_of(stored, files.texts))
        elif kind == REVISION:
            self._copy_resources(stored)
        return stored

    def _copy_resources(self, revision: Object) -> None:
        """Copy the files of the source of its task to a new PackageRevision."""
        spec, meta = revision["spec"], revision["metadata"]
        files: dict[str, str] = {}
        for task in spec.get("tasks") or ():
            source = source_of(task)
            found = self.peek(RESOURCES, meta["namespace"], source)
            if found is not None:
                files = dict(found["spec"].get("resources") or {})
            elif self.peek(REVISION, meta["namespace"], source) is not None:
                self.without_files.add((meta["namespace"], source))
        self.put(resources_of(revision, files))

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        kind = Kind(resource.group, resource.kind)
        self._before("update", obj)
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        stored = self.peek(kind, namespace, name)
        if stored is None:
            raise ConflictError(f'{resource.plural} "{name}" not found')
        current = self._shown(kind, stored)
        if meta.get("resourceVersion") not in (None, "", current["metadata"]["resourceVersion"]):
            raise ConflictError(f'{resource.plural} "{name}": the object has been modified')
        if meta.get("uid") not in (None, "", current["metadata"]["uid"]):
            raise ConflictError(f'{resource.plural} "{name}": another uid')
        sent = plain(obj)
        new = updated(current, sent, subresource)
        if kind == RESOURCES and self.rules is not None:
            return self._save(self.rules, current, new, sent)  # unchanged files may still need rendering
        if new == current:
            return current
        if kind == REVISION and self.rules is not None:
            self.rules.update(current, new)
        if self._is_dry_run:
            return new
        verb = "updateResources" if kind == RESOURCES else "update"
        self._wrote(verb, new, sent=sent, subresource=subresource, before=current)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self.remove(kind, namespace, name)
            return new
        stored = self._store(kind, new)
        if kind == RESOURCES and (revision := self.peek(REVISION, namespace, name)) is not None:
            self._store(REVISION, copy_of(revision))  # its version, and a commit if it has one, are new
            return self._shown(RESOURCES, stored)
        return stored

    def _save(self, rules: PackageRules, current: Object, new: Object, sent: Object) -> Object:
        """Write the files of a revision, which also updates the revision."""
        meta = new["metadata"]
        key = (meta["namespace"], meta["name"])
        revision = copy_of(self._present(REVISION, *key))
        saved = rules.save(
            revision, current["spec"].get("resources") or {}, new["spec"].get("resources") or {}
        )
        if saved.texts == current["spec"].get("resources") and saved.revision == self.peek(REVISION, *key):
            return {**current, "status": saved.status} if saved.status else current
        self._wrote("updateResources", new, sent=sent, before=current)
        self._store(REVISION, copy_of(saved.revision))
        new["spec"]["resources"] = dict(saved.texts)
        self._store(RESOURCES, {key: value for key, value in new.items() if key != "status"})
        shown = self._shown(RESOURCES, new)
        return {**shown, "status": saved.status} if saved.status else shown

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        current = await self.get(resource, namespace, name)
        if current is None:
            raise ConflictError(f'{resource.plural} "{name}" not found')
        return await self.update(resource, merged(current, patch), subresource=subresource)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
    ) -> bool:
        kind = Kind(resource.group, resource.kind)
        current = self.peek(kind, namespace, name)
        if current is None:
            return False
        self._before("delete", current)
        meta = current["metadata"]
        if (uid and uid != meta["uid"]) or (resource_version and resource_version != meta["resourceVersion"]):
            raise ConflictError(f'{resource.plural} "{name}": precondition failed')
        if meta.get("deletionTimestamp") or self._is_dry_run:
            return True
        if kind == REVISION and self.rules is not None:
            self.rules.delete(current)
        self._wrote("delete", current, sent=None, before=current)
        self.terminate(kind, namespace, name)
        return True

    async def close(self) -> None:
        return


class Acting:
    """A cluster in memory whose writes are made in another name, or are only checked."""

    def __init__(self, cluster: MemoryCluster, user: str, is_dry_run: bool) -> None:
        self._cluster, self._user, self._is_dry_run = cluster, user, is_dry_run
        self.resource, self.versions, self.forget_resources = (
            cluster.resource,
            cluster.versions,
            cluster.forget_resources,
        )
        self.list, self.watch, self.get, self.close = cluster.list, cluster.watch, cluster.get, cluster.close

    def acting(self, *, as_user: str = "", is_dry_run: bool = False) -> "Acting":
        return Acting(self._cluster, as_user, is_dry_run)

    async def create(self, resource: Resource, obj: Object) -> Object:
        with self._cluster.in_place_of(self._user, is_dry_run=self._is_dry_run):
            return await self._cluster.create(resource, obj)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        with self._cluster.in_place_of(self._user, is_dry_run=self._is_dry_run):
            return await self._cluster.update(resource, obj, subresource=subresource)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        with self._cluster.in_place_of(self._user, is_dry_run=self._is_dry_run):
            return await self._cluster.patch(resource, namespace, name, patch, subresource=subresource)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
    ) -> bool:
        with self._cluster.in_place_of(self._user, is_dry_run=self._is_dry_run):
            return await self._cluster.delete(
                resource, namespace, name, uid=uid, resource_version=resource_version
            )
