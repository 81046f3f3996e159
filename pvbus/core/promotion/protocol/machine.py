"""Takes a rollout one step: (rules, state, live facts, evidence, commands, clock) -> (new state, actions).

The step is level-based: it looks at what is, so it may be repeated with the same input, or skipped. A row is
written before its action is carried out, and the action is repeated until the live facts show it done.
"""

from collections.abc import Iterable, Mapping
from itertools import zip_longest

from pvbus.core.api.rollouts import CanaryExcuse
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.messages import SEPARATOR, cut
from pvbus.core.kernel.rolloutrows import (
    NO_COMMANDS,
    Answers,
    Commands,
    Evidence,
    Isolated,
    Rollout,
    Sighting,
    Step,
    Target,
    TargetFacts,
)
from pvbus.core.kernel.rolloutstates import (
    RolloutEvent,
    RolloutState,
    TargetEvent,
    TargetState,
    rollout_after,
)
from pvbus.core.promotion.protocol.advancing import advance
from pvbus.core.promotion.protocol.canaries import (
    FAILED,
    MISSING,
    Obstacle,
    excused_in,
    failed_canaries,
    has_to_begin_again,
    message_of,
    obstacles_in_attempt,
    obstacles_to_plan,
)
from pvbus.core.promotion.protocol.isolating import (
    fail,
    give_up,
    is_any_covered,
    isolations_of,
    roll_back,
    take_isolated,
)
from pvbus.core.promotion.protocol.limits import expire, expire_wait, note_wait
from pvbus.core.promotion.protocol.observing import (
    IN_FLIGHT,
    is_candidate,
    planned,
)
from pvbus.core.promotion.protocol.partials import judge_partials
from pvbus.core.promotion.protocol.proving import note_evidence, silent_in, stop_for_silence
from pvbus.core.promotion.protocol.rules import Rules, wave_numbers
from pvbus.core.promotion.protocol.superseding import freeze, note_newer, supersede
from pvbus.core.promotion.protocol.trains import (
    Gathered,
    couple,
    failing_units,
    gather,
    groups_of,
    keep_together,
    waiting_words,
)
from pvbus.core.promotion.protocol.turn import ABORTABLE, ADVANCING, ENDED, Turn, observe_rows

UNMET_CHARACTERS_MAX = 1_000
"""Of the text on the checks of a wave: a message stays readable, and a row small."""
SETTLE_TIMES_MAX = 10
"""Revisions that keep changing are waited for at most this many settle times."""

NO_WORDS: Mapping[str, str] = {}
NO_SIGHTINGS: Mapping[str, Sighting] = {}
RETURNED = "CanaryReturned"
BY_PERSON = "a person asked for it"

_UNFINISHED = (TargetState.CANCELLING, TargetState.UNDOING)
_UNDOABLE = (
    *ABORTABLE,
    RolloutState.ISOLATING,
    RolloutState.COMPLETED,
    RolloutState.ABORTED,
    RolloutState.SUPERSEDED,
)


def step(
    rules: Rules,
    rollout: Rollout,
    rows: Mapping[str, Target],
    seen: Mapping[str, TargetFacts],
    evidence: Mapping[str, Evidence],
    *,
    now: float,
    answers: Answers | None = None,
    isolated: Isolated | None = None,
    commands: Commands = NO_COMMANDS,
    words: Mapping[str, str] = NO_WORDS,
    sightings: Mapping[str, Sighting] = NO_SIGHTINGS,
) -> Step:
    """Take one step.

    seen: target -> its facts, in the order of the rollout
    evidence: target -> its latest evidence
    isolated: what came of the quarantine that it wanted last
    words: canary -> what stands in its way, where that is known
    sightings: target -> what was last seen of its evidence, where more than Ready is asked for
    now: the time, in seconds since 1970
    """
    turn = Turn(rules, rollout, rows, seen, evidence, words, now, commands, sightings)
    observe(turn)
    keep_together(turn)
    note_evidence(turn)
    expire(turn)
    obey(turn)
    take_isolated(turn, isolated)
    if answers is not None:
        take(turn, answers)
    judge(turn)
    judge_partials(turn)
    note_newer(turn)
    supersede(turn)
    begin_again(turn)
    proceed(turn)
    note_canaries(turn)
    freeze(turn)
    note_wait(turn)
    turn.stop_clock()
    actions = (*turn.actions(), *isolations_of(turn))
    return Step(turn.rollout, turn.changes(rows), actions, turn.wait_seconds())


def proceed(turn: Turn) -> None:
    """Settle, plan and advance, until something has to happen first."""
    while True:
        if turn.rollout.state in ENDED:
            settle(turn)
        is_over = turn.rollout.state in ENDED
        advance(turn)
        if is_over or turn.rollout.state not in ENDED:
            return


def observe(turn: Turn) -> None:
    """Bring the targets up to date. After the end of an attempt only orders that are taken back and trains
    that are undone matter, and while it is isolated nothing does."""
    if turn.rollout.state is RolloutState.ISOLATING:
        return
    is_over = turn.rollout.state in ENDED
    observe_rows(turn, [row for row in turn.current if not is_over or row.state in _UNFINISHED])


def obey(turn: Turn) -> None:
    """Do what people want of this attempt."""
    state, attempt, wanted = turn.rollout.state, turn.rollout.attempt, turn.commands
    if not attempt:
        return
    if wanted.roll_back == attempt and state in _UNDOABLE:
        roll_back(turn, "RollBackRequested", BY_PERSON, wanted.roll_back_reason)
    elif wanted.abort == attempt and is_abortable(turn):
        observe_rows(turn, turn.current)
        give_up(turn)
        turn.move(
            RolloutEvent.ABORTED,
            reason="Aborted",
            message=BY_PERSON,
            spared=wanted.abort_reason,
            superseded=0,
        )
    elif is_resumed(turn):
        failing = len(failing_units(turn))
        turn.move(
            RolloutEvent.RESUMED,
            reason="",
            message="",
            tolerated=failing,
            wave_seconds=0.0,
            phase_seconds=0.0,
        )
        why = f"a person resumed the attempt after stop {turn.rollout.stops}"
        excuse(
            turn, (CanaryExcuse(attempt=attempt, canary=each, reason=why) for each in failed_canaries(turn))
        )
    if state in ABORTABLE:
        excuse(turn, (each for each in wanted.excuses if each.attempt == attempt))
    if wanted.approve == (attempt, 0):
        turn.set(is_started=True)


def is_abortable(turn: Turn) -> bool:
    """Tell whether an attempt may be aborted: what failed is quarantined first, unless a person says why it
    is not."""
    is_spared = turn.rollout.state is RolloutState.ISOLATING and bool(turn.commands.abort_reason)
    return is_spared or turn.rollout.state in ABORTABLE


def is_resumed(turn: Turn) -> bool:
    """Tell whether an attempt goes on after a stop: nothing of it is quarantined any more."""
    is_ordered = turn.commands.resume == (turn.rollout.attempt, turn.rollout.stops)
    return is_ordered and turn.rollout.state is RolloutState.STOPPED and not is_any_covered(turn)


def excuse(turn: Turn, excuses: Iterable[CanaryExcuse]) -> None:
    """Note which canaries the attempt goes without."""
    for each in excuses:
        if each.canary in turn.rules.canaries and each.canary not in excused_in(turn):
            turn.set(excused=(*turn.rollout.excused, each))


def take(turn: Turn, answers: Answers) -> None:
    """Take the answers to the outstanding look at the checks; any other answer is old."""
    here = (turn.rollout.attempt, turn.rollout.wave, turn.rollout.ask)
    if turn.rollout.state is not RolloutState.HOLDING or turn.rollout.is_answered or answers[:3] != here:
        return
    failed, unmet = _in_words(turn, answers, False), _in_words(turn, answers, None)
    is_whole = len(answers.verdicts) == len(turn.wave.asked)
    turn.set(is_answered=True, is_passed=is_whole and all(answers.verdicts), unmet=unmet)
    if failed:
        fail(turn, "CheckFailed", f"wave {turn.rollout.wave}: failed checks: {failed}")


def _in_words(turn: Turn, answers: Answers, verdict: bool | None) -> str:
    """Return the names of the checks with a verdict, each with the reason if one is given."""
    found = [
        f"{check.name} ({words})" if words else check.name
        for check, given, words in zip_longest(turn.wave.asked, answers.verdicts, answers.words)
        if check is not None and given is verdict
    ]
    return cut(SEPARATOR.join(found), UNMET_CHARACTERS_MAX)


def judge(turn: Turn) -> None:
    """Fail an attempt that is beyond its budget or its time."""
    if turn.rollout.state not in ADVANCING:
        return
    units = failing_units(turn)
    silent = silent_in(turn, units)
    overdue = {row.target for row in silent}
    failed = {each: row for each, row in failed_canaries(turn).items() if row.target not in overdue}
    if failed:
        whys = ((each, turn.words.get(each) or row.evidence) for each, row in failed.items())
        parts = (": ".join(filter(None, (f"canary {each} fails", why))) for each, why in whys)
        fail(turn, FAILED, cut(SEPARATOR.join(parts), UNMET_CHARACTERS_MAX))
        return
    failing = len(units)
    limit = max(turn.rules.failing_max, turn.rollout.tolerated)
    bad = failing - len(silent)
    if bad > limit:
        words = "1 target fails" if bad == 1 else f"{bad} targets fail"
        fail(turn, "TooManyFailing", f"{words}, {limit} may")
    elif failing > limit or failed_canaries(turn):
        stop_for_silence(turn, silent)
    elif 0 < turn.wave.timeout_seconds <= turn.rollout.wave_seconds:
        fail(
            turn, "WaveTimeout", f"wave {turn.rollout.wave} took longer than {turn.wave.timeout_seconds:g} s"
        )
    else:
        expire_wait(turn)


def begin_again(turn: Turn) -> None:
    """End an attempt that may not approve its canary any more: the canary is proposed again, and the next
    attempt begins with it. What is on its way is proven first."""
    if turn.rollout.state not in ADVANCING or any(row.state in IN_FLIGHT for row in turn.current):
        return
    canary = has_to_begin_again(turn)
    if not canary or turn.commands.paused:
        return
    for row in turn.current:
        if row.state is TargetState.PLANNED:
            turn.turn_target(row, TargetEvent.WITHDRAWN)
    message = f"the order for canary {canary} was taken back, and it is proposed again"
    turn.move(RolloutEvent.ABORTED, reason=RETURNED, message=message)


def note_canaries(turn: Turn) -> None:
    """Note why canaries hold the attempt. Before an attempt, `settle` does."""
    if turn.rollout.state in ENDED:
        return
    is_held = turn.rollout.state in ADVANCING and any(
        row.state is TargetState.PLANNED for row in turn.current
    )
    show(turn, obstacles_in_attempt(turn) if is_held else ())


def show(turn: Turn, obstacles: Iterable[Obstacle]) -> None:
    reason, message = message_of(obstacles)
    turn.set(canary_reason=reason, canary_message=message)


def settle(turn: Turn) -> None:
    """Begin an attempt when the proposed revisions are the same for the settle time."""
    is_held = turn.rollout.needs_restart and turn.commands.restart < turn.rollout.attempt
    due: Mapping[str, TargetFacts] = {
        target: facts
        for target, facts in turn.seen.items()
        if not is_held and is_candidate(turn.rows.get(target), facts, turn.commands.restart)
    }
    is_any_due, gathered = bool(due), gather(turn, due)
    due = gathered.due
    obstacles = obstacles_to_plan(turn, due, gathered.held)
    show(turn, obstacles if is_any_due else [each for each in obstacles if each.reason == MISSING])
    turn.set(train_message=waiting_words(gathered))
    if not due or obstacles:
        turn.set(candidates="", phase_seconds=0.0, wave_seconds=0.0)
        return
    candidates = digest([f"{target} {facts.revision} {facts.digest}" for target, facts in due.items()])
    if not turn.rollout.candidates:
        turn.set(candidates=candidates, phase_seconds=0.0, wave_seconds=0.0)
    elif candidates != turn.rollout.candidates:
        turn.set(candidates=candidates, phase_seconds=0.0)
    waited = turn.rollout.wave_seconds >= turn.rules.settle_seconds * SETTLE_TIMES_MAX
    if turn.rollout.phase_seconds < turn.rules.settle_seconds and not waited:
        return
    if not turn.commands.paused and not any(row.state in _UNFINISHED for row in turn.current):
        plan(turn, gathered)


def plan(turn: Turn, gathered: Gathered) -> None:
    """Begin an attempt, with the canaries first. Rows of targets of which nothing is left go."""
    attempt = turn.rollout.attempt + 1
    former = {target: row for target, row in turn.rows.items() if target in turn.seen}
    turn.rows = dict(former)
    groups = groups_of(turn, gathered)
    canaries = sum(any(target in turn.rules.canaries for target in group) for group in groups)
    waves = list(wave_numbers(turn.rules, len(groups), canaries))
    ordered = ((target, wave) for group, wave in zip(groups, waves, strict=True) for target in group)
    for position, (target, wave) in enumerate(ordered):
        turn.rows[target] = planned(
            target, gathered.due[target], former.get(target), attempt=attempt, position=position, wave=wave
        )
    turn.rollout = Rollout(
        state=rollout_after(turn.rollout.state, RolloutEvent.PLANNED),
        attempt=attempt,
        wave=1,
        ask=turn.rollout.ask,
        superseded=turn.rollout.superseded,
        sizes=tuple(waves.count(number) for number in range(1, max(waves) + 1)),
        train_message=turn.rollout.train_message,
    )
    couple(turn, gathered)
    excuse(turn, (each for each in turn.commands.excuses if each.attempt == attempt))
