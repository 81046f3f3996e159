"""Nobody grants what he does not have: the check on writes of roles and bindings.

A writer of a role needs its rules himself, or the right `escalate`; a writer of a binding those of the bound
role, or the right `bind`. Source: Kubernetes 1.36, pkg/registry/rbac/escalation_check.go and the
policybased storages beside it.
"""

from collections.abc import Sequence

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.identity import ADMINS_GROUP, Attributes, current, refused
from pvbus.controlplane.apiserver.rbac.authorizer import RbacAuthorizer
from pvbus.controlplane.apiserver.rbac.policy import BINDINGS, GROUP, Rules, binding_of, problems
from pvbus.controlplane.apiserver.rbac.rules import (
    FULL_AUTHORITY,
    Rule,
    described,
    quoted,
    rules_of,
    uncovered,
)
from pvbus.ports.cluster import Kind, Object

_COLLECTED_FIELDS = ("ownerReferences", "finalizers", "managedFields", "resourceVersion", "generation")


class Escalation:
    """Checks the writes of the request that is being answered."""

    def __init__(self, authorizer: RbacAuthorizer) -> None:
        self._authorizer = authorizer

    def check(self, kind: Kind, new: Object, old: Object | None) -> None:
        """Refuse a write that would grant more than the writer has. Raises StatusError (403, 404)."""
        user, asked, _ = current()
        if ADMINS_GROUP in user.groups or (old is not None and _is_same(new, old)):
            return
        if kind in BINDINGS:
            self._check_binding(kind, new)
        elif not self._may(asked._replace(verb="escalate", subresource="")):
            self._check_role(kind, new, old)

    def _check_role(self, kind: Kind, new: Object, old: Object | None) -> None:
        self._confirm(kind, new, rules_of(new))
        aggregates = any((obj or {}).get("aggregationRule") for obj in (new, old))
        if aggregates and uncovered(_owned(self._rules("")), FULL_AUTHORITY):
            why = "must have cluster-admin privileges to use the aggregationRule"
            raise refused(GROUP, _plural(kind), new["metadata"].get("name", ""), why)

    def _check_binding(self, kind: Kind, new: Object) -> None:
        namespace = new["metadata"].get("namespace", "")
        role_kind, name = binding_of(new).role
        plural = f"{role_kind.lower()}s"
        if self._may(Attributes("bind", GROUP, "*", plural, "", namespace, name)):
            return
        rules = self._authorizer.policy.role_rules(role_kind, name, namespace)
        if rules is None:
            # The real server calls the missing role by the resource of the request, too.
            raise status.not_found(status.Subject(GROUP, _plural(kind), kind.kind, name))
        self._confirm(kind, new, rules)

    def _may(self, asked: Attributes) -> bool:
        return self._authorizer.is_allowed(current().user, asked)

    def _confirm(self, kind: Kind, new: Object, rules: Sequence[Rule]) -> None:
        metadata = new["metadata"]
        own = self._rules(metadata.get("namespace", ""))
        missing = uncovered(_owned(own), rules)
        if missing:
            user = current().user
            lines = "\n".join(described(missing))
            why = (
                f'user "{user.name}" (groups={quoted(user.groups)}) is attempting to grant RBAC permissions '
                f"not currently held:\n{lines}"
            )
            if own.missing:
                why += f"; resolution errors: [{problems(own, _plural(kind))}]"
            raise refused(GROUP, _plural(kind), metadata.get("name", ""), why)

    def _rules(self, namespace: str) -> Rules:
        return self._authorizer.rules(current().user, namespace)


def _owned(rules: Rules) -> list[Rule]:
    return [granted.rule for granted in rules.granted]


def _plural(kind: Kind) -> str:
    return f"{kind.kind.lower()}s"


def _is_same(new: Object, old: Object) -> bool:
    """Return whether at most the fields differ that a garbage collector has to change."""
    return _without_collected(new) == _without_collected(old)


def _without_collected(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k not in _COLLECTED_FIELDS}
    return {**obj, "metadata": metadata}
