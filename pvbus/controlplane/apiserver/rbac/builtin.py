"""The roles and bindings that every server has.

Those of Kubernetes have its names; of `view`, `edit` and `admin` the rules on kinds that are served here.
`pvbus-viewer` to `pvbus-approver` are the roles of people; `pvbus-<service>` are the services', from
`pvbus.core.kernel.rights`. What is missing is added at each start, as a real API server does it, but for an
object with the annotation rbac.authorization.kubernetes.io/autoupdate: "false". The services' roles become
exactly what they are here, as `pvbus install` makes them on a cluster: another version may have granted more.

Source: Kubernetes 1.36, plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pvbus.controlplane.apiserver.rbac.policy import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    GROUP,
    Subject,
    binding_of,
)
from pvbus.controlplane.apiserver.rbac.rules import (
    FULL_AUTHORITY,
    Rule,
    object_of,
    rules_of,
    uncovered,
)
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.rights import OBSERVED_LABEL, OBSERVED_VERBS, PROMOTION_KINDS, SERVICE_RIGHTS
from pvbus.ports.cluster import Kind, Object

AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
SERVICES_NAMESPACE = "pvbus-system"
OBSERVED = "pvbus-observed"
"""The ClusterRole of what is observed. By default that is everything: whoever may create a kind here
expects sets to select it. Rules that are taken from pvbus-observes-all restrict it."""
OBSERVERS = ("ingest", "rollout")
"""ingest reads what sets select and packages inject, rollout what the checks of RolloutPolicies name."""
_SERVICES = frozenset({OBSERVED, *(f"pvbus-{service}" for service in SERVICE_RIGHTS)})
"""The names of the services' roles, and of their bindings."""
_BOOTSTRAP = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
_READ = ("get", "list", "watch")
_WRITE = ("create", "update", "patch", "delete", "deletecollection")
_CHANGE = ("update", "patch")
_HEALTH = ("/livez", "/readyz", "/healthz")
_DISCOVERY = ("/openapi", "/openapi/*", "/api", "/api/*", "/apis", "/apis/*")
_VERSION = ("/version", "/version/")
_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"

PEOPLE: Mapping[str, str] = {
    "viewer": "pvbus-viewer",
    "editor": "pvbus-editor",
    "proposer": "pvbus-proposer",
    "approver": "pvbus-approver",
    "admin": "cluster-admin",
}
"""The ClusterRole of each role of `pvbus user`. In single namespaces the admin's is `admin`."""
NAMESPACE_ADMIN = "admin"


def _rule(verbs: Sequence[str], group: str, *resources: str) -> Rule:
    return Rule(tuple(verbs), (group,), resources)


_VIEWED = (
    _rule(_READ, PORCH_GROUP, "packagerevisions", "packagerevisions/approval", "packagerevisionresources"),
    _rule(_READ, CONFIG_GROUP, "*"),
    _rule(_READ, PROMOTION_GROUP, "*"),
    _rule(_READ, "apps", "controllerrevisions"),  # the former specs of what they read
)
_PROPOSED = (_rule(_CHANGE, PORCH_GROUP, "packagerevisions"),)
_EDITED = (
    _rule(_WRITE, PORCH_GROUP, "packagerevisions"),
    _rule(_CHANGE, PORCH_GROUP, "packagerevisionresources"),
    _rule(_WRITE, CONFIG_GROUP, "packagevariants", "packagevariantsets"),
    _rule(_WRITE, PROMOTION_GROUP, "packagespecializers"),
)
_APPROVED = (
    _rule(_CHANGE, PORCH_GROUP, "packagerevisions/approval"),
    _rule(("delete",), PORCH_GROUP, "packagerevisions"),
    _rule(_CHANGE, PROMOTION_GROUP, "quarantines"),
    _rule(("create", *_CHANGE), PROMOTION_GROUP, "rolloutstops"),
)
_CLUSTER_VIEWED = (
    _rule(_READ, "", "namespaces", "configmaps", "events"),
    _rule(_READ, "events.k8s.io", "events"),
    _rule(_READ, "apiextensions.k8s.io", "customresourcedefinitions"),
)
_VIEW = (_rule(_READ, "", "configmaps", "events", "namespaces"), _rule(_READ, "events.k8s.io", "events"))
_EDIT = (
    _rule(_READ, "", "secrets"),
    _rule(_WRITE, "", "configmaps", "secrets", "events"),
    _rule(_WRITE, "events.k8s.io", "events"),
)
_ADMIN = (
    _rule(("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
    _rule((*_READ, *_WRITE), GROUP, "roles", "rolebindings"),
)
_BASIC = (
    _rule(("create",), "authorization.k8s.io", "selfsubjectaccessreviews", "selfsubjectrulesreviews"),
    _rule(("create",), "authentication.k8s.io", "selfsubjectreviews"),
)
_DELEGATED = (
    _rule(("create",), "authentication.k8s.io", "tokenreviews"),
    _rule(("create",), "authorization.k8s.io", "subjectaccessreviews"),
)


def _role(name: str, rules: Sequence[Rule] = (), *, to: str = "", gathers: str = "", **labels: str) -> Object:
    """Return a ClusterRole.

    to: the role that it is added to, "" for none
    gathers: a label of the roles whose rules it has, "" for none
    labels: further labels, with `__` for the slash
    """
    labels = {label.replace("__", "/"): value for label, value in labels.items()}
    role: Object = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": name,
            "labels": {**_BOOTSTRAP, **({_AGGREGATE + to: "true"} if to else {}), **labels},
            "annotations": {AUTO_UPDATE: "true"},
        },
        "rules": [object_of(rule) for rule in rules],
    }
    if gathers:
        role["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {gathers: "true"}}]}
        role["rules"] = None
    return role


def _binding(name: str, role: str, *subjects: Subject) -> Object:
    made = []
    for kind, who, namespace in subjects:
        account = kind == "ServiceAccount"
        more = {"namespace": namespace} if account else {"apiGroup": GROUP}
        made.append({"kind": kind, "name": who, **more})
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": _BOOTSTRAP, "annotations": {AUTO_UPDATE: "true"}},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": role},
        "subjects": made,
    }


def cluster_roles() -> Iterator[Object]:
    """Yield the ClusterRoles."""
    yield _role("cluster-admin", FULL_AUTHORITY)
    yield _role("system:discovery", (Rule(("get",), urls=(*_HEALTH, *_VERSION, *_DISCOVERY)),))
    yield _role("system:public-info-viewer", (Rule(("get",), urls=(*_HEALTH, *_VERSION)),))
    yield _role("system:basic-user", _BASIC)
    yield _role("system:auth-delegator", _DELEGATED)
    yield _role("admin", gathers=f"{_AGGREGATE}admin")
    yield _role("edit", gathers=f"{_AGGREGATE}edit", to="admin")
    yield _role("view", gathers=f"{_AGGREGATE}view", to="edit")
    yield _role("system:aggregate-to-admin", (*_ADMIN, *_APPROVED), to="admin")
    yield _role("system:aggregate-to-edit", (*_EDIT, *_EDITED), to="edit")
    yield _role("system:aggregate-to-view", (*_VIEW, *_VIEWED), to="view")
    yield _role("pvbus-viewer", (*_CLUSTER_VIEWED, *_VIEWED))
    yield _role("pvbus-proposer", (*_CLUSTER_VIEWED, *_VIEWED, *_PROPOSED))
    yield _role("pvbus-editor", (*_CLUSTER_VIEWED, *_VIEWED, *_EDITED))
    yield _role("pvbus-approver", (*_CLUSTER_VIEWED, *_VIEWED, *_PROPOSED, *_APPROVED))
    for service, rights in SERVICE_RIGHTS.items():
        rules = [_rule(right.verbs, right.group, right.resource) for right in rights]
        yield _role(f"pvbus-{service}", rules)
    yield _role(OBSERVED, gathers=OBSERVED_LABEL)
    label = {OBSERVED_LABEL.replace("/", "__"): "true"}
    yield _role("pvbus-observes-all", (_rule(OBSERVED_VERBS, "*", "*"),), **label)
    promotion = [_rule(right.verbs, right.group, right.resource) for right in PROMOTION_KINDS]
    yield _role("pvbus-observes-promotion", promotion, **label)


def cluster_role_bindings(*, is_limited: bool = False) -> Iterator[Object]:
    """Yield the ClusterRoleBindings.

    is_limited: whether the services have no rights in the whole cluster
    """
    authenticated, anybody = Subject("Group", _AUTHENTICATED), Subject("Group", _UNAUTHENTICATED)
    yield _binding("cluster-admin", "cluster-admin", Subject("Group", "system:masters"))
    yield _binding("system:discovery", "system:discovery", authenticated)
    yield _binding("system:basic-user", "system:basic-user", authenticated)
    yield _binding("system:public-info-viewer", "system:public-info-viewer", authenticated, anybody)
    for service in SERVICE_RIGHTS:
        yield _binding(
            f"pvbus-{service}", f"pvbus-{service}", *(() if is_limited else (account_of(service),))
        )
    yield _binding(OBSERVED, OBSERVED, *(() if is_limited else map(account_of, OBSERVERS)))


def account_of(service: str) -> Subject:
    """Return the account of a service, as an installation on a cluster names it."""
    return Subject("ServiceAccount", f"pvbus-{service}", SERVICES_NAMESPACE)


def initial(*, is_limited: bool = False) -> Iterator[tuple[Kind, Object]]:
    """Yield every role and binding that a server begins with."""
    yield from ((CLUSTER_ROLE, role) for role in cluster_roles())
    bindings = cluster_role_bindings(is_limited=is_limited)
    yield from ((CLUSTER_ROLE_BINDING, binding) for binding in bindings)


def completed(kind: Kind, stored: Object, wanted: Object) -> Object:
    """Return a stored role or binding with all that the wanted one has; what was added by people stays.

    A binding to another role stays as it is. A service's role gets the wanted rules alone, and its binding
    the service's account only if it is wanted.
    """
    metadata = dict(stored["metadata"])
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    if annotations.get(AUTO_UPDATE) == "false":
        return stored
    metadata["annotations"] = {**wanted["metadata"]["annotations"], **annotations}
    metadata["labels"] = {**labels, **wanted["metadata"]["labels"]}
    changed = {**stored, "metadata": metadata}
    is_service = metadata["name"] in _SERVICES
    if kind == CLUSTER_ROLE_BINDING:
        if binding_of(stored).role == binding_of(wanted).role:
            found = [each for each in stored.get("subjects") or () if not (is_service and _is_account(each))]
            changed["subjects"] = _with_missing(found, wanted["subjects"])
    elif "aggregationRule" in wanted:
        changed["aggregationRule"] = wanted["aggregationRule"]
    elif is_service:
        changed["rules"] = wanted["rules"]
    elif missing := uncovered(rules_of(stored), rules_of(wanted)):
        changed["rules"] = [*(stored.get("rules") or ()), *(object_of(rule) for rule in missing)]
    return changed


def _is_account(subject: Mapping[str, Any]) -> bool:
    """Return whether a subject is the account of a service."""
    return subject.get("namespace") == SERVICES_NAMESPACE and subject.get("name") in _SERVICES


def _with_missing(stored: Sequence[Any] | None, wanted: Sequence[Any]) -> list[Any]:
    found = list(stored or ())
    return [*found, *(each for each in wanted if each not in found)]
