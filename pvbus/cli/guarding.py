"""Quarantines and stops, which keep a person from proposing or approving a revision.

A person may pass them with a reason, which is written to the revision before it is moved. Where they cannot
be read, nothing is moved without a reason either.
"""

import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pvbus.cli.fleet import Member, require_served, selector_at
from pvbus.cli.live import REVISION
from pvbus.cli.rolloutorders import user_name
from pvbus.cli.stops import read_stops
from pvbus.core.api.quarantines import Quarantine
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.keys import OVERRIDE_QUARANTINE
from pvbus.core.kernel.objectrows import QUARANTINE
from pvbus.core.kernel.objects import annotations_of, timestamp
from pvbus.core.promotion.protocol.proposals import APPROVE, Move, Refusal
from pvbus.core.promotion.protocol.quarantines import (
    UNKNOWN,
    Content,
    Quarantines,
    package_of,
    set_of,
    source_of_object,
)
from pvbus.core.promotion.protocol.stops import FLEET_STOPPED, STOP_UNKNOWN, standstill_of
from pvbus.core.variants.revisions.content import content_digest, source_digest
from pvbus.ports.cluster import Cluster, Kind, Object

RESOURCES = Kind(REVISION.group, "PackageRevisionResources")


class Guard(NamedTuple):
    """What was read before revisions are moved.

    quarantines: those of one namespace that nobody has released
    general: why none may be moved, None for nothing
    """

    cluster: Cluster
    quarantines: Quarantines
    general: Refusal | None

    async def refusal(self, member: Member) -> Refusal | None:
        """Return what keeps a revision from being moved."""
        if self.general is not None or not self.quarantines:
            return self.general
        set_name, source = set_of(member.variant), source_of_object(member.variant, member.revision)
        by_content = self.quarantines.compare_contents(set_name)
        by_files = self.quarantines.compare_files(set_name)
        digest = await self._digest(member, member.name) if by_content else ""
        files = await self._files(member, source) if by_files else None
        return self.quarantines.refusal(
            Content(set_name, source, files, digest), member.variant.metadata.name
        )

    async def _digest(self, member: Member, name: str) -> str:
        return content_digest(await self._resources(member.key.namespace, name))

    async def _files(self, member: Member, source: str) -> str:
        """Return the digest of an upstream revision's files, "" if they cannot be read."""
        resource = await require_served(self.cluster, REVISION)
        upstream = {"spec": {"upstream": _package(source)}}
        at = selector_at(upstream, "upstream")
        listed = await self.cluster.list(resource, member.key.namespace, field_selector=at)
        tail = source.rpartition("@")[2]
        name = next((str(each["metadata"]["name"]) for each in listed.items if tail in _tails(each)), "")
        files = await self._resources(member.key.namespace, name) if name else {}
        return source_digest(files) if files else ""

    async def _resources(self, namespace: str, name: str) -> Mapping[str, str]:
        found = await self.cluster.get(await require_served(self.cluster, RESOURCES), namespace, name)
        return ((found or {}).get("spec") or {}).get("resources") or {}


def _package(source: str) -> dict[str, str]:
    repository, _, package = package_of(source).partition("/")
    return {"repo": repository, "package": package}


def _tails(revision: Object) -> tuple[str, str]:
    """Return the names by which an upstream revision is followed."""
    spec = revision["spec"]
    return f"v{spec.get('revision')}", str(spec.get("workspaceName"))


async def read_guard(cluster: Cluster, namespace: str, move: Move) -> Guard:
    """Read what may keep revisions of a namespace from being moved."""
    general = await _read_stop(cluster) if move is APPROVE else None
    resource = await cluster.resource(QUARANTINE) if move.is_checked else None
    if resource is None:
        return Guard(cluster, Quarantines(namespace), general)
    try:
        listed = await cluster.list(resource, namespace)
    except PermanentError as error:
        return Guard(
            cluster,
            Quarantines(namespace),
            general or Refusal(UNKNOWN, f"quarantines cannot be listed: {error}"),
        )
    read = (msgspec.convert(each, Quarantine) for each in listed.items)
    return Guard(cluster, Quarantines(namespace, read), general)


async def _read_stop(cluster: Cluster) -> Refusal | None:
    try:
        standstill = standstill_of(await read_stops(cluster))
    except PermanentError as error:
        return Refusal(STOP_UNKNOWN, f"stops of all rollouts cannot be listed: {error}")
    return Refusal(FLEET_STOPPED, standstill.message) if standstill.reason else None


async def note_override(cluster: Cluster, revision: Object, refusal: Refusal, reason: str) -> Object:
    """Write who passes a refusal, and why; return the revision as stored."""
    by = await user_name(cluster) or "somebody"
    words = f"{by} at {timestamp(time.time())}: {reason} (in spite of {refusal.reason}: {refusal.message})"
    annotations = {**annotations_of(revision), OVERRIDE_QUARANTINE: words}
    noted = {**revision, "metadata": {**revision["metadata"], "annotations": annotations}}
    return await cluster.update(await require_served(cluster, REVISION), noted)
