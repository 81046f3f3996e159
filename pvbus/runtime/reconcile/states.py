"""The states of a lease, and the transitions between them.

`TRANSITIONS` has every event that is valid in a state; any other is a bug, and raises InvariantError.
"""

from collections.abc import Mapping
from enum import Enum

from pvbus.core.errors import InvariantError


class LeaseState(Enum):
    """What a worker may do for a lease."""

    RESTORING = "Restoring"  # read its tables
    RUNNING = "Running"  # decide and write
    OUTCOME_UNKNOWN = "OutcomeUnknown"  # nothing, until its tables are read again
    REVOKED = "Revoked"  # write what is decided, and decide nothing new
    LOST = "Lost"  # nothing any more: it is fenced, or was revoked with tables that may be wrong
    RETAINED = "Retained"  # keep its tables for a while: it is gone, and may come back
    CLOSED = "Closed"  # nothing: its tables are dropped


class LeaseEvent(Enum):
    """What happens to a lease."""

    RESTORED = "Restored"  # its tables equal the bus
    INTERRUPTED = "Interrupted"  # a step of unknown outcome, no answer of the bus, tables that are too old
    RESTARTED = "Restarted"  # its tables are dropped, to be read again
    FENCED = "Fenced"  # a newer epoch exists
    REVOKED = "Revoked"  # the group takes it back
    RETAINED = "Retained"  # nothing is in flight, and its tables stay
    RETURNED = "Returned"  # this worker holds it again, and no other did in between
    CLOSED = "Closed"  # its tables are dropped for good


_S, _E = LeaseState, LeaseEvent

TRANSITIONS: Mapping[LeaseState, Mapping[LeaseEvent, LeaseState]] = {
    _S.RESTORING: {
        _E.RESTORED: _S.RUNNING,
        _E.INTERRUPTED: _S.OUTCOME_UNKNOWN,
        _E.FENCED: _S.LOST,
        _E.REVOKED: _S.LOST,
    },
    _S.RUNNING: {
        _E.INTERRUPTED: _S.OUTCOME_UNKNOWN,
        _E.FENCED: _S.LOST,
        _E.REVOKED: _S.REVOKED,
    },
    _S.OUTCOME_UNKNOWN: {
        _E.RESTORED: _S.OUTCOME_UNKNOWN,  # too late: what was read is outdated
        _E.INTERRUPTED: _S.OUTCOME_UNKNOWN,
        _E.RESTARTED: _S.RESTORING,
        _E.FENCED: _S.LOST,
        _E.REVOKED: _S.LOST,
    },
    _S.REVOKED: {
        _E.INTERRUPTED: _S.LOST,
        _E.FENCED: _S.LOST,
        _E.RETAINED: _S.RETAINED,
        _E.CLOSED: _S.CLOSED,
    },
    _S.LOST: {
        _E.RESTORED: _S.LOST,
        _E.INTERRUPTED: _S.LOST,
        _E.FENCED: _S.LOST,
        _E.REVOKED: _S.LOST,
        _E.CLOSED: _S.CLOSED,
    },
    _S.RETAINED: {
        _E.RETURNED: _S.RESTORING,
        _E.CLOSED: _S.CLOSED,
    },
    _S.CLOSED: {  # a step that was cancelled may still end with an error
        _E.INTERRUPTED: _S.CLOSED,
        _E.FENCED: _S.CLOSED,
    },
}


def after(state: LeaseState, event: LeaseEvent) -> LeaseState:
    """Return the state that follows. Raises InvariantError for an event that is not valid in this state."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise InvariantError(f"a lease cannot be {event.name} while it is {state.name}") from None
