"""The state that the page shows for a variant and for a set, and the lifecycle of a variant's package."""

from enum import StrEnum
from typing import Protocol

from pvbus.core.kernel.records import ChildState
from pvbus.core.variants.attention import REMOVALS as REMOVALS_HELD


class State(StrEnum):
    """One word for each variant and set. A removal counts more than a hold, a hold more than a failure."""

    READY = "ready"
    WORKING = "working"
    ATTENTION = "needs attention"
    STALLED = "stalled"
    ON_HOLD = "on hold"
    HELD = "removal held"
    REMOVING = "removing"


class Facts(Protocol):
    """What is known of a variant or a set.

    observed, stalled_at: the generations of `ready` and of `stalled`
    attention: why it waits for a person, as a reason, "" if it does not
    reason: of `ready`
    """

    @property
    def exists(self) -> bool: ...

    @property
    def deleting(self) -> bool: ...

    @property
    def generation(self) -> int: ...

    @property
    def observed(self) -> int: ...

    @property
    def ready(self) -> bool: ...

    @property
    def stalled(self) -> bool: ...

    @property
    def stalled_at(self) -> int: ...

    @property
    def on_hold(self) -> bool: ...

    @property
    def attention(self) -> str: ...

    @property
    def reason(self) -> str: ...


REMOVALS = frozenset({ChildState.WAITING, ChildState.CONFIRMED, ChildState.ORDERED})


def variant_state(facts: Facts, child: ChildState | None) -> State:
    """Return the state of a variant. child: its state in the set that made it, None if no set did."""
    if facts.deleting or child in REMOVALS:
        return State.REMOVING
    return State.HELD if child is ChildState.HELD else _state(facts)


def set_state(facts: Facts, *, holds_removals: bool) -> State:
    """Return the state of a set."""
    if facts.deleting:
        return State.REMOVING
    return State.HELD if holds_removals else _state(facts)


def _state(facts: Facts) -> State:
    if facts.on_hold:
        return State.ON_HOLD
    if facts.stalled and facts.stalled_at >= facts.generation:
        return State.STALLED
    if facts.attention:
        return State.ATTENTION
    is_current = facts.exists and facts.observed >= facts.generation
    return State.READY if facts.ready and is_current else State.WORKING


NOT_REPORTED = "NotReported"


def reason_of(facts: Facts, state: State) -> str:
    """Return why something is in a state: what waits for a person comes before the reason of Ready.

    A reason of an earlier generation is not about what is shown.
    """
    if state is State.HELD:
        return REMOVALS_HELD
    if facts.attention and state is not State.STALLED:
        return facts.attention
    is_old = facts.observed < facts.generation or not facts.reason or facts.ready
    return NOT_REPORTED if state is State.WORKING and is_old else facts.reason


OPEN_FIRST = ("Draft", "Proposed", "DeletionProposed", "Published")
"""Lifecycles of package revisions. A variant has that of an open revision if there is one."""

_BITS = 16  # of each count; 65,535 revisions of one package are more than a repository has
_MASK = (1 << _BITS) - 1


def counted(counts: int, lifecycle: str, by: int) -> int:
    """Add to the count of a lifecycle. counts: all four in one number, which is small."""
    return counts + (by << _BITS * OPEN_FIRST.index(lifecycle))


def lifecycle_of(counts: int) -> str:
    """Return the lifecycle to show, "" without a revision."""
    return next((each for n, each in enumerate(OPEN_FIRST) if counts >> _BITS * n & _MASK), "")
