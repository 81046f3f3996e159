"""The rows of one kind as the bus has them, and how they change.

Every change is emitted at once, in the order of the calls; what is emitted counts as written. Whoever
cannot write it begins again with what the bus has.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from pvbus.core.ingest.rows import KindName, ObservedRow
from pvbus.core.keys import parse_okey, sync_key
from pvbus.core.records import OBJECTS, SyncMarker


class Emission(NamedTuple):
    """A row to write. partition None: to its key's partition; else to this one (markers)."""

    topic: str
    key: str
    value: bytes | None
    digest: str
    partition: int | None = None


Emit = Callable[[Emission], None]
Name = tuple[str, str]
"""(namespace, name); an empty name stands for whatever the namespace has of the kind."""


class KindRows:
    """Digests of the rows and markers of one kind, per topic."""

    def __init__(
        self,
        kind: KindName,
        emit: Emit,
        *,
        partitions: int,
        known: dict[str, dict[str, str]],
        markers: dict[str, str],
    ) -> None:
        self._kind = kind
        self._emit = emit
        self._partitions = partitions
        self._known = known
        self._markers = markers
        self._epoch = max((int(d.split("|")[1]) for d in markers.values() if d), default=0)
        self.versions: tuple[str, ...] = ()  # those served, for the markers

    def mark(self, topic: str, state: str, message: str = "") -> None:
        """Write a marker to all partitions, unless it says what the bus has already."""
        versions = self.versions if state == "ok" else ()
        digest = f"{state}|{self._epoch}|{','.join(versions)}|{message}"
        if self._markers.get(topic, "") == digest:
            return
        self._markers[topic] = digest
        marker = SyncMarker(
            state=state,  # type: ignore[arg-type]  # callers pass words of the field's type
            epoch=self._epoch,
            versions=versions,
            message=message,
        )
        value, key = msgspec.json.encode(marker), sync_key(*self._kind)
        for partition in range(self._partitions):
            self._emit(Emission(topic, key, value, digest, partition))

    def replace(self, topic: str, rows: dict[str, ObservedRow]) -> None:
        """Write the difference to a complete list, between `syncing` and `ok`; nothing if there is none."""
        known = self._known[topic]
        fresh = [row for row in rows.values() if known.get(row.key) != row.digest]
        gone = [key for key in known if key not in rows]
        state, _, versions, _ = (self._markers.get(topic) or "|||").split("|", 3)
        if fresh or gone or state != "ok" or versions != ",".join(self.versions):
            self._epoch += 1
            self.mark(topic, "syncing")
            for row in fresh:
                self.upsert(row)
            for key in gone:
                self.tombstone(topic, key)
            self.mark(topic, "ok")

    def is_written(self, row: ObservedRow) -> bool:
        return self._known[row.topic].get(row.key) == row.digest

    def upsert(self, row: ObservedRow) -> None:
        if not self.is_written(row):
            self._known[row.topic][row.key] = row.digest
            self._emit(Emission(row.topic, row.key, row.value, row.digest))

    def tombstone(self, topic: str, key: str) -> None:
        if self._known[topic].pop(key, None) is not None:
            self._emit(Emission(topic, key, None, ""))

    def keys(self, topic: str) -> list[str]:
        return list(self._known[topic])

    def names(self, topics: Iterable[str]) -> set[Name]:
        """Return (namespace, name) of the objects that have rows in these topics."""
        found = set()
        for topic in topics:
            for key in self._known[topic]:
                if topic == OBJECTS:
                    parsed = parse_okey(key)
                    found.add((parsed.namespace, parsed.name))
                else:
                    namespace, _, name = key.partition("/")
                    found.add((namespace, name))
        return found
