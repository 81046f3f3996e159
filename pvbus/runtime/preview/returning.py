"""What promotion does to the proposals of a preview: it takes back those whose variants need other content.

The decision and the write are those of the services promote and release. Only what promotion has proposed is
taken back: the revision says so. Rollouts are no part of a preview, so its maker says what they keep proposed
as planned (`onNewRevision: Finish`), and whose newer upstream revision is quarantined.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.core.api.variants import PackageVariant
from pvbus.core.kernel.holds import SetHold, hold_reason, is_held
from pvbus.core.kernel.keys import PROPOSED_CONTENT, Key
from pvbus.core.kernel.objectrows import REVISION, SET, VARIANT
from pvbus.core.kernel.objects import annotations_of
from pvbus.core.promotion.promote.verdicts import lost_readiness
from pvbus.core.promotion.protocol.proposals import is_outdated
from pvbus.core.promotion.protocol.quarantines import set_of
from pvbus.core.promotion.release.lifecycles import as_draft
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Object

Name = tuple[str, str]
Frozen = Callable[[PackageVariant, Object], str]
"""Returns why a proposal stays as it is though its variant follows a newer upstream revision, "" if it does
not."""


def nothing_frozen(_variant: PackageVariant, _proposal: Object) -> str:
    return ""


def drafts_again(cluster: MemoryCluster, frozen: Frozen = nothing_frozen) -> Iterator[Object]:
    """Yield each proposal that promotion takes back, as the draft that it becomes."""
    holds = dict(_holds(cluster.objects_of(SET)))
    for variant, obj in _proposals(cluster):
        set_on_hold = holds.get((variant.metadata.namespace, set_of(variant)))
        if why := lost_readiness(variant, obj, set_on_hold=set_on_hold, frozen=frozen(variant, obj)):
            yield as_draft(obj, why)


def kept_as_planned(cluster: MemoryCluster, frozen: Frozen) -> Iterator[tuple[str, str]]:
    """Yield namespace and name of each variant whose proposal stays, in one text, and why."""
    for variant, obj in _proposals(cluster):
        if is_outdated(variant) and (why := frozen(variant, obj)):
            yield str(Key(variant.metadata.namespace, variant.metadata.name)), why


def _proposals(cluster: MemoryCluster) -> Iterator[tuple[PackageVariant, Object]]:
    """Yield the proposals of promotion, with their variants."""
    proposals = [obj for obj in cluster.objects_of(REVISION) if _is_proposal(obj)]
    variants = {_name(obj): obj for obj in cluster.objects_of(VARIANT)} if proposals else {}
    for obj in proposals:
        owner = next((each for each in _owners(obj) if each in variants), None)
        if owner is not None:
            yield msgspec.convert(variants[owner], PackageVariant), obj


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
