"""How long a rollout waits for anything but a person and release. Pure.

Such a wait has a limit, the policy's deadline for evidence where nothing else is said, and ends in `Stopped`:
what is missing says nothing against a revision, so it neither approves, nor rolls back, nor is quarantined.

| waits for | since | without it |
| --- | --- | --- |
| evidence of a target | its approval, or the loss of its proof | fails, beyond the budget `NoEvidence` |
| evidence that lasts | the target lost its proof `LOSSES_MAX` times | the same |
| the status from before an order, for weak evidence | nothing is in flight | `NoEvidence` |
| the checks of a wave without a `timeout` | the end of its hold time | `ChecksNotPassed` |

Only watched time counts, while windows are open: no pause, no stop, and no closed window.
"""

from pvbus.core.kernel.messages import SEPARATOR, part
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetEvent, TargetState
from pvbus.core.promotion.protocol.advancing import has_tried, is_checked
from pvbus.core.promotion.protocol.observing import IN_FLIGHT
from pvbus.core.promotion.protocol.proving import NO_EVIDENCE, SHOWN_MAX, may_be_ordered, stop
from pvbus.core.promotion.protocol.rules import QUERY_WINDOW, seconds_of
from pvbus.core.promotion.protocol.turn import ADVANCING, Turn

LOSSES_MAX = 5
"""Lost proofs of one target in an attempt. Fewer, and a cluster that restarts twice counts as failing; more,
and a target that comes and goes keeps its wave open for longer."""
CHECKS = "checks"
STATUSES = "statuses"
NOT_PASSED = "ChecksNotPassed"


def expire(turn: Turn) -> None:
    """Give up on targets that had no evidence for the whole deadline, or lost it too often."""
    deadline = turn.rules.evidence_seconds
    if not deadline or turn.rollout.state not in ADVANCING:
        return
    for row in turn.current:
        if row.state is TargetState.APPROVED and (
            turn.rollout.watched_seconds - row.since >= deadline or row.losses >= LOSSES_MAX
        ):
            turn.turn_target(row, TargetEvent.OVERDUE)


def expire_wait(turn: Turn) -> None:
    """Stop an attempt that has waited for too long for what no target is late with."""
    kind, limit = waited_for(turn), limit_of(turn)
    if not kind or kind != turn.rollout.waits_for or turn.rollout.waited_seconds < limit:
        return
    if kind == CHECKS:
        unmet = turn.rollout.unmet or ", ".join(check.name for check in turn.wave.asked)
        words = f"wave {turn.rollout.wave}: checks did not pass within {limit:g} s of its hold time: {unmet}"
        stop(turn, NOT_PASSED, words)
    else:
        rows = _unknown(turn)[:SHOWN_MAX]
        shown = SEPARATOR.join(part(f"{row.target}: {row.evidence or 'not looked at'}") for row in rows)
        stop(turn, NO_EVIDENCE, f"no status from before the approval for {limit:g} s: {shown}")


def note_wait(turn: Turn) -> None:
    """Note what the attempt waits for after this step, and begin to count where that is something else."""
    kind = "" if turn.commands.paused else waited_for(turn)
    if turn.commands.paused and turn.rollout.waits_for:
        return
    if kind != turn.rollout.waits_for:
        turn.set(waits_for=kind, waited_seconds=0.0)


def waited_for(turn: Turn) -> str:
    """Return what an attempt waits for that has a limit of its own, "" for nothing."""
    if not turn.rules.evidence_seconds:
        return ""
    if turn.rollout.state is RolloutState.HOLDING:
        is_due = turn.rollout.phase_seconds >= turn.wave.hold_seconds and not turn.wave.timeout_seconds
        is_asked = is_due and has_tried(turn) and turn.commands.promote != turn.rollout.attempt
        return CHECKS if is_asked and not is_checked(turn) else ""
    is_idle = turn.rollout.state is RolloutState.ROLLING and turn.rules.is_weak
    is_idle = is_idle and not any(row.state in IN_FLIGHT for row in turn.current)
    return STATUSES if is_idle and turn.may_order and _unknown(turn) else ""


def limit_of(turn: Turn) -> float:
    """Return how long it may wait: a query has to see the whole of its window."""
    queries = (check.query for check in turn.wave.asked if check.query is not None)
    windows = (seconds_of(query.window or QUERY_WINDOW) for query in queries)
    return turn.rules.evidence_seconds + max(windows, default=0.0)


def _unknown(turn: Turn) -> list[Target]:
    """Return the targets of the wave that cannot be ordered before their status is known, in order."""
    waiting = (row for row in turn.below(turn.rollout.wave) if row.state is TargetState.PLANNED)
    return sorted((row for row in waiting if not may_be_ordered(turn, row)), key=lambda row: row.position)
