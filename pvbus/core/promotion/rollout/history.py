"""The last attempts of a policy, kept in its status."""

from collections.abc import Sequence

import msgspec

from pvbus.core.api.rollouts import PastAttempt, TargetCounts
from pvbus.core.kernel.rolloutrows import Rollout
from pvbus.core.promotion.protocol.turn import ENDED

ATTEMPTS_MAX = 10


def noted(
    history: Sequence[PastAttempt], rollout: Rollout, targets: TargetCounts, now: str
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
        ended_at=((former.ended_at if is_same else None) or now) if has_ended else None,
        targets=(former.targets if is_same and former.targets else targets) if has_ended else None,
    )
    return (*earlier[-(ATTEMPTS_MAX - 1) :], current)


def _ended(history: Sequence[PastAttempt], now: str) -> Sequence[PastAttempt]:
    if not history or history[-1].ended_at:
        return history
    return (*history[:-1], msgspec.structs.replace(history[-1], ended_at=now))
