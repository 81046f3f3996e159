"""A cluster in memory: for `pvbus plan`, and for tests and simulations of the services.

It behaves as the cluster port promises: resourceVersions, preconditions, finalizers, status apart
from spec, watches with bookmarks. Of Porch's server it does what a preview needs: it names
PackageRevisions, makes their PackageRevisionResources as a copy of the source's, and takes these
along on deletion. It renders nothing, enforces no lifecycle rules and collects no garbage.
"""

import asyncio
import copy
import uuid
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from pvbus.core.ids import revision_name
from pvbus.core.model import CONFIG_GROUP, PORCH_GROUP
from pvbus.errors import AlreadyExistsError, ConflictError
from pvbus.ports.cluster import GoneError, Kind, Listing, Object, Resource, WatchEvent

REVISION = Kind(PORCH_GROUP, "PackageRevision")
RESOURCES = Kind(PORCH_GROUP, "PackageRevisionResources")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
_UIDS = uuid.UUID("6a0d9e5e-52f7-49e5-9a3f-6d8a3f0f7f10")
_HISTORY_EVENTS = 10_000

BUILT_IN = {
    "": ("v1", ("Namespace", "ConfigMap", "Secret", "Event", "Pod", "Service", "ServiceAccount", "Node")),
    "apps": ("v1", ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")),
    "batch": ("v1", ("Job", "CronJob")),
    "rbac.authorization.k8s.io": ("v1", ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")),
    "networking.k8s.io": ("v1", ("NetworkPolicy", "Ingress")),
    "apiextensions.k8s.io": ("v1", ("CustomResourceDefinition",)),
    CONFIG_GROUP: ("v1alpha1", ("PackageVariant", "Repository")),
    PORCH_GROUP: ("v1alpha1", ("PackageRevision", "PackageRevisionResources")),
}
CLUSTER_SCOPED = {"Namespace", "Node", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}


class Write(NamedTuple):
    """One write that changed something, as it was sent."""

    verb: str
    kind: str
    namespace: str
    name: str
    object: Object | None
    subresource: str


def split_api_version(api_version: str) -> tuple[str, str]:
    """Return group and version of an apiVersion."""
    group, _, version = api_version.rpartition("/")
    return group, version


class MemoryCluster:
    """Implements `pvbus.ports.cluster.Cluster`. `writes` records what changed something.

    before_write: a hook for tests, called before each write is applied; it may raise.
    """

    def __init__(self, objects: Iterable[Object] = (), *, now: Callable[[], str]) -> None:
        self.writes: list[Write] = []
        self.before_write: Callable[[str, Object], None] | None = None
        self._now = now
        self._version = 0
        self._objects: dict[tuple[Kind, str, str], Object] = {}
        self._resources: dict[Kind, dict[str, Resource]] = {}
        self._history: list[tuple[int, Kind, WatchEvent]] = []
        self._changed = asyncio.Event()
        for group, (version, kinds) in BUILT_IN.items():
            for kind in kinds:
                self._serve(group, version, kind, namespaced=kind not in CLUSTER_SCOPED)
        self._serve(CONFIG_GROUP, "v1alpha2", "PackageVariantSet")
        for obj in objects:
            self.put(obj)

    # ------------------------------------------------------------ kinds

    def _serve(self, group: str, version: str, kind: str, *, namespaced: bool = True) -> None:
        resource = Resource(group, version, kind, f"{kind.lower()}s", namespaced)
        self._resources.setdefault(Kind(group, kind), {})[version] = resource

    def serves(self, kind: Kind) -> bool:
        return bool(self._resources.get(kind))

    def unserve(self, kind: Kind) -> None:
        """Stop serving a kind, as if its definition were deleted; its objects are left to the caller."""
        self._resources.pop(kind, None)

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        served = self._resources.get(kind, {})
        if version:
            return served.get(version)
        return next(iter(served.values()), None)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        return tuple(self._resources.get(kind, {}))

    def forget_resources(self) -> None:
        return

    # ------------------------------------------------------------ objects

    def objects(self) -> list[Object]:
        """Return all objects, ordered by kind, namespace and name."""
        return [self._objects[key] for key in sorted(self._objects)]

    def put(self, obj: Object) -> Object:
        """Add or replace an object as it is, with what a server would have set; no write is recorded."""
        group, version = split_api_version(obj["apiVersion"])
        kind = Kind(group, obj["kind"])
        if version not in self._resources.get(kind, {}):
            self._serve(group, version, kind.kind)
        if kind == CRD:
            names = obj["spec"]["names"]
            for served in obj["spec"].get("versions", ()):
                scope = obj["spec"].get("scope", "Namespaced")
                self._serve(
                    obj["spec"]["group"], served["name"], names["kind"], namespaced=scope == "Namespaced"
                )
        namespaced = self._resources[kind][version].namespaced
        obj = copy.deepcopy(obj)
        meta = obj["metadata"]
        if namespaced:
            meta.setdefault("namespace", "default")
        meta.setdefault("generation", 1)
        meta.setdefault("creationTimestamp", self._now())
        meta.setdefault("uid", str(uuid.uuid5(_UIDS, f"{kind}/{meta.get('namespace')}/{meta['name']}")))
        return self._store(kind, obj)

    def _store(self, kind: Kind, obj: Object) -> Object:
        key = (kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        event: Literal["ADDED", "MODIFIED"] = "MODIFIED" if key in self._objects else "ADDED"
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._objects[key] = obj
        self._tell(kind, WatchEvent(event, copy.deepcopy(obj)))
        return copy.deepcopy(obj)

    def _tell(self, kind: Kind, event: WatchEvent) -> None:
        self._history.append((self._version, kind, event))
        del self._history[:-_HISTORY_EVENTS]
        self._changed.set()
        self._changed = asyncio.Event()

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Take an object away as the server does when the last finalizer is gone."""
        obj = self._objects.pop((kind, namespace, name), None)
        if obj is None:
            return
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._tell(kind, WatchEvent("DELETED", copy.deepcopy(obj)))
        if kind == REVISION:
            self.remove(RESOURCES, namespace, name)

    # ------------------------------------------------------------ reading

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> Listing:
        kind = Kind(resource.group, resource.kind)
        items = [
            copy.deepcopy(obj)
            for (k, ns, _), obj in sorted(self._objects.items())
            if k == kind
            and (namespace is None or ns == namespace)
            and _labels_match(obj, label_selector)
            and _fields_match(obj, field_selector)
        ]
        return Listing(str(self._version), items)

    async def watch(
        self, resource: Resource, resource_version: str, *, metadata_only: bool = False
    ) -> AsyncIterator[WatchEvent]:
        kind = Kind(resource.group, resource.kind)
        position = int(resource_version or 0)
        if self._history and position < self._history[0][0] - 1 and len(self._history) == _HISTORY_EVENTS:
            raise GoneError(f"too old resource version: {position}")
        while True:
            changed = self._changed
            first = bisect_right(self._history, position, key=itemgetter(0))
            for version, k, event in self._history[first:]:
                position = version
                if k == kind:
                    yield event
            if changed is self._changed:
                await changed.wait()

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        obj = self._objects.get((Kind(resource.group, resource.kind), namespace, name))
        return copy.deepcopy(obj) if obj is not None else None

    # ------------------------------------------------------------ writing

    def _before(self, verb: str, obj: Object) -> None:
        if self.before_write is not None:
            self.before_write(verb, obj)

    def _wrote(self, verb: str, obj: Object, *, sent: Object | None, subresource: str = "") -> None:
        meta = obj["metadata"]
        write = Write(verb, obj["kind"], meta.get("namespace", ""), meta["name"], sent, subresource)
        self.writes.append(write)

    async def create(self, resource: Resource, obj: Object) -> Object:
        self._before("create", obj)
        kind = Kind(resource.group, resource.kind)
        sent, obj = copy.deepcopy(obj), copy.deepcopy(obj)
        meta = obj["metadata"]
        if kind == REVISION:
            spec = obj["spec"]
            meta["name"] = revision_name(spec["repository"], spec["packageName"], spec["workspaceName"])
            spec.setdefault("lifecycle", "Draft")
        key = (kind, meta.get("namespace", ""), meta["name"])
        if key in self._objects:
            raise AlreadyExistsError(f'{resource.plural} "{meta["name"]}" already exists')
        meta["uid"] = str(uuid.uuid5(_UIDS, f"{self._version}/{'/'.join(map(str, key))}"))
        meta["generation"] = 1
        meta["creationTimestamp"] = self._now()
        obj.pop("status", None)
        stored = self._store(kind, obj)
        self._wrote("create", stored, sent=sent)
        if kind == REVISION:
            self._copy_resources(stored)
        return stored

    def _copy_resources(self, revision: Object) -> None:
        """Give a new PackageRevision the files of what its task starts from."""
        spec, meta = revision["spec"], revision["metadata"]
        files: dict[str, str] = {}
        for task in spec.get("tasks") or ():
            source = _source_of(task)
            found = self._objects.get((RESOURCES, meta["namespace"], source))
            if found is not None:
                files = dict(found["spec"].get("resources") or {})
        resources = {
            "apiVersion": f"{PORCH_GROUP}/v1alpha1",
            "kind": "PackageRevisionResources",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "spec": {
                "packageName": spec["packageName"],
                "repository": spec["repository"],
                "workspaceName": spec["workspaceName"],
                "resources": files,
            },
        }
        self.put(resources)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        kind = Kind(resource.group, resource.kind)
        self._before("update", obj)
        meta = obj["metadata"]
        current = self._objects.get((kind, meta.get("namespace", ""), meta["name"]))
        if current is None:
            raise ConflictError(f'{resource.plural} "{meta["name"]}" not found')
        if meta.get("resourceVersion") not in (None, "", current["metadata"]["resourceVersion"]):
            raise ConflictError(f'{resource.plural} "{meta["name"]}": the object has been modified')
        if meta.get("uid") not in (None, "", current["metadata"]["uid"]):
            raise ConflictError(f'{resource.plural} "{meta["name"]}": another uid')
        new = copy.deepcopy(current)
        if subresource == "status":
            new["status"] = copy.deepcopy(obj.get("status"))
        else:
            new = {**copy.deepcopy(obj), "status": new.get("status")}
            if new["status"] is None:
                del new["status"]
            for field in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
                if field in current["metadata"]:
                    new["metadata"][field] = current["metadata"][field]
            if new.get("spec") != current.get("spec"):
                new["metadata"]["generation"] = current["metadata"].get("generation", 0) + 1
        new["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"]
        if new == current:
            return copy.deepcopy(current)
        verb = "updateResources" if kind == RESOURCES else "update"
        self._wrote(verb, new, sent=copy.deepcopy(obj), subresource=subresource)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self.remove(kind, meta.get("namespace", ""), meta["name"])
            return new
        return self._store(kind, new)

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
        return await self.update(resource, _merged(current, patch), subresource=subresource)

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> bool:
        kind = Kind(resource.group, resource.kind)
        current = self._objects.get((kind, namespace, name))
        if current is None:
            return False
        self._before("delete", current)
        meta = current["metadata"]
        if (uid and uid != meta["uid"]) or (resource_version and resource_version != meta["resourceVersion"]):
            raise ConflictError(f'{resource.plural} "{name}": precondition failed')
        if meta.get("deletionTimestamp"):
            return True
        self._wrote("delete", current, sent=None)
        if meta.get("finalizers"):
            gone = copy.deepcopy(current)
            gone["metadata"]["deletionTimestamp"] = self._now()
            self._store(kind, gone)
        else:
            self.remove(kind, namespace, name)
        return True

    async def close(self) -> None:
        return


def _source_of(task: Mapping[str, Any]) -> str:
    match task.get("type"):
        case "clone":
            return str(task["clone"]["upstreamRef"].get("upstreamRef", {}).get("name", ""))
        case "edit":
            return str(task["edit"]["sourceRef"]["name"])
        case "upgrade":
            return str(task["upgrade"]["localPackageRevisionRef"]["name"])
    return ""


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), item)
    return result


def _labels_match(obj: Object, selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    pairs = (part.partition("=") for part in selector.split(",") if part)
    return all(labels.get(key) == value.removeprefix("=") for key, _, value in pairs)


def _fields_match(obj: Object, selector: str) -> bool:
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: Any = obj
        for step in path.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        if str(value if value is not None else "") != wanted.removeprefix("="):
            return False
    return True
