"""Revisions of the variant's package that somebody else has published after its own.

A person copies a published revision, edits the copy, and publishes it. The copy has no owner, but its edits
are local edits of the package: what the variant makes next has to contain them. Such a revision is read and
never written. One that is no descendant of the variant's, or that has another living owner, is reported.

Departure from Porch, which goes on from the last revision that the variant owns, and so reverts the edit.
"""

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.effects import Effect
from pvbus.core.kernel.keys import RESTORES
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.variants.inject.locks import Lock
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.revisions.owning import (
    Object,
    belongs_to,
    is_terminating,
    lifecycle_of,
    list_package,
    living_owner,
)

PUBLISHED = "Published"

MERGED = "pvbus.dev/merged-revision"
"""On a draft: the published revision that was merged into it last. Without it, the one in its task."""


class Later(NamedTuple):
    """A published revision that is newer than one of the variant's.

    obj: the live object
    base: the revision whose content the variant's draft has; None if the variant's revision is published
    obstacle: reason and words why the variant cannot go on from it, None if it can
    """

    obj: Object
    base: Object | None = None
    obstacle: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])


def base_name(draft: Object) -> str:
    """Return the name of the published revision whose content a draft has, "" if it is a clone or unknown."""
    annotations = annotations_of(draft)
    return str(annotations.get(MERGED) or _source(draft) or "")


def later_than(
    obj: Object, variant: PackageVariant, view: InjectView
) -> Generator[Effect, Any, Later | None]:
    """Return the last published revision of the package if it is newer than a published revision of the
    variant, or than the base of its draft. One whose deletion is proposed does not count; nor, for a draft,
    what a rollback published: it has older content, and no edit that the draft lacks."""
    assert variant.spec.downstream is not None
    is_published = lifecycle_of(obj) == PUBLISHED
    name = obj["metadata"]["name"] if is_published else base_name(obj)
    rows = {row.name: row for row in view.at(variant.metadata.namespace, variant.spec.downstream)}
    if name not in rows:
        return None
    number = rows[name].facts.revision
    if not any(row.facts.lifecycle == PUBLISHED and row.facts.revision > number for row in rows.values()):
        return None
    live = yield from list_package(variant.metadata.namespace, variant.spec.downstream)
    revisions = {one["metadata"]["name"]: one for one in live}
    newer = [one for one in live if _is_newer(one, number) and (is_published or not _is_restored(one))]
    if not newer or name not in revisions:
        return None
    last = max(newer, key=lambda one: one["spec"]["revision"])
    base = None if is_published else revisions[name]
    return Later(last, base, (yield from _obstacle(last, obj, base, revisions, variant)))


def _is_newer(obj: Object, number: int) -> bool:
    return (
        lifecycle_of(obj) == PUBLISHED
        and int(obj["spec"].get("revision") or 0) > number
        and not is_terminating(obj)
    )


def _is_restored(obj: Object) -> bool:
    return RESTORES in annotations_of(obj)


def _obstacle(
    last: Object,
    own: Object,
    base: Object | None,
    revisions: Mapping[str, Object],
    variant: PackageVariant,
) -> Generator[Effect, Any, tuple[str, str] | None]:
    if owner := (yield from living_owner(last, variant)):
        return "OwnedByOther", f"which belongs to {owner}: that owner must release it"
    takes_over = "adoptionPolicy: adoptExisting takes it over, and a proposal of its deletion leaves it out"
    if not _descends(last, own, revisions, variant):
        return "LaterRevision", f"which was not made from a revision of this variant: {takes_over}"
    lock, own_lock = Lock.of(last), Lock.of(own)
    if lock is None and own_lock is not None:
        return "LaterRevision", f"whose Kptfile names no upstreamLock any more: {takes_over}"
    if base is not None and lock not in (own_lock, Lock.of(base)) and own_lock != Lock.of(base):
        return "LaterRevision", "with another upstream revision in it: delete the draft to have it made anew"
    return None


def _descends(last: Object, own: Object, revisions: Mapping[str, Object], variant: PackageVariant) -> bool:
    """Return whether a revision was made, in one step or several, from one of the variant's.

    Where the source of a step is unknown (a tag that was pushed with git) or deleted, its upstream decides.
    """
    seen: set[str] = set()
    while not belongs_to(last, variant):
        seen.add(last["metadata"]["name"])
        source = _source(last)
        if source is None or source in seen:
            return False
        if source not in revisions:
            lock, own_lock = Lock.of(last), Lock.of(own)
            return lock is not None and own_lock is not None and lock[:2] == own_lock[:2]
        last = revisions[source]
    return True


def _source(obj: Object) -> str | None:
    """Return the revision of the same package that one was made from: "" if unknown, None if from none."""
    for task in obj["spec"].get("tasks") or ():
        match task.get("type"):
            case "edit":
                return str(((task.get("edit") or {}).get("sourceRef") or {}).get("name") or "")
            case "upgrade":
                reference = (task.get("upgrade") or {}).get("localPackageRevisionRef") or {}
                return str(reference.get("name") or "")
            case "init" | "clone":
                return None
    return ""
