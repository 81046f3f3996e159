"""Builds the conditions of a PackageVariant, and the result row that stores them.

Source of the types, reasons and messages of Stalled and Ready: Porch v1.5.8; the others are ours.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import CONFIG_GROUP, Condition, PackageVariant, Upstream
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict, where
from pvbus.core.kernel.holds import NEEDS_PLAN, why_held
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import InjectedObject, ResultRow
from pvbus.core.variants.attention import ATTENTION, OpenRevision, StrandedRevision, needed, variant_needs
from pvbus.core.variants.attention import CONFLICT as UPGRADE_CONFLICT
from pvbus.core.variants.following import follows_saves
from pvbus.core.variants.inject.ensure import Ensured
from pvbus.core.variants.inject.look import TAG_MOVED
from pvbus.core.variants.inject.mutations import Injected, problem_of
from pvbus.core.variants.inject.state import Pass
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.severity import FIELDS_DROPPED
from pvbus.core.variants.versions import is_range

Conditions = list[Condition]

OWNED_BY_OTHER = "OwnedByOther"
INVALID = "Invalid"
"""Of an error 422: the server refuses the content until somebody changes it."""


def condition(kind: str, status: bool, reason: str, message: str, variant: PackageVariant) -> Condition:
    return Condition(
        type=kind,
        status="True" if status else "False",
        reason=reason,
        message=message,
        observed_generation=variant.metadata.generation,
    )


def ensured_conditions(variant: PackageVariant, ensured: Ensured, former: ResultRow | None) -> Conditions:
    """Return the conditions after a completed attempt. former: the result of the last attempt."""
    if ensured.problem is not None:
        ready = condition("Ready", False, *ensured.problem, variant)
    elif ensured.unrendered:
        message = "; ".join(f"{name}: {why}" for name, why in ensured.unrendered.items())
        ready = condition("Ready", False, "RenderFailed", message, variant)
    elif wrong := _wrong_points(ensured):
        ready = condition("Ready", False, "Error", wrong, variant)
    else:
        message = "successfully ensured downstream package variant"
        ready = condition("Ready", True, "NoErrors", message, variant)
    return [
        _unowned(variant, *(ensured.problem or ("", ""))),
        ready,
        *_injection(variant, ensured),
        *_conflicts(variant, ensured.conflicts, former),
    ]


def _conflicts(
    variant: PackageVariant, conflicts: Mapping[str, Sequence[Conflict]], former: ResultRow | None
) -> Conditions:
    """Return the condition of drafts whose merges left conflicts or warnings, or which had some before.
    conflicts: by the draft's name."""
    listed = [(name, each) for name, found in conflicts.items() for each in found]
    warnings = [(name, each) for name, each in listed if each.is_warning]
    blocking = [(name, each) for name, each in listed if not each.is_warning]
    key = Key(variant.metadata.namespace, variant.metadata.name)
    if blocking:
        name, first = blocking[0]
        words = "one conflict" if len(blocking) == 1 else f"{len(blocking)} conflicts"
        message = (
            f"the upgrade of {name} left {words}, the first in {where(first)}: `pvbus diff {key}` shows them "
            f"and, with `--take`, settles one; without the draft's annotation {CONFLICTS} all are"
        )
        if warnings:
            message += f"; {_both_stay(*warnings[0], len(warnings))}"
        return [condition(UPGRADE_CONFLICT, True, "BothChanged", message, variant)]
    if warnings:
        message = f"{_both_stay(*warnings[0], len(warnings))}: `pvbus diff {key}` shows both"
        return [condition(UPGRADE_CONFLICT, False, "BothStay", message, variant)]
    had = former is not None and any(each.type == UPGRADE_CONFLICT for each in former.conditions)
    message = "no conflict of an upgrade is left"
    return [condition(UPGRADE_CONFLICT, False, "NoConflict", message, variant)] if had else []


def _both_stay(name: str, first: Conflict, count: int) -> str:
    """Return a warning in words. count: how many warnings there are."""
    more = f" (and {count - 1} more)" if count > 1 else ""
    return (
        f"{name} has {where(first)} and upstream's {first.beside}, as both sides changed the key of one "
        f"element{more}"
    )


def dropped_conditions(
    variant: PackageVariant, dropped: Sequence[str], former: ResultRow | None
) -> Conditions:
    """Return the condition of fields that the set wants and the API server does not store."""
    if dropped:
        message = (
            f"the API server dropped {', '.join(dropped)}: its CustomResourceDefinition packagevariants."
            f"{CONFIG_GROUP} has no such field, so the package is made without it; install the definition of "
            "this release of pvbus"
        )
        return [condition(FIELDS_DROPPED, True, "UnknownField", message, variant)]
    if former is not None and any(each.type == FIELDS_DROPPED for each in former.conditions):
        message = "the API server stores all fields that the set wants"
        return [condition(FIELDS_DROPPED, False, "AllStored", message, variant)]
    return []


def _valid(variant: PackageVariant) -> Condition:
    return condition("Stalled", False, "Valid", "all validation checks passed", variant)


def _unowned(variant: PackageVariant, reason: str, message: str) -> Condition:
    """Return Stalled: what belongs to another owner, or a refused tag, is for people to sort out."""
    if reason in (OWNED_BY_OTHER, TAG_MOVED):
        return condition("Stalled", True, reason, message, variant)
    return _valid(variant)


def _injection(variant: PackageVariant, ensured: Ensured) -> Conditions:
    """Return the condition of the injections; none where no draft was looked into: the last one stays."""
    injected = ensured.injected
    if not injected and (ensured.problem is not None or not variant.spec.injectors):
        return []
    if wrong := _wrong_points(ensured):
        return _incomplete(variant, wrong)
    missing = [i for i in injected if i.is_missing]
    if missing:
        message = "; ".join(f"{i.point.condition_type}: {i.explanation}" for i in missing)
        return [condition("ConfigInjected", False, "RequiredNotInjected", message, variant)]
    message = f"{len(injected)} injection points processed"
    return [condition("ConfigInjected", True, "Complete", message, variant)]


def _wrong_points(ensured: Ensured) -> str:
    """Name the injection points that the package's author has to correct; the others are filled."""
    return problem_of(one.message for one in ensured.injected if one.is_wrong)


def invalid_conditions(variant: PackageVariant, message: str) -> Conditions:
    """Return the conditions of an invalid spec or a missing upstream."""
    stalled = condition("Stalled", True, "ValidationError", message, variant)
    ready = condition("Ready", False, "Error", "invalid packagevariant object", variant)
    return [stalled, ready, *_incomplete(variant, message)]


def failed_conditions(variant: PackageVariant, message: str, *, reason: str = "Error") -> Conditions:
    """Return the conditions of an attempt that ended in an error."""
    ready = condition("Ready", False, reason, message, variant)
    return [_valid(variant), ready, *_incomplete(variant, message)]


def refused_conditions(variant: PackageVariant, message: str, reason: str) -> Conditions:
    """Return the conditions of an attempt that was refused. reason: the error's reason."""
    if reason == INVALID:
        stalled = condition("Stalled", True, reason, message, variant)
        return [stalled, *failed_conditions(variant, message)[1:]]
    if reason != OWNED_BY_OTHER:
        return failed_conditions(variant, message)
    stalled = _unowned(variant, reason, message)
    return [stalled, *failed_conditions(variant, message, reason=reason)[1:]]


def waiting_conditions(variant: PackageVariant, waiting: Sequence[str]) -> Conditions:
    message = f"waits for {'; '.join(waiting)}"
    return [_valid(variant), condition("Ready", False, "Waiting", message, variant)]


def terminating_conditions(variant: PackageVariant, left: Sequence[str]) -> Conditions:
    return [condition("Ready", False, "Terminating", f"waits for {'; '.join(left)}", variant)]


def held_conditions(variant: PackageVariant, holder: str, reason: str) -> Conditions:
    """Return the conditions of a held variant.

    holder: the object with the hold annotation, as messages name it
    reason: why it holds, in the words of that object, "" if it does not say
    """
    message = f"nothing is written for this variant while {why_held(holder, reason)}"
    cause = "PlanRequired" if reason.startswith(NEEDS_PLAN) else "Annotation"
    return [
        condition("OnHold", True, cause, message, variant),
        condition("Ready", False, "OnHold", message, variant),
    ]


def _incomplete(variant: PackageVariant, message: str) -> Conditions:
    if not variant.spec.injectors:
        return []
    return [condition("ConfigInjected", False, "Incomplete", message, variant)]


def upstream_missing(upstream: Upstream, part: str) -> str:
    """Return the message of a missing upstream. part: what of it is missing, in words."""
    return f"could not find upstream {_upstream(upstream)}: {part}"


def upstream_wanted(upstream: Upstream) -> str:
    return f"the upstream {_upstream(upstream)}"


def _upstream(upstream: Upstream) -> str:
    asked = [f"revision {upstream.revision}"] if upstream.revision > 0 else []
    if is_range(upstream.workspace_name):
        asked.append(f"a published version {upstream.workspace_name}")
    elif upstream.workspace_name or not asked:
        asked.append(f"workspace {upstream.workspace_name or 'main'}")
    where = f'package "{upstream.package}" in repository "{upstream.repo}"'
    return f"package revision of {where} ({', '.join(asked)})"


def awaited(ensured: Ensured) -> tuple[str, ...]:
    """Return the events that would change the outcome: an action of a user, an object to inject."""
    found = [ensured.problem[1]] if ensured.problem is not None else []
    found += [f"a correction of the package: {wrong}"] if (wrong := _wrong_points(ensured)) else []
    missing = [one for one in ensured.injected if one.is_missing]
    return (
        *found,
        *(f"an object to inject for {one.point.condition_type}: {one.explanation}" for one in missing),
    )


def result_row(
    variant: PackageVariant,
    old: ResultRow | None,
    conditions: Conditions,
    *,
    requests: tuple[str, ...],
    upstream: ObservedRevision | None = None,
    ensured: Ensured | None = None,
    input_digest: str = "",
    waiting: tuple[str, ...] = (),
    cause: float = 0,
) -> ResultRow:
    """Return the row after an attempt. old: the previous row of the same object. Fields that the attempt did
    not reach keep their value; on a new bus, that of the variant's status."""
    row = old or ResultRow(uid=variant.metadata.uid, targets=variant.status.downstream_targets)
    downstream = variant.spec.downstream
    if upstream is not None and downstream is not None and downstream not in row.downstreams:
        row = msgspec.structs.replace(row, downstreams=(*row.downstreams, downstream))
    if ensured is None:  # the draft is as it was
        conditions = conditions + [one for one in row.conditions if one.type == UPGRADE_CONFLICT]
    else:
        row = msgspec.structs.replace(
            row,
            targets=ensured.targets,
            revisions=tuple(target.name for target in ensured.targets),
            injected=tuple(injected_object(one) for one in ensured.injected),
        )
    return msgspec.structs.replace(
        row,
        generation=variant.metadata.generation,
        input_digest=input_digest,
        upstream=upstream.name if upstream is not None else "",
        upstream_identity=upstream.followed(saves=follows_saves(variant)) if upstream is not None else "",
        conditions=tuple(conditions),
        requests=requests,
        waiting=waiting,
        cause=cause or row.cause,
    )


def of_generation(row: ResultRow, variant: PackageVariant, now: float) -> ResultRow:
    """Return the row for the variant's present generation, whose inputs are the same."""
    generation = variant.metadata.generation
    conditions = tuple(msgspec.structs.replace(c, observed_generation=generation) for c in row.conditions)
    return msgspec.structs.replace(row, generation=generation, conditions=conditions, cause=now)


def with_attention(row: ResultRow, one: Pass, view: InjectView) -> ResultRow:
    """Return the row with AttentionNeeded, if something about the variant waits for a person."""
    others = tuple(each for each in row.conditions if each.type != ATTENTION)
    meta = one.variant.metadata
    if meta.deletion_timestamp:
        return msgspec.structs.replace(row, conditions=others)
    opened = [
        OpenRevision(each.name, each.facts.lifecycle, each.row.annotations, each.facts.questions)
        for each in view.owned(one.namespace, one.uid)
        if each.facts.lifecycle not in PUBLISHED and not each.row.deleted
    ]
    needs = list(variant_needs(Key(meta.namespace, meta.name), others, opened, _stranded(one, view)))
    return msgspec.structs.replace(row, conditions=(*others, *needed(needs, meta.generation)))


def _stranded(one: Pass, view: InjectView) -> Iterator[StrandedRevision]:
    """Yield what rollbacks left published: each until another revision of the package is published."""
    downstream, notes = one.variant.spec.downstream, one.seen.stranded
    if downstream is None or not notes:
        return
    released = [each for each in view.at(one.namespace, downstream) if each.facts.lifecycle in PUBLISHED]
    last = max(released, key=lambda each: each.facts.revision, default=None)
    for policy, note in sorted(notes.items()):
        if last is not None and (note.uid, note.revision) == (one.uid, last.name):
            yield StrandedRevision(policy, note.attempt, note.revision)


def injected_object(one: Injected) -> InjectedObject:
    return InjectedObject(
        file=one.point.file,
        group=one.point.group,
        version=one.point.version,
        kind=one.point.kind,
        condition_type=one.point.condition_type,
        required=one.point.required,
        name=one.source_name or "",
        hash=one.hash or "",
        reason=one.reason,
        message=one.explanation,
    )
