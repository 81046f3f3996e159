"""Removes Events an hour after they were last written, as kube-apiserver does (--event-ttl, a lease in etcd).

The time is that of the write, not one that a client sends. After a restart it is that of the managedFields.
Finalizers do not keep an Event.
"""

import asyncio
import time
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any

from pvbus.controlplane.apiserver.entries import Change, ObjectKey
from pvbus.controlplane.apiserver.store import Store, StoreError
from pvbus.ports.cluster import Kind
from pvbus.telemetry.structured import structlog

EVENT = Kind("", "Event")
EVENT_SECONDS = 3600.0
"""Kubernetes' own time. With a longer one, Events of a busy fleet would take much memory."""

SWEEP_SECONDS_MAX = 30.0
"""How late an Event goes at most."""

TOGETHER_MAX = 500
"""Removals of one transaction: others write in between."""

_log = structlog.get_logger(__name__)


class EventExpiry:
    """Records when each Event was written last. `run` removes old Events until it is cancelled."""

    def __init__(self, store: Store, seconds: float = EVENT_SECONDS) -> None:
        self._store = store
        self._seconds = seconds
        self._writes: dict[ObjectKey, float] = {}  # the oldest first
        store.observe(self._observe)

    def begin(self) -> None:
        """Take note of the Events that are there at the start."""
        now, today = time.monotonic(), time.time()
        ages = {
            entry.key: max(today - _seconds(entry.decode()["metadata"]), 0.0)
            for entry in self._store.table(EVENT).in_order()
        }
        for key in sorted(ages, key=lambda key: -ages[key]):
            self._writes[key] = now - ages[key]

    def _observe(self, change: Change) -> None:
        if change.kind == EVENT:
            self._writes.pop(change.entry.key, None)
            if change.type != "DELETED":
                self._writes[change.entry.key] = time.monotonic()

    async def run(self) -> None:
        while True:
            try:
                while old := self._older_than(time.monotonic() - self._seconds):
                    for key in old:
                        self._store.remove(EVENT, key)
                    await self._store.durable()  # then they are out of the table of writes
            except StoreError as exc:
                _log.warning("old Events stay for now", error=str(exc))
            await asyncio.sleep(min(self._seconds / 10, SWEEP_SECONDS_MAX))

    def _older_than(self, moment: float) -> list[ObjectKey]:
        """Return the first Events that were last written before a moment."""
        first = islice(self._writes.items(), TOGETHER_MAX)
        return [key for key, _ in takewhile(lambda item: item[1] < moment, first)]


def _seconds(metadata: dict[str, Any]) -> float:
    """Return when an object was last written, as the server noted it."""
    times = [entry.get("time") or "" for entry in metadata.get("managedFields", ())]
    return datetime.fromisoformat(max(metadata["creationTimestamp"], *times, "")).astimezone(UTC).timestamp()
