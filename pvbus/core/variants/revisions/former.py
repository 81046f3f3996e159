"""Former owners of package revisions, and the reasons why a package cannot be created.

Deleting a PackageVariant leaves its published revisions behind, without an owner. Annotations name
the former owner, so that a recreated variant takes over its own package and no other: `pvbus.dev/made-by`
is set on a clone, and on any other published revision when the variant releases it;
`pvbus.dev/deletion-proposed-by` when the variant proposes its deletion. `pvbus.dev/kept-for` is on a
draft that people edited, from its variant's deletion until the variant returns. All hold
`[<set>/]<variant>@<uid>`. The uid distinguishes a recreated variant from the original, whose revision
another owner may have taken over on purpose; it is left out when the variant itself released the revision.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.packages import PUBLISHED as PUBLISHED
from pvbus.core.api.variants import Downstream, PackageVariant
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.keys import DELETE_EDITS, EDITED_BY, KEPT_FOR, KEPT_LABEL, WORKSPACE_PREFIX
from pvbus.core.kernel.objects import annotations_of, set_among
from pvbus.core.variants.revisions.observed import ObservedRevision

MADE_BY = "pvbus.dev/made-by"
PROPOSED_BY = "pvbus.dev/deletion-proposed-by"
PLACEHOLDER = -1
"""Revision number of a branch's placeholder, which a variant never creates, adopts or owns."""

Object = dict[str, Any]


class ControllerReference(NamedTuple):
    """A controlling owner reference."""

    kind: str
    name: str
    uid: str


class Trace(NamedTuple):
    """The facts that identify a former owner. has_owners: owner references that do not control count, too."""

    lifecycle: str
    revision: int
    workspace: str
    annotations: Mapping[str, str]
    controllers: tuple[ControllerReference, ...]
    has_owners: bool


def trace_of(obj: Object) -> Trace:
    """Return the trace of a live PackageRevision."""
    spec, meta = obj.get("spec") or {}, obj["metadata"]
    owners = meta.get("ownerReferences") or ()
    return Trace(
        lifecycle=spec.get("lifecycle") or "Draft",
        revision=spec.get("revision", 0),
        workspace=spec.get("workspaceName", ""),
        annotations=meta.get("annotations") or {},
        controllers=tuple(
            ControllerReference(o.get("kind", ""), o.get("name", ""), o.get("uid", ""))
            for o in owners
            if o.get("controller")
        ),
        has_owners=bool(owners),
    )


def trace_of_row(revision: ObservedRevision) -> Trace:
    """Return the trace of an observed revision."""
    facts, owners = revision.facts, revision.row.owners
    return Trace(
        lifecycle=facts.lifecycle or "Draft",
        revision=facts.revision,
        workspace=facts.workspace,
        annotations=revision.row.annotations,
        controllers=tuple(ControllerReference(o.kind, o.name, o.uid) for o in owners if o.controller),
        has_owners=bool(owners),
    )


def record_of(variant: PackageVariant) -> str:
    """Return the annotation value that names a variant."""
    return f"{_identity(variant)}@{variant.metadata.uid}"


def _identity(variant: PackageVariant) -> str:
    name, set_name = variant.metadata.name, set_among(variant.metadata.owner_references)
    return f"{set_name}/{name}" if set_name else name


def made(trace: Trace, variant: PackageVariant) -> bool:
    """Return whether a revision is left from a former variant of this name and set: a published one, or a
    draft that was kept, as people had edited it.

    The record decides. Without one, of a published one an owner reference to a former object of this name
    does; without that, a proposed deletion of a revision that has no owner and a variant's workspace name.
    """
    if trace.revision == PLACEHOLDER:
        return False
    uid, name = variant.metadata.uid, variant.metadata.name
    former = [c for c in trace.controllers if (c.kind, c.name) == ("PackageVariant", name) and c.uid != uid]
    if len(former) != len(trace.controllers):
        return False
    if trace.lifecycle not in PUBLISHED:
        is_uncollected = bool(former) and EDITED_BY in trace.annotations
        return is_uncollected or trace.annotations.get(KEPT_FOR) == f"{_identity(variant)}@"
    record = _record(trace)
    if record:
        who, _, whose = record.rpartition("@")
        return who == _identity(variant) and whose != uid
    if former:
        return True
    return (
        trace.lifecycle == "DeletionProposed"
        and not trace.has_owners
        and trace.workspace.startswith(WORKSPACE_PREFIX)
    )


def is_proposed_by(trace: Trace, variant: PackageVariant) -> bool:
    """Return whether this variant, or a former one of its name, proposed the deletion of a revision.

    Taking a revision up forgets the proposal. One of a former variant on a revision of ours was done late:
    by a server that was interrupted.
    """
    who = trace.annotations.get(PROPOSED_BY, "").rpartition("@")[0]
    return trace.lifecycle == "DeletionProposed" and who == _identity(variant)


def _record(trace: Trace) -> str:
    """Return the record that counts: the last owner's. The maker comes first, then whose deletion left it
    behind, as a draft or published."""
    annotations = trace.annotations
    return annotations.get(PROPOSED_BY) or annotations.get(KEPT_FOR) or annotations.get(MADE_BY, "")


def take_up(live: Object, variant: PackageVariant) -> None:
    """Record the variant on a revision of a former variant, and publish it again if that variant had
    proposed its deletion. A user's proposal stays."""
    trace = trace_of(live)
    proposed = trace.annotations.get(PROPOSED_BY) or not _record(trace)
    if trace.lifecycle == "DeletionProposed" and proposed:
        live["spec"] = {**live["spec"], "lifecycle": "Published"}
    forget_proposal(live)
    live["metadata"]["annotations"] = {
        **annotations_of(live),
        MADE_BY: record_of(variant),
    }


def is_retained(trace: Trace, variant: PackageVariant) -> bool:
    """Return whether a revision stays when its variant gives it up: it is open, and people wrote to it."""
    wishes = (trace.annotations, variant.metadata.annotations, variant.spec.annotations or {})
    is_deleted = any(wish.get(DELETE_EDITS) == "true" for wish in wishes)
    return trace.lifecycle not in PUBLISHED and EDITED_BY in trace.annotations and not is_deleted


def note_kept(live: Object, variant: PackageVariant) -> None:
    """Record on a draft that stays which variant it was of."""
    meta = live["metadata"]
    meta["annotations"] = {**(meta.get("annotations") or {}), KEPT_FOR: f"{_identity(variant)}@"}
    meta["labels"] = {**(meta.get("labels") or {}), KEPT_LABEL: "true"}


def note_release(live: Object, variant: PackageVariant) -> None:
    """Record on a published revision that the variant made it and now releases it. A revision that was
    only adopted gets no record."""
    trace = trace_of(live)
    maker = trace.annotations.get(MADE_BY)
    if maker is None:
        is_ours = trace.workspace.startswith(WORKSPACE_PREFIX)
    else:
        is_ours = maker.rpartition("@")[0] == _identity(variant)
    if is_ours and trace.lifecycle in PUBLISHED and trace.revision != PLACEHOLDER:
        live["metadata"]["annotations"] = {**trace.annotations, MADE_BY: f"{_identity(variant)}@"}


def note_proposal(live: Object, variant: PackageVariant) -> None:
    """Record the variant as the proposer of a revision's deletion."""
    annotations = annotations_of(live)
    live["metadata"]["annotations"] = {**annotations, PROPOSED_BY: record_of(variant)}


def forget_proposal(live: Object) -> None:
    annotations = annotations_of(live)
    if PROPOSED_BY in annotations:
        live["metadata"]["annotations"] = {k: v for k, v in annotations.items() if k != PROPOSED_BY}


def forget_kept(live: Object) -> None:
    """Remove the marks of a draft that stayed without its variant: it has an owner again."""
    for field, mark in (("annotations", KEPT_FOR), ("labels", KEPT_LABEL)):
        marks = live["metadata"].get(field) or {}
        if mark in marks:
            live["metadata"][field] = {k: v for k, v in marks.items() if k != mark}


# ------------------------------------------------------------ packages that cannot be made


def why_refused(
    error: PermanentError, live: Iterable[Object], variant: PackageVariant, downstream: Downstream
) -> PermanentError | ConflictError:
    """Return the error to raise when the server refuses to clone into an existing package.

    live: the package's revisions; if empty, the list was incomplete, or another client was faster. If only
    the placeholder of its branch is left, the message says how to delete it; any other package is foreign.
    """
    revisions = list(live)
    if not revisions:
        return ConflictError(str(error))
    namespace = variant.metadata.namespace
    what = f'package "{downstream.package}" in repository "{downstream.repo}"'
    names = [obj["metadata"]["name"] for obj in revisions]
    if all(obj["spec"].get("revision") == PLACEHOLDER for obj in revisions):
        both = " ".join(names)
        commands = (
            f"porchctl rpkg propose-delete {both} -n {namespace}, then "
            f"porchctl rpkg delete {both} -n {namespace}"
        )
        message = (
            f"{what}: its revisions were deleted, but its folder is still on the branch, as placeholder "
            f"PackageRevision {', '.join(names)}; delete it to have the package recreated: {commands}"
        )
        return PermanentError(message, reason="LeftoverPackage")
    others = [obj for obj in revisions if obj["spec"].get("revision") != PLACEHOLDER]
    present = ", ".join(_described(obj, variant) for obj in others)
    message = (
        f"{what} exists and is not owned by PackageVariant {namespace}/{variant.metadata.name}: {present}; "
        "set adoptionPolicy: adoptExisting in its spec to take the package over, or choose another "
        "downstream"
    )
    return PermanentError(message, reason="ForeignPackage")


def _described(obj: Object, variant: PackageVariant) -> str:
    trace = trace_of(obj)
    words = "no record of its maker"
    record = _record(trace)
    if record == record_of(variant):
        words = "made by this variant, but its owner reference was removed"
    elif record:
        verb = "left" if PROPOSED_BY in trace.annotations else "made"
        words = f"{verb} by {_maker(record.rpartition('@')[0])}"
    for owner in trace.controllers:
        words = f"owned by {owner.kind} {owner.name}"
    return f"{obj['metadata']['name']} ({trace.lifecycle}, {words})"


def _maker(identity: str) -> str:
    set_name, _, name = identity.rpartition("/")
    return f"PackageVariant {name}{f' of PackageVariantSet {set_name}' if set_name else ''}"
