"""Decides what becomes of one open revision of a variant: nothing, propose it, or make it a draft again.

A draft is proposed once per content. What promote has proposed has the annotation PROPOSED_CONTENT: a draft
that still has it was rejected by a person, and stays a draft until its content changes or the annotation is
removed. Taken back by promote itself, it has lost the annotation, and is proposed again once it is ready.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.holds import SetHold
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, PROPOSED_CONTENT, Key
from pvbus.core.kernel.promotionrows import Verdict
from pvbus.core.promotion.promote.barrier import Opening
from pvbus.core.promotion.protocol.proposals import UPSTREAM_CHANGED, Refusal, is_outdated, refusal
from pvbus.core.variants.revisions.observed import ObservedRevision
from pvbus.core.variants.revisions.signatures import INPUTS_CHANGED

PROPOSING = "Proposing"
PROPOSED = "Proposed"
PROPOSED_BY_HAND = "ProposedByHand"
RETURNING = "Returning"
REJECTED = "Rejected"
NOT_OPTED_IN = "NotOptedIn"
NOT_CURRENT = "NotCurrent"
NOT_OPENED = "NotOpened"
DELETED = "Deleted"
ON_HOLD = "OnHold"
GATE_NOT_MET = "GateNotMet"
WAITS_FOR_ROLLOUT = "WaitsForRollout"

LOSSES = frozenset({GATE_NOT_MET, "NotRendered", "UpgradeConflict"})
"""Reasons of a `Refusal` for which a proposal goes back to Draft. A hold is none: it writes nothing."""
BLOCKING = frozenset({"NotDraft", UPSTREAM_CHANGED, "LaterRevision"})
"""Reasons of a variant's Ready for which inject needs a draft, and finds a proposal."""


class Subject(NamedTuple):
    """What a verdict is made on.

    set_on_hold: the hold of the variant's set, None without one
    served: the condition types that a PackageSpecializer of the namespace reports
    returns: whether a proposal that loses its readiness goes back to Draft
    quarantined: what keeps it out of the fleet, None for nothing
    frozen: why it stays proposed as it is though a newer upstream revision is there, "" if it does not
    void: the types of its conditions that were found on other content, and that count as Unknown
    """

    variant: PackageVariant
    revision: ObservedRevision
    opening: Opening
    set_on_hold: SetHold | None = None
    served: frozenset[str] = frozenset()
    returns: bool = True
    quarantined: Refusal | None = None
    frozen: str = ""
    void: tuple[str, ...] = ()


def judge(subject: Subject) -> Verdict:
    """Return the verdict, on the rows alone: a draft that was proposed before is to be compared, too."""
    verdict = Verdict(revision=subject.revision.name, row_digest=subject.revision.row.digest, reason="")
    if subject.revision.row.deleted or subject.variant.metadata.deletion_timestamp:
        return replace(verdict, reason=DELETED, message="it is being deleted")
    if subject.revision.facts.lifecycle == PROPOSED:
        return _proposal(subject, verdict)
    return _draft(subject, verdict)


def judge_held(subject: Subject, held: Refusal | None) -> Verdict:
    """As `judge`. held: the quarantine of the revision's own files, None without one."""
    return judge(subject if held is None else subject._replace(quarantined=held))


def was_proposed(revision: ObservedRevision) -> bool:
    """Return whether promote has proposed a revision, and has not taken it back."""
    return bool(revision.row.annotations.get(PROPOSED_CONTENT))


def rejected(verdict: Verdict, namespace: str) -> Verdict:
    """Return the verdict on a draft whose content was proposed before."""
    message = (
        "this content was proposed before, and rejected: it is proposed again when the content changes, or "
        f"at once with: kubectl annotate -n {namespace} packagerevision {verdict.revision} "
        f"{PROPOSED_CONTENT}-"
    )
    return replace(verdict, reason=REJECTED, message=message, order="")


def _draft(subject: Subject, verdict: Verdict) -> Verdict:
    variant, revision = subject.variant, subject.revision
    if subject.quarantined is not None:
        return replace(verdict, reason=subject.quarantined.reason, message=subject.quarantined.message)
    if not _is_opted_in(variant, revision):
        return replace(verdict, reason=NOT_OPTED_IN, message=_how_to_opt_in(variant, revision))
    refused = refusal(variant, as_object(revision), set_on_hold=subject.set_on_hold)
    if subject.void and not (refused is not None and refused.reason == ON_HOLD):
        return voiding(verdict, subject.void)
    if refused is not None:
        note = unserved(revision, subject.served) if refused.reason == GATE_NOT_MET else ""
        return replace(verdict, reason=refused.reason, message=f"{refused.message}{note}")
    if revision.name not in {target.name for target in variant.status.downstream_targets}:
        message = f"{Key(revision.namespace, variant.metadata.name)} does not report it as its revision"
        return replace(verdict, reason=NOT_CURRENT, message=message)
    if subject.opening.closed:
        return replace(verdict, reason=NOT_OPENED, message=subject.opening.closed)
    return replace(verdict, reason=PROPOSING, message="it is ready", order="propose")


def frozen_by(policy: Key, attempt: int) -> str:
    """Say why a proposal stays as it is that an attempt has planned."""
    return (
        f"it stays as planned until attempt {attempt} of RolloutPolicy {policy} is over (onNewRevision: "
        f"Finish): pvbus rollout status {policy}"
    )


def outlived_by(followed: Refusal) -> str:
    """Say why a proposal stays as it is whose newer upstream revision goes nowhere, as `followed` says."""
    return f"the upstream revision that its variant follows by now goes nowhere: {followed.message}"


def voiding(verdict: Verdict, types: Iterable[str]) -> Verdict:
    """Return the verdict on a draft with conditions that were found on other content."""
    message = (
        f"its content has changed since {', '.join(types)} became True: release makes that Unknown, and "
        "whoever set it looks at the draft as it is now"
    )
    return replace(verdict, reason=INPUTS_CHANGED, message=message, order="void")


def _proposal(subject: Subject, verdict: Verdict) -> Verdict:
    if not was_proposed(subject.revision):
        message = f"a person proposed it: {_waits(subject)}"
        return replace(verdict, reason=PROPOSED_BY_HAND, message=message)
    revision, held = as_object(subject.revision), subject.set_on_hold
    lost = lost_readiness(subject.variant, revision, set_on_hold=held, frozen=subject.frozen)
    if not lost and subject.frozen and is_outdated(subject.variant):
        return replace(verdict, reason=WAITS_FOR_ROLLOUT, message=f"{_waits(subject)}; {subject.frozen}")
    if not lost:
        return replace(verdict, reason=PROPOSED, message=_waits(subject))
    if not subject.returns:
        message = f"it waits for approval, but lost its readiness: {lost}"
        return replace(verdict, reason=PROPOSED, message=message)
    return replace(verdict, reason=RETURNING, message=lost, order="return")


def _waits(subject: Subject) -> str:
    """Say what a proposal waits for. A quarantine takes none back: it comes and goes as a hold does."""
    held = subject.quarantined
    return f"it waits for approval, but {held.message}" if held is not None else "it waits for approval"


def lost_readiness(
    variant: PackageVariant, revision: dict[str, Any], *, set_on_hold: SetHold | None, frozen: str = ""
) -> str:
    """Return why a proposal is no longer ready, "" if it is, or if that is not known yet.

    frozen: as in `Subject`
    """
    refused = refusal(variant, revision, set_on_hold=set_on_hold)
    if refused is None:
        return ""
    if refused.reason in LOSSES:
        return f"{refused.reason}: {refused.message}"
    ready = next((c for c in variant.status.conditions if c.type == "Ready"), None)
    if (
        refused.reason != ON_HOLD
        and not (frozen and is_outdated(variant))
        and ready is not None
        and ready.status == "False"
        and ready.reason in BLOCKING
        and ready.observed_generation >= variant.metadata.generation
    ):
        return f"{ready.reason}: {ready.message}"
    return ""


def _is_opted_in(variant: PackageVariant, revision: ObservedRevision) -> bool:
    """The revision's own annotation comes first: "false" leaves one draft out."""
    own = revision.row.annotations.get(AUTO_LIFECYCLE)
    return (own if own is not None else variant.metadata.annotations.get(AUTO_LIFECYCLE)) == "true"


def _how_to_opt_in(variant: PackageVariant, revision: ObservedRevision) -> str:
    """Name the object whose annotation counts: the variant's does not where the revision has one."""
    name, overwrite = f"packagevariant {variant.metadata.name}", ""
    if AUTO_LIFECYCLE in revision.row.annotations:
        name, overwrite = f"packagerevision {revision.name}", " --overwrite"
    elif AUTO_LIFECYCLE in variant.metadata.annotations:
        overwrite = " --overwrite"
    annotate = f"kubectl annotate -n {revision.namespace} {name} {AUTO_LIFECYCLE}=true{overwrite}"
    return f"it is not opted in: {annotate}"


def unserved(revision: ObservedRevision, served: frozenset[str]) -> str:
    """Name the gates that nothing has reported, and no program says it will. served: as in `Subject`."""
    facts = revision.facts
    reported = {condition.type for condition in facts.conditions}
    known = {*reported, *served, *facts.tasks}  # of a task the question says who is waited for
    missing = [gate for gate in facts.gates if gate not in known]
    if not missing:
        return ""
    names = ", ".join(dict.fromkeys(missing))
    return f"; no PackageSpecializer of the namespace reports {names}: does a program run that sets it?"


def as_object(revision: ObservedRevision) -> dict[str, Any]:
    """Return the parts of a PackageRevision that proposals and rollouts are decided on."""
    facts = revision.facts
    conditions: list[Mapping[str, str]] = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
        for c in facts.conditions
    ]
    asked = {**tasks.annotation_of(facts.questions), **gates.steps_annotation(facts.gate_steps)}
    return {
        "metadata": {
            "name": revision.name,
            "labels": dict(revision.row.labels),
            "annotations": dict(revision.row.annotations),
            "creationTimestamp": revision.row.created,
        },
        "spec": {
            "lifecycle": facts.lifecycle,
            "readinessGates": [{"conditionType": gate} for gate in facts.gates],
            "packageMetadata": {"annotations": asked},
        },
        "status": {"conditions": conditions},
    }
