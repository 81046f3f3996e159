"""How an attempt goes on: orders approvals, waits, passes waves, or publishes former revisions again."""

from msgspec.structs import replace

from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import RolloutEvent, RolloutState, TargetEvent, TargetState
from pvbus.core.promotion.protocol.canaries import admit_canaries, excused_targets, obstacles_in_attempt
from pvbus.core.promotion.protocol.observing import FAILING, IN_FLIGHT, OPEN, PUBLISHED
from pvbus.core.promotion.protocol.partials import restore_partials, undo_units
from pvbus.core.promotion.protocol.proving import may_be_ordered, remember
from pvbus.core.promotion.protocol.trains import mates_of, orderable
from pvbus.core.promotion.protocol.turn import ADVANCING, Turn
from pvbus.core.promotion.protocol.units import LOST, count, is_begun, is_partial, unit_of, units

_TRIED = (*PUBLISHED, *FAILING)
_PRESENT = frozenset(TargetState) - frozenset(LOST)

REPLACED_SHOWN_MAX = 3


def advance(turn: Turn) -> None:
    """Go on until something has to happen first: an empty wave takes no step of its own."""
    if turn.commands.paused:
        return
    if turn.rollout.state in ADVANCING:
        admit_canaries(turn)
    while advance_once(turn):
        pass


def advance_once(turn: Turn) -> bool:
    """Take one transition, if one is due; return whether another may be due at once."""
    match turn.rollout.state:
        case RolloutState.ROLLING:
            for row in fillers(turn):
                turn.move_unit(row, turn.rollout.wave)
            order(turn)
            if is_waiting(turn):
                return False
            turn.move(
                RolloutEvent.PROVEN,
                phase_seconds=0.0,
                ask=turn.rollout.ask + 1,
                asked_seconds=0.0,
                is_answered=False,
                is_passed=False,
            )
            return True
        case RolloutState.HOLDING:
            order(turn)  # an excused canary that is back: no wave waits for it
            return hold(turn)
        case RolloutState.STOPPED:
            restore_partials(turn)
        case RolloutState.ROLLING_BACK:
            return undo(turn)
    return False


def order(turn: Turn) -> None:
    """Order the approval of the wave's targets, as many as may be in flight."""
    if not turn.may_order:
        return
    free = turn.free(IN_FLIGHT)
    waiting = [row for row in turn.below(turn.rollout.wave) if row.state is TargetState.PLANNED]
    if any(row.wave > 1 for row in waiting) and obstacles_in_attempt(turn):
        waiting = [row for row in waiting if row.wave == 1 or row.target in turn.rules.canaries]
    known = [row for row in waiting if may_be_ordered(turn, row)]
    ordered = list(orderable(turn, sorted(known, key=lambda row: row.position), free))
    for row in ordered:
        coupled = replace(remember(turn, row), mates=mates_of(turn, row, ordered))
        turn.turn_target(coupled, TargetEvent.ORDER)


def is_waiting(turn: Turn) -> bool:
    """Tell whether a wave is not over: a target of it is open, or another waits for a canary."""
    excused = excused_targets(turn)
    rows = [row for row in turn.below(turn.rollout.wave) if row.target not in excused]
    if any(row.state in OPEN and not row.rides for row in rows) or _is_any_incomplete(rows):
        return True
    is_any_left = any(
        row.state is TargetState.PLANNED and row.wave > turn.rollout.wave for row in turn.current
    )
    return is_any_left and bool(obstacles_in_attempt(turn))


def _is_any_incomplete(rows: list[Target]) -> bool:
    """Tell whether a train has begun, and is partial, or has a member that rides and is not proven now."""
    return any(
        is_partial(members) or (is_begun(members) and any(row.state in OPEN for row in members))
        for members in units(row for row in rows if row.unit).values()
    )


def hold(turn: Turn) -> bool:
    """Pass a wave whose targets are proven good, or look at its checks again."""
    if is_waiting(turn) or (not has_tried(turn) and fillers(turn)):
        turn.move(RolloutEvent.REOPENED)
        return True
    if not is_over(turn):
        ask_again(turn)
        return False
    if all(row.wave <= turn.rollout.wave for row in turn.current):
        finish(turn)
        return False
    pass_wave(turn)
    return True


def pass_wave(turn: Turn) -> None:
    """Begin the next wave. A canary that is not proven, as nobody is left whom it guards, goes along: it
    guards who returns."""
    unproven = [turn.current_row(each.canary) for each in obstacles_in_attempt(turn)]
    note_passed(turn)
    turn.move(RolloutEvent.PASSED, wave=turn.rollout.wave + 1, wave_seconds=0.0)
    for row in unproven:
        if row is not None:
            turn.move_unit(row, turn.rollout.wave)


def note_passed(turn: Turn) -> None:
    """Note which targets were proven when their wave passed: what they got stays good to go back to."""
    for row in turn.below(turn.rollout.wave):
        if row.state is TargetState.PROVEN and not row.has_passed:
            turn.rows[row.target] = replace(row, has_passed=True)


def finish(turn: Turn) -> None:
    """Complete an attempt, once no order is on its way. An excused canary that is not ordered yet waits for
    the next attempt."""
    if any(row.state in (TargetState.ORDERED, TargetState.CANCELLING) for row in turn.current):
        return
    for row in turn.current:
        if row.state is TargetState.PLANNED:
            turn.turn_target(row, TargetEvent.WITHDRAWN)
    note_passed(turn)
    turn.move(RolloutEvent.FINISHED, phase_seconds=0.0, wave_seconds=0.0, superseded=0)


def is_over(turn: Turn) -> bool:
    """Tell whether a wave passes: with its hold time, its checks and a person, unless nothing was done in
    it or a person wants the rest at once."""
    rollout, wave = turn.rollout, turn.wave
    if not has_tried(turn):
        return True
    if turn.commands.promote == rollout.attempt:
        return True
    if rollout.phase_seconds < wave.hold_seconds:
        return False
    if not is_checked(turn):
        return False
    return not wave.needs_person or turn.commands.approve == (rollout.attempt, rollout.wave)


def is_checked(turn: Turn) -> bool:
    """Tell whether all checks of the wave have passed once after its hold time."""
    rollout, wave = turn.rollout, turn.wave
    return not wave.asked or (rollout.is_passed and rollout.asked_seconds >= wave.hold_seconds)


def has_tried(turn: Turn) -> bool:
    """Tell whether any target of the wave has got its revision, or was refused it."""
    return any(
        row.wave == turn.rollout.wave and row.state in _TRIED and not row.rides for row in turn.current
    )


def fillers(turn: Turn) -> list[Target]:
    """Return who takes the place of targets that the wave has lost: the next ones, in order. An excused
    canary counts as lost until it is proven, and nobody takes a place before an open canary."""
    number, excused = turn.rollout.wave, excused_targets(turn)
    planned = turn.rollout.sizes[number - 1] if number <= len(turn.rollout.sizes) else 0
    here = (row for row in turn.current if row.wave == number)
    counted = [row for row in here if row.state not in OPEN or row.target not in excused]
    present = count(counted, _PRESENT)
    if present >= planned or obstacles_in_attempt(turn):
        return []
    later = (row for row in turn.current if row.state is TargetState.PLANNED and row.wave > number)
    first = {unit_of(row): row for row in sorted(later, key=lambda row: (-row.wave, -row.position))}
    return sorted(first.values(), key=lambda row: (row.wave, row.position))[: planned - present]


def ask_again(turn: Turn) -> None:
    """Ask for the checks again when the last answer is old, or from before the end of the hold time."""
    if turn.wave.asked and turn.rollout.is_answered and turn.rollout.phase_seconds >= turn.next_ask():
        turn.set(
            ask=turn.rollout.ask + 1,
            asked_seconds=turn.rollout.phase_seconds,
            is_answered=False,
            is_passed=False,
        )


def replaced_words(turn: Turn) -> str:
    """Name the targets that a rollback left alone: they run what it did not publish, or were held."""
    rows = sorted((row for row in turn.current if row.why), key=lambda row: row.position)
    more = f" and {len(rows) - REPLACED_SHOWN_MAX} more" if len(rows) > REPLACED_SHOWN_MAX else ""
    words = SEPARATOR.join(f"{row.target}: {row.why}" for row in rows[:REPLACED_SHOWN_MAX])
    return cut(f"{words}{more}")


def undo(turn: Turn) -> bool:
    """Publish the last good revisions of the rollback's wave again; go on when all of it is done."""
    wave = units(turn.below(turn.rollout.wave)).values()
    undo_units(turn, wave, turn.free((TargetState.UNDOING,)))
    busy = (TargetState.CANCELLING, TargetState.UNDOING, *PUBLISHED)
    if any(row.state in busy and not row.rides for row in turn.below(turn.rollout.wave)):
        return False
    if any(row.wave > turn.rollout.wave for row in turn.current):
        turn.set(wave=turn.rollout.wave + 1)
        return True
    turn.move(
        RolloutEvent.RESTORED,
        phase_seconds=0.0,
        wave_seconds=0.0,
        superseded=0,
        message=SEPARATOR.join(filter(None, (turn.rollout.message, replaced_words(turn)))),
    )
    return False
