"""Carries out a set's order to remove its PackageVariant, and writes the withdrawal of an order.

An order is old as soon as it is written, and the data behind it older. So it is valid for a minute, of the
object that the set controls, and only while the set is, in a live read, the one that gave it. A withdrawal
needs no spec, so it is written even where the template fails.
"""

from collections.abc import Generator
from typing import Any

import msgspec

from pvbus.core.api.variants import CONFIG_GROUP, PackageVariant
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.effects import Delete, Effect, Get, KindRef, Outcome, Reconciliation, Update
from pvbus.core.kernel.holds import held_variant, is_held
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import ChildResult, DesiredRow, TargetRow
from pvbus.core.variants.render.report import outcome_of
from pvbus.core.variants.render.state import RenderState
from pvbus.core.variants.render.variant import VARIANT, cancel, carried, is_cancelled

SET = KindRef(CONFIG_GROUP, "PackageVariantSet", "v1alpha2")
REFUSED_RETRY_SECONDS = 60.0  # a write that the API server refuses may be allowed later (RBAC, webhooks)
LOOK_AGAIN_SECONDS = 10.0  # at a set that changed after its order: the withdrawal may still come
ORDER_SECONDS = 60.0  # how long an order is valid: the data behind it gets older
SKEW_SECONDS = 5.0  # an order from further in the future has an unknown age


def write_withdrawal(key: Key, seen: RenderState, name: str, now: float) -> Reconciliation:
    """Write only the annotation that withdraws the last order."""
    claim = seen.claims[name]
    living, error = yield from withdraw(seen, claim, now)
    outcome = "held" if claim.on_hold else "withdrawn"
    result = ChildResult(set_uid=claim.set_uid, error=error, cancelled=carried(claim, living))
    row = DesiredRow(
        set_name=claim.set_name,
        set_uid=claim.set_uid,
        outcome=outcome,  # type: ignore[arg-type]  # one of two values of the field's type
        uid=living.metadata.uid if living is not None else "",
        error=error,
        on_hold=claim.on_hold,
        hold_reason=claim.hold_reason,
    )
    end = outcome_of(key, seen, row, {name: result})
    return end._replace(again_after=REFUSED_RETRY_SECONDS) if error else end


def withdraw(
    seen: RenderState, claim: TargetRow, now: float
) -> Generator[Effect, Any, tuple[PackageVariant | None, str]]:
    """Write the withdrawal annotation of a row, if the living object lacks it.

    Returns the object afterwards, and the API server's error if it refuses the write, else "".
    """
    raw, living = seen.current(now), seen.living(now)
    if raw is None or living is None or living.metadata.deletion_timestamp:
        return living, ""
    if is_cancelled(claim, living):
        return living, ""
    obj = msgspec.json.decode(raw)
    cancel(obj, claim.cancelled)
    try:
        written = yield Update(VARIANT, obj)
    except PermanentError as refused:
        if refused.reason == "NotFound":  # deleted meanwhile: its tombstone is on the way
            raise ConflictError(str(refused)) from refused
        return living, str(refused)
    seen.note_answer(written, now)
    return seen.living(now), ""


def remove_variant(key: Key, seen: RenderState, name: str, now: float) -> Reconciliation:
    """Carry out a set's order to delete: only on its own object, only while the order is fresh, and only
    after a live read of the set."""
    order, living = seen.claims[name], seen.living(now)
    assert living is not None
    result = ChildResult(set_uid=order.set_uid, cancelled=carried(order, living))
    row = DesiredRow(
        set_name=order.set_name,
        set_uid=order.set_uid,
        outcome="removed",
        uid=living.metadata.uid,
        why=order.why,
    )
    if living.metadata.deletion_timestamp:
        return outcome_of(key, seen, row, {name: result})
    if not -SKEW_SECONDS <= now - order.ordered <= ORDER_SECONDS:
        expired = msgspec.structs.replace(result, expired=order.ordered)
        row = msgspec.structs.replace(row, outcome="expired")
        return outcome_of(key, seen, row, {name: expired})
    until_expired = max(order.ordered + ORDER_SECONDS - now, 0) + 0.1
    if is_held(living.metadata.annotations):
        row = msgspec.structs.replace(
            row, outcome="held", error=held_variant(key, living.metadata.annotations)
        )
        return outcome_of(key, seen, row, {name: result})._replace(again_after=until_expired)
    current = yield Get(SET, key.namespace, order.set_name)
    if (
        current is None
        or current["metadata"].get("deletionTimestamp")
        or current["metadata"]["uid"] != order.set_uid
        or current["metadata"].get("generation", 0) != order.generation
        or is_held(current["metadata"].get("annotations"))
    ):
        waiting = ("the set to withdraw or repeat its order",)
        again = min(LOOK_AGAIN_SECONDS, until_expired)
        return Outcome(result="waiting", waiting=waiting, again_after=again)
    yield Delete(
        VARIANT,
        key.namespace,
        key.name,
        uid=living.metadata.uid,
        resource_version=living.metadata.resource_version,
        not_after=order.ordered + ORDER_SECONDS,
    )
    return outcome_of(key, seen, row, {name: result})
