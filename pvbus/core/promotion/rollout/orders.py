"""The rows of a step: of the rollout, of its targets, and the orders to release that follow from these.

A target has an order, or the note that it is stranded, exactly while its state is in `ORDERS`, and one that
is frozen has a row for promote besides. So the orders on the bus are known from the rows of the targets, and
both are written together.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.keys import ChildKey, Key, TargetKey
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS, ROLLOUTS
from pvbus.core.kernel.rolloutrows import Rollout, Step, Target
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.rollout.candidates import Candidates

Order = Literal["approve", "withdraw", "restore", "stranded", "freeze"]
ORDERS: Mapping[TargetState, Order] = {
    TargetState.ORDERED: "approve",
    TargetState.CANCELLING: "withdraw",
    TargetState.UNDOING: "restore",
    TargetState.STRANDED: "stranded",
}


def has_order(row: Target | None) -> bool:
    """Tell whether a target has a row for others than its rollout."""
    return row is not None and (row.state in ORDERS or row.is_frozen)


def step_puts(
    key: Key, before: Rollout | None, rows: Mapping[str, Target], step: Step, candidates: Candidates
) -> Iterator[Put]:
    """Yield what a step changes, the rollout first."""
    if step.rollout != (before or Rollout()):
        yield Put(ROLLOUTS, str(key), step.rollout)
    changed: dict[str, Target | None] = dict(step.rows)
    for target, row in rows.items():  # one of a PackageVariant that was made anew meanwhile
        if has_order(row) and target not in changed and _named(row, candidates.uid(target)) != row:
            changed[target] = row
    for target, after in changed.items():
        yield from target_puts(key, target, rows.get(target), _named(after, candidates.uid(target)))


def target_puts(key: Key, target: str, before: Target | None, after: Target | None) -> Iterator[Put]:
    """Yield the rows of one target: its own, and its order if that changes."""
    yield Put(ROLLOUTS, str(ChildKey(str(key), target)), after)
    former, order = order_of(before), order_of(after)
    if order != former:
        yield Put(APPROVALS, str(TargetKey(f"{key.namespace}/{target}", key.name)), order)


def order_of(row: Target | None) -> ApprovalRow | None:
    """Return the order that a target has, None for none."""
    if row is None or not has_order(row):
        return None
    order: Order = ORDERS.get(row.state, "freeze")
    content = (row.good, row.good_digest) if order == "restore" else (row.revision, row.digest)
    is_approval, is_restore = order == "approve", order == "restore"
    return ApprovalRow(
        uid=row.uid,
        attempt=row.attempt,
        order=order,
        revision=content[0],
        digest=content[1],
        files=row.files if is_approval else "",
        combination=row.combination if is_approval else (),
        mates=row.mates if is_approval else (),
        is_frozen=row.is_frozen,
        replaces=row.revision if is_restore else "",
    )


def end_puts(key: Key, rollout: Rollout | None, rows: Mapping[str, Target]) -> Iterator[Put]:
    """Yield what ends the rollout of a policy that is gone.

    The number of its last attempt stays: the outcomes of former orders are never taken for those of a new
    policy of this name.
    """
    for target, row in rows.items():
        yield from target_puts(key, target, row, None)
    rest = Rollout(attempt=rollout.attempt) if rollout is not None and rollout.attempt else None
    if rollout != rest:
        yield Put(ROLLOUTS, str(key), rest)


def _named(row: Target | None, uid: str) -> Target | None:
    """Name the PackageVariant that an order is for."""
    if row is None or not has_order(row) or not uid:
        return row
    return msgspec.structs.replace(row, uid=uid)
