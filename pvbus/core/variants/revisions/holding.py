"""Hold: an annotation on a PackageVariant, or on the set that makes it, stops all writes for it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.effects import WRITES, Effect, Outcome, Reconciliation
from pvbus.core.kernel.holds import NEEDS_PLAN, hold_reason, is_held
from pvbus.core.kernel.keys import HOLD, Key
from pvbus.core.kernel.objects import set_among
from pvbus.core.kernel.records import DesiredRow

SET_KIND = "PackageVariantSet"


class Holder(NamedTuple):
    """An object with the annotation, and its reason, "" if it gives none."""

    kind: str
    key: Key
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


def holder_of(variant: PackageVariant, desired: DesiredRow | None) -> Holder | None:
    """Return the object whose annotation holds a variant, None if none does.

    desired: render's row. Its set counts if the row has this object's uid, or if that set owns the object: a
    variant created by hand under a name of the set is not held with it.
    """
    meta = variant.metadata
    if is_held(meta.annotations):
        return Holder("PackageVariant", Key(meta.namespace, meta.name), hold_reason(meta.annotations))
    if desired is None:
        return None
    owners = [owner.uid for owner in meta.owner_references]
    for each in desired.holders:
        if each.uid in owners:
            return Holder(SET_KIND, Key(meta.namespace, each.name), each.reason)
    if not desired.on_hold or desired.outcome == "conflict":
        return None
    owner = set_among(meta.owner_references)
    if desired.uid != meta.uid and (not owner or owner != desired.set_name):
        return None
    return Holder(SET_KIND, Key(meta.namespace, desired.set_name or owner), desired.hold_reason)


def until_held(steps: Reconciliation, holder: Callable[[], Holder | None]) -> Reconciliation:
    """Run a decision, but stop before the next write once its variant is on hold.

    holder: returns the current holder. The record that sets the hold makes the key dirty again.
    """
    following: Callable[[], Effect] = partial(next, steps)
    while True:
        try:
            effect = following()
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome
        if isinstance(effect, WRITES) and (who := holder()):
            steps.close()
            return Outcome(result="waiting", waiting=(unheld(who),))
        try:
            answer = yield effect
        except PvbusError as error:
            following = partial(steps.throw, error)
        else:
            following = partial(steps.send, answer)


def unheld(holder: object) -> str:
    """Return what ends a hold, in words.

    holder: a Holder, or the name of an object with the annotation
    """
    if isinstance(holder, Holder) and holder.reason.startswith(NEEDS_PLAN):
        return f"a signed plan of {holder}"
    return f"the removal of the annotation {HOLD} from {holder}"
