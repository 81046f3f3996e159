"""The status of a RolloutPolicy: its phase, counts, conditions, and the last attempts.

It is of one size for any fleet. Its messages have no numbers that change with every target: these are in
`targets`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Any

import msgspec

from pvbus.core.api.rollouts import PROGRESSING, PastAttempt, RolloutPolicy, RolloutPolicyStatus, TargetCounts
from pvbus.core.api.variants import Condition
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import SEPARATOR, cut, part
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.rolloutstates import RolloutState, TargetState
from pvbus.core.promotion.protocol.limits import NOT_PASSED
from pvbus.core.promotion.protocol.observing import FAILING, IN_FLIGHT
from pvbus.core.promotion.protocol.partials import TRAIN_PARTIAL, partial_words
from pvbus.core.promotion.protocol.proving import NO_EVIDENCE
from pvbus.core.promotion.protocol.rules import Rules, WaveRules
from pvbus.core.promotion.protocol.selection import Selection, conditions_of
from pvbus.core.promotion.protocol.stops import MOVING, UNDOING, Standstill
from pvbus.core.promotion.protocol.turn import ADVANCING, ENDED
from pvbus.core.promotion.protocol.units import state_of, units
from pvbus.core.promotion.protocol.windows import DAYS_AHEAD, Calendar
from pvbus.core.promotion.rollout.candidates import Candidates
from pvbus.core.promotion.rollout.quarantining import quarantine_name, quarantine_names
from pvbus.core.promotion.rollout.recovery import LOST
from pvbus.core.promotion.rollout.reminding import (
    FOR_PERSON,
    Awaited,
    Progress,
    reminded,
    wait_of,
)
from pvbus.core.promotion.rollout.state import Wanted
from pvbus.core.promotion.rollout.waiting import canary_advice
from pvbus.core.variants.publishing import merge

QUARANTINE_REFUSED = "QuarantineRefused"
NEVER_OPENS = "NeverOpens"
TRAIN_INCOMPLETE = "TrainIncomplete"
RUNS_QUARANTINED = "RunsQuarantined"
RUNS_SHOWN_MAX = 3
MESSAGE_CHARACTERS_MAX = 2_000
"""The history has a message of each attempt, and the status stays small."""
FAILURES_SHOWN_MAX = 3
COMBINATIONS_SHOWN_MAX = 3
EVIDENCED = (TargetState.PLANNED, TargetState.APPROVED)
"""A target in such a state may wait for its evidence."""

_COUNTED: Mapping[TargetState, str] = {
    **dict.fromkeys((TargetState.PLANNED,), "waiting"),
    **dict.fromkeys(IN_FLIGHT, "in_flight"),
    TargetState.PROVEN: "proven",
    TargetState.UNPROVEN: "unproven",
    **dict.fromkeys(FAILING, "failing"),
    TargetState.UNDOING: "failing",
    TargetState.STRANDED: "failing",
    TargetState.UNDONE: "rolled_back",
    **dict.fromkeys((TargetState.LEFT, TargetState.GONE, TargetState.SKIPPED), "left"),
}


def standing_of(policy: RolloutPolicy, *, paused: bool) -> str:
    """Say where a policy's rollout is: "attempt 3 is Holding in wave 2 of 4"."""
    status = policy.status
    if not status.attempt:
        return "no attempt yet"
    wave = f" in wave {status.wave} of {max(len(policy.spec.waves), 1)}"
    if status.phase == RolloutState.ROLLING_BACK:
        wave += " of the rollback"  # its waves are those of the attempt, and count from 1 again
    elif status.phase == RolloutState.ROLLED_BACK:
        wave = ""
    return f"attempt {status.attempt} is {status.phase}{wave}{', paused' if paused else ''}"


def status_of(
    wanted: Wanted,
    rollout: Rollout,
    rows: Mapping[str, Target],
    candidates: Candidates,
    now: float,
    stored: RolloutPolicyStatus,
    standstill: Standstill = MOVING,
) -> RolloutPolicyStatus:
    """Return the status of a policy. stored: the present one."""
    counts, runs = counts_of(rollout, rows.values()), candidates.runs_in(rows.values())
    shown = msgspec.structs.replace(rollout, message=cut(rollout.message, MESSAGE_CHARACTERS_MAX))
    generation = wanted.policy.metadata.generation
    selection = Selection(wanted.policy, {}, [], candidates.lost, wanted.problems)
    progress = progress_of(wanted, shown, counts, now, standstill)
    going = Condition(
        type=PROGRESSING,
        status="True" if progress.awaited is Awaited.ITSELF else "False",
        reason=progress.reason,
        message=cut(progress.message, MESSAGE_CHARACTERS_MAX),
        observed_generation=generation,
    )
    if rollout.state is RolloutState.STOPPED and rollout.reason not in (NO_EVIDENCE, NOT_PASSED):
        going = msgspec.structs.replace(
            going, message=_with_failures(going.message, rollout, rows, candidates)
        )
    elif rollout.state in ADVANCING:
        going = _with_evidence(going, rollout, rows)
    desired = (*(_with_unread(each, wanted) for each in conditions_of(selection, now)), going)
    desired = (*desired, *_runs_quarantined(runs, stored, generation))
    desired = (*desired, *_train_partial(rollout, rows, stored, generation))
    written = quarantine_names(wanted.policy, rollout.attempt, rollout.isolations)
    wait = wait_of(progress.awaited, going, rollout, rows.values(), now)
    return RolloutPolicyStatus(
        conditions=reminded(merge(stored.conditions, desired, now), wait, now, generation),
        observed_generation=generation,
        phase=rollout.state.value,
        attempt=rollout.attempt,
        wave=rollout.wave,
        stops=rollout.stops,
        targets=counts,
        runs_quarantined=len(runs),
        superseded=rollout.superseded,
        newer=rollout.newer,
        history=noted(stored.history, shown, counts, timestamp(now), written, _combinations(rollout, rows)),
    )


def _runs_quarantined(
    runs: Mapping[str, str], stored: RolloutPolicyStatus, generation: int
) -> Iterator[Condition]:
    """Yield the condition that says which targets run what is quarantined, once there were any."""
    if not runs and all(each.type != RUNS_QUARANTINED for each in stored.conditions):
        return
    first = SEPARATOR.join(f"{target} ({runs[target]})" for target in nsmallest(RUNS_SHOWN_MAX, runs))
    more = len(runs) - RUNS_SHOWN_MAX
    message = (
        f"{first}{f' and {more} more' if more > 0 else ''}: each keeps it until it is rolled back"
        if runs
        else ""
    )
    yield Condition(
        type=RUNS_QUARANTINED,
        status="True" if runs else "False",
        reason="Quarantined" if runs else "NothingQuarantined",
        message=cut(message, MESSAGE_CHARACTERS_MAX),
        observed_generation=generation,
    )


def _train_partial(
    rollout: Rollout, rows: Mapping[str, Target], stored: RolloutPolicyStatus, generation: int
) -> Iterator[Condition]:
    """Yield the condition that names the trains with only a part of their revisions, once there were any."""
    words = partial_words(row for row in rows.values() if row.attempt == rollout.attempt)
    if not words and all(each.type != TRAIN_PARTIAL for each in stored.conditions):
        return
    yield Condition(
        type=TRAIN_PARTIAL,
        status="True" if words else "False",
        reason="PartOfTrain" if words else "NoTrainPartial",
        message=cut(words, MESSAGE_CHARACTERS_MAX),
        observed_generation=generation,
    )


def _combinations(rollout: Rollout, rows: Mapping[str, Target]) -> tuple[str, ...]:
    """Return the combinations of an attempt, as many as a status shows."""
    current = (row for row in rows.values() if row.attempt == rollout.attempt and row.combination)
    found = {" + ".join(each or "unknown" for each in row.combination) for row in current}
    return tuple(nsmallest(COMBINATIONS_SHOWN_MAX, found))


def _with_unread(condition: Condition, wanted: Wanted) -> Condition:
    """Say which orders in the annotations cannot be read: their writer waits for something."""
    condition = msgspec.structs.replace(condition, message=cut(condition.message, MESSAGE_CHARACTERS_MAX))
    if condition.type != "Accepted" or condition.status != "True" or not wanted.unread:
        return condition
    message = cut("; ".join(wanted.unread), MESSAGE_CHARACTERS_MAX)
    return msgspec.structs.replace(condition, reason="UnreadableOrder", message=message)


def _with_failures(message: str, rollout: Rollout, rows: Mapping[str, Target], candidates: Candidates) -> str:
    """Name the first failing targets, with what they fail of."""
    failing = (t for t, row in rows.items() if row.attempt == rollout.attempt and row.state in FAILING)
    shown = nsmallest(FAILURES_SHOWN_MAX, failing)
    words = SEPARATOR.join(
        part(f"{target}: {rows[target].evidence or candidates.failure(target)}") for target in shown
    )
    return cut(f"{message}{words and f' ({words})'}", MESSAGE_CHARACTERS_MAX)


def counts_of(rollout: Rollout, rows: Iterable[Target]) -> TargetCounts:
    """Count the units of the current attempt: targets, and trains as one."""
    current = (row for row in rows if row.attempt == rollout.attempt)
    states = Counter(map(state_of, units(current).values()))
    found: Counter[str] = Counter()
    for state, number in states.items():
        is_left = state is TargetState.APPROVED and rollout.state in ENDED
        found["unproven" if is_left else _COUNTED[state]] += number
    return TargetCounts(total=states.total(), **found)


def progress_of(
    wanted: Wanted, rollout: Rollout, counts: TargetCounts, now: float, standstill: Standstill = MOVING
) -> Progress:
    """Return whether a rollout goes on, and what it waits for."""
    rules = wanted.rules
    is_stopped = rollout.state is RolloutState.STOPPED
    if standstill.holds(is_rollback=rollout.state in UNDOING) and not is_stopped:
        return Progress(Awaited.PERSON, standstill.reason, standstill.message)
    if rules is None:
        return Progress(Awaited.PERSON, "InvalidSpec", "nothing is ordered before the spec is valid")
    if wanted.commands.paused and not is_stopped:
        return Progress(
            Awaited.PERSON, "Paused", "nothing is ordered, and no time counts; what was ordered goes on"
        )
    match rollout.state:
        case RolloutState.ROLLING:
            return _rolling(wanted, rules, rollout, counts, now)
        case RolloutState.HOLDING:
            return _holding(wanted, rules, rollout)
        case RolloutState.ISOLATING:
            return _isolating(wanted, rollout)
        case RolloutState.STOPPED:
            why = f"{rollout.message}. A person resumes, aborts or rolls it back"
            return Progress(Awaited.PERSON, rollout.reason, why)
        case RolloutState.ROLLING_BACK:
            return Progress(
                Awaited.ITSELF,
                rollout.reason,
                f"the last good revisions are published again: {rollout.message}",
            )
    return _over(wanted, rules, rollout)


def _isolating(wanted: Wanted, rollout: Rollout) -> Progress:
    """Say what keeps a quarantine from being written, and who must act."""
    meta = wanted.policy.metadata
    name = f"{meta.namespace}/{quarantine_name(wanted.policy, rollout.attempt, rollout.isolations + 1)}"
    then = "it is rolled back" if rollout.undoes else "it stops"
    if not rollout.refusal:
        why = (
            f"{rollout.message}; before {then}, all its targets must be seen as covered by quarantine {name}"
        )
        return Progress(Awaited.ITSELF, RolloutState.ISOLATING.value, why)
    without = _command(wanted, "roll-back" if rollout.undoes else "abort")
    return Progress(
        Awaited.PERSON,
        QUARANTINE_REFUSED,
        f"quarantine {name} cannot be written, and nothing is undone before: {rollout.refusal}. Let the "
        f"account of rollout create quarantines, or go without: {without} --no-quarantine --reason TEXT. "
        f"What it is for: {rollout.message}",
    )


def _over(wanted: Wanted, rules: Rules, rollout: Rollout) -> Progress:
    if rollout.candidates:
        settled = f"the proposed revisions have not changed for {rules.settle_seconds:g} s"
        return Progress(Awaited.ITSELF, "Settling", f"the waves are planned when {settled}")
    if rollout.needs_restart and wanted.commands.restart < rollout.attempt:
        why = f"the bus was emptied, and with it what attempt {rollout.attempt} did not prove"
        return Progress(
            Awaited.PERSON, LOST, f"{why}: a person has to restart it ({_command(wanted, 'restart')})"
        )
    if rollout.canary_reason:
        return _held(wanted, rollout)
    if rollout.train_message:
        return Progress(Awaited.PERSON, TRAIN_INCOMPLETE, rollout.train_message)
    if rollout.state is RolloutState.IDLE:
        return Progress(Awaited.CHANGE, "NothingProposed", "no revision that may be approved is proposed")
    return Progress(Awaited.CHANGE, rollout.state.value, rollout.message)


def _rolling(wanted: Wanted, rules: Rules, rollout: Rollout, counts: TargetCounts, now: float) -> Progress:
    is_promoted = wanted.commands.promote == rollout.attempt
    wave = _wave(rules, rollout)
    if rules.needs_start and not rollout.is_started and not is_promoted:
        why = "the first wave begins when a person approves it"
        return Progress(Awaited.PERSON, FOR_PERSON, f"{why}: {_command(wanted, 'approve')}")
    if rollout.canary_reason:
        return _held(wanted, rollout)
    calendar = wave.calendar(wanted.commands, rollout.attempt)
    if not counts.in_flight and not calendar.is_open(now):
        return _closed(wanted, calendar, now)
    where = f"wave {rollout.wave} of {len(rules.waves)}"
    if is_promoted and wanted.commands.promote_reason:
        where += f", promoted whatever the time: {wanted.commands.promote_reason}"
    return Progress(Awaited.ITSELF, "Approving", where)


def _with_evidence(progress: Condition, rollout: Rollout, rows: Mapping[str, Target]) -> Condition:
    """Name the first targets that wait for evidence, and what it lacks, with the reason of the first."""
    unproven = {
        target: row.evidence
        for target, row in rows.items()
        if row.attempt == rollout.attempt and row.state in EVIDENCED and row.evidence
    }
    shown = nsmallest(FAILURES_SHOWN_MAX, unproven)
    if not shown:
        return progress
    words = SEPARATOR.join(part(f"{target}: {unproven[target]}") for target in shown)
    reason = unproven[shown[0]].partition(":")[0] if progress.status == "True" else progress.reason
    message = cut(f"{progress.message} ({words})", MESSAGE_CHARACTERS_MAX)
    return msgspec.structs.replace(progress, reason=reason, message=message)


def _closed(wanted: Wanted, calendar: Calendar, now: float) -> Progress:
    opens = calendar.opens_at(now)
    if opens == float("inf"):
        why = (
            f"nothing may be approved in the next {DAYS_AHEAD} days: change spec.windows or spec.denyWindows"
        )
        return Progress(Awaited.PERSON, NEVER_OPENS, why)
    then = f"the next time window opens at {timestamp(opens)}"
    if calendar.is_denied(now):
        then += f"; spec.denyWindows denies this time: {_command(wanted, 'promote')} --reason TEXT passes it"
    return Progress(Awaited.TIME, "OutsideWindows", then)


def _held(wanted: Wanted, rollout: Rollout) -> Progress:
    """Say which canary others wait for, and who must act."""
    advice = canary_advice(Key(wanted.policy.metadata.namespace, wanted.policy.metadata.name))
    message = f"nothing more is approved before its canaries: {rollout.canary_message}; {advice}"
    return Progress(Awaited.PERSON, rollout.canary_reason, message)


def _holding(wanted: Wanted, rules: Rules, rollout: Rollout) -> Progress:
    wave = _wave(rules, rollout)
    where = f"wave {rollout.wave} of {len(rules.waves)} is proven good"
    if rollout.phase_seconds < wave.hold_seconds:
        return Progress(Awaited.ITSELF, "Holding", f"{where}, and is held for {wave.hold_seconds:g} s")
    if wave.asked and not (rollout.is_passed and rollout.asked_seconds >= wave.hold_seconds):
        waits = rollout.unmet or ", ".join(check.name for check in wave.asked)
        return Progress(Awaited.ITSELF, "ChecksPending", f"{where}; these checks must pass: {waits}")
    if wave.needs_person and wanted.commands.approve != (rollout.attempt, rollout.wave):
        asked = " ".join(check.person.question for check in wave.checks if check.person is not None)
        why = f"{where}, and waits for a person{asked and f': {asked}'}"
        return Progress(Awaited.PERSON, FOR_PERSON, f"{why} ({_command(wanted, 'approve')})")
    return Progress(Awaited.ITSELF, "Holding", where)


def _wave(rules: Rules, rollout: Rollout) -> WaveRules:
    return rules.waves[min(rollout.wave, len(rules.waves)) - 1]


def _command(wanted: Wanted, name: str) -> str:
    meta = wanted.policy.metadata
    return f"pvbus rollout {name} {meta.namespace}/{meta.name}"


def body_of(stored: bytes, status: RolloutPolicyStatus) -> dict[str, Any]:
    """Return the policy with its status, as it is written. The definition requires a message, also an empty
    one."""
    written = msgspec.to_builtins(status)
    written["conditions"] = [{"message": "", **each} for each in written.get("conditions", ())]
    return {**msgspec.json.decode(stored), "status": written}


ATTEMPTS_MAX = 10


def noted(
    history: Sequence[PastAttempt],
    rollout: Rollout,
    targets: TargetCounts,
    now: str,
    quarantines: tuple[str, ...] = (),
    combinations: tuple[str, ...] = (),
) -> tuple[PastAttempt, ...]:
    """Return the history with the current attempt as it is. now: RFC 3339 in UTC.

    An attempt that is rolled back after its end goes on, and ends again. One whose end was not seen, as the
    next one followed at once, ends then.
    """
    if not rollout.attempt:
        return tuple(history)
    last = history[-1] if history and history[-1].attempt == rollout.attempt else None
    earlier = history[:-1] if last is not None else _ended(history, now)
    has_ended = rollout.state in ENDED
    former = last or PastAttempt(attempt=rollout.attempt, started_at=now)
    is_same = former.phase == rollout.state
    current = msgspec.structs.replace(
        former,
        phase=rollout.state.value,
        wave=rollout.wave,
        reason=rollout.reason,
        message=rollout.message,
        excused=rollout.excused,
        quarantines=quarantines,
        combinations=combinations,
        not_quarantined=rollout.spared,
        skipped=rollout.skipped,
        ended_at=((former.ended_at if is_same else None) or now) if has_ended else None,
        targets=(former.targets if is_same and former.targets else targets) if has_ended else None,
    )
    return (*earlier[-(ATTEMPTS_MAX - 1) :], current)


def _ended(history: Sequence[PastAttempt], now: str) -> Sequence[PastAttempt]:
    if not history or history[-1].ended_at:
        return history
    return (*history[:-1], msgspec.structs.replace(history[-1], ended_at=now))
