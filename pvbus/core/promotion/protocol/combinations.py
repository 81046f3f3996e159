"""Whether a newer combination supersedes the one that a train goes with. Pure.

One member with a newer revision changes nothing: until the others have theirs, the planned proposals stay. A
unit has a newer combination when its variants follow what the policy says by now was verified together, or,
where the policy names no revisions, when each member that gets a revision follows another one.

No unit is left partial by that: one that has begun is made whole first, and none begins meanwhile.
"""

from collections.abc import Sequence

from pvbus.core.kernel.rolloutrows import Target
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.observing import OPEN, moved_on
from pvbus.core.promotion.protocol.turn import Turn
from pvbus.core.promotion.protocol.units import changing, is_begun, is_partial, units

_UNDER_WAY = (TargetState.ORDERED, TargetState.CANCELLING)


def has_successor(turn: Turn, row: Target) -> bool:
    """Tell whether the variant of a target follows another upstream revision, which may go out."""
    seen = turn.seen.get(row.target)
    return seen is not None and moved_on(row, seen) and not seen.is_upstream_held


def has_newer_combination(turn: Turn, members: Sequence[Target]) -> bool:
    """Tell whether a newer combination supersedes that of a unit; of a target alone, a newer revision."""
    train, getting = turn.rules.train, changing(members)
    if not members[0].unit or train is None or not train.upstreams:
        return bool(getting) and all(has_successor(turn, row) for row in getting)
    followed = {row.target: _followed(turn, row) for row in members}
    is_other = any(has_successor(turn, row) for row in members)
    return is_other and all(followed[row.target] == train.upstreams[row.part - 1] for row in members)


def _followed(turn: Turn, row: Target) -> str:
    seen = turn.seen.get(row.target)
    return seen.upstream if seen is not None else ""


def is_train_superseded(turn: Turn) -> bool:
    """Tell whether each unit that an attempt waits for has a newer combination, and none is on its way. Where
    it waits for none, whether all that are proven have."""
    found = list(units(turn.current).values())
    if any(is_partial(unit) or any(row.state in _UNDER_WAY for row in unit) for unit in found):
        return False
    waiting = [unit for unit in found if any(row.state in OPEN for row in changing(unit))]
    if not waiting:
        waiting = [unit for unit in found if all(row.state is TargetState.PROVEN for row in unit)]
    return bool(waiting) and all(has_newer_combination(turn, unit) for unit in waiting)


def may_begin(turn: Turn, members: Sequence[Target]) -> bool:
    """Tell whether a unit may get its first order: no newer combination is about to end the attempt."""
    return is_begun(members) or turn.finishes or not has_newer_combination(turn, members)
