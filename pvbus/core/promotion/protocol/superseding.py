"""What a newer upstream revision does to an attempt that goes on. Pure.

A target has moved on when its variant follows another upstream revision than planned. With `Supersede` an
attempt ends when nobody whom it waits for follows its revision any more. Failures are judged before. Orders
are taken back, proofs stay, and what is published without one is neither good nor bad. With `Finish`, and
after `SUPERSEDED_MAX` superseded attempts in a row, proposals stay as planned until the attempt is over; so
do those of trains until a newer combination ends it: see `combinations`.

An upstream revision that is quarantined supersedes nothing: who follows it keeps the planned proposal.
"""

from msgspec.structs import replace

from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.rolloutstates import RolloutEvent, RolloutState, TargetEvent, TargetState
from pvbus.core.promotion.protocol.combinations import has_successor, is_train_superseded
from pvbus.core.promotion.protocol.observing import OPEN
from pvbus.core.promotion.protocol.turn import ADVANCING, ENDED, Turn

SUPERSEDED = RolloutState.SUPERSEDED.value
NEWER_MAX = 10
"""Upstream revisions in a row: with a daily release ten days of them."""
SHOWN_MAX = 3

_USABLE = (*ADVANCING, RolloutState.ISOLATING, RolloutState.STOPPED)
_FROZEN = (
    TargetState.PLANNED,
    TargetState.LEFT,
    TargetState.ORDERED,
    TargetState.APPROVED,
    TargetState.PROVEN,
)


def note_newer(turn: Turn) -> None:
    """Note the upstream revisions that targets follow by now, and those that were gone before going out."""
    if turn.rollout.state in ENDED:
        return
    followed = {turn.seen[row.target].upstream for row in turn.current if has_successor(turn, row)}
    newer = tuple(sorted(followed)[:NEWER_MAX])
    gone = [each for each in turn.rollout.newer if each not in followed]
    before = [each for each in turn.rollout.skipped if each not in followed]
    turn.set(newer=newer, skipped=(*before, *gone)[-NEWER_MAX:])


def supersede(turn: Turn) -> None:
    """End an attempt of which nobody is left to wait for."""
    if turn.rollout.state is RolloutState.SUPERSEDED:
        _leave_unproven(turn)  # an order that was carried out before it could be taken back
    if turn.rollout.state not in ADVANCING or turn.commands.paused or turn.finishes:
        return
    if not _is_superseded(turn):
        return
    for row in turn.current:
        if row.state is TargetState.ORDERED:
            turn.turn_target(row, TargetEvent.CANCEL)
        elif row.state is TargetState.PLANNED:
            turn.turn_target(row, TargetEvent.WITHDRAWN)
    _leave_unproven(turn)
    turn.move(
        RolloutEvent.SUPERSEDED,
        reason=SUPERSEDED,
        message=_words(turn),
        superseded=turn.rollout.superseded + 1,
    )


def _is_superseded(turn: Turn) -> bool:
    """Tell whether all that an attempt waits for has moved on; where it waits for nobody, whether all have.

    Who has left alone, as by another draft of one target, supersedes nothing. Who was approved cannot leave:
    if its wave waits for nobody else, nothing could ever prove it.
    """
    if not turn.rollout.newer:
        return False
    if any(row.unit for row in turn.current):
        return is_train_superseded(turn)
    waiting = [row for row in turn.current if row.state in OPEN]
    here = [row for row in waiting if row.wave <= turn.rollout.wave]
    if here and all(row.state is TargetState.APPROVED and has_successor(turn, row) for row in here):
        return True
    if not waiting:
        waiting = [row for row in turn.current if row.state is TargetState.PROVEN]
    return all(has_successor(turn, row) for row in waiting)


def _leave_unproven(turn: Turn) -> None:
    for row in turn.current:
        if row.state is TargetState.APPROVED:
            turn.turn_target(row, TargetEvent.SUPERSEDE)


def _words(turn: Turn) -> str:
    unproven = sorted(row.target for row in turn.current if row.state is TargetState.UNPROVEN)
    parts = [f"{', '.join(turn.rollout.newer)} superseded it"]
    if unproven:
        more = f" and {len(unproven) - SHOWN_MAX} more" if len(unproven) > SHOWN_MAX else ""
        parts.append(f"published and unproven: {', '.join(unproven[:SHOWN_MAX])}{more}")
    return cut(SEPARATOR.join(parts))


def freeze(turn: Turn) -> None:
    """Note whose proposals stay as planned, so that promote does not take them back."""
    is_usable = turn.rollout.state in _USABLE
    for row in turn.current:
        is_finishing = is_usable and (turn.finishes or bool(row.unit))
        is_frozen = is_finishing and row.state in _FROZEN and not row.rides
        if row.is_frozen is not is_frozen:
            turn.rows[row.target] = replace(row, is_frozen=is_frozen)
