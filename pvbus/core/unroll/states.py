"""The states of a set's child, and which state follows which.

The state is a field of the child's row (`pvbus.core.records.ChildState`), so it survives any restart. A child
without a row has no state: None. `TRANSITIONS` names every pair of a state and an event that can happen, and
`pvbus.core.unroll.children` asks it for every row that it writes.
"""

from collections.abc import Mapping
from enum import StrEnum

from pvbus.core.errors import InvariantError
from pvbus.core.records import ChildState


class ChildEvent(StrEnum):
    """What happens to a child.

    WANTED: by one target. CONTESTED: several targets want it. UNWANTED: no target wants it, and it has a row
    or lives. FOUND_ON_HOLD: it lives without a row while its set is on hold. HELD: by the guard. CONFIRMED:
    by a person. HOLD_ENDED: the guard holds it no more. ORDERED: render is to delete it. WITHDRAWN: render is
    to write nothing for it, because its order may not stand, or the hold of its set began or ended.
    CONFIRMED_WITHDRAWN: the same for an order that a person had confirmed. SEEN_GONE: its PackageVariant is
    not there any more. FORGOTTEN: it has been gone for long. RELEASED: its set is gone, or never decided on
    it.
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
    """Return the state in which an event leaves a child; None: without a row.

    Raises InvariantError for an event that cannot happen in this state.
    """
    pairs = TRANSITIONS[state]
    if event not in pairs:
        raise InvariantError(f"child: {state or 'no row'} -> {event} is not a transition")
    return pairs[event]
