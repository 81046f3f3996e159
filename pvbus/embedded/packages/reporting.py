"""The condition Ready of a Repository."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pvbus.core.model import CONFIG_GROUP
from pvbus.embedded.apiserver.hooks import Objects
from pvbus.ports.cluster import Kind, Object

REPOSITORY = Kind(CONFIG_GROUP, "Repository")


async def report(
    objects: Objects, namespace: str, name: str, condition: Mapping[str, str], extra: Mapping[str, Any]
) -> None:
    """Write a Repository's status, unless it says this already."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def told(stored: Object) -> Object:
        before = dict(stored.get("status") or {})
        since = now
        for old in before.get("conditions") or []:
            if old.get("type") == condition["type"] and old.get("status") == condition["status"]:
                since = old.get("lastTransitionTime", now)
        after = {**before, "conditions": [{**condition, "lastTransitionTime": since}], **extra}
        if generation := stored["metadata"].get("generation"):
            after["observedGeneration"] = generation
        return stored if after == before else {**stored, "status": {**after, "lastFullSyncTime": now}}

    await objects.change(REPOSITORY, namespace, name, told)
