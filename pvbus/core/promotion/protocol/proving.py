"""What a rollout does with the evidence of its targets: notes it, and stops without it. `limits` has when.

A target without evidence for the policy's deadline counts as failing. That says nothing against its content,
so an attempt that fails of it stops, and never rolls back.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from pvbus.core.kernel.messages import SEPARATOR, cut, part
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutEvent, TargetState
from pvbus.core.promotion.protocol.observing import PUBLISHED
from pvbus.core.promotion.protocol.trains import has_changed
from pvbus.core.promotion.protocol.turn import Turn

_BAD = {TargetState.FAILED, TargetState.REFUSED}
NO_EVIDENCE = "NoEvidence"
SHOWN_MAX = 3


def note_evidence(turn: Turn) -> None:
    """Note what each target lacks, and the status that weak evidence is compared with.

    A target that a person approved has no status from before: it counts from the first look on.
    """
    if not turn.sightings:
        return
    for row in turn.current:
        sighting = turn.sightings.get(row.target)
        if sighting is None or row.state not in (*PUBLISHED, TargetState.PLANNED, TargetState.UNDOING):
            continue
        is_held = row.state is TargetState.PLANNED and not may_be_ordered(turn, row)
        is_unproven = row.state in PUBLISHED and row.state is not TargetState.PROVEN
        is_unproven = is_unproven or turn.is_unproven_again(row)
        words = sighting.words if is_held or is_unproven else ""
        before = row.before
        if turn.rules.is_weak and not before and row.state in PUBLISHED:
            before = sighting.statuses
        if (words, before) != (row.evidence, row.before):
            turn.rows[row.target] = replace(row, evidence=words, before=before)


def may_be_ordered(turn: Turn, row: Target) -> bool:
    """Tell whether the status from before the approval is known, where it has to be."""
    sighting = turn.sightings.get(row.target)
    return not turn.rules.is_weak or (sighting is not None and bool(sighting.statuses))


def remember(turn: Turn, row: Target) -> Target:
    """Return the row of a target that is ordered now, with its status from before the approval."""
    sighting = turn.sightings.get(row.target)
    if not turn.rules.is_weak or sighting is None:
        return row
    return replace(row, before=sighting.statuses)


def silent_in(turn: Turn, failing: Iterable[Sequence[Target]]) -> list[Target]:
    """Return the first target without evidence of each unit that fails of nothing else."""
    found = []
    for members in failing:
        states = {row.state for row in members}
        if TargetState.SILENT in states and not states & _BAD and not has_changed(turn, members):
            found.append(next(row for row in members if row.state is TargetState.SILENT))
    return found


def stop_for_silence(turn: Turn, silent: list[Target]) -> None:
    """Stop an attempt whose targets have no evidence."""
    ordered = sorted(silent, key=lambda row: row.position)
    shown = SEPARATOR.join(part(f"{row.target}: {_lacks(row)}") for row in ordered[:SHOWN_MAX])
    words = "1 target has" if len(silent) == 1 else f"{len(silent)} targets have"
    stop(turn, NO_EVIDENCE, f"{words} had no evidence for {turn.rules.evidence_seconds:g} s: {shown}")


def _lacks(row: Target) -> str:
    words = row.evidence or "nothing says that it is good"
    return f"{words}, it was proven and lost that {row.losses} times" if row.losses else words


def stop(turn: Turn, reason: str, message: str) -> None:
    """Stop an attempt for want of something; it never rolls back, and nothing is quarantined."""
    turn.set(reason=reason, message=cut(message), stops=turn.rollout.stops + 1)
    turn.move(RolloutEvent.FAILED)
