"""Ownership of package revisions: finding ours live, taking over, and letting go."""

from collections.abc import Generator, Iterable
from typing import Any

from pvbus.core.effects import Delete, Effect, Get, KindRef, List, Update
from pvbus.core.ids import FINALIZER
from pvbus.core.model import CONFIG_GROUP, PORCH_GROUP, VARIANT_API, Downstream, PackageVariant
from pvbus.errors import PermanentError

REVISION = KindRef(PORCH_GROUP, "PackageRevision", "v1alpha1")
RESOURCES = KindRef(PORCH_GROUP, "PackageRevisionResources", "v1alpha1")
VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
PUBLISHED = ("Published", "DeletionProposed")

Effects = Generator[Effect, Any, Any]
Object = dict[str, Any]


def lifecycle_of(obj: Object) -> str:
    return (obj.get("spec") or {}).get("lifecycle") or "Draft"


def is_terminating(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def owned_by(obj: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in obj["metadata"].get("ownerReferences") or ())


def owner_reference(variant: PackageVariant) -> Object:
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "name": variant.metadata.name,
        "uid": variant.metadata.uid,
        "controller": True,
    }


def list_place(namespace: str, place: Downstream) -> Generator[Effect, Any, list[Object]]:
    """List live the revisions of one package; the answer is checked, as selectors are not exact."""
    selector = f"spec.repository={place.repo},spec.packageName={place.package}"
    items = yield List(REVISION, namespace, field_selector=selector)
    return [
        obj
        for obj in items
        if (obj["spec"].get("repository"), obj["spec"].get("packageName")) == (place.repo, place.package)
    ]


# ------------------------------------------------------------ taking over


def living_owner(obj: Object, variant: PackageVariant) -> Generator[Effect, Any, str]:
    """Return the words for another controller that a revision belongs to, "" when there is none.

    A PackageVariant is looked up live: one that is gone, or came anew with another uid, owns nothing.
    """
    for owner in obj["metadata"].get("ownerReferences") or ():
        if not owner.get("controller") or owner.get("uid") == variant.metadata.uid:
            continue
        words = f"{owner.get('kind')} {owner.get('name')}"
        if owner.get("kind") != "PackageVariant":
            return words
        other = yield Get(VARIANT, variant.metadata.namespace, owner.get("name", ""))
        if other is not None and other["metadata"].get("uid") == owner.get("uid"):
            return words
    return ""


def adopt(obj: Object, variant: PackageVariant) -> Generator[Effect, Any, Object]:
    """Take over a revision: owner reference, labels, annotations. Raises: PermanentError if it has an
    owner that lives."""
    meta = obj["metadata"]
    owner = yield from living_owner(obj, variant)
    if owner:
        message = f"package revision {meta['name']} belongs to {owner}; it is not adopted"
        raise PermanentError(message, reason="OwnedByOther")
    others = [o for o in meta.get("ownerReferences") or () if not o.get("controller")]
    meta["ownerReferences"] = [*others, owner_reference(variant)]
    for field in ("labels", "annotations"):
        wanted = getattr(variant.spec, field)
        if wanted:
            meta[field] = {**(meta.get(field) or {}), **wanted}
    updated: Object = yield Update(REVISION, obj)
    return updated


# ------------------------------------------------------------ letting go


def release(obj: Object, variant: PackageVariant) -> Effects:
    """Let one of our revisions go as the deletion policy says; nothing is deleted by a policy that
    nobody can read. Returns the object afterwards, None when it was deleted."""
    if variant.spec.deletion_policy not in ("", "delete"):
        return (yield from disown(obj, variant))
    meta = obj["metadata"]
    if lifecycle_of(obj) not in PUBLISHED:
        yield Delete(
            REVISION,
            meta["namespace"],
            meta["name"],
            uid=meta.get("uid", ""),
            resource_version=meta.get("resourceVersion", ""),
        )
        return None
    if lifecycle_of(obj) == "Published":
        obj["spec"]["lifecycle"] = "DeletionProposed"
        return (yield Update(REVISION, obj))
    return obj


def disown(obj: Object, variant: PackageVariant) -> Effects:
    """Take our owner reference off a revision."""
    meta = obj["metadata"]
    references = meta.get("ownerReferences") or []
    meta["ownerReferences"] = [o for o in references if o.get("uid") != variant.metadata.uid]
    return (yield Update(REVISION, obj))


def terminate(
    variant: PackageVariant, raw: Object, places: Iterable[Downstream]
) -> Generator[Effect, Any, list[str]]:
    """Let all our revisions go, look again live, and only then take the finalizer off.

    raw: the PackageVariant as observed. places: every package that ever had a revision of ours.
    Returns what is left to wait for, in words; [] when the finalizer is off.
    """
    places = list(places)
    problems: dict[str, str] = {}
    left = yield from _owned(variant, places)
    for obj in left:
        if is_terminating(obj):
            continue
        try:
            after = yield from release(obj, variant)
            if after is not None and lifecycle_of(after) == "DeletionProposed":
                yield from disown(after, variant)  # else it would be collected without approval
        except PermanentError as error:  # the others go all the same
            problems[obj["metadata"]["name"]] = f": {error}"
    if left:
        left = yield from _owned(variant, places)
    if left:
        names = [obj["metadata"]["name"] for obj in left]
        return [f"PackageRevision {name}{problems.get(name, '')}" for name in names]
    raw["metadata"]["finalizers"] = [f for f in raw["metadata"]["finalizers"] if f != FINALIZER]
    yield Update(VARIANT, raw)
    return []


def _owned(variant: PackageVariant, places: Iterable[Downstream]) -> Generator[Effect, Any, list[Object]]:
    found = []
    for place in places:
        live = yield from list_place(variant.metadata.namespace, place)
        found += [obj for obj in live if owned_by(obj, variant.metadata.uid)]
    return found
