"""The rules of roles: what a rule permits, and whether rules cover others. Pure.

Source: Kubernetes 1.36, pkg/apis/rbac/v1/evaluation_helpers.go and
component-helpers/auth/rbac/validation/policy_comparator.go.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.identity import Attributes

ALL = "*"


class Rule(NamedTuple):
    """A PolicyRule; `*` stands for all.

    verbs: the verbs
    groups: the API groups
    resources: the plurals, with their subresources
    names: the names of the objects, () for all
    urls: the paths of requests to no resource
    """

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


FULL_AUTHORITY = (
    Rule(verbs=(ALL,), groups=(ALL,), resources=(ALL,)),
    Rule(verbs=(ALL,), urls=(ALL,)),
)

_FIELDS = ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")
_TITLES = ("Verbs", "APIGroups", "Resources", "ResourceNames", "NonResourceURLs")
_SHOWN_ORDER = (1, 2, 4, 3, 0)


def rule_of(obj: Mapping[str, Any]) -> Rule:
    """Return the rule that a PolicyRule in JSON stands for."""
    return Rule(*(tuple(obj.get(field) or ()) for field in _FIELDS))


def rules_of(role: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Return the rules of a Role or ClusterRole."""
    return tuple(rule_of(rule) for rule in role.get("rules") or ())


def object_of(rule: Rule) -> dict[str, list[str]]:
    """Return the PolicyRule in JSON; fields without values are left out."""
    return {field: list(values) for field, values in zip(_FIELDS, rule, strict=True) if values}


def permits_all(rule: Rule, asked: Attributes) -> bool:
    """Return whether a rule permits a request if its name, if any, is one of the rule's names."""
    if asked.verb not in rule.verbs and ALL not in rule.verbs:
        return False
    if asked.path:
        return any(_url_covers(url, asked.path) or url == ALL for url in rule.urls)
    return (asked.group in rule.groups or ALL in rule.groups) and _has_resource(
        rule.resources, asked.resource, asked.subresource
    )


def _has_resource(resources: Sequence[str], resource: str, subresource: str) -> bool:
    if ALL in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def _url_covers(owned: str, url: str) -> bool:
    return owned == url or (owned.endswith(ALL) and url.startswith(owned.rstrip(ALL)))


# ------------------------------------------------------------ escalation


def uncovered(owned: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the part of the wanted rules that the owned ones do not permit.

    The parts are rules of one verb and one resource.
    """
    parts = [part for rule in wanted for part in _broken_down(rule)]
    return [part for part in parts if not any(_covers(owner, part) for owner in owned)]


def _broken_down(rule: Rule) -> list[Rule]:
    names: list[tuple[str, ...]] = [(name,) for name in rule.names] or [()]
    parts = [
        Rule((verb,), (group,), (resource,), name)
        for group in rule.groups
        for resource in rule.resources
        for verb in rule.verbs
        for name in names
    ]
    return parts + [Rule((verb,), urls=(url,)) for url in rule.urls for verb in rule.verbs]


def _covers(owner: Rule, part: Rule) -> bool:
    """Return whether a rule covers one of `_broken_down`."""
    return (
        (ALL in owner.verbs or set(part.verbs) <= set(owner.verbs))
        and (ALL in owner.groups or set(part.groups) <= set(owner.groups))
        and all(_covers_resource(owner.resources, resource) for resource in part.resources)
        and all(any(_url_covers(own, url) for own in owner.urls) for url in part.urls)
        and (not owner.names or (bool(part.names) and set(part.names) <= set(owner.names)))
    )


def _covers_resource(resources: Sequence[str], resource: str) -> bool:
    if ALL in resources or resource in resources:
        return True
    _, slash, subresource = resource.partition("/")
    return bool(slash) and f"*/{subresource}" in resources


def described(parts: Iterable[Rule]) -> list[str]:
    """Return missing rights as Kubernetes prints them, one line for each resource, sorted.

    parts: as `uncovered` returns them.
    """
    verbs: dict[Rule, list[str]] = {}
    lines: set[str] = set()
    for part in parts:
        if part.urls:
            lines.add(_line(part))
        else:
            verbs.setdefault(part._replace(verbs=()), []).extend(part.verbs)
    return sorted(lines | {_line(rule._replace(verbs=tuple(found))) for rule, found in verbs.items()})


def _line(rule: Rule) -> str:
    shown = [f"{_TITLES[at]}:{quoted(rule[at])}" for at in _SHOWN_ORDER if rule[at]]
    return "{" + ", ".join(shown) + "}"


def quoted(values: Iterable[str]) -> str:
    """Return values as Go prints a list of strings with %q."""
    return "[" + " ".join(json.dumps(value, ensure_ascii=False) for value in values) + "]"
