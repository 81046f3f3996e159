"""What promotion does to the proposals of a preview: it takes back those whose variants need other content.

The decision and the write are those of the services promote and release. Only what promotion has proposed is
taken back: the revision says so. Rollouts are no part of a preview, so what one keeps proposed as planned
(`onNewRevision: Finish`) is taken back here at once, and not at its end.
"""

from collections.abc import Iterable, Iterator

import msgspec

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.holds import SetHold, hold_reason, is_held
from pvbus.core.kernel.keys import PROPOSED_CONTENT
from pvbus.core.kernel.objectrows import REVISION, SET, VARIANT
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.promotion.promote.verdicts import lost_readiness
from pvbus.core.promotion.protocol.quarantines import set_of
from pvbus.core.promotion.release.lifecycles import as_draft
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Object

Name = tuple[str, str]


def drafts_again(cluster: MemoryCluster) -> Iterator[Object]:
    """Yield each proposal that promotion takes back, as the draft that it becomes."""
    proposals = [obj for obj in cluster.objects_of(REVISION) if _is_proposal(obj)]
    if not proposals:
        return
    variants = {_name(obj): obj for obj in cluster.objects_of(VARIANT)}
    holds = dict(_holds(cluster.objects_of(SET)))
    for obj in proposals:
        owner = next((each for each in _owners(obj) if each in variants), None)
        if owner is None:
            continue
        variant = msgspec.convert(variants[owner], PackageVariant)
        set_on_hold = holds.get((owner[0], set_of(variant)))
        if why := lost_readiness(variant, obj, set_on_hold=set_on_hold):
            yield as_draft(obj, why)


def _is_proposal(obj: Object) -> bool:
    is_open = lifecycle_of(obj) == "Proposed" and not obj["metadata"].get("deletionTimestamp")
    return is_open and bool(annotations_of(obj).get(PROPOSED_CONTENT))


def _owners(obj: Object) -> Iterable[Name]:
    namespace = obj["metadata"].get("namespace", "")
    references = obj["metadata"].get("ownerReferences") or ()
    return [(namespace, each["name"]) for each in references if each.get("kind") == VARIANT.kind]


def _holds(objects: Iterable[Object]) -> Iterator[tuple[Name, SetHold]]:
    for obj in objects:
        annotations = annotations_of(obj)
        if is_held(annotations):
            yield _name(obj), SetHold(obj["metadata"]["name"], hold_reason(annotations))


def _name(obj: Object) -> Name:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
