"""The service accounts of an installation, and what each may do: `pvbus.core.kernel.rights` as RBAC.

Each service has one ClusterRole. That of ingest is an aggregated one: the rules of every ClusterRole with the
label OBSERVED_LABEL belong to it, and those with INSTALLED_LABEL to that of establish. An installation that
is limited to some namespaces has Roles in these instead, with the namespace of the services in the label
INSTANCE. Roles cannot be aggregated: ingest has one more Role and binding for each kind that it observes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pvbus.core.kernel.rights import INSTALLED_LABEL, OBSERVED_LABEL, OBSERVED_VERBS, RIGHTS, Right, rights_of
from pvbus.core.kernel.topics import SERVICES
from pvbus.install.objects import Object, new, service_name

RBAC = "rbac.authorization.k8s.io"
_API = f"{RBAC}/v1"
INSTANCE = "app.kubernetes.io/instance"
"""The label of Roles and their bindings: they are not in the namespace of the installation."""


Rights = Mapping[str, tuple[Right, ...]]


def accounts(namespace: str, services: Sequence[str] = SERVICES) -> Iterator[Object]:
    for service in services:
        yield new("v1", "ServiceAccount", service_name(service), namespace, service=service)


def roles(of: Rights = RIGHTS) -> Iterator[Object]:
    """Yield the ClusterRoles. A service without rights has none."""
    for service, rights in of.items():
        if not rights:
            continue
        rules = [rule_of(right) for right in rights]
        role = new(_API, "ClusterRole", service_name(service), service=service)
        if service == "ingest":
            yield {**role, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": _observed()}]}}
            role = new(_API, "ClusterRole", f"{service_name(service)}-base", service=service)
            role["metadata"]["labels"] |= _observed()
        if service == "establish":
            installed = {INSTALLED_LABEL: "true"}
            yield {**role, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": installed}]}}
            role = new(_API, "ClusterRole", f"{service_name(service)}-base", service=service)
            role["metadata"]["labels"] |= installed
        yield {**role, "rules": rules}


def bindings(namespace: str, of: Rights = RIGHTS) -> Iterator[Object]:
    for service, rights in of.items():
        if rights:
            name = service_name(service)
            yield {
                **new(_API, "ClusterRoleBinding", name, service=service),
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }


def namespaced_roles(
    namespaces: Sequence[str], installation: str, services: Sequence[str] = SERVICES
) -> Iterator[Object]:
    """Yield Roles and their bindings for services that are limited to some namespaces.

    installation: the namespace of the services.
    """
    for namespace in namespaces:
        for service in services:
            rights = rights_of(service, namespaced=True)
            if rights:
                yield from granted(service_name(service), service, rights, namespace, installation)


def granted(
    name: str, service: str, rights: Sequence[Right], namespace: str, installation: str
) -> Iterator[Object]:
    """Yield a Role in a namespace, and its binding to a service.

    name: the name of both
    service: the service
    rights: what the Role permits
    namespace: the namespace of both
    installation: the namespace of the services
    """
    role = {"rules": [*map(rule_of, rights)]}
    account = {"kind": "ServiceAccount", "name": service_name(service), "namespace": installation}
    binding = {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name}, "subjects": [account]}
    for kind, fields in (("Role", role), ("RoleBinding", binding)):
        obj: Any = new(_API, kind, name, namespace, service=service)
        obj["metadata"]["labels"][INSTANCE] = installation
        yield {**obj, **fields}


def observing_in(namespaces: Sequence[str], installation: str, right: Right) -> Iterator[Object]:
    """Yield the Roles and bindings that let ingest observe one more kind in some namespaces."""
    for namespace in namespaces:
        yield from granted(f"pvbus-observes-{right.title}", "ingest", (right,), namespace, installation)


def observing(group: str, resource: str, verbs: tuple[str, ...] = OBSERVED_VERBS) -> Object:
    """Return the ClusterRole that lets ingest observe one more kind.

    resource: the plural name of the kind
    """
    right = Right(group, resource, verbs, "")
    role = new(_API, "ClusterRole", f"pvbus-observes-{right.title}")
    role["metadata"]["labels"] |= _observed()
    return {**role, "rules": [rule_of(right)]}


def _observed() -> dict[str, str]:
    return {OBSERVED_LABEL: "true"}


def rule_of(right: Right) -> Object:
    """Return the rule of a role that grants a right."""
    return {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
