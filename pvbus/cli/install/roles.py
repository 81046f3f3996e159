"""The service accounts of an installation, and what each may do: `pvbus.core.rights` as RBAC.

Each service has one ClusterRole, as no setting limits pvbus to some namespaces. The role of ingest is an
aggregated one: the rules of every ClusterRole with the label OBSERVED_LABEL belong to it.
"""

from collections.abc import Iterator

from pvbus.cli.install.objects import Object, new, service_name
from pvbus.core.rights import OBSERVED_LABEL, OBSERVED_VERBS, RIGHTS, Right
from pvbus.core.topics import SERVICES

RBAC = "rbac.authorization.k8s.io"
_API = f"{RBAC}/v1"


def accounts(namespace: str) -> Iterator[Object]:
    for service in SERVICES:
        yield new("v1", "ServiceAccount", service_name(service), namespace, service=service)


def roles() -> Iterator[Object]:
    """Yield the ClusterRoles. A service without rights has none."""
    for service, rights in RIGHTS.items():
        if not rights:
            continue
        rules = [_rule(right) for right in rights]
        role = new(_API, "ClusterRole", service_name(service), service=service)
        if service == "ingest":
            yield {**role, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": _observed()}]}}
            role = new(_API, "ClusterRole", f"{service_name(service)}-base", service=service)
            role["metadata"]["labels"] |= _observed()
        yield {**role, "rules": rules}


def bindings(namespace: str) -> Iterator[Object]:
    for service, rights in RIGHTS.items():
        if rights:
            name = service_name(service)
            yield {
                **new(_API, "ClusterRoleBinding", name, service=service),
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
            }


def observing(group: str, resource: str) -> Object:
    """Return the ClusterRole that lets ingest observe one more kind. resource: its plural name."""
    role = new(_API, "ClusterRole", f"pvbus-observes-{resource}{'.' + group if group else ''}")
    role["metadata"]["labels"] |= _observed()
    return {**role, "rules": [_rule(Right(group, resource, OBSERVED_VERBS, ""))]}


def _observed() -> dict[str, str]:
    return {OBSERVED_LABEL: "true"}


def _rule(right: Right) -> Object:
    return {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
