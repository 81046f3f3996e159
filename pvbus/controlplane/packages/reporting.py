"""The conditions of a Repository."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from pvbus.controlplane.apiserver.hooks import Objects
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.kernel.objects import timestamp
from pvbus.ports.cluster import Kind, Object

REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REMOVE_LAST_REVISION = "pvbus.dev/remove-last-revision"
"""Annotation of a Repository: `"true"` removes a package's folder from the branch together with its last
published revision."""


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
