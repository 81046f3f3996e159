"""Roles and bindings, and the rules that they give a user. Pure: the server feeds it each change.

Rules come from ClusterRoleBindings, which count in all namespaces, then from the RoleBindings of the
namespace that is asked for. Source: Kubernetes 1.36, pkg/registry/rbac/validation/rule.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.entries import ObjectKey
from pvbus.controlplane.apiserver.identity import Attributes, User
from pvbus.controlplane.apiserver.rbac.rules import Rule, permits_all, rules_of
from pvbus.ports.cluster import Kind, Object

GROUP = "rbac.authorization.k8s.io"
ROLE = Kind(GROUP, "Role")
CLUSTER_ROLE = Kind(GROUP, "ClusterRole")
ROLE_BINDING = Kind(GROUP, "RoleBinding")
CLUSTER_ROLE_BINDING = Kind(GROUP, "ClusterRoleBinding")
ROLES, BINDINGS = (ROLE, CLUSTER_ROLE), (ROLE_BINDING, CLUSTER_ROLE_BINDING)
ACCOUNT_PREFIX = "system:serviceaccount:"


class Subject(NamedTuple):
    """Somebody to whom a role is bound.

    kind: User, Group or ServiceAccount
    name: the name
    namespace: the namespace of a ServiceAccount, "" for others
    """

    kind: str
    name: str
    namespace: str = ""


class Binding(NamedTuple):
    """A role for subjects.

    name: the name of the binding
    namespace: where the role counts, "" for the whole cluster
    role: kind and name of the role
    subjects: who has the role
    note: how reasons name the binding, "" for its own name
    """

    name: str
    namespace: str
    role: tuple[str, str]
    subjects: tuple[Subject, ...]
    note: str = ""


class Granted(NamedTuple):
    """A rule, and the binding and subject that it comes from, in Kubernetes' words."""

    source: str
    rule: Rule


class Rules(NamedTuple):
    """What a user may do.

    granted: the rules, each with its source
    missing: kind and name of the bound roles that do not exist
    """

    granted: Sequence[Granted]
    missing: Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """Whether requests of one form are permitted.

    everywhere: the reason if they are permitted for all names, else ""
    names: the reason for each name that is permitted
    problem: what could not be looked up, "" if everything could
    """

    everywhere: str
    names: Mapping[str, str]
    problem: str

    def reason(self, name: str) -> str:
        """Return why a request for this name is permitted, "" if it is not."""
        return self.everywhere or self.names.get(name, "")


class Policy:
    """All roles and bindings."""

    def __init__(self) -> None:
        self._roles: dict[tuple[str, str, str], tuple[Rule, ...]] = {}
        self._bindings: dict[str, dict[str, Binding]] = {}
        self.extra: Sequence[Binding] = ()
        """Bindings besides the objects: those of the users that `pvbus user` has made."""

    def put(self, kind: Kind, obj: Object) -> None:
        """Add or replace a role or a binding."""
        metadata = obj["metadata"]
        namespace = metadata.get("namespace", "")
        if kind in ROLES:
            self._roles[kind.kind, namespace, metadata["name"]] = rules_of(obj)
        else:
            self._bindings.setdefault(namespace, {})[metadata["name"]] = binding_of(obj)

    def drop(self, kind: Kind, key: ObjectKey) -> None:
        """Remove a role or a binding."""
        namespace, name = key
        if kind in ROLES:
            self._roles.pop((kind.kind, namespace, name), None)
        else:
            self._bindings.get(namespace, {}).pop(name, None)

    def rules(self, user: User, namespace: str) -> Rules:
        """Return the rules of a user in a namespace; for "" the rules that count in all namespaces."""
        granted: list[Granted] = []
        missing: dict[tuple[str, str], None] = {}
        for binding in self._effective(namespace):
            subject = next((each for each in binding.subjects if _is(user, each, binding.namespace)), None)
            if subject is None:
                continue
            found = self.role_rules(*binding.role, namespace)
            if found is None:
                missing[binding.role] = None
                continue
            source = _described(binding, subject)
            granted += [Granted(source, rule) for rule in found]
        return Rules(granted, tuple(missing))

    def role_rules(self, kind: str, name: str, namespace: str) -> Sequence[Rule] | None:
        """Return the rules of the role that a binding in a namespace names, None if there is none."""
        return self._roles.get((kind, namespace if kind == ROLE.kind else "", name))

    def answer(self, user: User, asked: Attributes) -> Answer:
        """Return which requests of one form a user may make, by the name of the object."""
        rules = self.rules(user, asked.namespace)
        everywhere = ""
        names: dict[str, str] = {}
        for source, rule in rules.granted:
            if not permits_all(rule, asked):
                continue
            if asked.path or not rule.names:
                everywhere = everywhere or source
            for name in rule.names:
                names.setdefault(name, source)
        return Answer(everywhere, names, problems(rules))

    def _effective(self, namespace: str) -> Iterator[Binding]:
        for scope in ("", namespace) if namespace else ("",):
            yield from (binding for binding in self.extra if binding.namespace == scope)
            found = self._bindings.get(scope, {})
            yield from (found[name] for name in sorted(found))


def binding_of(obj: Object) -> Binding:
    """Return the binding that a RoleBinding or ClusterRoleBinding stands for."""
    role = obj.get("roleRef") or {}
    return Binding(
        obj["metadata"]["name"],
        obj["metadata"].get("namespace", ""),
        (role.get("kind", ""), role.get("name", "")),
        tuple(_subject(each) for each in obj.get("subjects") or ()),
    )


def _subject(obj: Mapping[str, Any]) -> Subject:
    return Subject(obj.get("kind", ""), obj.get("name", ""), obj.get("namespace", ""))


def _is(user: User, subject: Subject, namespace: str) -> bool:
    """Return whether a subject of a binding in a namespace is this user."""
    match subject.kind:
        case "User":
            return user.name == subject.name
        case "Group":
            return subject.name in user.groups
        case "ServiceAccount":
            home = subject.namespace or namespace
            return bool(home) and user.name == f"{ACCOUNT_PREFIX}{home}:{subject.name}"
    return False


def _described(binding: Binding, subject: Subject) -> str:
    """Return the reason in Kubernetes' words: these put the name before the namespace."""
    if binding.note:
        return binding.note
    kind = ROLE_BINDING.kind if binding.namespace else CLUSTER_ROLE_BINDING.kind
    name = f"{binding.name}/{binding.namespace}" if binding.namespace else binding.name
    who = subject.name
    if subject.kind == "ServiceAccount":
        who = f"{subject.name}/{subject.namespace or binding.namespace}"
    return f'{kind} "{name}" of {binding.role[0]} "{binding.role[1]}" to {subject.kind} "{who}"'


def problems(rules: Rules, resource: str = "") -> str:
    """Return which roles were not found, "" if none is missing.

    resource: how to call them, "" for their kind
    """
    found = dict.fromkeys(
        f'{resource or kind.lower()}.{GROUP} "{name}" not found' for kind, name in rules.missing
    )
    return next(iter(found), "") if len(found) < 2 else f"[{', '.join(found)}]"
