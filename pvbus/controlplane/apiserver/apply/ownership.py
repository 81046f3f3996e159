"""Who owns which field after a write, and what an apply makes of an object.

`updated` follows a write that replaces an object; `applied` merges an applied object, unless it would change
fields of others. Both are pure: the time is an argument.

Invariants. A field may have several owners, if all of them agree on its value: a write that changes it takes
it away from everybody but the writer. An applier owns exactly what it named last time; what it names no more
is removed, unless another manager owns it. Each owner's set is in the names of its own version, so a write is
compared once per version.

Source: structured-merge-diff v6, merge/update.go, and k8s.io/apimachinery pkg/util/managedfields/internal
(v0.36), behaviour only.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.apply import fieldsets
from pvbus.controlplane.apiserver.apply.fieldsets import EMPTY, FieldSet, Path
from pvbus.controlplane.apiserver.apply.fieldtypes import FieldType
from pvbus.controlplane.apiserver.apply.managed import UPDATE, Manager, Managers, Owned, applier, updater
from pvbus.controlplane.apiserver.apply.merging import merge
from pvbus.controlplane.apiserver.apply.objectfields import Comparison, compare, field_set, remove, with_named
from pvbus.controlplane.apiserver.apply.objectfields import reconciled as reconciled_set

Object = Mapping[str, Any]
View = Callable[[Object, str], tuple[FieldType, Object] | None]
"""(object, apiVersion) -> its type and its form in this version, None if the version is not served."""

UPDATERS_MAX = 10
"""Entries of updates that an object has; the oldest are united above that."""

OLDEST = "ancient-changes"
BEFORE = "before-first-apply"
"""The manager that owns what was there when an object without known owners is applied for the first time."""

_SERVER_FIELDS = ("name", "namespace", "creationTimestamp", "selfLink", "uid", "clusterName", "generation")
_UNOWNED = fieldsets.of_paths(
    ("f:apiVersion",),
    ("f:kind",),
    ("f:metadata",),
    *(("f:metadata", f"f:{name}") for name in (*_SERVER_FIELDS, "managedFields", "resourceVersion")),
)
"""The fields that have no field manager: the identity of an object, and what only the server sets."""


class Conflict(NamedTuple):
    """A field that an apply would change, and its owner.

    manager: the owner
    time: when the owner last changed it, "" if unknown
    path: the path of the field
    """

    manager: Manager
    time: str
    path: Path


class ConflictsError(Exception):
    """An apply would change fields of others, and does not force it."""

    def __init__(self, conflicts: tuple[Conflict, ...]) -> None:
        super().__init__(f"{len(conflicts)} conflicts")
        self.conflicts = conflicts


class Writing(NamedTuple):
    """A write, and who makes it.

    manager: the field manager
    api_version: the version of the object that is sent
    subresource: the subresource that is written, "" for the object itself
    ignored: fields that it does not write, such as the status, in the names of its version
    now: the time, as JSON has it
    """

    manager: str
    api_version: str
    subresource: str
    ignored: FieldSet
    now: str


class Applied(NamedTuple):
    """The result of an apply.

    obj: the object, None if the apply changes no field of it
    managers: the owners afterwards
    """

    obj: Object | None
    managers: Managers


# --- update ---


def updated(view: View, writing: Writing, live: Object, new: Object, managers: Managers) -> Managers:
    """Return the owners after a write that replaced `live` by `new`; neither has managedFields."""
    comparison, rest = _released(view, writing, live, new, managers, None)
    fields = fieldsets.union(comparison.modified, comparison.added)
    fields = fieldsets.difference(fields, _UNOWNED)
    if fields:
        manager = updater(writing.manager, writing.api_version, writing.subresource)
        before = rest.get(manager)
        whole = fieldsets.union(fields, before.fields) if before is not None else fields
        rest[manager] = Owned(whole, writing.api_version, writing.now)
    return _cap(rest)


def _released(
    view: View, writing: Writing, live: Object, new: Object, managers: Managers, actor: Manager | None
) -> tuple[Comparison, dict[Manager, Owned]]:
    """Return the changes of a write, and the fields that the managers but `actor` still own after it.

    A manager loses each field that the write changes or removes.
    """
    versions: dict[str, Comparison | None] = {}
    remaining: dict[Manager, Owned] = {}
    own = _compared(view, writing, live, new, writing.api_version)
    assert own is not None
    versions[writing.api_version] = own
    for manager, owned in managers.items():
        if manager == actor:
            remaining[manager] = owned
            continue
        if owned.api_version not in versions:
            versions[owned.api_version] = _compared(view, writing, live, new, owned.api_version)
        changes = versions[owned.api_version]
        if changes is None:
            continue  # its version is not served any more
        fields = owned.fields
        for part in changes:
            fields = fieldsets.difference(fields, part)
        if fields:
            remaining[manager] = owned._replace(fields=fields)
    return own, remaining


def _compared(view: View, writing: Writing, live: Object, new: Object, api_version: str) -> Comparison | None:
    before, after = view(live, api_version), view(new, api_version)
    if before is None or after is None:
        return None
    found = compare(before[0], before[1], after[1])
    # Like kube-apiserver: a write of the whole object in one version without a status takes the status away
    # from the owners that speak of another version.
    is_other = api_version != writing.api_version and not writing.subresource
    return found if is_other else found.without(writing.ignored)


def _reconciled(view: View, live: Object, managers: Managers) -> dict[Manager, Owned]:
    """Return the owners by the present schemas, without those of versions that are not served."""
    found = {}
    for manager, owned in managers.items():
        seen = view(live, owned.api_version)
        if seen is not None:
            found[manager] = owned._replace(fields=reconciled_set(seen[0], owned.fields))
    return found


def _cap(managers: dict[Manager, Owned]) -> dict[Manager, Owned]:
    """Unite the oldest updaters of each version, until there are not too many.

    The united ones become one manager per version, `OLDEST`. The first one of a version is renamed only when
    a second one joins it, as a name alone saves no entry.
    """
    updaters = [manager for manager in managers if manager.operation == UPDATE]
    if len(updaters) <= UPDATERS_MAX:
        return managers
    updaters.sort(key=lambda manager: (managers[manager].time, manager.rank))
    first: dict[str, Manager] = {}
    left = len(updaters)
    for manager in updaters:
        if left <= UPDATERS_MAX:
            break
        owned = managers[manager]
        if owned.api_version not in first:
            first[owned.api_version] = manager
            continue
        bucket = Manager(OLDEST, UPDATE, owned.api_version)
        if bucket not in managers:
            managers[bucket] = managers.pop(first[owned.api_version])
        united = fieldsets.union(owned.fields, managers[bucket].fields)
        managers[bucket] = owned._replace(fields=united)
        if manager != bucket:
            managers.pop(manager, None)
        left -= 1
    return managers


# --- apply ---


def applied(
    view: View, writing: Writing, live: Object, config: Object, managers: Managers, *, force: bool
) -> Applied:
    """Merge an applied object into `live`. Raises ConflictsError, ItemError.

    The steps: let the applier own what `config` names; merge; remove what it named last time, and nobody owns
    now; refuse if a field of another manager would change, unless forced; take the changed fields away from
    the others.

    live: the object, or a bare one to create it
    config: the applied object, which fits its schema
    managers: the owners before
    force: whether fields of others may change
    """
    seen = view(live, writing.api_version)
    assert seen is not None
    type_, live = seen
    actor = applier(writing.manager, writing.subresource)
    known = _reconciled(view, live, managers)
    before = known.get(actor)
    own = fieldsets.recursive_difference(field_set(type_, config), writing.ignored)
    known[actor] = Owned(own, writing.api_version, before.time if before is not None else "")
    new = merge(type_, live, config)
    if before is not None and _drops(before, known[actor]):
        new = _pruned(view, new, known, before, writing.api_version)
    if not force and (conflicts := _conflicts(view, writing, live, new, known, actor)):
        raise ConflictsError(tuple(conflicts))
    _, remaining = _released(view, writing, live, new, known, actor)
    changes = new != live
    owned = fieldsets.difference(own, _UNOWNED)
    remaining.pop(actor, None)
    if owned:
        time = writing.now if changes else known[actor].time
        remaining[actor] = Owned(owned, writing.api_version, time)
    return Applied(new if changes else None, remaining)


def _drops(last: Owned, own: Owned) -> bool:
    """Return whether an applier names less than last time; otherwise there is nothing to remove."""
    return bool(last.fields) and (
        last.api_version != own.api_version or bool(fieldsets.difference(last.fields, own.fields))
    )


def _conflicts(
    view: View, writing: Writing, live: Object, new: Object, managers: Managers, actor: Manager
) -> list[Conflict]:
    if new == live:
        return []
    found: list[Conflict] = []
    versions = {owned.api_version for owned in managers.values()}
    compared = {version: _compared(view, writing, live, new, version) for version in versions}
    for manager, owned in sorted(managers.items(), key=lambda item: item[0].rank):
        changes = compared[owned.api_version]
        if manager == actor or changes is None:
            continue
        changed = fieldsets.union(changes.modified, changes.added)
        paths = fieldsets.paths(fieldsets.intersection(owned.fields, changed))
        found += [Conflict(manager, owned.time, path) for path in paths]
    return found


def _pruned(view: View, merged: Object, managers: Managers, last: Owned, api_version: str) -> Object:
    """Remove what the applier named last time, and neither it nor anybody else does now.

    First everything that it named goes, with all that is below. Then what some manager owns is put back, and
    at last what was below a named field without being named itself.
    """
    seen = view(merged, last.api_version)
    if seen is None:
        return merged
    type_, whole = seen
    pruned = remove(type_, whole, with_named(type_, last.fields)) or {}
    versions = sorted({owned.api_version for owned in managers.values()})
    for version in sorted(versions, key=last.api_version.__ne__):  # its own version first
        pruned = _with_owned(view, whole, pruned, managers, version)
    pruned = _with_dangling(type_, whole, pruned, last.fields)
    back = view(pruned, api_version)
    return pruned if back is None else back[1]


def _with_owned(view: View, merged: Object, pruned: Object, managers: Managers, version: str) -> Object:
    """Put back what somebody owns in the terms of one version."""
    seen, cut = view(merged, version), view(pruned, version)
    if seen is None or cut is None:
        return pruned
    type_, whole = seen
    owned: FieldSet = EMPTY
    for each in managers.values():
        if each.api_version == version:
            owned = fieldsets.union(owned, each.fields)
    present = with_named(type_, field_set(type_, cut[1]))
    retained = fieldsets.union(present, with_named(type_, owned))
    gone = fieldsets.difference(with_named(type_, field_set(type_, whole)), retained)
    return remove(type_, whole, gone) or {}


def _with_dangling(type_: FieldType, merged: Object, pruned: Object, last: FieldSet) -> Object:
    """Put back what went only because it stood in something that the applier named."""
    present = with_named(type_, field_set(type_, pruned))
    gone = fieldsets.difference(with_named(type_, field_set(type_, merged)), present)
    return remove(type_, merged, fieldsets.intersection(gone, with_named(type_, last))) or {}
