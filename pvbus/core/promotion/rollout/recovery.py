"""Takes a rollout up from the status of its policy, where the bus was emptied and has no row of it.

The numbers of attempts go on. If they began again, an annotation for a former attempt would approve, promote
or abort a new one, and a rollback would meet the revision that a former one published. What the last attempt
did not prove is lost, too: unless that attempt is Completed, a person has to restart it.
"""

from pvbus.core.api.rollouts import PastAttempt, RolloutPolicyStatus
from pvbus.core.kernel.rolloutrows import Rollout
from pvbus.core.kernel.rolloutstates import RolloutState
from pvbus.core.promotion.protocol.turn import ENDED

LOST = "StateLost"
_ENDED = {state.value: state for state in ENDED}


def recovered(status: RolloutPolicyStatus) -> Rollout:
    """Return the rollout that a status shows. An attempt that had not ended is aborted: its plan is lost."""
    if not status.attempt:
        return Rollout()
    state, reason, message = RolloutState.ABORTED, LOST, "the bus was emptied, and lost the plan"
    if status.phase in _ENDED:
        past = next((each for each in status.history if each.attempt == status.attempt), PastAttempt())
        state, reason, message = _ENDED[status.phase], past.reason, past.message
    return Rollout(
        state=state,
        attempt=status.attempt,
        wave=status.wave,
        stops=status.stops,
        reason=reason,
        message=message,
        needs_restart=state is not RolloutState.COMPLETED,
        superseded=status.superseded,
    )
