"""The states of an informer, and the transitions between them.

An informer observes one kind (`pvbus.core.variants.ingest.informer`). Its states are a closed union of
frozen Structs. `TRANSITIONS` has every pair of a state and an event that can change the state; any other
pair leaves the state unchanged. Times are seconds of a monotonic clock.
"""

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

from pvbus.core.variants.ingest import events
from pvbus.core.variants.ingest.checks import Batch
from pvbus.core.variants.ingest.events import Event, Listed


class _State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What all states have. until: when the state ends without an event; infinity if it does not."""

    until: float = math.inf


BackOffReason = Literal["start", "gone", "ended", "error"]


class BackingOff(_State, frozen=True, kw_only=True):
    """Waits until the kind is resolved again. `ended`: the replay of an aggregated API ended."""

    reason: BackOffReason


class Resolving(_State, frozen=True, kw_only=True):
    """Asks discovery how the kind is served."""


class Unserved(_State, frozen=True, kw_only=True):
    """The kind is not served, or may not be read: marked `unavailable` until a probe finds it."""


class Listing(_State, frozen=True, kw_only=True):
    """Lists the kind.

    batch: the check requests that were open when the list began
    is_interruption: whether the list interrupts a watch, which resumes where it ended if the list fails
    """

    batch: Batch
    is_interruption: bool


class Completing(_State, frozen=True, kw_only=True):
    """Reads by name the objects that an aggregated API left out of its list."""

    batch: Batch
    is_interruption: bool
    listed: Listed


class Watching(_State, frozen=True, kw_only=True):
    """Follows a watch that began at `since`."""

    since: float


class Resuming(_State, frozen=True, kw_only=True):
    """Waits until the watch resumes where it ended."""


class Replaying(_State, frozen=True, kw_only=True):
    """Follows the watch of an aggregated API, which replays all objects first. until: when to list again."""


class Confirming(_State, frozen=True, kw_only=True):
    """Reads by name the objects that a replay did not show, while the watch continues."""


class Following(_State, frozen=True, kw_only=True):
    """Follows the watch of an aggregated API after its replay."""


State = (
    BackingOff
    | Resolving
    | Unserved
    | Listing
    | Completing
    | Watching
    | Resuming
    | Replaying
    | Confirming
    | Following
)

TRANSITIONS: Mapping[type[State], Mapping[type[Event], tuple[type[State], ...]]] = {
    BackingOff: {events.Tick: (BackingOff, Resolving)},
    Resolving: {
        events.Served: (Listing,),
        events.NotServed: (Unserved,),
        events.ResolveFailed: (BackingOff, Unserved),
    },
    Unserved: {events.Tick: (Unserved, Resolving)},
    Listing: {
        events.Listed: (Completing, Watching, Replaying),
        events.ListFailed: (BackingOff, Unserved, Watching, Replaying),
    },
    Completing: {
        events.ObjectRead: (Completing, Replaying),
        events.ReadFailed: (Completing, BackingOff, Unserved, Watching, Replaying),
    },
    Watching: {
        events.Tick: (Watching, Listing),
        events.WatchEnded: (Watching, Resuming, Resolving, BackingOff, Unserved),
        events.ObjectRead: (Watching, Listing),
        events.ReadFailed: (Watching, Listing),
        events.VersionsRead: (Watching, Resolving),
    },
    Resuming: {
        events.Tick: (Resuming, Watching, Listing),
        events.ObjectRead: (Resuming, Listing),
        events.ReadFailed: (Resuming, Listing),
        events.VersionsRead: (Resuming, Resolving),
    },
    Replaying: {
        events.Tick: (Replaying, Confirming, Following, Resolving, Listing),
        events.Delivered: (Replaying, Confirming, Following),
        events.WatchEnded: (BackingOff, Unserved),
        events.ObjectRead: (Replaying, Listing),
        events.ReadFailed: (Replaying, Listing),
        events.VersionsRead: (Replaying, Resolving),
    },
    Confirming: {
        events.Tick: (Confirming, Resolving, Listing),
        events.Delivered: (Confirming, Following),
        events.WatchEnded: (BackingOff, Unserved),
        events.ObjectRead: (Confirming, Following, Listing),
        events.ReadFailed: (Confirming, BackingOff, Unserved, Listing),
        events.VersionsRead: (Confirming, Resolving),
    },
    Following: {
        events.Tick: (Following, Resolving, Listing),
        events.WatchEnded: (BackingOff, Unserved),
        events.ObjectRead: (Following, Listing),
        events.ReadFailed: (Following, Listing),
        events.VersionsRead: (Following, Resolving),
    },
}


def following(state: type[State], event: type[Event]) -> tuple[type[State], ...]:
    """Return the possible states of an informer after an event."""
    return TRANSITIONS[state].get(event, (state,))
