"""What a rollout waits for, in words."""

from collections.abc import Iterator

from pvbus.core.api.rollouts import Check, RolloutPolicy
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.rolloutrows import Rollout
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import QUERY_WINDOW, WaveRules, rules_of
from pvbus.core.promotion.rollout.commanding import commands_of


def waits_of(key: Key, policy: RolloutPolicy, rollout: Rollout | None, now: float) -> Iterator[str]:
    """Yield what has to happen before a rollout goes on, each with what a person can do.

    rollout: None where only the status of the policy is known. The spec must be a valid one.
    """
    commands, _ = commands_of(policy.metadata.annotations)
    status = policy.status
    if commands.paused:
        yield f"a person, as it is paused: pvbus rollout resume {key}"
    if status.phase == RolloutState.ISOLATING:
        words = next((each.message for each in status.conditions if each.type == "Progressing"), "")
        yield f"a quarantine of what failed: {words}"
    if status.phase == RolloutState.STOPPED:
        yield f"a person, as it stopped: pvbus rollout resume, abort or roll-back {key}"
        yield from release_waits(key, policy)
    if rollout is not None:
        yield from planning_waits(key, rollout)
    if status.phase not in (RolloutState.ROLLING, RolloutState.HOLDING):
        return
    rules = rules_of(policy.spec)
    wave = rules.waves[min(max(status.wave, 1), len(rules.waves)) - 1]
    if status.phase == RolloutState.ROLLING:
        is_started = commands.approve == (status.attempt, 0) or (rollout is not None and rollout.is_started)
        if rules.needs_start and status.wave == 1 and not is_started and commands.promote != status.attempt:
            yield f"a person, to begin: pvbus rollout approve {key}"
        opens = wave.calendar(commands, status.attempt).opens_at(now)
        if opens > now:
            yield f"its time window, which opens at {_time(opens)}"
        if status.targets is not None and status.targets.in_flight:
            yield f"{status.targets.in_flight} in flight to prove good"
        return
    yield from _holding(key, policy, wave, rollout, approved=commands.approve)


def release_waits(key: Key, policy: RolloutPolicy) -> Iterator[str]:
    """Yield the quarantines of an attempt that has stopped: it is not resumed before they end."""
    history = policy.status.history
    last = history[-1] if history and history[-1].attempt == policy.status.attempt else None
    for name in last.quarantines if last is not None else ():
        yield (
            "a release before it is resumed, while the quarantine lasts: pvbus rollout release "
            f"{Key(key.namespace, name)} --reason TEXT"
        )


def planning_waits(key: Key, rollout: Rollout) -> Iterator[str]:
    """Yield the canaries that a rollout waits for, and the trains that are not planned."""
    if rollout.canary_reason:
        yield f"its canaries ({rollout.canary_reason}): {rollout.canary_message}; {canary_advice(key)}"
    if rollout.train_message:
        yield f"what these trains lack, before they are planned: {rollout.train_message}"


def canary_advice(key: Key) -> str:
    """Say what a person can do about a canary that others wait for."""
    return (
        "mend that, change spec.canaries, or go without it in one attempt: "
        f"pvbus rollout excuse {key} CANARY --reason TEXT"
    )


def _holding(
    key: Key, policy: RolloutPolicy, wave: WaveRules, rollout: Rollout | None, *, approved: tuple[int, int]
) -> Iterator[str]:
    status = policy.status
    passed = rollout.phase_seconds if rollout is not None else 0.0
    if wave.hold_seconds > passed:
        words = f", {passed:.0f} s of it have passed" if rollout is not None else ""
        yield f"the hold time of {wave.hold_seconds:.0f} s{words}"
    for check in wave.asked:
        yield f"the check {check.name}: {described(check)}"
    if wave.needs_person and approved != (status.attempt, status.wave):
        asked = " ".join(check.person.question for check in wave.checks if check.person is not None)
        yield f"a person{f' ({asked})' if asked else ''}: pvbus rollout approve {key}"


def _time(seconds: float) -> str:
    if seconds == float("inf"):
        return "no time in the next 90 days"
    return timestamp(seconds)


def described(check: Check) -> str:
    """Return in words what a check waits for."""
    if check.object is not None:
        found = check.object
        where = f"{found.namespace}/{found.name}" if found.namespace else found.name
        return f"{found.kind} {where}: {found.expression}"
    if check.query is not None:
        query = check.query
        least = f" at least {query.min:g}" if query.min is not None else ""
        most = f" at most {query.max:g}" if query.max is not None else ""
        limits = f"{least}{' and' if least and most else ''}{most}"
        return f"{query.expression}{limits} for {query.window or QUERY_WINDOW}"
    assert check.person is not None
    return f"a person: {check.person.question}"
