"""Digests of everything ingest has written, by topic and key.

Read once and caught up at each lease, so a restart (or a lease that moves) compares a fresh list with
the rows on the bus, and writes only the difference; read from the beginning if the last read is so old
that tombstones may be gone. The digest is a header, so no row needs to be decoded. Markers are few: they
are decoded.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from pvbus.core.kernel.keys import STOP_PREFIX, kind_of
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import QUARANTINE, STOP
from pvbus.core.kernel.records import INJECTABLES, INSTALLS, OBJECTS, POLICIES, SyncMarker
from pvbus.core.variants.ingest.published import agreed
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.reader import StaleError, TableReader

DIGEST_HEADER = "pvbus-digest"
_marker = msgspec.json.Decoder(SyncMarker)
_UNREADABLE = SyncMarker(state="syncing", epoch=0)  # never trusted: the next list rewrites it


class PublishedDigests:
    """The last digest per key of whole topics, and the markers of their partitions."""

    def __init__(self, bus: Bus, clock: Clock, topics: Iterable[str], partitions: int) -> None:
        self._bus = bus
        self._partitions: list[TopicPartition] = [(t, p) for t in topics for p in range(partitions)]
        self._table_reader = TableReader(bus, clock)
        self._digests: dict[str, dict[str, dict[str, str]]] = {topic: {} for topic in topics}
        self._markers: dict[tuple[str, str], dict[int, SyncMarker]] = {}
        self._copies: dict[tuple[str, str], dict[int, str]] = {}
        self._count = partitions

    async def catch_up(self, progress: Callable[[int, int], None]) -> None:
        """Read up to the current ends.

        progress: called with (offsets read, offsets to read)
        """
        ends = await self._bus.end_offsets(self._partitions)
        total = sum(ends.values())
        while True:
            try:
                if not self._table_reader.positions:
                    self._table_reader.assign(await self._table_reader.replay(ends, self._take, progress))
                while not self._table_reader.has_reached(ends):
                    progress(self._behind(ends), total)
                    await self._table_reader.poll(self._take)
            except StaleError:
                self._empty()
            else:
                progress(total, total)
                return

    def _empty(self) -> None:
        self._table_reader.unassign(self._partitions)
        self._markers.clear()
        self._copies.clear()
        for digests in self._digests.values():
            digests.clear()

    def _behind(self, ends: Mapping[TopicPartition, int]) -> int:
        return sum(min(self._table_reader.positions[partition], end) for partition, end in ends.items())

    def _take(self, record: Record) -> None:
        key = record.key.decode(errors="replace")  # our own keys are UTF-8
        head = kind_of(key)
        digest = next((v.decode() for k, v in record.headers if k == DIGEST_HEADER), "")
        if key.startswith(STOP_PREFIX):
            self._take_copy(record, key, digest if record.value is not None else None)
            return
        if record.value is None:
            self._digests[record.topic].get(head, {}).pop(key, None)
            return
        if is_marker(key):
            self._markers.setdefault((record.topic, key), {})[record.partition] = _decoded(record.value)
            return
        self._digests[record.topic].setdefault(head, {})[key] = digest

    def _take_copy(self, record: Record, key: str, digest: str | None) -> None:
        """Take a row that every partition has. Where they differ, as a worker ended between two of its steps,
        its digest is "", so it is written again or removed."""
        copies = self._copies.setdefault((record.topic, key), {})
        rows = self._digests[record.topic].setdefault(kind_of(key), {})
        if digest is None:
            copies.pop(record.partition, None)
        else:
            copies[record.partition] = digest
        if not copies:
            rows.pop(key, None)
            return
        is_agreed = len(copies) == self._count and len(set(copies.values())) == 1
        rows[key] = next(iter(copies.values())) if is_agreed else ""

    def headed(self, topic: str, head: str) -> dict[str, str]:
        """Return key -> digest of the rows whose keys have this text before their first `|`."""
        return dict(self._digests[topic].get(head, {}))

    def of_kind(self, topic: str, kind: str) -> dict[str, str]:
        """Return key -> digest of a kind's rows: all whose keys name no kind, where its own do not."""
        if topic == POLICIES and kind == str(STOP):
            return self.headed(topic, STOP_PREFIX.removesuffix("|"))
        if topic in (OBJECTS, INJECTABLES, INSTALLS) or kind == str(QUARANTINE):
            return self.headed(topic, kind)
        rows = (row for rows in self._digests[topic].values() for row in rows.items())
        return {key: digest for key, digest in rows if "|" not in key}

    def marker(self, topic: str, key: str) -> SyncMarker | None:
        """Return the common marker of the partitions, None if there is none."""
        return agreed(self._markers.get((topic, key), {}), self._count)

    def markers(self) -> Iterator[tuple[str, str]]:
        """Yield (topic, key) of all markers."""
        yield from self._markers

    async def close(self) -> None:
        await self._table_reader.close()


def _decoded(value: bytes) -> SyncMarker:
    try:
        return _marker.decode(value)
    except msgspec.MsgspecError:
        return _UNREADABLE
