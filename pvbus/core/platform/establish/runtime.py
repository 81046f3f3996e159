"""What runs a package: a Deployment, its ServiceAccount, a Service, and the rights of a provider.

A DeploymentRuntimeConfig says what these are made of; what its templates lack is added, and what pvbus must
know them by replaces what they say. A provider has a ClusterRole of its own: what its controller needs for
the kinds of its package, and what the package asks for, no more. The API server decides whether we may grant
that: it refuses a role with rights that our own account lacks, and the dry run before the first write reports
this. Certificates are in `certificates`. Source: Crossplane, internal/controller/pkg/runtime and
internal/controller/rbac/provider/roles.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.effects import Delete, Discover, Effect, KindRef
from pvbus.core.kernel.installs import Install
from pvbus.core.kernel.objects import mapping
from pvbus.core.platform.establish import applying
from pvbus.core.platform.establish.manifests import asked_rules
from pvbus.core.platform.establish.objects import CRD, Object, kind_of
from pvbus.core.platform.establish.owners import Owner, controls

RBAC = "rbac.authorization.k8s.io"
SECRET = KindRef("", "Secret", "v1")
_KINDS = (
    KindRef("apps", "Deployment", "v1"),
    KindRef("", "Service", "v1"),
    SECRET,
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
SERVED_PORT = 9443
"""Of webhooks of a provider, and of gRPC of a function."""
PROVIDER, FUNCTION = "Provider", "Function"
RUN = (PROVIDER, FUNCTION)
"""The kinds of packages that something runs."""
DEFAULT_CONFIG = "default"
"""What Crossplane's definitions name where a user names no DeploymentRuntimeConfig."""
CONTAINER = "package-runtime"
_USER = {"runAsNonRoot": True, "runAsUser": 2000, "runAsGroup": 2000}


class Runtime(NamedTuple):
    """The objects that run a package.

    accounts: what is there before its Deployment, which a later revision takes over if it has the same name
    workloads: the objects that run under its account
    gap: what the package asks for and pvbus does not do, in words, "" if nothing
    service: the name of its Service, "" without one
    endpoint: the address at which a function answers, "" for others
    """

    accounts: tuple[Object, ...] = ()
    workloads: tuple[Object, ...] = ()
    gap: str = ""
    service: str = ""
    endpoint: str = ""


class RuntimeIdentity(NamedTuple):
    """Where a package runs.

    revision, uid: of the revision's object
    package: the name of the install
    namespace: of all objects that run it
    """

    revision: str
    uid: str
    package: str
    namespace: str


def server_secret(package: str) -> str:
    return f"{package}-tls-server"


def client_secret(package: str) -> str:
    return f"{package}-tls-client"


def runtime_of(
    install: Install,
    meta: Mapping[str, Any],
    packaged: Iterable[Object],
    identity: RuntimeIdentity,
    image: str,
    config: Mapping[str, Any],
) -> Runtime:
    """Return the objects that run a package, without the contents of its certificates.

    meta: the manifest of the package
    packaged: the objects that the package brings
    image: the image of the package, for a package that names no image of a controller
    config: the spec of its DeploymentRuntimeConfig, {} without one
    """
    kind, spec = str(meta.get("kind")), meta.get("spec") or {}
    if kind not in RUN:
        return Runtime()
    controller = spec.get("controller") or {}
    image = str((controller.get("image") if kind == PROVIDER else spec.get("image")) or image)
    template, gaps = mapping(config.get("deploymentTemplate")), []
    given = mapping(template.get("metadata"))
    if given.get("name"):
        gaps.append(
            "deploymentTemplate.metadata.name has no effect: each revision has a Deployment of its name"
        )
    pod = mapping(mapping(mapping(template.get("spec")).get("template")).get("spec"))
    if not (image or _container(pod).get("image")):
        return Runtime(gap="nothing is started: the package has no image of a controller")
    labels = {
        "pkg.crossplane.io/revision": identity.revision[:63],
        f"pkg.crossplane.io/{kind.lower()}": identity.package[:63],
    }
    account = _account(install, identity, mapping(config.get("serviceAccountTemplate")))
    user = str(pod.get("serviceAccountName") or account["metadata"]["name"])
    accounts = [account] if user == account["metadata"]["name"] else []
    if kind == PROVIDER:
        rules = (*_rules_of(packaged), *_SYSTEM_RULES, *asked_rules(spec))
        accounts += [_role(identity.revision, rules), _binding(identity, user)]
    service = _service(kind, identity, mapping(config.get("serviceTemplate")), labels)
    deployment = _deployment(kind, install, identity, template, image, labels, user)
    name = service["metadata"]["name"]
    endpoint = f"dns:///{name}.{identity.namespace}:{SERVED_PORT}" if kind == FUNCTION else ""
    return Runtime((*accounts, service), (deployment,), "; ".join(gaps), name, endpoint)


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


def role_name(revision: str) -> str:
    return f"crossplane:provider:{revision}:system"


def _metadata(template: Mapping[str, Any], name: str, namespace: str) -> Object:
    """Return the metadata of a template, with a name and a namespace, and without what is empty."""
    given = mapping(template.get("metadata"))
    meta: Object = {"name": str(given.get("name") or name), "namespace": namespace}
    for field in ("labels", "annotations"):
        if given.get(field):
            meta[field] = dict(given[field])
    return meta


def _account(install: Install, identity: RuntimeIdentity, template: Mapping[str, Any]) -> Object:
    meta = _metadata(template, identity.revision, identity.namespace)
    if install.account_annotations:
        meta["annotations"] = {**(meta.get("annotations") or {}), **dict(install.account_annotations)}
    account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
    if install.secrets:
        account["imagePullSecrets"] = _pull_secrets(install)
    return account


def _pull_secrets(install: Install) -> list[Object]:
    return [{"name": each.rpartition("/")[2]} for each in install.secrets]


def _role(name: str, rules: Iterable[Object]) -> Object:
    meta = {"name": role_name(name)}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": meta, "rules": list(rules)}


def _binding(identity: RuntimeIdentity, account: str) -> Object:
    name = role_name(identity.revision)
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": identity.namespace}],
    }


def _service(
    kind: str, identity: RuntimeIdentity, template: Mapping[str, Any], labels: Mapping[str, str]
) -> Object:
    """Return the Service of a package, which each revision takes over from the former one."""
    name = "webhook" if kind == PROVIDER else "grpc"
    port = {"name": name, "port": SERVED_PORT, "protocol": "TCP", "targetPort": name}
    spec: Object = {"selector": dict(labels), "ports": [port]}
    if kind == FUNCTION:
        spec["clusterIP"] = "None"  # its callers balance their requests themselves
    meta = _metadata(template, identity.package, identity.namespace)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the template of the controller's container, {} without one."""
    named = (each for each in pod.get("containers") or () if mapping(each).get("name") == CONTAINER)
    return next(named, {})


def _deployment(
    kind: str,
    install: Install,
    identity: RuntimeIdentity,
    template: Mapping[str, Any],
    image: str,
    labels: Mapping[str, str],
    account: str,
) -> Object:
    spec = mapping(template.get("spec"))
    pods = mapping(spec.get("template"))
    pod, meta = mapping(pods.get("spec")), mapping(pods.get("metadata"))
    others = [each for each in pod.get("containers") or () if mapping(each).get("name") != CONTAINER]
    volumes, mounts, variables = _mounted(kind, identity.package)
    given = _container(pod)
    container = {
        "securityContext": {"allowPrivilegeEscalation": False, "privileged": False, **_USER},
        "image": image,
        **given,
        "name": CONTAINER,
        "imagePullPolicy": install.pull_policy,
        "ports": _with_ports(given.get("ports") or (), kind),
        "env": [*(given.get("env") or ()), *_environment(kind, identity), *variables],
        "volumeMounts": [*(given.get("volumeMounts") or ()), *mounts],
    }
    new_pod: Object = {
        "securityContext": dict(_USER),
        **pod,
        "serviceAccountName": account,
        "containers": [container, *others],
        "volumes": [*(pod.get("volumes") or ()), *volumes],
    }
    if install.secrets:
        new_pod["imagePullSecrets"] = _pull_secrets(install)
    pod_meta: Object = {**meta, "labels": {**(meta.get("labels") or {}), **labels}}
    if kind == PROVIDER:
        pod_meta["annotations"] = _with_scraping(meta.get("annotations") or {}, container["ports"])
    own = _metadata(
        {"metadata": {**mapping(template.get("metadata")), "name": ""}},
        identity.revision,
        identity.namespace,
    )
    own["labels"] = {**(own.get("labels") or {}), **labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": own,
        "spec": {
            "replicas": 1,
            **spec,
            "selector": {"matchLabels": dict(labels)},
            "template": {"metadata": pod_meta, "spec": new_pod},
        },
    }


def _with_ports(given: Iterable[Mapping[str, Any]], kind: str) -> list[Object]:
    served = "webhook" if kind == PROVIDER else "grpc"
    ports = [dict(each) for each in given]
    names = {each.get("name") for each in ports}
    for name, number in (("metrics", _METRICS_PORT), (served, SERVED_PORT)):
        if name not in names:
            ports.append({"name": name, "containerPort": number, "protocol": "TCP"})
    return ports


def _with_scraping(given: Mapping[str, str], ports: Iterable[Mapping[str, Any]]) -> Object:
    """Return annotations of Pods with those for Prometheus, unless they say something of it."""
    if "prometheus.io/scrape" in given:
        return dict(given)
    port = next(each["containerPort"] for each in ports if each["name"] == "metrics")
    words = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }
    return {**given, **words}


def _environment(kind: str, identity: RuntimeIdentity) -> list[Object]:
    label = f"metadata.labels['pkg.crossplane.io/{kind.lower()}']"
    of_revision = "metadata.labels['pkg.crossplane.io/revision']"
    found = [_from_field("POD_NAMESPACE", "metadata.namespace")] if kind == PROVIDER else []
    found += [_from_field(f"{kind.upper()}_NAME", label), _from_field("REVISION_NAME", of_revision)]
    return [*found, {"name": "REVISION_UID", "value": identity.uid}]


def _from_field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _mounted(kind: str, package: str) -> tuple[list[Object], list[Object], list[Object]]:
    """Return volumes, mounts and variables of the certificates: a function is a server only."""
    sides = [("server", server_secret(package), "WEBHOOK_TLS_CERT_DIR")]
    if kind == PROVIDER:
        sides.append(("client", client_secret(package), "ESS_TLS_CERTS_DIR"))
    volumes, mounts, variables = [], [], []
    for side, secret, former in sides:
        name, folder, variable = f"tls-{side}-certs", f"/tls/{side}", f"TLS_{side.upper()}_CERTS_DIR"
        items = [{"key": each, "path": each} for each in ("tls.crt", "tls.key", "ca.crt")]
        volumes.append({"name": name, "secret": {"secretName": secret, "items": items}})
        mounts.append({"name": name, "mountPath": folder, "readOnly": True})
        variables.append({"name": variable, "value": folder})
        if kind == PROVIDER:  # the names that older providers read
            variables.append({"name": former, "value": f"$({variable})"})
    return volumes, mounts, variables


def stop(revision: Owner, package: str, namespace: str) -> Generator[Effect, Any, None]:
    """Delete the runtime of a revision: what has its names, and is controlled by it.

    What a later revision has taken over stays. package: the name of the install
    """
    for kind in _KINDS:
        names = {
            "Service": (package,),
            "Secret": (server_secret(package), client_secret(package)),
        }.get(kind.kind, (role_name(revision.name) if kind.group == RBAC else revision.name,))
        where = "" if kind.group == RBAC else namespace
        for name in names:
            live = yield from applying.read(kind, where, name)
            if live is None or not controls(revision, live) or live["metadata"].get("deletionTimestamp"):
                continue
            meta = live["metadata"]
            yield Delete(kind, where, name, meta.get("uid", ""), meta.get("resourceVersion", ""))
