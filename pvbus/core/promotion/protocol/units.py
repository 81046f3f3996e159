"""The units of a rollout: what is planned, counted and undone as one.

A target is a unit of its own, or a member of a train: then the members on one site are the unit. Percentages
and budgets count units. All here is of the rows of one attempt.

Invariants: a unit has the state of its member that is farthest from its end, and a unit of one target has the
state of that target.
"""

from collections.abc import Collection, Iterable, Sequence

from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.observing import FAILING, PUBLISHED

HOLDING_NEW = (*PUBLISHED, TargetState.UNDOING, TargetState.STRANDED)
"""The target has the content of the attempt."""
BEGUN = (*HOLDING_NEW, TargetState.ORDERED, TargetState.CANCELLING, TargetState.REFUSED, TargetState.UNDONE)
_UNDER_WAY = (*PUBLISHED, TargetState.UNDOING, TargetState.ORDERED, TargetState.CANCELLING)
LOST = (TargetState.LEFT, TargetState.GONE, TargetState.SKIPPED)

_FIRST = (
    *FAILING,
    TargetState.STRANDED,
    TargetState.UNDOING,
    TargetState.CANCELLING,
    TargetState.ORDERED,
    TargetState.APPROVED,
    TargetState.UNPROVEN,
    TargetState.UNDONE,
    TargetState.PROVEN,
    TargetState.LEFT,
    TargetState.SKIPPED,
    TargetState.GONE,
)


def unit_of(row: Target) -> str:
    """Return the name of a target's unit."""
    return row.unit or row.target


def units(rows: Iterable[Target]) -> dict[str, list[Target]]:
    """Return the rows by unit, in their order; the members of each in that of the train."""
    found: dict[str, list[Target]] = {}
    for row in sorted(rows, key=lambda row: row.position):
        found.setdefault(unit_of(row), []).append(row)
    return found


def changing(members: Iterable[Target]) -> list[Target]:
    """Return the members that get a new revision."""
    return [row for row in members if not row.rides]


def is_begun(members: Iterable[Target]) -> bool:
    """Tell whether any member was ordered or published."""
    return any(row.state in BEGUN for row in changing(members))


def is_partial(members: Iterable[Target]) -> bool:
    """Tell whether some members have the content of the attempt, and others do not."""
    having = {row.state in HOLDING_NEW for row in changing(members)}
    return len(having) > 1


def is_under_way(members: Iterable[Target]) -> bool:
    """Tell whether any member is published or on its way, so that the unit may become whole or be undone."""
    return any(row.state in _UNDER_WAY for row in changing(members))


def state_of(members: Sequence[Target]) -> TargetState:
    """Return the state of a unit."""
    if len(members) == 1:
        return members[0].state
    states = {row.state for row in changing(members)}
    if is_begun(members):
        states |= {row.state for row in members if row.state in (*FAILING, TargetState.APPROVED)}
        if is_partial(members) or TargetState.PLANNED in states:
            states.add(TargetState.ORDERED)  # the rest of a unit that has begun is on its way
    elif TargetState.PLANNED in states and not any(row.state in LOST for row in members):
        return TargetState.PLANNED
    return next((state for state in _FIRST if state in states), TargetState.LEFT)


def count(rows: Iterable[Target], states: Collection[TargetState]) -> int:
    """Return how many units are in one of these states."""
    members = list(rows)
    if not any(row.unit for row in members):
        return sum(row.state in states for row in members)
    return sum(state_of(unit) in states for unit in units(members).values())
