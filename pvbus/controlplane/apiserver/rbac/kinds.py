"""The kinds of RBAC and of the reviews: schemas, defaults and checks.

Source: Kubernetes 1.36, pkg/apis/rbac/v1/defaults.go and pkg/apis/rbac/validation/validation.go.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from pvbus.controlplane.apiserver.builtinschemas import (
    kind_schema,
    label_selector,
    list_of,
    object_of,
    open_object,
    served_kind,
    string,
    strings,
)
from pvbus.controlplane.apiserver.kinds import ALL_VERBS, ServedKind
from pvbus.controlplane.apiserver.nodes import FieldError, required, unsupported
from pvbus.controlplane.apiserver.rbac.escalation import Escalation
from pvbus.controlplane.apiserver.rbac.policy import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    GROUP,
    ROLE,
    ROLE_BINDING,
)
from pvbus.controlplane.apiserver.status import invalid_value
from pvbus.controlplane.apiserver.strategies import Strategy
from pvbus.core.api.selectors import selector_errors
from pvbus.core.api.variants import LabelSelector
from pvbus.ports.cluster import Kind, Object

AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"
REVIEWS: Mapping[str, tuple[str, ...]] = {
    AUTHORIZATION: (
        "LocalSubjectAccessReview",
        "SelfSubjectAccessReview",
        "SelfSubjectRulesReview",
        "SubjectAccessReview",
    ),
    AUTHENTICATION: ("SelfSubjectReview", "TokenReview"),
}
_ACCOUNT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")

_REASONS = {
    "Invalid value": "FieldValueInvalid",
    "Required value": "FieldValueRequired",
    "Forbidden": "FieldValueForbidden",
}
"""What an error of a selector begins with -> the reason of its cause."""

_RULE = object_of(
    "Verbs on resources, or on paths that are none.",
    required=("verbs",),
    verbs=strings("What may be done; * stands for everything."),
    apiGroups=strings("Groups of the resources; * stands for all."),
    resources=strings("Plural names, with /subresource for one; * stands for all."),
    resourceNames=strings("Names of the objects; none for all."),
    nonResourceURLs=strings("Paths; a * at the end stands for all below. In ClusterRoles only."),
)
_RULES = {**list_of("What the role permits.", _RULE), "nullable": True}
_AGGREGATION = object_of(
    "Where the rules of this role come from: they are those of other ClusterRoles.",
    clusterRoleSelectors=list_of("Each selects ClusterRoles.", label_selector("Labels of ClusterRoles.")),
)
_ROLE_REF = object_of(
    "The role that is bound.",
    required=("kind", "name"),
    apiGroup=string("rbac.authorization.k8s.io."),
    kind=string("Role or ClusterRole."),
    name=string("Name of the role."),
)
_SUBJECT = object_of(
    "Who gets the role.",
    required=("kind", "name"),
    apiGroup=string("rbac.authorization.k8s.io; empty for a ServiceAccount."),
    kind=string("User, Group or ServiceAccount."),
    name=string("Name of the user, group or account."),
    namespace=string("Of a ServiceAccount."),
)
_SUBJECTS = {**list_of("Who gets the role.", _SUBJECT), "nullable": True}


def _served(
    kind: str, group: str, schema: dict[str, Any], *, namespaced: bool, verbs: tuple[str, ...] = ALL_VERBS
) -> ServedKind:
    return served_kind(group, "v1", kind, f"{kind.lower()}s", schema, namespaced=namespaced, verbs=verbs)


def _kinds() -> Iterator[ServedKind]:
    role = {"rules": _RULES}
    binding = {"subjects": _SUBJECTS, "roleRef": _ROLE_REF}
    for kind, namespaced, description, fields in (
        (CLUSTER_ROLE, False, "ClusterRole is a set of rights.", {**role, "aggregationRule": _AGGREGATION}),
        (CLUSTER_ROLE_BINDING, False, "ClusterRoleBinding grants a ClusterRole everywhere.", binding),
        (ROLE, True, "Role is a set of rights in its namespace.", role),
        (ROLE_BINDING, True, "RoleBinding grants a role in its namespace.", binding),
    ):
        needed = ("roleRef",) if "roleRef" in fields else ()
        schema = kind_schema(description, needed, **fields)
        yield _served(kind.kind, GROUP, schema, namespaced=namespaced)


def _reviews() -> Iterator[ServedKind]:
    for group, kinds in REVIEWS.items():
        for kind in kinds:
            schema = kind_schema(
                f"{kind} asks the server a question; it is not stored.",
                spec=open_object("The question."),
                status=open_object("The answer."),
            )
            local = kind.startswith("Local")
            yield _served(kind, group, schema, namespaced=local, verbs=("create",))


RBAC_KINDS = tuple(_kinds())
REVIEW_KINDS = tuple(_reviews())


def strategies_of(escalation: Escalation) -> Mapping[Kind, Strategy]:
    """Return how roles and bindings are completed and checked."""

    def strategy(kind: Kind) -> Strategy:
        is_role = kind in (ROLE, CLUSTER_ROLE)
        problems = partial(_role_problems if is_role else _binding_problems, kind)

        def check(new: Object, old: Object | None) -> list[FieldError]:
            escalation.check(kind, new, old)
            return list(problems(new, old))

        prepare = _prepare_role if is_role else _prepare_binding
        return Strategy(prepare, check, path_name=True)

    return {kind: strategy(kind) for kind in (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING)}


def _prepare_role(new: Object, old: Object | None) -> Object:
    return {**new, "rules": new.get("rules")}


def _prepare_binding(new: Object, old: Object | None) -> Object:
    """Complete the groups of role and subjects."""
    prepared = {**new, "roleRef": {**new["roleRef"], "apiGroup": new["roleRef"].get("apiGroup") or GROUP}}
    if new.get("subjects"):
        prepared["subjects"] = [_completed(subject) for subject in new["subjects"]]
    else:
        prepared.pop("subjects", None)
    return prepared


def _completed(subject: Mapping[str, Any]) -> dict[str, Any]:
    if subject.get("apiGroup") or subject.get("kind") not in ("User", "Group"):
        return {field: value for field, value in subject.items() if value or field != "apiGroup"}
    return {**subject, "apiGroup": GROUP}


def _role_problems(kind: Kind, new: Object, old: Object | None) -> Iterator[FieldError]:
    for number, rule in enumerate(new.get("rules") or ()):
        yield from _rule_problems(rule, f"rules[{number}]", namespaced=kind == ROLE)
    aggregation = new.get("aggregationRule")
    if aggregation is None:
        return
    field, selectors = "aggregationRule.clusterRoleSelectors", aggregation.get("clusterRoleSelectors")
    if not selectors:
        yield required(field, "at least one clusterRoleSelector required if aggregationRule is non-nil")
    for number, selector in enumerate(selectors or ()):
        errors = selector_errors(msgspec.convert(selector, LabelSelector), f"{field}[{number}]")
        yield from (FieldError(path, _REASONS[why.partition(":")[0]], why) for path, why in errors)


def _rule_problems(rule: Mapping[str, Any], path: str, *, namespaced: bool) -> Iterator[FieldError]:
    if not rule.get("verbs"):
        yield required(f"{path}.verbs", "verbs must contain at least one value")
    urls = rule.get("nonResourceURLs")
    if urls:
        field = f"{path}.nonResourceURLs"
        if namespaced:
            yield _invalid_list(field, urls, "namespaced rules cannot apply to non-resource URLs")
        if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
            why = "rules cannot apply to both regular resources and non-resource URLs"
            yield _invalid_list(field, urls, why)
        return
    if not rule.get("apiGroups"):
        yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{path}.resources", "resource rules must supply at least one resource")


def _invalid_list(path: str, values: Sequence[str], why: str) -> FieldError:
    listed = ",".join(f'"{value}"' for value in values)
    return FieldError(path, "FieldValueInvalid", f"Invalid value: [{listed}]: {why}")


def _binding_problems(kind: Kind, new: Object, old: Object | None) -> Iterator[FieldError]:
    role = new["roleRef"]
    if role["apiGroup"] != GROUP:
        yield unsupported("roleRef.apiGroup", role["apiGroup"], (GROUP,))
    kinds = ("ClusterRole", "Role") if kind == ROLE_BINDING else ("ClusterRole",)
    if role["kind"] not in kinds:
        yield unsupported("roleRef.kind", role["kind"], kinds)
    if not role["name"]:
        yield required("roleRef.name")
    for number, subject in enumerate(new.get("subjects") or ()):
        yield from _subject_problems(subject, f"subjects[{number}]", namespaced=kind == ROLE_BINDING)
    if old is not None and old["roleRef"] != role:
        shown = '{{"apiGroup":"{apiGroup}","kind":"{kind}","name":"{name}"}}'.format_map(role)
        yield FieldError("roleRef", "FieldValueInvalid", f"Invalid value: {shown}: cannot change roleRef")


def _subject_problems(subject: Mapping[str, Any], path: str, *, namespaced: bool) -> Iterator[FieldError]:
    name, group = subject.get("name", ""), subject.get("apiGroup", "")
    if not name:
        yield required(f"{path}.name")
    match subject.get("kind"):
        case "ServiceAccount":
            if name and not _ACCOUNT_NAME.match(name):
                yield invalid_value(f"{path}.name", name, "must be the name of a ServiceAccount")
            if group:
                yield unsupported(f"{path}.apiGroup", group, ("",))
            if not namespaced and not subject.get("namespace"):
                yield required(f"{path}.namespace")
        case "User" | "Group":
            if group != GROUP:
                yield unsupported(f"{path}.apiGroup", group, (GROUP,))
        case kind:
            yield unsupported(f"{path}.kind", kind, ("Group", "ServiceAccount", "User"))
