"""Establish on an API server: its rows in memory, packages by digest, and the requests as one account."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Content
from pvbus.core.kernel.packagekinds import MIRRORED
from pvbus.core.kernel.packagerows import EstablishedRow, LockedRevision, LockRow
from pvbus.core.kernel.records import ESTABLISHED, INSTALLS, LOCK
from pvbus.core.kernel.rights import ALL_RIGHTS
from pvbus.core.platform.establish.controller import EstablishController
from pvbus.core.platform.establish.objects import key_of
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds
from pvbus.ports.cluster import Cluster, Kind, Object, Resource
from pvbus.runtime.reconcile.effects import perform
from tests.kit.cluster import resource_of
from tests.kit.deciding import PARTITION, drive_live
from tests.unit.core.platform.establish.world import package

ACCOUNT = "system:serviceaccount:pvbus-system:pvbus-establish"
NAMESPACE = "crossplane-system"
PKG = "pkg.crossplane.io"
RBAC = "rbac.authorization.k8s.io"
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
DEFINITIONS = (*packaging_crds(), *crossplane_crds(), *carvel_crds())


class Registry:
    """Packages by digest. Implements `pvbus.ports.sources.Sources`."""

    def __init__(self) -> None:
        self.contents: dict[str, Content] = {}

    async def observe(self, source: str, tags: Any, secrets: Any) -> Any:
        raise PermanentError("only contents are here")

    async def pull(self, source: str, digest: str, secrets: Any) -> Content:
        return self.contents[digest]

    async def close(self) -> None:
        return


class LiveWorld:
    """client: with all rights. own: the same server as establish may use it."""

    def __init__(self, client: HttpCluster, own: Cluster) -> None:
        self.client, self.own = client, own
        self.registry = Registry()
        self.done: dict[str, EstablishedRow] = {}
        self.controller = EstablishController(namespace=NAMESPACE)
        self.controller.open(PARTITION)
        self.writes = 0

    async def create(self, obj: Object, *, status: Object | None = None) -> Object:
        resource = await self._resource(obj)
        return await self.client.create(resource, obj)

    async def _resource(self, obj: Object) -> Resource:
        group, _, version = obj["apiVersion"].rpartition("/")
        kind = Kind(group, obj["kind"])
        async with asyncio.timeout(20):
            while (resource := await self.client.resource(kind, version=version)) is None:
                self.client.forget_resources()
                await asyncio.sleep(0.05)
        return resource

    async def get(self, api: str, kind: str, name: str, namespace: str = "") -> Object | None:
        resource = await self._resource({"apiVersion": api, "kind": kind})
        return await self.client.get(resource, namespace, name)

    def publish(self, digest: str, objects: Iterable[Object], **meta: Any) -> LockedRevision:
        """Publish a package; return its revision, active."""
        objects = list(objects)
        self.registry.contents[digest] = Content(digest, {"package.yaml": package(objects, **meta)})
        return LockedRevision(
            name=f"rev-{digest[-4:]}",
            revision=1,
            digest=digest,
            source="registry.example.org/package",
            objects=tuple(map(key_of, objects)),
            is_active=True,
        )

    async def order(self, obj: Object, *revisions: LockedRevision, **fields: Any) -> str:
        """Write the row of the lock for an install; return its key."""
        key = f"cluster|{key_of(obj)}"
        meta = obj["metadata"]
        given = {"uid": meta["uid"], "generation": meta["generation"], "revisions": revisions}
        row = LockRow(**{"status": "locked", **given, **fields})
        self.controller.load(LOCK, PARTITION, key, msgspec.json.encode(row))
        return key

    async def mirror(self) -> None:
        for kind in MIRRORED:
            resource = await self.client.resource(kind)
            if resource is None or kind == CRD:
                continue
            for obj in (await self.client.list(resource)).items:
                obj.setdefault("apiVersion", resource.api_version)
                obj.setdefault("kind", kind.kind)
                obj["metadata"].pop("managedFields", None)
                self.controller.load(INSTALLS, PARTITION, f"cluster|{key_of(obj)}", msgspec.json.encode(obj))

    async def reconcile(self, key: str) -> int:
        """Decide a key once; return how many writes it made."""
        await self.mirror()
        writes = 0

        async def answer(effect: Any) -> Any:
            nonlocal writes
            self.own.forget_resources()
            result = await perform(self.own, effect, sources=self.registry)
            is_write = type(effect).__name__ in ("Create", "Update", "Delete")
            writes += is_write and not getattr(effect, "is_dry_run", False)
            return result

        now = asyncio.get_running_loop().time() + 1e6
        outcome = await drive_live(self.controller.reconcile(PARTITION, key, now), answer)
        for put in outcome.puts:
            if isinstance(put.row, EstablishedRow):
                self.done[put.key] = put.row
            else:
                self.done.pop(put.key, None)
            self.controller.store(PARTITION, put)
            assert put.topic == ESTABLISHED
        return writes + len(outcome.puts)

    async def settle(self, key: str, rounds: int = 8) -> None:
        """Decide a key until nothing changes."""
        for _ in range(rounds):
            if not await self.reconcile(key):
                return
        raise AssertionError(f"{key} does not settle")

    async def look_again(self, key: str) -> int:
        """Decide a key in a new process; return how many writes that makes."""
        fresh = EstablishController(namespace=NAMESPACE)
        fresh.open(PARTITION)
        for each in self.controller.keys(PARTITION):
            if (data := self.controller.state(PARTITION, each)) is None:
                continue
            for topic, row in ((LOCK, data.row), (ESTABLISHED, data.done)):
                if row is not None:
                    fresh.load(topic, PARTITION, each, msgspec.json.encode(row))
        self.controller = fresh
        return await self.reconcile(key)


async def granted(client: HttpCluster, *, more: Iterable[Object] = ()) -> None:
    """Give establish's account its rights, and what an installer adds to them."""
    rules: list[Object] = []
    for right in ALL_RIGHTS["establish"]:
        rules.append({"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)})
    await _replaced(
        client,
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "test-establish"},
            "rules": [*rules, *more],
        },
    )
    namespace, _, name = ACCOUNT.removeprefix("system:serviceaccount:").partition(":")
    await _replaced(
        client,
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "test-establish"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "test-establish"},
            "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": name}],
        },
    )


async def _replaced(client: HttpCluster, obj: Object) -> None:
    resource = await resource_of(client, Kind(RBAC, obj["kind"]))
    live = await client.get(resource, "", obj["metadata"]["name"])
    if live is None:
        await client.create(resource, obj)
    else:
        await client.update(resource, {**live, **{k: v for k, v in obj.items() if k != "metadata"}})


def provider(name: str) -> Object:
    return {
        "apiVersion": f"{PKG}/v1",
        "kind": "Provider",
        "metadata": {"name": name},
        "spec": {"package": "registry.example.org/package:v1.0.0"},
    }


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def definition(kind: str, group: str, *, text: str = "") -> Object:
    """Return a definition as packages have them: without what API servers add."""
    plural = f"{kind.lower()}s"
    schema = {
        "type": "object",
        "description": text,
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Cluster",
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
