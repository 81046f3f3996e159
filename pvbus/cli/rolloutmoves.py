"""What a change by file does to the revisions of a fleet: who gets a new draft, as if it were proposed.

A variant that follows another upstream revision than it does live has its open revision replaced by a draft
of that one. Which targets a set gets or loses by a change, `pvbus plan` says.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pvbus.cli.progress import SET, VARIANT
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.keys import AUTO_LIFECYCLE
from pvbus.core.kernel.objects import annotations_of
from pvbus.ports.cluster import Object
from pvbus.runtime.preview.changes import replaced

Identity = tuple[str, str, str, str]
_OPEN = ("Draft", "Proposed")
_SET_KIND, _VARIANT_KIND = SET.kind, VARIANT.kind


def identity_of(obj: Object) -> Identity:
    """Return the group, kind, namespace and name of an object."""
    meta = obj["metadata"]
    return obj["apiVersion"].rpartition("/")[0], obj["kind"], meta.get("namespace") or "default", meta["name"]


def laid_over(live: Sequence[Object], changes: Sequence[Object]) -> list[Object]:
    """Return the live objects, with those of files in their place, and what follows from new upstreams."""
    before = {identity_of(obj): obj for obj in live}
    after = {**before, **{identity_of(obj): _over(obj, before.get(identity_of(obj))) for obj in changes}}
    moved = {
        name: dict(followed)
        for name, obj in after.items()
        if obj["kind"] == _VARIANT_KIND and (followed := _moves_to(name, obj, before, after))
    }
    if not moved:
        return list(after.values())
    variants = {name: _following(after[name], upstream) for name, upstream in moved.items()}
    return list(_with_drafts({**after, **variants}, variants))


def _over(obj: Object, live: Object | None) -> Object:
    """Return an object of a file in the place of a live one. It is judged as settled, and the orders of a
    policy stay, unless the file has others."""
    over = replaced(obj, live)
    if live is None:
        return over
    over["metadata"]["generation"] = live["metadata"].get("generation", 1)
    if obj["kind"] == "RolloutPolicy":
        over["metadata"]["annotations"] = {**annotations_of(live), **annotations_of(obj)}
    return over


def _moves_to(
    name: Identity, obj: Object, before: Mapping[Identity, Object], after: Mapping[Identity, Object]
) -> Mapping[str, Any]:
    """Return the new upstream of a variant, empty if it has none."""
    live = before.get(name)
    if live is None:
        return {}
    if _upstream(obj) != _upstream(live):
        return _upstream(obj)
    for owner in obj["metadata"].get("ownerReferences") or ():
        key = (name[0], _SET_KIND, name[2], owner.get("name", ""))
        if owner.get("kind") == _SET_KIND and key in before:
            former, new = _upstream(before[key]), _upstream(after[key])
            return new if former != new and _upstream(obj) == former else {}
    return {}


def _upstream(obj: Object) -> Mapping[str, Any]:
    return obj["spec"].get("upstream") or {}


def _following(variant: Object, upstream: Mapping[str, Any]) -> Object:
    return {**variant, "spec": {**variant["spec"], "upstream": upstream}}


def _with_drafts(objects: Mapping[Identity, Object], moved: Mapping[Identity, Object]) -> Iterator[Object]:
    """Replace the open revisions of variants that move by one imagined proposal each."""
    owners = {
        (name[2], text): name
        for name, variant in moved.items()
        for text in (variant["metadata"].get("uid"), variant["metadata"]["name"])
        if text
    }
    for name, obj in objects.items():
        owner = _owner(obj, name[2], owners) if name[:2] == (PORCH_GROUP, "PackageRevision") else None
        if owner is None or obj["spec"].get("lifecycle") not in _OPEN:
            yield obj
    yield from map(draft_of, moved.values())


def _owner(obj: Object, namespace: str, owners: Mapping[tuple[str, str], Identity]) -> Identity | None:
    references: Iterable[Mapping[str, str]] = obj["metadata"].get("ownerReferences") or ()
    texts = [each.get(field, "") for each in references for field in ("uid", "name")]
    return next((owners[namespace, text] for text in texts if (namespace, text) in owners), None)


def draft_name(upstream: str, variant: str) -> str:
    """Return how a draft is called that a variant has yet to get. upstream: `REPOSITORY/PACKAGE@REVISION`."""
    return f"draft of {upstream.partition('/')[2]} for {variant}"


def opts_in(annotations: Mapping[str, str], own: Mapping[str, str]) -> bool:
    """Tell whether a draft is proposed once it is ready. annotations: of its variant. own: those that the
    variant gives it, which come first."""
    return own.get(AUTO_LIFECYCLE, annotations.get(AUTO_LIFECYCLE)) == "true"


def draft_of(variant: Object) -> Object:
    """Return the draft that a variant gets of its upstream, proposed if it is opted in."""
    meta, downstream = variant["metadata"], variant["spec"].get("downstream") or {}
    upstream = _upstream(variant)
    revision = upstream.get("workspaceName") or f"v{upstream.get('revision', 0)}"
    own = {field: dict(variant["spec"].get(field) or {}) for field in ("labels", "annotations")}
    lifecycle = "Proposed" if opts_in(annotations_of(variant), own["annotations"]) else "Draft"
    owner = {"kind": _VARIANT_KIND, "name": meta["name"], "uid": meta.get("uid", "")}
    return {
        "apiVersion": f"{PORCH_GROUP}/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {
            "name": draft_name(
                f"{upstream.get('repo', '')}/{upstream.get('package', '')}@{revision}", meta["name"]
            ),
            "namespace": meta.get("namespace") or "default",
            "ownerReferences": [owner],
            **own,
        },
        "spec": {
            "repository": downstream.get("repo", ""),
            "packageName": downstream.get("package") or upstream.get("package", ""),
            "lifecycle": lifecycle,
        },
    }
