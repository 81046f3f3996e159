"""Says why a PackageVariant or a set is gone, for the last events of its conditions.

What a set removes has the reason of its order, which render records when it deletes the object. Who deletes
an object otherwise is in the audit log of the API server alone. Apart from `controller`, which
decides when this is said.
"""

from typing import NamedTuple

import msgspec

from pvbus.core.api.variants import ObjectMeta
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.objects import set_among
from pvbus.core.kernel.records import DesiredRow

DECIDED_TO_REMOVE = b'"why":'
"""In the JSON of a decision to remove a PackageVariant, and of no other; the topic has all decisions."""


class _Former(msgspec.Struct):
    metadata: ObjectMeta


_former = msgspec.json.Decoder(_Former)


class End(NamedTuple):
    """Why an object is gone.

    message: the reason in words
    set_name: the set that made the object, "" if none did or that is unknown
    """

    message: str
    set_name: str = ""


def end_of(kind: str, key: Key, uid: str, former: bytes | None, removed: DesiredRow) -> End:
    """Return the end of an object.

    uid: the uid of the last object of this name that had events
    former: the object as it was last seen, None if it went while nobody looked
    removed: the last decision of a set to remove an object of this name
    """
    if kind != "PackageVariant":
        return End("a person or another program deleted it")
    if removed.why and removed.uid == uid:
        return End(removed.why, removed.set_name)
    if former is None:
        return End("it went while pvbus did not look")
    set_name = set_among(_former.decode(former).metadata.owner_references)
    if not set_name:
        return End("a person or another program deleted it; no PackageVariantSet made it")
    return End(
        f"PackageVariantSet {key.namespace}/{set_name} did not remove it: a person or another program did, "
        "or that set is deleted",
        set_name,
    )
