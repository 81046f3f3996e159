"""The runtime of a provider: a Deployment, its ServiceAccount, and a ClusterRole of its own with a binding.

The role has what the controller needs for the kinds of its package, and what the package asks for, no more.
The API server decides whether we may grant that: it refuses a role with rights that our own account lacks,
and the dry run before the first write reports this. Source: Crossplane, internal/controller/pkg/runtime and
internal/controller/rbac/provider/roles.

Not made here: the runtime of a Function, which serves gRPC with certificates that Crossplane issues.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import Delete, Discover, Effect, KindRef
from pvbus.core.kernel.installs import Install
from pvbus.core.platform.establish import applying
from pvbus.core.platform.establish.objects import CRD, Object, kind_of
from pvbus.core.platform.establish.owners import Owner, controls

RBAC = "rbac.authorization.k8s.io"
_KINDS = (
    KindRef("apps", "Deployment", "v1"),
    KindRef(RBAC, "ClusterRoleBinding", "v1"),
    KindRef(RBAC, "ClusterRole", "v1"),
    KindRef("", "ServiceAccount", "v1"),
)
"""In the order of removal: first what runs."""
_POD = KindRef("", "Pod", "v1")

_OWN = ("get", "list", "watch", "update", "patch", "create")
"""What a provider does with its own kinds; managed resources are deleted by their users."""
_SYSTEM_RULES: tuple[Object, ...] = (
    {"apiGroups": [""], "resources": ["secrets", "configmaps", "events"], "verbs": ["*"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["*"]},
)
"""What every provider needs beside them. Source: Crossplane, rulesSystemExtra."""
_METRICS_PORT = 8080
FUNCTION = "Function"
DEFAULT_CONFIG = "default"
"""What Crossplane's definitions name where a user names no DeploymentRuntimeConfig."""


class Runtime(NamedTuple):
    """The objects that run a package.

    accounts: the ServiceAccount, its role and the binding
    workloads: the objects that run under this account
    gap: what the package asks for and pvbus does not do, in words, "" if nothing
    """

    accounts: tuple[Object, ...] = ()
    workloads: tuple[Object, ...] = ()
    gap: str = ""


def runtime_of(
    install: Install,
    meta: Mapping[str, Any],
    packaged: Iterable[Object],
    name: str,
    image: str,
    namespace: str,
) -> Runtime:
    """Return the objects that run a package.

    meta: the manifest of the package
    packaged: the objects that the package brings
    name: the name of the revision
    image: the image of the package, for a package that names no image of a controller
    namespace: where the objects are created
    """
    kind, spec = str(meta.get("kind")), meta.get("spec") or {}
    controller = spec.get("controller") or {}
    if kind == FUNCTION:
        return Runtime(gap="the function is not started: only Crossplane starts functions")
    if kind != "Provider":
        return Runtime()
    gaps = []
    if install.runtime_config not in ("", DEFAULT_CONFIG):
        gaps.append(f"runtimeConfigRef {install.runtime_config} has no effect")
    image = str(controller.get("image") or image)
    if not image:
        return Runtime(gap="nothing is started: the package has no image of a controller")
    rules = (*_rules_of(packaged), *_SYSTEM_RULES, *_asked(spec))
    labels = {
        "pkg.crossplane.io/revision": name[:63],
        "pkg.crossplane.io/provider": install.okey.split("|")[2][:63],
    }
    accounts = (_account(install, name, namespace), _role(name, rules), _binding(name, namespace))
    deployment = _deployment(install, name, namespace, image, labels)
    return Runtime(accounts, (deployment,), "; ".join(gaps))


def startable(wanted: Runtime) -> Generator[Effect, Any, Runtime]:
    """Return a runtime as it can be started.

    An API server without Pods, as pvbus's own, runs nothing: no objects are left, and the gap says so.
    """
    if not wanted.workloads or (yield Discover(_POD)) is not None:
        return wanted
    gap = "nothing is started: the API server has no Pods"
    return Runtime(gap="; ".join(filter(None, (wanted.gap, gap))))


def _rules_of(packaged: Iterable[Object]) -> list[Object]:
    """Return the rules for the kinds that a package defines, one per group."""
    groups: dict[str, list[str]] = {}
    for obj in packaged:
        kind, spec = kind_of(obj), obj.get("spec") or {}
        plural = (spec.get("names") or {}).get("plural")
        if (kind.group, kind.kind) == CRD and plural:
            groups.setdefault(str(spec.get("group")), []).append(str(plural))
    rules: list[Object] = []
    for group, plurals in sorted(groups.items()):
        resources = [f"{each}{part}" for each in sorted(plurals) for part in ("", "/status", "/finalizers")]
        rules.append({"apiGroups": [group], "resources": resources, "verbs": list(_OWN)})
    return rules


def _asked(spec: Mapping[str, Any]) -> list[Object]:
    """Return the rules that a package asks for, in Crossplane's spelling or as `permissions`."""
    controller, permissions = spec.get("controller") or {}, spec.get("permissions") or {}
    return [*(controller.get("permissionRequests") or ()), *(permissions.get("rules") or ())]


def role_name(revision: str) -> str:
    return f"crossplane:provider:{revision}:system"


def _account(install: Install, name: str, namespace: str) -> Object:
    meta: Object = {"name": name, "namespace": namespace}
    if install.account_annotations:
        meta["annotations"] = dict(install.account_annotations)
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    if install.secrets:
        account["imagePullSecrets"] = [{"name": each.rpartition("/")[2]} for each in install.secrets]
    return account


def _role(name: str, rules: Iterable[Object]) -> Object:
    meta = {"name": role_name(name)}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(rules)}


def _binding(name: str, namespace: str) -> Object:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role_name(name)},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role_name(name)},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _deployment(install: Install, name: str, namespace: str, image: str, labels: Mapping[str, str]) -> Object:
    container = {
        "name": "package-runtime",
        "image": image,
        "imagePullPolicy": install.pull_policy,
        "ports": [{"name": "metrics", "containerPort": _METRICS_PORT, "protocol": "TCP"}],
        "env": [{"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "runAsNonRoot": True,
            "runAsUser": 2000,
            "runAsGroup": 2000,
        },
    }
    pod: Object = {"serviceAccountName": name, "containers": [container]}
    if install.secrets:
        pod["imagePullSecrets"] = [{"name": each.rpartition("/")[2]} for each in install.secrets]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }


def stop(revision: Owner, namespace: str) -> Generator[Effect, Any, None]:
    """Delete the runtime of a revision: what has its names, and is controlled by it."""
    for kind in _KINDS:
        name = role_name(revision.name) if kind.group == RBAC else revision.name
        where = "" if kind.group == RBAC else namespace
        live = yield from applying.read(kind, where, name)
        if live is None or not controls(revision, live) or live["metadata"].get("deletionTimestamp"):
            continue
        meta = live["metadata"]
        yield Delete(kind, where, name, meta.get("uid", ""), meta.get("resourceVersion", ""))
