"""What the status of a Repository says of its sync: conditions, counts and the times of full syncs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.controlplane.packages import layout, leftovers, skipping
from pvbus.controlplane.packages.clone import RepositoryClone
from pvbus.controlplane.packages.settings import RepositorySettings
from pvbus.controlplane.packages.timing import FullSyncs
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.core.kernel.objects import annotations_of, timestamp
from pvbus.ports.cluster import Object


class RepositoryStatus:
    """The status of one Repository, written where it differs.

    problem: why requests cannot be served now, "" if they can
    full_syncs: the times of the full syncs
    """

    def __init__(self, objects: Objects, settings: RepositorySettings, clone: RepositoryClone) -> None:
        self.problem = "it has not been read yet"
        self._objects = objects
        self._settings = settings
        self._clone = clone
        self.full_syncs = FullSyncs(settings.schedule, self.stored())

    def stored(self) -> Object | None:
        """Return the Repository's object, None if it is gone."""
        facts = self._settings.facts
        return self._objects.get(REPOSITORY, facts.namespace, facts.name)

    def annotations(self) -> Mapping[str, str]:
        """Return the annotations of the Repository."""
        return annotations_of(self.stored() or {})

    async def report_ready(self) -> None:
        await self._report("True", "Ready", self._clone.catalog.readiness())

    async def report_problem(self) -> None:
        await self._report("False", "Error", self.problem)

    async def _report(self, status: str, reason: str, message: str) -> None:
        conditions = [{"type": "Ready", "status": status, "reason": reason, "message": message}]
        extra: dict[str, Any] = dict(self.full_syncs.status(self.stored()))
        if self._clone.is_read:
            by_directory = self._clone.catalog.by_directory.values()
            extra["packageCount"] = sum(len(revisions) for revisions in by_directory)
            extra["gitCommitHash"] = self._clone.catalog.head
            conditions += self._counted()
        facts = self._settings.facts
        await report(self._objects, facts.namespace, facts.name, conditions, extra)

    def _counted(self) -> list[dict[str, str]]:
        """Return the conditions that count what has no PackageRevision."""
        settings = self._settings
        paths = [
            layout.package_path(directory, settings.directory) or directory
            for directory in self._clone.leftovers
        ]
        left = leftovers.condition(settings.facts.name, settings.branch, paths)
        skipped = skipping.condition(self._clone.skipped)
        return [condition for condition in (left, skipped) if condition is not None]


async def report(
    objects: Objects,
    namespace: str,
    name: str,
    conditions: Sequence[Mapping[str, str]],
    extra: Mapping[str, Any],
) -> None:
    """Set the conditions of a Repository's status; write only if they differ."""
    now = timestamp(time.time())

    def reported(stored: Object) -> Object:
        before = dict(stored.get("status") or {})
        since = {
            (old.get("type"), old.get("status")): old.get("lastTransitionTime", now)
            for old in before.get("conditions") or []
        }
        written = [
            {**each, "lastTransitionTime": since.get((each["type"], each["status"]), now)}
            for each in conditions
        ]
        after = {**before, "conditions": written, **extra}
        if generation := stored["metadata"].get("generation"):
            after["observedGeneration"] = generation
        return stored if after == before else {**stored, "status": after}

    await objects.change(REPOSITORY, namespace, name, reported)
