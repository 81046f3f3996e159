"""Applies the objects of an installation to an API server, and removes those that it does not have any more.

Every object is applied on the server, so that a second time changes nothing, a value that somebody changed
comes back, and what others added stays. One that fails does not keep the others from being tried: whoever
installs sees at once all rights that are missing.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import ConflictError, PermanentError, UsageError
from pvbus.install.objects import PART_OF, SETTINGS, Object, service_name
from pvbus.install.roles import INSTANCE
from pvbus.ports.cluster import Kind, Resource

MANAGER = "pvbus-install"
"""The owner of our fields, by which an object of ours is known."""
SELECTOR = ",".join(f"{name}={value}" for name, value in PART_OF.items())

_RBAC = "rbac.authorization.k8s.io"
PRUNED = (
    Kind("", "ConfigMap"),
    Kind("", "Service"),
    Kind("", "ServiceAccount"),
    Kind("apps", "Deployment"),
    Kind("policy", "PodDisruptionBudget"),
    Kind("networking.k8s.io", "NetworkPolicy"),
    Kind("monitoring.coreos.com", "ServiceMonitor"),
    Kind("monitoring.coreos.com", "PrometheusRule"),
    Kind("keda.sh", "ScaledObject"),
    Kind("apiregistration.k8s.io", "APIService"),
    Kind(_RBAC, "ClusterRoleBinding"),
    Kind(_RBAC, "ClusterRole"),
    Kind(_RBAC, "RoleBinding"),
    Kind(_RBAC, "Role"),
)
"""The kinds of which an object that we once applied is removed when we have it no more. Definitions are not
among them, as all objects of a kind go with its definition, and neither is the namespace."""

_BINDING = Kind(_RBAC, "RoleBinding")
_EVERYWHERE = (_BINDING, Kind(_RBAC, "Role"))
"""Kinds whose objects are in the namespaces that the services work in. INSTANCE says whose they are."""

Action = Literal["created", "changed", "unchanged", "removed", "failed"]


class Result(NamedTuple):
    """What was done about one object.

    kind: its kind
    namespace: its namespace, "" for none
    name: its name
    action: what was done
    message: why it failed, "" if it did not
    reason: the reason in the API server's answer, "" if it did not fail
    """

    kind: str
    namespace: str
    name: str
    action: Action
    message: str = ""
    reason: str = ""


async def apply_all(cluster: HttpCluster, objects: Sequence[Object], namespace: str) -> list[Result]:
    """Apply objects in their order, then remove the objects that only an earlier installation had.

    Raises UsageError if pvbus is installed in another namespace, TransientError if the server does not
    answer.
    """
    await _check_alone(cluster, objects, namespace)
    results = [await _apply(cluster, obj) for obj in objects]
    if all(result.action != "failed" for result in results):
        results += [result async for result in _prune(cluster, objects, namespace)]
    return results


async def read_installed_setting(cluster: HttpCluster, namespace: str, variable: str) -> str:
    """Return a setting of the installation in a namespace, "" if there is none."""
    resource = await cluster.resource(Kind("", "ConfigMap"))
    assert resource is not None
    found = await cluster.get(resource, namespace, SETTINGS)
    return str(((found or {}).get("data") or {}).get(variable, ""))


async def _check_alone(cluster: HttpCluster, objects: Sequence[Object], namespace: str) -> None:
    """Refuse a second installation that works on the same namespaces. Raises UsageError.

    Both would write the same PackageVariants.
    """
    resource = await cluster.resource(Kind(_RBAC, "ClusterRoleBinding"))
    if resource is None or await cluster.resource(Kind("", "Pod")) is None:
        raise UsageError(
            "this API server has no RBAC or no Pods, so it is no cluster to install on (`pvbus up` "
            "and `pvbus apiserver` need no installation): choose another one with --kubeconfig or --context"
        )
    try:
        found = await cluster.get(resource, "", service_name("ingest"))
    except PermanentError:  # without the right to look; applying it will say so
        return
    others = {subject.get("namespace") for subject in (found or {}).get("subjects") or ()} - {namespace}
    if others:
        other = sorted(map(str, others))[0]
        raise UsageError(
            f"pvbus is installed in the namespace {other} already, and works on all namespaces: give "
            f"--namespace {other} to change that one, or uninstall it first"
        )
    await _check_apart(cluster, objects, namespace)


async def _check_apart(cluster: HttpCluster, objects: Sequence[Object], namespace: str) -> None:
    """Raise UsageError if another installation, which is limited to namespaces, works in one of ours."""
    resource = await cluster.resource(_BINDING)
    assert resource is not None
    try:
        found = (await cluster.list(resource, label_selector=SELECTOR)).items
    except PermanentError:
        return
    own = {obj["metadata"]["namespace"] for obj in objects if _kind_of(obj) == _BINDING}
    for binding in found:
        meta = binding["metadata"]
        other = meta["labels"].get(INSTANCE, namespace)
        if other != namespace and (not own or meta["namespace"] in own):
            raise UsageError(
                f"the pvbus that is installed in the namespace {other} works in {meta['namespace']} already: "
                "give --namespaces without it, or take it from that one first"
            )


async def _apply(cluster: HttpCluster, obj: Object) -> Result:
    kind, meta = _kind_of(obj), obj["metadata"]
    named = (kind.kind, meta.get("namespace", ""), meta["name"])
    try:
        resource = await cluster.resource(kind)
        if resource is None:
            return Result(*named, "failed", f"{obj['apiVersion']} {kind.kind} is not served", "NoMatch")
        before = await cluster.get(resource, named[1], named[2])
        after = await cluster.apply(resource, obj, manager=MANAGER)
    except (PermanentError, ConflictError) as exc:
        return Result(*named, "failed", str(exc), getattr(exc, "reason", "Conflict"))
    if before is None:
        return Result(*named, "created")
    is_same = before["metadata"].get("resourceVersion") == after["metadata"].get("resourceVersion")
    return Result(*named, "unchanged" if is_same else "changed")


def _kind_of(obj: Object) -> Kind:
    return Kind(obj["apiVersion"].rpartition("/")[0], obj["kind"])


# ------------------------------------------------------------ removal


async def _prune(cluster: HttpCluster, objects: Sequence[Object], namespace: str) -> AsyncIterator[Result]:
    present = {_identity(_kind_of(obj), obj) for obj in objects}
    for kind in PRUNED:
        try:
            resource = await cluster.resource(kind)
            if resource is None:
                continue
            is_ours = kind in _EVERYWHERE
            listing = await cluster.list(
                resource,
                namespace if resource.namespaced and not is_ours else None,
                label_selector=f"{SELECTOR},{INSTANCE}={namespace}" if is_ours else SELECTOR,
            )
            for obj in _left(listing.items, kind, present):
                yield await _remove(cluster, resource, obj)
        except PermanentError as exc:
            yield Result(kind.kind, "", "*", "failed", str(exc), exc.reason)


def _identity(kind: Kind, obj: Object) -> tuple[Kind, str, str]:
    return kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _left(found: Iterable[Object], kind: Kind, present: set[tuple[Kind, str, str]]) -> Iterator[Object]:
    """Yield the objects that an earlier installation has applied and this one has not."""
    for obj in found:
        meta = obj["metadata"]
        managers = {entry.get("manager") for entry in meta.get("managedFields") or ()}
        if MANAGER in managers and _identity(kind, obj) not in present and not meta.get("deletionTimestamp"):
            yield obj


async def _remove(cluster: HttpCluster, resource: Resource, obj: Object) -> Result:
    meta = obj["metadata"]
    named = (resource.kind, meta.get("namespace", ""), meta["name"])
    try:
        await cluster.delete(resource, named[1], named[2], uid=meta["uid"])
    except (PermanentError, ConflictError) as exc:
        return Result(*named, "failed", str(exc), getattr(exc, "reason", "Conflict"))
    return Result(*named, "removed")
