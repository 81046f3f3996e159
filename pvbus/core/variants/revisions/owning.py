"""Ownership of package revisions: live lookup, adoption and release.

A revision is the variant's if it lies in the variant's namespace and an owner reference has the
variant's uid. Rows are hints: `write_owned` and `write_variant` read the object again right before
each write, so that nothing is written to an object that has got another owner meanwhile.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP, VARIANT_API, Downstream, PackageVariant
from pvbus.core.errors import ConflictError, NotOwnedError, PermanentError
from pvbus.core.kernel.effects import Delete, Effect, Get, KindRef, List, Update
from pvbus.core.kernel.holds import is_held
from pvbus.core.kernel.keys import FINALIZER
from pvbus.core.variants.revisions import former
from pvbus.core.variants.revisions.states import Action, DownstreamState, action, left

REVISION = KindRef(PORCH_GROUP, "PackageRevision", "v1alpha1")
RESOURCES = KindRef(PORCH_GROUP, "PackageRevisionResources", "v1alpha1")
VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
PUBLISHED = former.PUBLISHED

Effects = Generator[Effect, Any, Any]
Object = dict[str, Any]


def lifecycle_of(obj: Object) -> str:
    return (obj.get("spec") or {}).get("lifecycle") or "Draft"


def is_terminating(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def version_of(obj: Object) -> str:
    return str(obj["metadata"].get("resourceVersion") or "")


def state_of(obj: Object) -> DownstreamState:
    """Return the state of a live revision; one that is not the variant's is its caller's concern."""
    return DownstreamState(lifecycle_of(obj))


def belongs_to(obj: Object, variant: PackageVariant) -> bool:
    """Return whether a revision is the variant's, by namespace and by uid of an owner reference."""
    meta, uid = obj["metadata"], variant.metadata.uid
    owners = meta.get("ownerReferences") or ()
    return meta.get("namespace") == variant.metadata.namespace and any(
        bool(uid) and owner.get("uid") == uid for owner in owners
    )


def owner_reference(variant: PackageVariant) -> Object:
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "name": variant.metadata.name,
        "uid": variant.metadata.uid,
        "controller": True,
    }


def list_package(namespace: str, downstream: Downstream) -> Generator[Effect, Any, list[Object]]:
    """List the revisions of one package live, and filter them: field selectors are not exact."""
    selector = f"spec.repository={downstream.repo},spec.packageName={downstream.package}"
    items = yield List(REVISION, namespace, field_selector=selector)
    return [
        obj
        for obj in items
        if (obj["spec"].get("repository"), obj["spec"].get("packageName"))
        == (downstream.repo, downstream.package)
    ]


# ------------------------------------------------------------ writing


def write_owned(
    variant: PackageVariant, name: str, effect_of: Callable[[Object], Effect | None]
) -> Generator[Effect, Any, Any]:
    """Read a revision live and, if it is the variant's, write to it.

    effect_of: takes the revision, returns the write with its version as precondition, or None for no write.
    Returns the response to the write, else the revision. All writes and deletes of existing revisions go
    through here, except adoption, which has its own check.

    Raises: NotOwnedError if it is gone or does not belong to the variant.
    """
    namespace = variant.metadata.namespace
    live = yield Get(REVISION, namespace, name)
    if live is None:
        raise NotOwnedError(f"PackageRevision {namespace}/{name} is gone")
    if not belongs_to(live, variant):
        raise NotOwnedError(f"PackageRevision {namespace}/{name} no longer belongs to {_words(variant)}")
    effect = effect_of(live)
    return live if effect is None else (yield effect)


def write_variant(variant: PackageVariant, change: Callable[[Object], bool]) -> Effects:
    """Read the variant live, change it in place and write it, unless `change` returns False.

    Raises: ConflictError if it went on hold, or if it is gone or has another uid; not so if it is being
    deleted: then that is what is wanted, and our row is only older.
    """
    meta = variant.metadata
    live = yield Get(VARIANT, meta.namespace, meta.name)
    if live is None or live["metadata"].get("uid") != meta.uid:
        if meta.deletion_timestamp:
            return
        raise ConflictError(f"{_words(variant)} is gone")
    if is_held(live["metadata"].get("annotations")):
        raise ConflictError(f"{_words(variant)} went on hold")
    if change(live):
        yield Update(VARIANT, live)


def add_finalizer(variant: PackageVariant) -> Effects:
    """Put our finalizer on the variant."""

    def change(live: Object) -> bool:
        finalizers = live["metadata"].get("finalizers") or []
        live["metadata"]["finalizers"] = [*finalizers, FINALIZER]
        return FINALIZER not in finalizers and not is_terminating(live)

    yield from write_variant(variant, change)


def _remove_finalizer(variant: PackageVariant) -> Effects:
    def change(live: Object) -> bool:
        finalizers = live["metadata"].get("finalizers") or []
        live["metadata"]["finalizers"] = [f for f in finalizers if f != FINALIZER]
        return FINALIZER in finalizers and is_terminating(live)

    yield from write_variant(variant, change)


def _words(variant: PackageVariant) -> str:
    return f"PackageVariant {variant.metadata.namespace}/{variant.metadata.name}"


# ------------------------------------------------------------ adoption


def living_owner(obj: Object, variant: PackageVariant) -> Generator[Effect, Any, str]:
    """Return the kind and name of a revision's other controller, "" if there is none.

    A PackageVariant is looked up live: one that is gone, or was recreated with another uid, owns nothing.
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
    """Take over a revision that was just read: owner reference, labels, annotations.

    A revision of a former variant of this name also gets the variant's record, and is published again if
    that variant had proposed its deletion. Raises: PermanentError if it has an existing owner.
    """
    meta = obj["metadata"]
    owner = yield from living_owner(obj, variant)
    if owner:
        message = f"package revision {meta['name']} belongs to {owner}; it is not adopted"
        raise PermanentError(message, reason="OwnedByOther")
    if former.made(former.trace_of(obj), variant):
        former.take_up(obj, variant)
    former.forget_proposal(obj)
    former.forget_kept(obj)
    others = [o for o in meta.get("ownerReferences") or () if not o.get("controller")]
    meta["ownerReferences"] = [*others, owner_reference(variant)]
    for field in ("labels", "annotations"):
        wanted = getattr(variant.spec, field)
        if wanted:
            meta[field] = {**(meta.get(field) or {}), **wanted}
    updated: Object = yield Update(REVISION, obj)
    return updated


# ------------------------------------------------------------ release


def release(name: str, variant: PackageVariant, *, ended: bool = False) -> Effects:
    """Give up one of our revisions. ended: the variant is deleted, else it has another downstream.

    Returns the object after the write, None if it was deleted. Raises: NotOwnedError."""
    deleted = False

    def effect(live: Object) -> Effect | None:
        nonlocal deleted
        if is_terminating(live):
            return None
        edited = former.is_retained(former.trace_of(live), variant)
        finding = left(variant.spec.deletion_policy, ended=ended, edited=edited)
        match action(state_of(live), finding):
            case Action.DISOWN:
                return _disowned(live, variant)
            case Action.KEEP:
                former.note_kept(live, variant)
                return _disowned(live, variant)
            case Action.DELETE:
                deleted = True
                return _deletion(live)
            case Action.PROPOSE_DELETION:
                former.note_proposal(live, variant)
                live["spec"]["lifecycle"] = "DeletionProposed"
                return Update(REVISION, live)
        return None

    after = yield from write_owned(variant, name, effect)
    return None if deleted else after


def _deletion(live: Object) -> Delete:
    meta = live["metadata"]
    return Delete(
        REVISION,
        meta["namespace"],
        meta["name"],
        uid=meta.get("uid", ""),
        resource_version=version_of(live),
    )


def republish(name: str, variant: PackageVariant) -> Generator[Effect, Any, Object]:
    """Withdraw the proposed deletion of one of our revisions. Raises: NotOwnedError."""

    def effect(live: Object) -> Effect | None:
        if lifecycle_of(live) != "DeletionProposed":
            return None
        former.forget_proposal(live)
        return Update(REVISION, {**live, "spec": {**live["spec"], "lifecycle": "Published"}})

    restored: Object = yield from write_owned(variant, name, effect)
    return restored


def _disowned(live: Object, variant: PackageVariant) -> Update:
    meta = live["metadata"]
    references = meta.get("ownerReferences") or []
    meta["ownerReferences"] = [o for o in references if o.get("uid") != variant.metadata.uid]
    former.note_release(live, variant)
    return Update(REVISION, live)


def terminate(
    variant: PackageVariant, downstreams: Iterable[Downstream]
) -> Generator[Effect, Any, list[str]]:
    """Release all our revisions, list live again, and only then remove the finalizer.

    downstreams: every package that ever had a revision of ours. Returns the revisions left to wait for,
    in words; [] once the finalizer is removed.
    """
    downstreams = list(downstreams)
    problems: dict[str, str] = {}
    remaining = yield from _own(variant, downstreams)
    for obj in remaining:
        if is_terminating(obj):
            continue
        name = obj["metadata"]["name"]
        try:
            after = yield from release(name, variant, ended=True)
            if after is not None and lifecycle_of(after) == "DeletionProposed" and belongs_to(after, variant):
                yield from release(name, variant, ended=True)
        except NotOwnedError:  # it has got another owner since the list
            continue
        except PermanentError as error:  # the others are released all the same
            problems[name] = f": {error}"
    if remaining:
        remaining = yield from _own(variant, downstreams)
    if remaining:
        names = [obj["metadata"]["name"] for obj in remaining]
        return [f"PackageRevision {name}{problems.get(name, '')}" for name in names]
    yield from _remove_finalizer(variant)
    return []


def _own(variant: PackageVariant, downstreams: Iterable[Downstream]) -> Generator[Effect, Any, list[Object]]:
    found = []
    for downstream in downstreams:
        live = yield from list_package(variant.metadata.namespace, downstream)
        found += [obj for obj in live if belongs_to(obj, variant)]
    return found
