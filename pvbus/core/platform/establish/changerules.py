"""What kapp's annotations on a package's objects ask for: the order of writes and deletions, and exceptions.

An annotation `kapp.k14s.io/change-group` puts an object in a group; `kapp.k14s.io/change-rule` with the value
`upsert after upserting GROUP` orders its write or deletion relative to those of a group. Either may have a
suffix (`change-rule.database`), so that an object has several. Where rules leave a choice, the order is that
of the caller, and an object comes after its namespace and the definition of its kind.

An object that is to be left at the end is left. What would write another object than the package has is
refused; what only changes how it is written has no effect, and the status says so.

Source: kapp, pkg/kapp/diffgraph, and its documentation of apply and configuration. Differences: a rule
counts also if its group's objects are unchanged, and kapp's own groups cannot be named.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, NamedTuple

from pvbus.core.kernel.objects import annotation, annotations_of
from pvbus.core.platform.establish import objects as forms
from pvbus.core.platform.establish.applying import RefusedError
from pvbus.core.platform.establish.objects import Object, key_of, kind_of, title
from pvbus.core.platform.establish.templating import NOT_SUPPORTED

INVALID = "InvalidChangeRule"
"""The reason of a refusal as the order that a package asks for cannot be read or kept."""
_GROUP = "kapp.k14s.io/change-group"
_RULE = "kapp.k14s.io/change-rule"
_OWN_GROUPS = "change-groups.kapp.k14s.io/"
"""How the groups begin that kapp itself puts objects in."""
_ACTIONS = {"upsert": False, "delete": True}
_TARGETS = {"upserting": False, "deleting": True}
_SYNTAX = "write `upsert|delete before|after upserting|deleting GROUP`"
_PLACEHOLDER = re.compile(r"\{.+?\}")
_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""A name with an optional domain before it. Source: Kubernetes, IsQualifiedName."""


class Change(NamedTuple):
    """A write or a deletion.

    key: the object's okey
    obj: the object with its annotations; {} for one that is gone, or is not to be touched
    """

    key: str
    obj: Object
    is_deleted: bool = False


class Order(NamedTuple):
    """An order of changes.

    stages: all changes; those of a stage are all writes or all deletions, and no rule orders them
    needs: okey -> okeys of the changes that a rule wants to be finished before
    """

    stages: tuple[tuple[Change, ...], ...]
    needs: Mapping[str, tuple[str, ...]]


class _Rule(NamedTuple):
    is_deleted: bool
    is_before: bool
    is_target_deleted: bool
    group: str


def order_of(changes: Sequence[Change]) -> Order:
    """Return the order of changes. Raises RefusedError for a rule that is none, and for a cycle.

    changes: in the order that is kept where no rule asks for another one; each object once
    """
    needs = _needs(changes)
    sequence = _sorted(changes, needs) if needs else changes
    return Order(_stages(sequence, needs), needs)


def _needs(changes: Iterable[Change]) -> dict[str, tuple[str, ...]]:
    members: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for change in changes:
        for text in _values(change, _GROUP):
            members[_group(change, text), change.is_deleted].append(change.key)
    needs: dict[str, list[str]] = defaultdict(list)
    for change in changes:
        for rule in [_rule(change, text) for text in _values(change, _RULE)]:
            if rule.is_deleted != change.is_deleted:
                continue
            for other in members.get((rule.group, rule.is_target_deleted), ()):
                first, second = (change.key, other) if rule.is_before else (other, change.key)
                needs[second].append(first)
    return {key: tuple(dict.fromkeys(firsts)) for key, firsts in needs.items()}


def _values(change: Change, name: str) -> list[str]:
    """Return the values of an annotation, with a suffix or without one, with placeholders filled in."""
    annotations = annotations_of(change.obj) if change.obj else {}
    return [
        _filled(change, str(value))
        for key, value in sorted(annotations.items())
        if key == name or key.startswith(f"{name}.")
    ]


def _filled(change: Change, text: str) -> str:
    kind, meta, spec = kind_of(change.obj), change.obj["metadata"], change.obj.get("spec") or {}
    is_definition = (kind.group, kind.kind) == forms.CRD
    values = {
        "{api-group}": kind.group,
        "{kind}": kind.kind,
        "{name}": meta["name"],
        "{namespace}": meta.get("namespace") or "",
        "{crd-group}": spec.get("group") if is_definition else "",
        "{crd-kind}": (spec.get("names") or {}).get("kind") if is_definition else "",
    }
    for placeholder in _PLACEHOLDER.findall(text):
        if not values.get(placeholder):
            raise RefusedError(INVALID, f"{title(change.key)}: `{text}`: {placeholder} has no value here")
        text = text.replace(placeholder, str(values[placeholder]))
    return text


def _rule(change: Change, text: str) -> _Rule:
    match text.split(" "):
        case [action, ("before" | "after") as when, target, group] if (
            action in _ACTIONS and target in _TARGETS
        ):
            name = _group(change, group)
            return _Rule(_ACTIONS[action], when == "before", _TARGETS[target], name)
    raise RefusedError(INVALID, f"{title(change.key)}: `{text}` is no change rule: {_SYNTAX}")


def _group(change: Change, name: str) -> str:
    if name.startswith(_OWN_GROUPS):
        raise RefusedError(
            INVALID, f"{title(change.key)}: {name} is a group of kapp's own: name one of yours"
        )
    if not _NAME.fullmatch(name):
        raise RefusedError(INVALID, f"{title(change.key)}: `{name}` is no name of a change group")
    return name


def _sorted(changes: Sequence[Change], needs: Mapping[str, tuple[str, ...]]) -> list[Change]:
    """Return changes after what they need, else in their order.

    Of the changes whose needs are met the first one is next, so one that has to wait moves behind those
    that do not, and takes along what cannot be written without it.
    """
    base = _base_needs(changes)
    sorter = TopologicalSorter(
        {change.key: (*needs.get(change.key, ()), *base.get(change.key, ())) for change in changes}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        words = ", which comes before ".join(map(title, error.args[1]))
        words = words.replace(", which comes before ", " comes before ", 1)
        raise RefusedError(INVALID, f"the change rules are a cycle: {words}: remove one of them") from error
    positions = {change.key: position for position, change in enumerate(changes)}
    ready: list[int] = []
    sequence: list[Change] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            heappush(ready, positions[key])
        change = changes[heappop(ready)]
        sorter.done(change.key)
        sequence.append(change)
    return sequence


def _base_needs(changes: Iterable[Change]) -> dict[str, list[str]]:
    """Return which written objects others cannot be written without: their namespaces and definitions."""
    written = [change for change in changes if not change.is_deleted]
    namespaces = {
        change.obj["metadata"]["name"]: change.key
        for change in written
        if kind_of(change.obj)[:2] == ("", "Namespace")
    }
    kinds = {kind: change.key for change in written for kind in forms.defined([change.obj])}
    needs: dict[str, list[str]] = {}
    for change in written:
        kind, where = kind_of(change.obj), change.obj["metadata"].get("namespace") or ""
        firsts = (namespaces.get(where), kinds.get((kind.group, kind.kind)))
        needs[change.key] = [key for key in firsts if key is not None]
    return needs


def _stages(
    sequence: Iterable[Change], needs: Mapping[str, tuple[str, ...]]
) -> tuple[tuple[Change, ...], ...]:
    stages: list[list[Change]] = []
    current: set[str] = set()
    for change in sequence:
        is_new = not stages or stages[-1][0].is_deleted != change.is_deleted
        if is_new or not current.isdisjoint(needs.get(change.key, ())):
            stages.append([])
            current = set()
        stages[-1].append(change)
        current.add(change.key)
    return tuple(map(tuple, stages))


_DELETE_STRATEGY = "kapp.k14s.io/delete-strategy"
_CONFIG_LABEL = "kapp.k14s.io/config"
_REFUSED = ("kapp.k14s.io/exists", "kapp.k14s.io/noop")
"""On an object that somebody else writes."""
_WITHOUT_EFFECT = (
    "kapp.k14s.io/versioned",
    "kapp.k14s.io/create-strategy",
    "kapp.k14s.io/update-strategy",
)


def is_orphaned(live: Mapping[str, Any]) -> bool:
    """Return whether an object stays when its install goes, or a new version lacks it."""
    return annotation(live, _DELETE_STRATEGY) == "orphan"


def ignored_annotations(objects: Iterable[Object]) -> list[str]:
    """Return which annotations of kapp have no effect, in words. Raises RefusedError for one that must."""
    ignored: dict[str, str] = {}
    for obj in objects:
        names = annotations_of(obj)
        name = title(key_of(obj))
        for refused in filter(names.__contains__, _REFUSED):
            raise RefusedError(NOT_SUPPORTED, f"{name}: the annotation {refused} is not followed here")
        if _CONFIG_LABEL in (obj["metadata"].get("labels") or {}):
            raise RefusedError(NOT_SUPPORTED, f"{name} is a configuration of kapp, which is not read here")
        for setting in filter(names.__contains__, _WITHOUT_EFFECT):
            ignored.setdefault(setting, name)
    return [f"the annotation {setting} has no effect ({name})" for setting, name in ignored.items()]
