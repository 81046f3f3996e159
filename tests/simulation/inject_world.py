"""The inject controller alone over a cluster in memory: effects one by one, echoes on request.

The controller sees changes of the cluster only at `observe`; `run` may stop after any number of
effects, and `restart` forgets everything that is not a row on the bus.
"""

import copy
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.writes import Write
from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Outcome, Put
from pvbus.core.kernel.keys import FINALIZER, sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import (
    REPOSITORY,
    REVISION,
    VARIANT,
    injectable_row,
    presence_row,
    rows_of,
    topics_of,
)
from pvbus.core.kernel.records import (
    INJECTABLES,
    OBJECTS,
    RESULTS,
    VARIANTS,
    WATCHES,
    ResultRow,
    SyncMarker,
    WatchRequest,
)
from pvbus.core.variants.inject.controller import InjectController
from pvbus.core.variants.revisions.former import PROPOSED_BY, record_of
from pvbus.ports.cluster import Object
from pvbus.runtime.reconcile.effects import perform
from tests.kit.deciding import drive_live

NAMESPACE = "default"
RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")
KPTFILE = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"
POINT = """\
apiVersion: example.com/v1
kind: Site
metadata:
  name: site
  annotations:
    kpt.dev/config-injection: required
spec:
  region: none
"""
SITES: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "sites.example.com"},
    "spec": {
        "group": "example.com",
        "names": {"kind": "Site", "plural": "sites"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True}],
    },
}
PIPELINE = {"mutators": [{"name": "label", "image": "set-labels:v0.2", "configMap": {"app": "x"}}]}


def variant(name: str = "v", *, repo: str = "edge", package: str = "app", **spec: Any) -> Object:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "finalizers": [FINALIZER]},
        "spec": {
            "upstream": {"repo": "blue", "package": "app", "workspaceName": "v1"},
            "downstream": {"repo": repo, "package": package},
            **spec,
        },
    }


def owner(name: str, uid: str = "") -> Object:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "name": name,
        "uid": uid or f"uid-{name}",
        "controller": True,
    }


def package(
    repo: str,
    name: str,
    workspace: str,
    *,
    lifecycle: str = "Draft",
    revision: int = 0,
    owners: Iterable[Object] = (),
    files: dict[str, str] | None = None,
    status: Object | None = None,
) -> list[Object]:
    """A PackageRevision and its files."""
    meta = {"name": f"{repo}.{name}.{workspace}", "namespace": NAMESPACE}
    spec = {"repository": repo, "packageName": name, "workspaceName": workspace}
    found: Object = {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {**meta, "ownerReferences": list(owners)},
        "spec": {**spec, "lifecycle": lifecycle, "revision": revision},
        "status": status or {},
    }
    resources = {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevisionResources",
        "metadata": dict(meta),
        "spec": {**spec, "resources": files or {"Kptfile": KPTFILE}},
    }
    return [found, resources]


def upstream(**files: str) -> list[Object]:
    contents = {"Kptfile": KPTFILE, **{f"{name}.yaml": text for name, text in files.items()}}
    return package("blue", "app", "v1", lifecycle="Published", revision=1, files=contents)


def site(name: str, region: str = "north") -> Object:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Site",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"region": region},
    }


class InjectWorld:
    """See the module."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self.cluster = MemoryCluster(objects, now=lambda: "2026-01-01T00:00:00Z")
        self.now = 1_000.0  # of the clock that cannot go back; the wall clock is apart by wall_offset
        self.wall_offset = 0.0
        self.rows: dict[tuple[str, str], bytes] = {}
        self.dirty: dict[str, None] = {}
        self.effects: list[Any] = []
        self.ran: list[str] = []
        self.unserved: set[Kind] = set()
        self.controller = self._new_controller()

    # ------------------------------------------------------------ the controller's side

    def _new_controller(self) -> InjectController:
        controller = InjectController(partitions=1, elapsed=lambda: self.now)
        controller.open(0)
        return controller

    def restart(self, *, observe: bool = True) -> None:
        """Lose the memory; the bus keeps its rows, and every key is dirty once."""
        self.controller = self._new_controller()
        for (topic, key), value in self.rows.items():
            self.controller.load(topic, 0, key, value)
        if observe:
            self.observe()
        self.dirty.update(dict.fromkeys(self.controller.keys(0)))

    def _load(self, topic: str, key: str, value: bytes | None) -> None:
        if self.rows.get((topic, key)) == value:
            return
        if value is None:
            self.rows.pop((topic, key), None)
        else:
            self.rows[topic, key] = value
        self.dirty.update(dict.fromkeys(self.controller.load(topic, 0, key, value)))

    def observe(self) -> None:
        """Deliver every echo, and answer every request as ingest does."""
        wanted: dict[tuple[str, str], bytes | None] = {}
        for kind in (REVISION, REPOSITORY, VARIANT):
            topics = topics_of(kind, requested=False)
            for obj in self.all(Kind(*kind)):
                wanted |= {(row.topic, row.key): row.value for row in rows_of(kind, obj, topics)}
            for topic in topics:
                wanted[topic, sync_key(*kind)] = msgspec.json.encode(SyncMarker(state="ok", epoch=1))
        wanted |= self._answers()
        for topic, key in [k for k in self.rows if k[0] in (OBJECTS, VARIANTS, INJECTABLES)]:
            if (topic, key) not in wanted:
                self._load(topic, key, None)
        for (topic, key), value in wanted.items():
            self._load(topic, key, value)

    def _answers(self) -> dict[tuple[str, str], bytes | None]:
        found: dict[tuple[str, str], bytes | None] = {}
        for topic, key in list(self.rows):
            if topic != WATCHES:
                continue
            request = msgspec.json.decode(self.rows[topic, key], type=WatchRequest)
            kind = Kind(request.group, request.kind)
            if kind in self.unserved:
                version = "v1"
                marker = SyncMarker(state="unavailable", epoch=2, message=f"no matches for {kind} {version}")
                found[INJECTABLES, sync_key(*kind)] = msgspec.json.encode(marker)
                continue
            objects = {obj["metadata"]["name"]: obj for obj in self.all(Kind(*kind))}
            marker = SyncMarker(state="ok", epoch=3, versions=("v1",))
            found[INJECTABLES, sync_key(*kind)] = msgspec.json.encode(marker)
            row = injectable_row(kind, request.namespace, request.name, objects.get(request.name))
            presence = presence_row(kind, request.namespace, exists=bool(objects))
            found |= {(INJECTABLES, r.key): r.value for r in (row, presence)}
        return found

    async def run(
        self,
        key: str = f"{NAMESPACE}/v",
        *,
        crash_after: int | None = None,
        before_effect: Callable[[int, Any], None] | None = None,
    ) -> Outcome:
        """Reconcile once. Raises CrashedError after the given number of effects.

        before_effect: called with the number of each effect and the effect, before it is applied.
        """
        self.dirty.pop(key, None)
        self.ran.append(key)
        done = len(self.effects)

        async def answer(effect: Any) -> Any:
            self.effects.append(effect)
            if before_effect is not None:
                before_effect(len(self.effects) - 1 - done, effect)
            return await perform(self.cluster, effect)

        steps = self.controller.reconcile(0, key, self.now + self.wall_offset)
        outcome: Outcome = await drive_live(steps, answer, crash_after=crash_after)
        for put in outcome.puts:
            self._step(put)
        return outcome

    def _step(self, put: Put) -> None:
        dirty = put.key in self.dirty  # a mark that was set while the decision was under way stays
        self._load(put.topic, put.key, msgspec.json.encode(put.row) if put.row is not None else None)
        if put.topic == RESULTS:
            if not dirty:
                self.dirty.pop(put.key, None)  # a worker does not read its own memory back
            self.controller.store(0, put)

    async def settle(self, limit: int = 50) -> None:
        """Observe and reconcile until nothing is dirty."""
        for _ in range(limit):
            self.observe()
            if not self.dirty:
                return self.check_proposals()
            for key in list(self.dirty):
                try:
                    outcome = await self.run(key)
                except (ConflictError, TransientError):
                    self.dirty[key] = None
                    continue
                if outcome.again_after == 0:
                    self.dirty[key] = None
        raise AssertionError(f"not settled: {list(self.dirty)}")

    def check_proposals(self) -> None:
        """A ready variant took back every deletion that it, or a former one of its name, proposed here."""
        for obj in self.all(Kind(*VARIANT)):
            name, uid = obj["metadata"]["name"], obj["metadata"]["uid"]
            if (RESULTS, f"{NAMESPACE}/{name}") not in self.rows or self.reported(name=name)[0] != "True":
                continue
            ours = record_of(msgspec.convert(obj, PackageVariant)).removesuffix(uid)
            for revision in self.revisions().values():
                meta, spec = revision["metadata"], revision["spec"]
                here = {"repo": spec["repository"], "package": spec["packageName"]}
                if here == obj["spec"]["downstream"] and uid in self.owners(meta["name"]):
                    proposer = (meta.get("annotations") or {}).get(PROPOSED_BY, "")
                    is_left = spec["lifecycle"] == "DeletionProposed" and proposer.startswith(ours)
                    assert not is_left, f"{name} is ready, and left {meta['name']} to be deleted"

    # ------------------------------------------------------------ the cluster's side

    def all(self, kind: Kind) -> list[Object]:
        found = []
        for obj in self.cluster.objects():
            group = obj["apiVersion"].rpartition("/")[0]
            if (group, obj["kind"]) == tuple(kind):
                found.append(copy.deepcopy(obj))
        return found

    def revisions(self) -> dict[str, Object]:
        """All PackageRevisions but the upstream, by name."""
        found = {obj["metadata"]["name"]: obj for obj in self.all(Kind(*REVISION))}
        return {name: obj for name, obj in found.items() if not name.startswith("blue.")}

    def lifecycles(self) -> dict[str, str]:
        return {name: obj["spec"].get("lifecycle", "Draft") for name, obj in self.revisions().items()}

    def owners(self, name: str) -> list[str]:
        references = self.revisions()[name]["metadata"].get("ownerReferences") or ()
        return [reference["uid"] for reference in references]

    def files(self, name: str) -> dict[str, str]:
        found = {obj["metadata"]["name"]: obj["spec"]["resources"] for obj in self.all(RESOURCES)}
        return dict(found[name])

    def variant(self, name: str = "v") -> Object | None:
        found = {obj["metadata"]["name"]: obj for obj in self.all(Kind(*VARIANT))}
        return found.get(name)

    def change(
        self, name: str = "v", *, deleted: bool = False, annotations: Object | None = None, **spec: Any
    ) -> None:
        """Change a PackageVariant as its user does."""
        obj = self.variant(name)
        assert obj is not None
        obj["spec"].update(spec)
        obj["metadata"]["generation"] = obj["metadata"].get("generation", 1) + 1
        if deleted:
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
        if annotations is not None:
            obj["metadata"]["annotations"] = annotations
        self.cluster.put(obj)

    def touch(self, name: str, **changes: Any) -> None:
        """Change a PackageRevision's spec as a person does."""
        obj = self.revisions()[name]
        obj["spec"].update(changes)
        self.cluster.put(obj)

    def writes(self) -> list[Write]:
        return self.cluster.writes

    def disown(self, name: str, *owners: Object) -> None:
        """Give a PackageRevision other owners, or none, as a person does who takes it over."""
        obj = self.revisions()[name]
        obj["metadata"]["ownerReferences"] = list(owners)
        self.cluster.put(obj)

    # ------------------------------------------------------------ Porch's package server

    def obey_porch(self) -> None:
        """Refuse from now on what Porch's server refuses: a clone into an existing package, and the deletion
        of a published revision."""

        def refuse(verb: str, obj: Object) -> None:
            spec = obj.get("spec") or {}
            if obj["kind"] != "PackageRevision":
                return
            if verb == "delete" and spec.get("lifecycle") == "Published":
                raise PermanentError("403 Forbidden: propose its deletion first", reason="Forbidden")
            tasks = [task["type"] for task in spec.get("tasks") or ()]
            if verb == "create" and "clone" in tasks and self._siblings(obj):
                message = f'500: `clone` cannot create a new revision for package "{spec["packageName"]}"'
                raise PermanentError(message, reason="PackageExists")

        self.cluster.before_write = refuse

    def _siblings(self, obj: Object) -> list[Object]:
        package_key = [obj["spec"][field] for field in ("repository", "packageName")]
        namespace = obj["metadata"]["namespace"]
        return [
            other
            for other in self.all(Kind(*REVISION))
            if other["metadata"]["namespace"] == namespace
            and [other["spec"][field] for field in ("repository", "packageName")] == package_key
        ]

    def publish(self, name: str) -> None:
        """Approve a draft: it gets the next number, and the branch has the package's folder."""
        obj = self.revisions()[name]
        numbers = [other["spec"].get("revision", 0) for other in self._siblings(obj)]
        obj["spec"].update(lifecycle="Published", revision=max(0, *numbers) + 1)
        self.cluster.put(obj)
        spec = obj["spec"]
        files = self.files(name)
        for one in package(
            spec["repository"], spec["packageName"], "main", lifecycle="Published", revision=-1, files=files
        ):
            self.cluster.put(one)

    def approve_deletion(self, name: str) -> None:
        """Delete a revision whose deletion is proposed; the folder stays on the branch."""
        assert self.revisions()[name]["spec"]["lifecycle"] == "DeletionProposed"
        self.cluster.remove(Kind(*REVISION), NAMESPACE, name)

    async def remove_variant(self, name: str = "v") -> None:
        self.change(name, deleted=True)
        await self.settle()
        assert self.variant(name) is None

    # ------------------------------------------------------------ what is told

    def result(self, name: str = "v") -> ResultRow:
        return msgspec.json.decode(self.rows[RESULTS, f"{NAMESPACE}/{name}"], type=ResultRow)

    def reported(self, kind: str = "Ready", name: str = "v") -> tuple[str, str, str]:
        """Status, reason and message of a condition of the result."""
        for condition in self.result(name).conditions:
            if condition.type == kind:
                return condition.status, condition.reason, condition.message
        return "", "", ""

    def snapshot(self) -> list[Object]:
        """The world without what a server counts and names by itself."""
        found = []
        for obj in self.cluster.objects():
            for field in ("resourceVersion", "uid", "generation", "creationTimestamp"):
                obj = {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != field}}
            found.append(obj)
        return found
