"""The tables of docs/security.md: what services and people could do with their rights, from the rights."""

from collections.abc import Callable, Iterator, Mapping

from pvbus.controlplane.apiserver.rbac.builtin import OBSERVERS, PEOPLE, cluster_roles
from pvbus.core.kernel.rights import ALL_RIGHTS, OBSERVED_LABEL, Right

WRITES = frozenset({"create", "update", "patch", "delete"})
RBAC = "rbac.authorization.k8s.io"
APPROVAL = "packagerevisions/approval"

POWERS: Mapping[str, Callable[[Right], bool]] = {
    "reads Secrets": lambda right: right.resource == "secrets",
    "writes Secrets": lambda right: right.resource == "secrets" and is_writing(right),
    "changes what is in packages": lambda right: (
        right.resource == "packagerevisionresources" and is_writing(right)
    ),
    "approves packages": lambda right: right.resource == APPROVAL,
    "changes definitions of kinds": lambda right: (
        right.resource == "customresourcedefinitions" and is_writing(right)
    ),
    "grants rights": lambda right: right.group == RBAC and is_writing(right),
    "acts as other accounts": lambda right: "impersonate" in right.verbs,
    "runs programs in the cluster": lambda right: (
        right.resource in ("deployments", "pods", "daemonsets", "jobs") and is_writing(right)
    ),
    "asks who has a token, and what they can do": lambda right: right.resource.endswith("reviews"),
}
"""What can be used to get more than was given, and which rights are it."""


def is_writing(right: Right) -> bool:
    return bool(WRITES & set(right.verbs))


def powers() -> Iterator[tuple[str, str, str]]:
    """Yield each power, the services that have it, and what they need it for."""
    for power, is_it in POWERS.items():
        held = [(name, right) for name, rights in ALL_RIGHTS.items() for right in rights if is_it(right)]
        services = dict.fromkeys(f"`{name}`" for name, _ in held)
        yield power, ", ".join(services) or "none", "; ".join(dict.fromkeys(right.why for _, right in held))
    observers = ", ".join(f"`{name}`" for name in OBSERVERS)
    label = (
        f"see what sets select; on a cluster only kinds of a ClusterRole with the label `{OBSERVED_LABEL}`"
    )
    yield "reads every kind of the embedded API server, Secrets, too", observers, label


def people() -> Iterator[tuple[str, str]]:
    """Yield each role of people, and the requests that it permits beyond those of the one that only reads."""
    roles = {role["metadata"]["name"]: role["rules"] for role in cluster_roles()}
    viewed = roles[PEOPLE["viewer"]]
    for role, name in PEOPLE.items():
        if name == "cluster-admin":
            yield f"`{role}`", "everything"
            continue
        rules = [rule for rule in roles[name] if role == "viewer" or rule not in viewed]
        yield f"`{role}`", "; ".join(_words(rule) for rule in rules)


def _words(rule: Mapping[str, list[str]]) -> str:
    (group,) = rule["apiGroups"]
    named = [f"`{name}{'.' if group else ''}{group}`" for name in rule["resources"]]
    return f"{', '.join(rule['verbs'])}: {', '.join(named)}"
