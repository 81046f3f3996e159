"""A RolloutPolicy as the page shows it: its attempt, the counts of its targets, and what it waits for.

Apart from `document`, whose rows are lists, and which knows nothing of the wing of promotion.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pvbus.core.api.rollouts import RolloutPolicy, TargetCounts
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.rolloutrows import Commands
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.rules import rules_of
from pvbus.core.promotion.protocol.validation import validate_policy
from pvbus.core.promotion.rollout.commanding import commands_of
from pvbus.core.promotion.rollout.report import standing_of
from pvbus.core.promotion.rollout.waiting import waits_of

_ADVANCING = (RolloutState.ROLLING, RolloutState.HOLDING)


def document_of(key: Key, policy: RolloutPolicy, now: float) -> Mapping[str, Any]:
    """Return plain values, of one size for any number of targets. now: seconds since 1970."""
    status = policy.status
    commands, wrong = commands_of(policy.metadata.annotations)
    problems = validate_policy(policy.spec)
    return {
        "name": str(key),
        **head_of(policy, commands),
        "problems": [cut(words) for words in (*problems, *wrong)],
        "conditions": [
            {"type": each.type, "status": each.status, "reason": each.reason, "message": cut(each.message)}
            for each in status.conditions
        ],
        "waits": [] if problems else [cut(words) for words in waits_of(key, policy, None, now)],
        "verbs": (verbs := _verbs(policy, paused=commands.paused)),
        "orders": [f"pvbus rollout {verb} {key}" for verb in verbs],
        "history": [msgspec.to_builtins(each) for each in reversed(status.history)],
    }


def head_of(policy: RolloutPolicy, commands: Commands) -> Mapping[str, Any]:
    """Return where the attempt of a policy is, for the page and the command line.

    commands: those in its annotations
    """
    status = policy.status
    return {
        "phase": status.phase,
        "attempt": status.attempt,
        "wave": status.wave,
        "waves": max(len(policy.spec.waves), 1),
        "paused": commands.paused,
        "standing": standing_of(policy, paused=commands.paused),
        "runsQuarantined": status.runs_quarantined,
        "counts": msgspec.to_builtins(status.targets or TargetCounts()),
    }


def _verbs(policy: RolloutPolicy, *, paused: bool) -> list[str]:
    """Return the commands that a person may want now."""
    phase = policy.status.phase
    if phase == RolloutState.STOPPED:
        return ["resume", "abort", "roll-back"]
    if phase == RolloutState.ISOLATING:
        return ["roll-back"]
    if phase in _ADVANCING:
        asked = ["approve"] if _awaits_person(policy) else []
        return ["resume" if paused else "pause", *asked, "promote", "abort", "roll-back"]
    return ["resume"] if paused else []


def _awaits_person(policy: RolloutPolicy) -> bool:
    """Return whether a person approves the start, or the end of the wave."""
    if validate_policy(policy.spec):
        return False
    rules, status = rules_of(policy.spec), policy.status
    if status.phase == RolloutState.ROLLING:
        return status.wave == 1 and rules.needs_start
    return rules.waves[min(max(status.wave, 1), len(rules.waves)) - 1].needs_person
