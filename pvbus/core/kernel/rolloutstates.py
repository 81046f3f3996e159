"""The states of a rollout and of its targets, and the transitions between them.

Both are fields of rows, so they survive any restart. The tables have every valid pair of a state and an
event; `pvbus.core.promotion.protocol.machine` takes every new state from them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from pvbus.core.errors import InvariantError


class RolloutState(StrEnum):
    """IDLE: no attempt yet. ROLLING: approves the targets of a wave. HOLDING: they are proven good; hold time
    and checks. ISOLATING: it failed or is to be rolled back, and a quarantine of what it brought is written
    first. STOPPED: it failed, a person decides. ROLLING_BACK: publishes the last good revisions again. The
    others are ends of an attempt. SUPERSEDED: its targets follow a newer upstream revision."""

    IDLE = "Idle"
    ROLLING = "Rolling"
    HOLDING = "Holding"
    ISOLATING = "Isolating"
    STOPPED = "Stopped"
    ROLLING_BACK = "RollingBack"
    COMPLETED = "Completed"
    ABORTED = "Aborted"
    ROLLED_BACK = "RolledBack"
    SUPERSEDED = "Superseded"


class RolloutEvent(StrEnum):
    """What happens to a rollout.

    PLANNED: an attempt begins
    PROVEN: no target of the wave is open any more
    REOPENED: a target of the wave is open again
    PASSED, FINISHED: hold time and checks of a wave are passed; the wave is not the last one, or is
    ISOLATES: more targets than the budget allows are not good, a check failed, the timeout is over, or it is
        to be rolled back, and what it brought is not quarantined yet
    FAILED: one of these, and it is quarantined
    RESTORED: no target is left to roll back
    RESUMED, ABORTED, ROLLED_BACK: a person orders it, or the policy rolls back
    SUPERSEDED: a newer upstream revision ends it
    """

    PLANNED = "planned"
    PROVEN = "wave proven"
    REOPENED = "target unproven"
    PASSED = "wave passed"
    FINISHED = "last wave passed"
    ISOLATES = "to be quarantined"
    FAILED = "failed"
    RESUMED = "resumed"
    ABORTED = "aborted"
    ROLLED_BACK = "rolled back"
    RESTORED = "all restored"
    SUPERSEDED = "superseded"


class TargetState(StrEnum):
    """PLANNED: waits for its wave. LEFT: not proposed as planned now. ORDERED: to be approved. CANCELLING:
    its order is taken back. APPROVED: published, not proven. PROVEN: published and good. FAILED: published
    and not good. SILENT: published, without evidence for too long. UNPROVEN: published, and the attempt was
    superseded before its evidence. REFUSED: its approval was. SKIPPED: the attempt ended before its order.
    UNDOING: its last good revision is to be published. UNDONE: it is. STRANDED: that cannot be. GONE:
    replaced or deleted."""

    PLANNED = "planned"
    LEFT = "left"
    ORDERED = "ordered"
    CANCELLING = "cancelling"
    APPROVED = "approved"
    PROVEN = "proven"
    FAILED = "failed"
    SILENT = "silent"
    UNPROVEN = "unproven"
    REFUSED = "refused"
    SKIPPED = "skipped"
    UNDOING = "undoing"
    UNDONE = "undone"
    STRANDED = "stranded"
    GONE = "gone"


class TargetEvent(StrEnum):
    """What happens to a target.

    WITHDRAWN: its planned revision is no longer proposed, or its order was taken back because of that
    RETURNED: its planned revision is proposed again, unchanged
    PUBLISHED: its planned revision is published
    REPLACED: another revision is published, or none
    GOOD, BAD, UNKNOWN: what the evidence says of its published revision
    OVERDUE: nothing has said anything of it for too long
    REFUSED: the server refused the approval
    CANCELLED: its order is certain never to be carried out
    RESTORED: its last good content is published
    SUPERSEDE: its attempt ends for a newer upstream revision
    ORDER, CANCEL, UNDO, STRAND, SKIP: what follows from the rollout
    """

    ORDER = "order"
    WITHDRAWN = "withdrawn"
    RETURNED = "returned"
    PUBLISHED = "published"
    REPLACED = "replaced"
    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"
    OVERDUE = "overdue"
    REFUSED = "refused"
    CANCEL = "cancel"
    CANCELLED = "cancelled"
    SKIP = "skip"
    UNDO = "undo"
    RESTORED = "restored"
    STRAND = "strand"
    SUPERSEDE = "supersede"


ROLLOUT_TRANSITIONS: Mapping[RolloutState, Mapping[RolloutEvent, RolloutState]] = {
    RolloutState.IDLE: {RolloutEvent.PLANNED: RolloutState.ROLLING},
    RolloutState.ROLLING: {
        RolloutEvent.PROVEN: RolloutState.HOLDING,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.FAILED: RolloutState.STOPPED,
        RolloutEvent.ABORTED: RolloutState.ABORTED,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
        RolloutEvent.SUPERSEDED: RolloutState.SUPERSEDED,
    },
    RolloutState.HOLDING: {
        RolloutEvent.REOPENED: RolloutState.ROLLING,
        RolloutEvent.PASSED: RolloutState.ROLLING,
        RolloutEvent.FINISHED: RolloutState.COMPLETED,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.FAILED: RolloutState.STOPPED,
        RolloutEvent.ABORTED: RolloutState.ABORTED,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
        RolloutEvent.SUPERSEDED: RolloutState.SUPERSEDED,
    },
    RolloutState.ISOLATING: {
        RolloutEvent.FAILED: RolloutState.STOPPED,
        RolloutEvent.ABORTED: RolloutState.ABORTED,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
    },
    RolloutState.STOPPED: {
        RolloutEvent.RESUMED: RolloutState.ROLLING,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.ABORTED: RolloutState.ABORTED,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
    },
    RolloutState.ROLLING_BACK: {RolloutEvent.RESTORED: RolloutState.ROLLED_BACK},
    RolloutState.COMPLETED: {
        RolloutEvent.PLANNED: RolloutState.ROLLING,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
    },
    RolloutState.ABORTED: {
        RolloutEvent.PLANNED: RolloutState.ROLLING,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
    },
    RolloutState.SUPERSEDED: {
        RolloutEvent.PLANNED: RolloutState.ROLLING,
        RolloutEvent.ISOLATES: RolloutState.ISOLATING,
        RolloutEvent.ROLLED_BACK: RolloutState.ROLLING_BACK,
    },
    RolloutState.ROLLED_BACK: {RolloutEvent.PLANNED: RolloutState.ROLLING},
}

_PUBLISHED: Mapping[TargetEvent, TargetState] = {
    TargetEvent.GOOD: TargetState.PROVEN,
    TargetEvent.BAD: TargetState.FAILED,
    TargetEvent.UNKNOWN: TargetState.APPROVED,
    TargetEvent.REPLACED: TargetState.GONE,
    TargetEvent.UNDO: TargetState.UNDOING,
    TargetEvent.STRAND: TargetState.STRANDED,
}
_DOUBTED: Mapping[TargetEvent, TargetState] = {
    event: state for event, state in _PUBLISHED.items() if event is not TargetEvent.UNKNOWN
}

TARGET_TRANSITIONS: Mapping[TargetState, Mapping[TargetEvent, TargetState]] = {
    TargetState.PLANNED: {
        TargetEvent.ORDER: TargetState.ORDERED,
        TargetEvent.WITHDRAWN: TargetState.LEFT,
        TargetEvent.PUBLISHED: TargetState.APPROVED,
        TargetEvent.SKIP: TargetState.SKIPPED,
    },
    TargetState.LEFT: {
        TargetEvent.RETURNED: TargetState.PLANNED,
        TargetEvent.PUBLISHED: TargetState.APPROVED,
        TargetEvent.SKIP: TargetState.GONE,
    },
    TargetState.ORDERED: {
        TargetEvent.PUBLISHED: TargetState.APPROVED,
        TargetEvent.WITHDRAWN: TargetState.CANCELLING,
        TargetEvent.REFUSED: TargetState.REFUSED,
        TargetEvent.CANCEL: TargetState.CANCELLING,
    },
    TargetState.CANCELLING: {
        TargetEvent.PUBLISHED: TargetState.APPROVED,
        TargetEvent.CANCELLED: TargetState.SKIPPED,
        TargetEvent.WITHDRAWN: TargetState.GONE,
    },
    TargetState.APPROVED: {
        **_PUBLISHED,
        TargetEvent.OVERDUE: TargetState.SILENT,
        TargetEvent.SUPERSEDE: TargetState.UNPROVEN,
    },
    TargetState.PROVEN: _PUBLISHED,
    TargetState.FAILED: _PUBLISHED,
    TargetState.SILENT: _DOUBTED,
    TargetState.UNPROVEN: _DOUBTED,
    TargetState.REFUSED: {
        TargetEvent.PUBLISHED: TargetState.APPROVED,
        TargetEvent.WITHDRAWN: TargetState.GONE,
        TargetEvent.SKIP: TargetState.SKIPPED,
    },
    TargetState.UNDOING: {
        TargetEvent.RESTORED: TargetState.UNDONE,
        TargetEvent.REPLACED: TargetState.GONE,
        TargetEvent.STRAND: TargetState.STRANDED,
    },
    TargetState.SKIPPED: {},
    TargetState.UNDONE: {},
    TargetState.STRANDED: {},
    TargetState.GONE: {},
}

State = TypeVar("State", RolloutState, TargetState)
Event = TypeVar("Event", RolloutEvent, TargetEvent)


def rollout_after(state: RolloutState, event: RolloutEvent) -> RolloutState:
    """Return the state of a rollout after an event. Raises InvariantError if it is not valid there."""
    return _following(ROLLOUT_TRANSITIONS, state, event)


def target_after(state: TargetState, event: TargetEvent) -> TargetState:
    """Return the state of a target after an event. Raises InvariantError if it is not valid there."""
    return _following(TARGET_TRANSITIONS, state, event)


def _following(table: Mapping[State, Mapping[Event, State]], state: State, event: Event) -> State:
    pairs = table[state]
    if event not in pairs:
        raise InvariantError(f"rollout: {state} -> {event} is not a transition")
    return pairs[event]
