"""The rows and markers of one kind as the bus has them, and the writes that change them.

Every change is emitted at once, in the order of the calls; an emitted row counts as written. A caller that
cannot write a row starts again from the state of the bus. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

from pvbus.core.errors import InvariantError
from pvbus.core.kernel.keys import STOP_PREFIX, parse_okey, sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.packagerows import SCOPE
from pvbus.core.kernel.records import INSTALLS, OBJECTS, Coverage, SyncMarker

MarkerState = Literal["syncing", "ok", "unavailable", "unwatched"]


Emit = Callable[[Emission], None]
Name = tuple[str, str]
"""(namespace, name); an empty name stands for any object of the kind in the namespace."""


WRITTEN = b""
"""The value of a row of a list that the bus has already; no row is empty. Whole lists of such rows would take
as much again as all tables of ingest."""


class KindRows:
    """Digests of the rows, and the markers, of one kind, per topic."""

    def __init__(
        self,
        kind: Kind,
        emit: Emit,
        *,
        partitions: int,
        known: dict[str, dict[str, str]],
        markers: dict[str, SyncMarker],
    ) -> None:
        """Take over what the bus has of a kind.

        known: topic -> key of each row -> its digest; updated with every emission
        markers: topic -> its marker; updated with every emission
        """
        self._kind = kind
        self._emit = emit
        self._partitions = partitions
        self._known = known
        self._markers = markers
        self._epoch = max((marker.epoch for marker in markers.values()), default=0)
        self.versions: tuple[str, ...] = ()  # those served, and what the list covers, for the markers
        self.coverage = Coverage()

    def mark(self, topic: str, state: MarkerState, message: str = "") -> None:
        """Write a marker to all partitions, unless the bus has it already."""
        marker = SyncMarker(state=state, epoch=self._epoch, message=message)
        if state == "ok":
            marker = replace(marker, versions=self.versions, coverage=self.coverage)
        if self._markers.get(topic) == marker:
            return
        self._markers[topic] = marker
        for emission in _to_all_partitions(topic, self._kind, marker, self._partitions):
            self._emit(emission)

    def replace(self, topic: str, rows: dict[str, Emission]) -> None:
        """Write the difference to a complete list, between `syncing` and `ok`; nothing if there is none."""
        known = self._known[topic]
        fresh = [row for row in rows.values() if known.get(row.key) != row.digest]
        gone = [key for key in known if key not in rows]
        marker = self._markers.get(topic)
        wanted = ("ok", self.versions, self.coverage)
        is_ok = marker is not None and (marker.state, marker.versions, marker.coverage) == wanted
        if fresh or gone or not is_ok:
            self._epoch += 1
            self.mark(topic, "syncing")
            for row in fresh:
                self.upsert(row)
            for key in gone:
                self.tombstone(topic, key)
            self.mark(topic, "ok")

    def is_written(self, row: Emission) -> bool:
        return self._known[row.topic].get(row.key) == row.digest

    def upsert(self, row: Emission) -> None:
        known = self._known[row.topic]
        if known.get(row.key) != row.digest:
            if row.value == WRITTEN:
                raise InvariantError(f"{row.topic}: {row.key}: another row was written during a list")
            known[row.key] = row.digest
            if row.key.startswith(STOP_PREFIX):
                self._emit_everywhere(row)
            else:
                self._emit(row)

    def tombstone(self, topic: str, key: str) -> None:
        if self._known[topic].pop(key, None) is not None:
            for row in _tombstones(topic, key, self._partitions):
                self._emit(row)

    def _emit_everywhere(self, row: Emission) -> None:
        for number in range(self._partitions):
            self._emit(row._replace(partition=number))

    def keys(self, topic: str) -> list[str]:
        return list(self._known[topic])

    def names(self, topics: Iterable[str]) -> set[Name]:
        """Return (namespace, name) of the objects that have rows in these topics."""
        names = set()
        for topic in topics:
            for key in self._known[topic]:
                if topic in (OBJECTS, INSTALLS):
                    parsed = parse_okey(key.removeprefix(f"{SCOPE}|"))
                    names.add((parsed.namespace, parsed.name))
                else:
                    namespace, _, name = key.partition("/")
                    names.add((namespace, name))
        return names


def agreed(markers: Mapping[int, SyncMarker], partitions: int) -> SyncMarker | None:
    """Return the common marker of a kind, None if there is none. markers: one for each partition.

    If the partitions differ, a worker ended between two of its steps: the kind is `syncing`, at the highest
    epoch of any partition.
    """
    if not markers:
        return None
    first, *others = markers.values()
    if len(markers) == partitions and all(marker == first for marker in others):
        return first
    return SyncMarker(state="syncing", epoch=max(marker.epoch for marker in markers.values()))


def unwanted(
    markers: Iterable[tuple[str, Kind, SyncMarker]], wanted: Mapping[Kind, Iterable[str]]
) -> dict[Kind, list[str]]:
    """Return the topics, per kind, whose markers and rows no watch will keep up to date.

    Topics that are `unwatched` already are not returned.

    markers: topic, kind and marker of each
    wanted: kind -> the topics that are to be watched
    """
    left: dict[Kind, list[str]] = {}
    for topic, kind, marker in markers:
        if topic not in wanted.get(kind, ()) and marker.state != "unwatched":
            left.setdefault(kind, []).append(topic)
    return left


def withdrawal(
    topic: str, kind: Kind, marker: SyncMarker, keys: Iterable[str], partitions: int
) -> Iterator[Emission]:
    """Yield the rows that withdraw a kind from a topic: `unwatched` first, then a tombstone per key.

    marker: the current one; the new one has the next epoch.
    """
    after = SyncMarker(state="unwatched", epoch=marker.epoch + 1)
    yield from _to_all_partitions(topic, kind, after, partitions)
    for key in keys:
        yield from _tombstones(topic, key, partitions)


def _tombstones(topic: str, key: str, partitions: int) -> Iterator[Emission]:
    """Yield the tombstones of a row: one, or one for each partition."""
    is_everywhere = key.startswith(STOP_PREFIX)
    for number in range(partitions) if is_everywhere else (None,):
        yield Emission(topic, key, None, "", number)


def _to_all_partitions(topic: str, kind: Kind, marker: SyncMarker, partitions: int) -> Iterator[Emission]:
    value, key = msgspec.json.encode(marker), sync_key(*kind)
    for partition in range(partitions):
        yield Emission(topic, key, value, "", partition)
