"""Looks at the evidence of a rollout's targets before each step, as far as looks are due."""

import math
from collections.abc import Generator, Mapping
from typing import Any

from pvbus.core.kernel.effects import Effect
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.rolloutrows import Evidence
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.evidence import UNREAD, Proof
from pvbus.core.promotion.rollout.checking import UNANSWERED_MAX
from pvbus.core.promotion.rollout.looking import Look, look_at
from pvbus.core.promotion.rollout.sightings import (
    restored_targets,
    sharers_of,
    subject_of,
    unseen,
    watched_targets,
)
from pvbus.core.promotion.rollout.state import RolloutData


def evidence_of(data: RolloutData) -> Mapping[str, Evidence]:
    """Return what is known of the targets of the present attempt."""
    ready = data.candidates.evidence(data.present.attempt)
    if not _is_wanted(data):
        return ready
    again = restored_targets(data.present, data.rows, data.candidates)
    return {**data.sightings.evidence(ready), **data.sightings.proofs(again)}


def look_at_evidence(key: Key, data: RolloutData, now: float) -> Generator[Effect, Any, bool]:
    """Take the looks that are due. Returns whether the rollout may go on: not before each target that was
    judged has been looked at again after a restart."""
    if not _is_wanted(data):
        return True
    watched, proven = _watched(data), _proven(data)
    data.sightings.forget_all_but(watched)
    due = data.sightings.due(watched, proven, now)
    sharers = sharers_of(data.candidates) if due else {}
    unanswered = 0
    for target in due:
        if unanswered >= UNANSWERED_MAX:
            words = f"not looked at, as {unanswered} looks before it got no answer"
            data.sightings.note(target, watched[target], Look(Proof(None, UNREAD, words)), now)
            continue
        wanted, rollout = data.wanted, data.present
        if wanted is None:
            return False
        first = data.sightings.first(target, watched[target])
        subject = subject_of(
            target, watched[target], rollout, data.rows.get(target), data.candidates, sharers, first
        )
        look = yield from look_at(wanted.policy.spec, subject, now, key.namespace)
        unanswered += not look.is_answered
        data.sightings.note(target, watched[target], look, now)
    return not unseen(data.sightings, _watched(data), data.rows)


def touch_evidence(data: RolloutData, target: str) -> None:
    """Look at a target soon, as what promote says of it has changed."""
    if _is_wanted(data):
        data.sightings.touch(target)


def next_look(data: RolloutData, now: float) -> float:
    """Return when the next look is due, in seconds since 1970; infinite for never."""
    if not _is_wanted(data):
        return math.inf
    due = data.sightings.next_at(_watched(data), _proven(data), now)
    return due if due is not None else math.inf


def _is_wanted(data: RolloutData) -> bool:
    rules = data.wanted.rules if data.wanted is not None else None
    return rules is not None and rules.is_evidenced


def _watched(data: RolloutData) -> dict[str, tuple[str, str, int]]:
    assert data.wanted is not None
    assert data.wanted.rules is not None
    return watched_targets(data.wanted.rules, data.present, data.rows, data.candidates)


def _proven(data: RolloutData) -> set[str]:
    return {target for target, row in data.rows.items() if row.state is TargetState.PROVEN}
