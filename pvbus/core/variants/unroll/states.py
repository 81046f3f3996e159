"""The states of a set's child, and the transitions between them.

The state is a field of the child's row (`pvbus.core.kernel.records.ChildState`), so it survives any restart.
The state of a child without a row is None. `TRANSITIONS` has every valid pair of a state and an event;
`pvbus.core.variants.unroll.children` takes every new state from it.
"""

from collections.abc import Mapping
from enum import StrEnum

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.records import ChildState


class ChildEvent(StrEnum):
    """What happens to a child.

    WANTED: one target wants it
    CONTESTED: several targets want it
    UNWANTED: no target wants it, and it has a row or a PackageVariant
    FOUND_ON_HOLD: it has a PackageVariant, but no row, while its set is on hold
    HELD: the guard holds its removal
    CONFIRMED: a person confirms its removal
    HOLD_ENDED: the guard's hold has ended
    ORDERED: render is to delete it
    WITHDRAWN: render must not write for it: its order is not valid any more, or the set's hold began or ended
    CONFIRMED_WITHDRAWN: the same for an order that a person had confirmed
    SEEN_GONE: its PackageVariant is gone
    FORGOTTEN: it has been gone for the guard's window
    RELEASED: its set is gone, or never decided on it
    """

    WANTED = "wanted"
    CONTESTED = "contested"
    UNWANTED = "unwanted"
    FOUND_ON_HOLD = "found on hold"
    HELD = "held"
    CONFIRMED = "confirmed"
    HOLD_ENDED = "hold ended"
    ORDERED = "ordered"
    WITHDRAWN = "withdrawn"
    CONFIRMED_WITHDRAWN = "confirmed order withdrawn"
    SEEN_GONE = "seen gone"
    FORGOTTEN = "forgotten"
    RELEASED = "released"


TRANSITIONS: Mapping[ChildState | None, Mapping[ChildEvent, ChildState | None]] = {
    None: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.WAITING,
        ChildEvent.FOUND_ON_HOLD: ChildState.WAITING,
    },
    ChildState.PRESENT: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.WAITING,
        ChildEvent.WITHDRAWN: ChildState.PRESENT,
        ChildEvent.RELEASED: None,
    },
    ChildState.WAITING: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.WAITING,
        ChildEvent.HELD: ChildState.HELD,
        ChildEvent.ORDERED: ChildState.ORDERED,
        ChildEvent.WITHDRAWN: ChildState.WAITING,
        ChildEvent.SEEN_GONE: ChildState.GONE,
        ChildEvent.RELEASED: None,
    },
    ChildState.HELD: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.HELD,
        ChildEvent.CONFIRMED: ChildState.CONFIRMED,
        ChildEvent.HOLD_ENDED: ChildState.WAITING,
        ChildEvent.WITHDRAWN: ChildState.HELD,
        ChildEvent.SEEN_GONE: ChildState.GONE,
        ChildEvent.RELEASED: None,
    },
    ChildState.CONFIRMED: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.CONFIRMED,
        ChildEvent.ORDERED: ChildState.ORDERED,
        ChildEvent.WITHDRAWN: ChildState.CONFIRMED,
        ChildEvent.SEEN_GONE: ChildState.GONE,
        ChildEvent.RELEASED: None,
    },
    ChildState.ORDERED: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.PRESENT,
        ChildEvent.UNWANTED: ChildState.ORDERED,
        ChildEvent.WITHDRAWN: ChildState.WAITING,
        ChildEvent.CONFIRMED_WITHDRAWN: ChildState.CONFIRMED,
        ChildEvent.SEEN_GONE: ChildState.GONE,
        ChildEvent.RELEASED: None,
    },
    ChildState.GONE: {
        ChildEvent.WANTED: ChildState.PRESENT,
        ChildEvent.CONTESTED: ChildState.GONE,
        ChildEvent.UNWANTED: ChildState.WAITING,
        ChildEvent.FORGOTTEN: None,
        ChildEvent.RELEASED: None,
    },
}


def following(state: ChildState | None, event: ChildEvent) -> ChildState | None:
    """Return the state of a child after an event; None: it has no row.

    Raises InvariantError for an event that is not valid in this state.
    """
    pairs = TRANSITIONS[state]
    if event not in pairs:
        raise InvariantError(f"child: {state or 'no row'} -> {event} is not a transition")
    return pairs[event]
