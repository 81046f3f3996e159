"""What must hold on every API server, ours and Kubernetes' own: each takes a world with the definitions."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind, Object
from tests.integration.establish.world import (
    NAMESPACE,
    PKG,
    RBAC,
    LiveWorld,
    definition,
    granted,
    namespace,
    provider,
)
from tests.kit.cluster import resource_of

CRDS = "apiextensions.k8s.io/v1"
DEFINITION = "CustomResourceDefinition"
RUNTIME_RULES: list[Object] = [
    {"apiGroups": [""], "resources": ["secrets", "configmaps", "events"], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
]
"""What every provider gets, and so what an installer must let establish grant."""


def of_group(group: str) -> Object:
    return {"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait as long as Kubernetes' garbage collector may take: it looks for new kinds every 30 s."""
    deadline = time.monotonic() + 90.0
    while not await condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def check_views(world: LiveWorld) -> None:
    """A dry run stores nothing and is judged in full; a write for a user needs that user's rights."""
    resource = await resource_of(world.client, Kind("", "ConfigMap"))
    obj: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "viewed", "namespace": "default"},
        "data": {"a": "1"},
    }
    dry = world.client.acting(is_dry_run=True)
    answer = await dry.create(resource, obj)
    assert answer["data"] == {"a": "1"}
    assert await world.client.get(resource, "default", "viewed") is None
    await world.client.create(resource, obj)
    live = await world.client.get(resource, "default", "viewed")
    assert live is not None
    assert (await dry.update(resource, {**live, "data": {"a": "2"}}))["data"] == {"a": "2"}
    assert await dry.delete(resource, "default", "viewed")
    assert await world.client.get(resource, "default", "viewed") == live
    user = world.client.acting(as_user="system:serviceaccount:default:nobody")
    with pytest.raises(PermanentError, match="system:serviceaccount:default:nobody") as caught:
        await user.update(resource, {**live, "data": {"a": "3"}})
    assert caught.value.reason == "Forbidden"
    await world.client.delete(resource, "default", "viewed")


async def check_life(world: LiveWorld, group: str, *, runs: bool) -> None:
    """Install, upgrade, removal: every object is as ordered, and a second look writes nothing.

    runs: whether the API server has Deployments, so that controllers are started.
    """

    async def deployed(name: str) -> Object | None:
        return await world.get("apps/v1", "Deployment", name, NAMESPACE) if runs else None

    await granted(world.client, more=[*RUNTIME_RULES, of_group(group)])
    short = group.partition(".")[0]
    given = provider(f"life-{short}")
    await world.create(_runtime_config(short))
    obj = await world.create({**given, "spec": {**given["spec"], "runtimeConfigRef": {"name": short}}})
    spec = {"controller": {"image": "registry.example.org/run:1"}}
    objects = [definition("One", group, text="1"), definition("Old", group)]
    first = world.publish(f"sha256:{'a' * 64}", objects, kind="Provider", spec=spec)
    first = msgspec.structs.replace(first, name=f"first-{short}")
    key = await world.order(obj, first)
    await world.settle(key)
    assert world.done[key].is_healthy, world.done[key]
    assert await world.look_again(key) == 0
    assert (await deployed(first.name) is not None) == runs
    if runs:
        await _check_runtime(world, first.name, obj["metadata"]["name"])

    objects = [definition("One", group, text="2"), definition("New", group)]
    second = world.publish(f"sha256:{'b' * 64}", objects, kind="Provider", spec=spec)
    second = msgspec.structs.replace(second, name=f"second-{short}", revision=2)
    await world.order(obj, msgspec.structs.replace(first, is_active=False), second)
    await world.settle(key)
    assert world.done[key].is_healthy, world.done[key]
    assert await world.look_again(key) == 0
    one = await world.get(CRDS, DEFINITION, f"ones.{group}")
    assert one is not None
    assert one["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] == "2"
    owners = {each["name"]: each.get("controller", False) for each in one["metadata"]["ownerReferences"]}
    assert owners == {first.name: False, second.name: True}
    assert await deployed(first.name) is None
    if runs:
        await _become_available(world, second.name)
        await world.look_again(key)
    live = await world.get(f"{PKG}/v1", "Provider", obj["metadata"]["name"])
    assert live is not None
    conditions = {each["type"]: each["status"] for each in live["status"]["conditions"]}
    assert conditions == {"Installed": "True", "Healthy": "True"}
    for kind, name in (
        ("Provider", obj["metadata"]["name"]),
        ("ProviderRevision", first.name),
        ("ProviderRevision", second.name),
    ):
        await _check_observed(world, kind, name)

    await world.order(obj, second)
    await world.settle(key)

    async def is_collected() -> bool:
        return await world.get(CRDS, DEFINITION, f"olds.{group}") is None

    await until(is_collected, "what only the former revision owned is still there")
    assert await world.get(CRDS, DEFINITION, f"ones.{group}") is not None
    resource = await resource_of(world.client, Kind(PKG, "Provider"))
    await world.client.delete(resource, "", obj["metadata"]["name"])

    async def is_gone() -> bool:
        left = [await world.get(CRDS, DEFINITION, f"{name}.{group}") for name in ("ones", "news")]
        left.append(await deployed(second.name))
        return left == [None, None, None]

    await until(is_gone, "the objects of a removed install are still there")


def _runtime_config(name: str) -> Object:
    spec = {"selector": {}, "template": {"spec": {"terminationGracePeriodSeconds": 5}}}
    return {
        "apiVersion": f"{PKG}/v1beta1",
        "kind": "DeploymentRuntimeConfig",
        "metadata": {"name": name},
        "spec": {"deploymentTemplate": {"spec": spec}},
    }


async def _check_runtime(world: LiveWorld, name: str, package: str) -> None:
    """Check what runs a revision: as its config says, with a Service and certificates for that."""
    deployment = await world.get("apps/v1", "Deployment", name, NAMESPACE)
    service = await world.get("v1", "Service", package, NAMESPACE)
    secret = await world.get("v1", "Secret", f"{package}-tls-server", NAMESPACE)
    assert deployment is not None
    assert service is not None
    assert secret is not None
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    assert {*secret["data"]} == {"tls.crt", "tls.key", "ca.crt"}
    live = await world.get(f"{PKG}/v1", "Provider", package)
    assert live is not None
    conditions = {each["type"]: each["status"] for each in live["status"]["conditions"]}
    assert conditions["Healthy"] != "True", "nothing has started its Pods"


async def _become_available(world: LiveWorld, name: str) -> None:
    """Play the kubelet for a Deployment: this control plane starts no Pods."""
    live = await world.get("apps/v1", "Deployment", name, NAMESPACE)
    assert live is not None
    condition = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}
    resource = await resource_of(world.client, Kind("apps", "Deployment"))
    status = {"conditions": [condition]}
    await world.client.update(resource, {**live, "status": status}, subresource="status")


async def _check_observed(world: LiveWorld, kind: str, name: str) -> None:
    """Check that all conditions speak of the object as it is: pvbus itself has changed the revisions."""
    live = await world.get(f"{PKG}/v1", kind, name)
    assert live is not None
    seen = {each["type"]: each.get("observedGeneration") for each in live["status"]["conditions"]}
    assert set(seen.values()) == {live["metadata"]["generation"]}, (kind, name, seen)


async def check_escalation(world: LiveWorld, group: str) -> None:
    """The API server lets establish grant no more than it has: the package is refused as a whole."""
    await granted(world.client, more=[*RUNTIME_RULES, of_group(group)])
    short = group.partition(".")[0]
    obj = await world.create(provider(f"escalates-{short}"))
    rules = [{"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["delete"]}]
    spec = {"controller": {"image": "registry.example.org/run:1", "permissionRequests": rules}}
    digest = f"sha256:{'c' * 64}"
    revision = world.publish(digest, [definition("Two", group)], kind="Provider", spec=spec)
    revision = msgspec.structs.replace(revision, name=f"escalates-{short}")
    key = await world.order(obj, revision)
    await world.settle(key)
    row = world.done[key]
    assert (row.is_healthy, row.reason) == (False, "Forbidden")
    assert "attempting to grant RBAC permissions not currently held" in row.message
    assert "daemonsets" in row.message
    assert await world.get(CRDS, DEFINITION, f"twos.{group}") is None
    assert await world.get("v1", "ServiceAccount", revision.name, NAMESPACE) is None
    await granted(world.client, more=[*RUNTIME_RULES, of_group(group), *rules])
    await world.look_again(key)
    await world.settle(key)
    assert world.done[key].is_healthy, world.done[key]


async def prepared(world: LiveWorld) -> None:
    await world.create(namespace(NAMESPACE))


async def check_carvel(world: LiveWorld, name: str) -> None:
    """A PackageInstall is written with the rights of its account, and takes its objects along."""
    await granted(world.client)
    await world.create(namespace(name))
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "update", "delete"]}
    rbac = "rbac.authorization.k8s.io"
    await world.create(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "Role",
            "metadata": {"name": "installer", "namespace": name},
            "rules": [rule],
        }
    )
    await world.create(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "installer", "namespace": name},
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": "installer"},
            "subjects": [{"kind": "ServiceAccount", "name": "installer", "namespace": name}],
        }
    )
    for version, kinds in (("1.0.0", ("ConfigMap",)), ("2.0.0", ("ConfigMap", "Secret"))):
        await world.create(_carvel_package(name, version, kinds))
    spec = {"serviceAccountName": "installer", "packageRef": {"refName": "app.example.org"}}
    obj = await world.create(
        {
            "apiVersion": "packaging.carvel.dev/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": "app", "namespace": name},
            "spec": spec,
        }
    )
    key = await world.order(obj, package="app.example.org", version="1.0.0")
    await world.settle(key)
    assert world.done[key].is_healthy, world.done[key]
    assert await world.look_again(key) == 0
    written = await world.get("v1", "ConfigMap", "settings", name)
    assert written is not None
    assert written["data"] == {"version": "1.0.0"}

    await world.order(obj, package="app.example.org", version="2.0.0")
    await world.settle(key)
    row = world.done[key]
    assert row.reason == "Forbidden"
    assert f"system:serviceaccount:{name}:installer" in row.message
    unchanged = await world.get("v1", "ConfigMap", "settings", name)
    assert unchanged is not None
    assert unchanged["data"] == {"version": "1.0.0"}

    resource = await resource_of(world.client, Kind("packaging.carvel.dev", "PackageInstall"))
    await world.client.delete(resource, name, "app")
    await world.order(obj, status="removed")
    await world.settle(key)
    assert await world.get("v1", "ConfigMap", "settings", name) is None
    assert await world.client.get(resource, name, "app") is None


async def check_deletion_without_rights(world: LiveWorld, name: str) -> None:
    """The account loses its rights: the deletion is refused aloud, and not at all once the namespace goes."""
    await granted(world.client)
    await world.create(namespace(name))
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = await world.create(
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "installer", "namespace": name},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": "installer", "namespace": name}],
        }
    )
    await world.create(_carvel_package(name, "1.0.0", ("ConfigMap",)))
    spec = {"serviceAccountName": "installer", "packageRef": {"refName": "app.example.org"}}
    obj = await world.create(
        {
            "apiVersion": "packaging.carvel.dev/v1alpha1",
            "kind": "PackageInstall",
            "metadata": {"name": "app", "namespace": name},
            "spec": spec,
        }
    )
    key = await world.order(obj, package="app.example.org", version="1.0.0")
    await world.settle(key)
    assert world.done[key].is_healthy, world.done[key]

    bindings = await world.client.resource(Kind(RBAC, "RoleBinding"))
    installs = await world.client.resource(Kind("packaging.carvel.dev", "PackageInstall"))
    namespaces = await world.client.resource(Kind("", "Namespace"))
    assert bindings is not None
    assert installs is not None
    assert namespaces is not None
    await world.client.delete(bindings, name, binding["metadata"]["name"])
    await world.client.delete(installs, name, "app")
    await world.order(obj, status="removed")
    await world.settle(key)
    live = await world.client.get(installs, name, "app")
    assert live is not None
    (condition,) = live["status"]["conditions"]
    assert condition["type"] == "DeleteFailed"
    account = f"system:serviceaccount:{name}:installer"
    for text in (f'User "{account}" cannot get resource "configmaps"', "set spec.noopDelete to true"):
        assert text in condition["message"]

    await world.client.delete(namespaces, "", name)

    async def is_gone() -> bool:
        await world.reconcile(key)
        return await world.client.get(namespaces, "", name) is None

    await until(is_gone, "the install holds the namespace")


def _carvel_package(namespace: str, version: str, kinds: tuple[str, ...]) -> Object:
    texts = [
        f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: settings}}\n"
        f"{'data' if kind == 'ConfigMap' else 'stringData'}: {{version: {version}}}\n"
        for kind in kinds
    ]
    steps = {
        "fetch": [{"inline": {"paths": {"config.yml": "---\n".join(texts)}}}],
        "template": [{"ytt": {}}],
        "deploy": [{"kapp": {}}],
    }
    return {
        "apiVersion": "data.packaging.carvel.dev/v1alpha1",
        "kind": "Package",
        "metadata": {"name": f"app.example.org.{version}", "namespace": namespace},
        "spec": {"refName": "app.example.org", "version": version, "template": {"spec": steps}},
    }
