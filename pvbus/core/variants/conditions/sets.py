"""The conditions of a set, as a truth table over its roll-up.

Source of types, reasons and messages of Stalled and Ready: Porch v1.5.8. `VariantsNotReady`, `DeletionHeld`,
`OnHold`, `Removing`, `TargetsApplied`, `AttentionNeeded` and `ExpressionDisputed` are ours.
"""

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.holds import NEEDS_PLAN, because
from pvbus.core.kernel.keys import CONFIRM_DELETION, HOLD, Key
from pvbus.core.kernel.messages import part
from pvbus.core.kernel.records import Counts, Dispute, SetResult
from pvbus.core.variants.attention import REMOVALS, VARIANTS, Need, needed
from pvbus.core.variants.notices import COUNTS_TYPE
from pvbus.core.variants.severity import DISPUTED


def set_conditions(
    result: SetResult, *, namespace: str, name: str, children_report: bool = True
) -> tuple[Condition, ...]:
    """Return the conditions of a set from its roll-up.

    children_report: False if no service reports whether a child is Ready; then applied alone decides.
    """
    key = Key(namespace, name)
    conditions = [
        *_root(result, children_report=children_report),
        *_removal(result, key),
        *_counts(result),
        *_disputed(result),
    ]
    return (*(_condition(result, *fields) for fields in conditions), *_attention(result, key))


def _attention(result: SetResult, key: Key) -> tuple[Condition, ...]:
    """Return AttentionNeeded: for held removals, and for the first variants that have this condition."""
    held = (
        [Need(REMOVALS, f"removals are held: pvbus confirm {key} --show")] if result.hold is not None else []
    )
    needs = [Need(VARIANTS, f"{child.name}: {child.message}") for child in result.attention]
    return needed([*held, *needs], result.generation, count=len(held) + result.needing)


_Fields = tuple[str, bool, str, str]
"""Type, status, reason and message of a condition."""


def _condition(result: SetResult, kind: str, status: bool, reason: str, message: str) -> Condition:
    return Condition(
        type=kind,
        status="True" if status else "False",
        reason=reason,
        message=message,
        observed_generation=result.generation,
    )


def _root(result: SetResult, *, children_report: bool) -> list[_Fields]:
    """Return Ready, and the condition that blocks the set: OnHold or Stalled."""
    if result.on_hold:
        is_unsigned = result.hold_reason.startswith(NEEDS_PLAN)
        why = result.hold_reason if is_unsigned else f"has the annotation {HOLD}{because(result.hold_reason)}"
        message = f"nothing is written for this set while it {why}"
        return [
            ("OnHold", True, "PlanRequired" if is_unsigned else "Annotation", message),
            ("Ready", False, "OnHold", message),
        ]
    if result.reason != "Valid":
        stopped = (result.reason, result.message)
        return [("Stalled", True, *stopped), ("Ready", False, *stopped)]
    valid = ("Stalled", False, "Valid", "all validation checks passed")
    return [valid, ("Ready", *_ready(result, children_report=children_report))]


def _ready(result: SetResult, *, children_report: bool) -> tuple[bool, str, str]:
    counts = result.counts
    if result.hold is not None or counts.held:
        return False, "DeletionHeld", tally(counts) + _unready(result)
    if counts.applied != counts.desired:
        return False, "Reconciling", tally(counts) + _unready(result)
    if children_report and (counts.ready != counts.desired or counts.failed):
        return False, "VariantsNotReady", tally(counts) + _unready(result)
    return True, "Reconciled", "package variants successfully reconciled"


def tally(counts: Counts) -> str:
    """Return all counts in words."""
    return (
        f"desired {counts.desired}, applied {counts.applied}, ready {counts.ready}, "
        f"failed {counts.failed}, held {counts.held}, removing {counts.removing}"
    )


def _unready(result: SetResult) -> str:
    """Name the first variants that are not ready, with their reasons."""
    if not result.unready:
        return ""
    shown = []
    for child in result.unready:
        why = ": ".join(text for text in (child.reason, child.message) if text)
        shown.append(part(f"{child.name} ({why})" if why else child.name))
    others = result.counts.desired - result.counts.ready - len(shown)
    more = f"; and {others} more" if others > 0 else ""
    return f". Not ready: {'; '.join(shown)}{more}"


def _removal(result: SetResult, key: Key) -> list[_Fields]:
    """Return DeletionHeld and Removing, where they apply."""
    removal: list[_Fields] = []
    if result.hold is not None:
        number = result.hold.count if result.hold.token else result.counts.held + result.counts.removing
        message = f"{number} deletions are held because they are too many at once; "
        if result.hold.token:
            message += (
                f"to see them: pvbus confirm {key} --show; to confirm them: pvbus confirm {key}, or "
                f"{confirm_command(key, result.hold.token)}"
            )
        else:
            message += (
                "the list of them is still being written; the command that confirms them follows once "
                "it has not grown for some seconds"
            )
        removal.append(("DeletionHeld", True, "TooManyDeletions", message))
    if result.counts.removing:
        message = f"{result.counts.removing} variants are to be removed"
        waiting = f"the end of the hold{because(result.hold_reason)}" if result.on_hold else result.waiting
        if waiting:
            message += f"; waiting for {part(waiting)}"
        removal.append(("Removing", True, "Waiting" if waiting else "InProgress", message))
    return removal


def confirm_command(key: Key, token: str) -> str:
    """Return the command that confirms held removals without pvbus."""
    annotation = f"{CONFIRM_DELETION}={token}"
    return f"kubectl annotate packagevariantset -n {key.namespace} {key.name} {annotation} --overwrite"


def _counts(result: SetResult) -> list[_Fields]:
    counts = result.counts
    if result.on_hold:  # render writes nothing, and so does not look at what is applied
        message = f"{counts.desired} variants were wanted when the hold began; they are counted when it ends"
        message += because(result.hold_reason)
        return [(COUNTS_TYPE, False, "OnHold", message)]
    if result.reason != "Valid" and counts == Counts():
        return []
    all_applied = counts.applied == counts.desired
    if counts == Counts():  # an empty selection is reported, too
        advice = "no target selects anything; check kind, name and labels in spec.targets"
        return [(COUNTS_TYPE, all_applied, "NothingSelected", f"{tally(counts)}: {advice}")]
    return [(COUNTS_TYPE, all_applied, "AllApplied" if all_applied else "InProgress", tally(counts))]


def _disputed(result: SetResult) -> list[_Fields]:
    """Return ExpressionDisputed: a warning, which changes nothing else. Its message has both answers."""
    if not result.disputes:
        return []
    shown = "; ".join(map(dispute_text, result.disputes))
    others = result.disputed - len(result.disputes)
    more = f"; and {others} more" if others > 0 else ""
    message = f"cel-python, another implementation of CEL, gives other results than pvbus: {shown}{more}"
    return [(DISPUTED, True, "SecondOpinion", message)]


def dispute_text(dispute: Dispute) -> str:
    """Return where two evaluators disagree, and their answers."""
    where = f"{part(dispute.path)}, {part(dispute.target)}"
    return f"{where}: pvbus has {dispute.ours}, cel-python {dispute.theirs}"
