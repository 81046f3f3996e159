"""Facts that follow from a set alone, computed once per record of the set, not at each pass."""

from collections.abc import Mapping
from typing import NamedTuple

from pvbus.core.api.variants import PackageVariantSet
from pvbus.core.kernel.keys import digest, watch_key
from pvbus.core.kernel.records import WatchRequest
from pvbus.core.variants.unroll.contexts import selected_kinds
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.core.variants.unroll.validation import validate_set
from pvbus.core.variants.unroll.view import REPOSITORY_KIND, REVISION_KIND, VARIANT_KIND

STATIC_KINDS = (VARIANT_KIND, REVISION_KIND, REPOSITORY_KIND)


class SetFacts(NamedTuple):
    """The facts that follow from one record of a set.

    kinds: `<group>/<kind>` that its selectors name -> the requested versions
    requests: key -> watch request for a kind that is not static; {} for a set that is being deleted
    limits: the limits of its removals; the installation's if its own are invalid
    problem: why its targets cannot be evaluated, "" if they can
    """

    kinds: Mapping[str, tuple[str, ...]]
    requests: Mapping[str, WatchRequest]
    limits: RemovalLimits
    problem: str
    spec_digest: str


def requester(partition: int) -> str:
    """Return the requester name of a lease."""
    return f"unroll-{partition}"


def facts_of(
    obj: PackageVariantSet, partition: int, defaults: RemovalLimits, unreadable: str = ""
) -> SetFacts:
    """Compute the facts of a set.

    partition: the partition whose lease requests its kinds
    defaults: the installation's limits of removals
    unreadable: why its spec cannot be read, "" if it can
    """
    kinds = selected_kinds(obj.spec)
    try:
        limits, problem = defaults.of(obj.metadata.annotations), ""
    except ValueError as error:
        limits, problem = defaults, str(error)
    return SetFacts(
        kinds,
        {} if obj.metadata.deletion_timestamp else _requests(kinds, partition),
        limits,
        unreadable or problem or "; ".join(validate_set(obj.spec)),
        digest(obj.spec),
    )


def _requests(kinds: Mapping[str, tuple[str, ...]], partition: int) -> dict[str, WatchRequest]:
    requests = {}
    for kind, versions in kinds.items():
        if kind not in STATIC_KINDS and any(versions):
            group, _, name = kind.rpartition("/")
            request = WatchRequest(group=group, kind=name, requester=requester(partition))
            requests[watch_key(request)] = request
    return requests
