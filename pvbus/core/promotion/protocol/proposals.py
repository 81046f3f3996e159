"""Decides which open package revisions of a fleet a person may propose, approve or reject.

The server enforces the order of the lifecycles, and in deployment repositories the readiness gates. Conflicts
and a stale upstream are the client's to check, and the gates elsewhere and on Porch's own server.

Source of the moves and of the readiness gates: Porch v1.5.8, pkg/cli/commands/rpkg/{propose,approve}.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel import gates, tasks
from pvbus.core.kernel.conflicts import CONFLICTS, Conflict
from pvbus.core.kernel.holds import SetHold, because, hold_reason, is_held
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.objects import annotations_of

Object = dict[str, Any]


class Move(NamedTuple):
    """A change of lifecycle.

    verb, past: what a person does, and has done, in words
    noun: what is moved, in words
    before, after: the lifecycle before and after
    subresource: the subresource that the change is written through, "" for the object itself
    is_checked: whether the change may be refused
    """

    verb: str
    past: str
    noun: str
    before: str
    after: str
    subresource: str = ""
    is_checked: bool = True


PROPOSE = Move("propose", "proposed", "draft", "Draft", "Proposed")
APPROVE = Move("approve", "approved", "proposal", "Proposed", "Published", "approval")
REJECT = Move("reject", "rejected", "proposal", "Proposed", "Draft", "approval", is_checked=False)


UPSTREAM_CHANGED = "UpstreamChanged"
"""Reason of a variant's Ready: its proposal is made of another upstream revision than it follows now."""
NOT_UP_TO_DATE = "NotUpToDate"


class Refusal(NamedTuple):
    reason: str
    message: str


def labels_of(variant: PackageVariant, revision: Object) -> Mapping[str, str]:
    """Return the labels that a selector sees: the variant's, and over them the revision's."""
    return {**variant.metadata.labels, **(revision["metadata"].get("labels") or {})}


def conflicts_of(revision: Object) -> list[Conflict]:
    """Return the conflicts of the last upgrade that nobody has settled, and its warnings."""
    text = annotations_of(revision).get(CONFLICTS) or "[]"
    try:
        return msgspec.json.decode(text, type=list[Conflict])
    except msgspec.MsgspecError:
        return [Conflict(file=f"the annotation {CONFLICTS}, which cannot be read")]


def refusal(
    variant: PackageVariant, revision: Object, *, set_on_hold: SetHold | None = None
) -> Refusal | None:
    """Return why a revision may be neither proposed nor approved, None if it may.

    set_on_hold: the hold of the variant's set.
    """
    found = (
        hold_refusal(variant, set_on_hold),
        _in_conflict(variant, revision),
        _unrendered(variant, revision),
        gate_refusal(revision),
        unready(variant),
    )
    return next(filter(None, found), None)


def refusal_alone(revision: Object) -> Refusal | None:
    """Return why a revision that no variant owns may be neither proposed nor approved, None if it may."""
    return _in_conflict(None, revision) or _unrendered(None, revision) or gate_refusal(revision)


def hold_refusal(variant: PackageVariant, set_on_hold: SetHold | None) -> Refusal | None:
    """Return the hold of a variant or of its set, None without one."""
    key = Key(variant.metadata.namespace, variant.metadata.name)
    annotations = variant.metadata.annotations
    if is_held(annotations):
        return Refusal("OnHold", f"it is on hold{because(hold_reason(annotations))}: pvbus unhold {key}")
    if set_on_hold is not None:
        address, reason = Key(key.namespace, set_on_hold.name), because(set_on_hold.reason)
        return Refusal("OnHold", f"its set is on hold{reason}: pvbus unhold --set {address}")
    return None


def _in_conflict(variant: PackageVariant | None, revision: Object) -> Refusal | None:
    count = sum(not each.is_warning for each in conflicts_of(revision))
    if not count:
        return None
    words = "1 conflict" if count == 1 else f"{count} conflicts"
    way = f"see its annotation {CONFLICTS}, and remove that once it is settled"
    if variant is not None:
        way = f"pvbus diff {Key(variant.metadata.namespace, variant.metadata.name)}"
    return Refusal("UpgradeConflict", f"{words} of its upgrade to settle: {way}")


def _unrendered(variant: PackageVariant | None, revision: Object) -> Refusal | None:
    """Porch's own server has no condition Rendered on a revision: the variant reports the error."""
    rendered = _conditions(revision).get("Rendered")
    if rendered is not None and rendered.get("status") != "True":
        why = rendered.get("message") or rendered.get("reason") or "its pipeline has not run"
        return Refusal("NotRendered", part(str(why)))
    for target in variant.status.downstream_targets if variant is not None else ():
        error = (target.render_status or {}).get("error")
        if target.name == revision["metadata"]["name"] and rendered is None and error:
            return Refusal("NotRendered", part(str(error)))
    return None


def gate_refusal(revision: Object) -> Refusal | None:
    """Return which readiness gates of a revision's next step are not met, None if all are.

    The reason says whether a proposal has lost its readiness, or waits for what only its approval needs.
    """
    unmet = gates.unmet_of(revision)
    if not unmet:
        return None
    steps = gates.steps_in(tasks.kptfile_annotations(revision), gates.gates_of(revision))
    is_for_approval = all(steps.get(gate.type) == "approve" for gate in unmet)
    return Refusal("ApprovalGateNotMet" if is_for_approval else "GateNotMet", gates.words(unmet))


def has_failed(variant: PackageVariant, revision: Object) -> bool:
    """Return whether a revision's pipeline has failed. One that waits for its first save has not: to save it
    would render it without what its variant puts into it."""
    is_deferred = _conditions(revision).get("Rendered", {}).get("reason") == "Deferred"
    return not is_deferred and _unrendered(variant, revision) is not None


def is_ready(variant: PackageVariant) -> bool:
    return unready(variant) is None


def unready(variant: PackageVariant) -> Refusal | None:
    """Return why a variant is not ready at its present generation, None if it is.

    A variant that is not ready may have a draft that does not follow its upstream."""
    ready = next((c for c in variant.status.conditions if c.type == "Ready"), None)
    if ready is None or ready.observed_generation < variant.metadata.generation:
        return Refusal(
            NOT_UP_TO_DATE, "the services have not done its last change yet: try again in a moment"
        )
    if ready.status != "True":
        return Refusal(NOT_UP_TO_DATE, f"its variant is not ready ({ready.reason}): {part(ready.message)}")
    return None


def is_outdated(variant: PackageVariant) -> bool:
    """Tell whether nothing but a newer upstream revision keeps a variant with a proposal from being ready."""
    ready = next((c for c in variant.status.conditions if c.type == "Ready"), None)
    if ready is None or ready.observed_generation < variant.metadata.generation:
        return False
    return (ready.status, ready.reason) == ("False", UPSTREAM_CHANGED)


def _conditions(revision: Object) -> Mapping[str, Object]:
    return {str(condition.get("type")): dict(condition) for condition in gates.conditions_of(revision)}
