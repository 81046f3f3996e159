"""Tables that controllers share: sync markers, and decoding of rows."""

from collections.abc import Iterator

import msgspec

from pvbus.core.keys import SYNC_PREFIX
from pvbus.core.records import SyncMarker

_marker = msgspec.json.Decoder(SyncMarker)


def is_marker(key: str) -> bool:
    """Tell a marker's key from a row's."""
    return key.startswith(SYNC_PREFIX)


def marker_kind(key: str) -> str:
    """Return `<group>/<kind>` of a marker's key."""
    return key[len(SYNC_PREFIX) :]


class SyncView:
    """What a reader of one topic knows of each kind's completeness.

    partitions: those the reader sees: all of a broadcast topic, one of an owned topic. A kind is
    ok when all of them say so with one epoch.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._markers: dict[str, dict[int, SyncMarker]] = {}
        self._known: dict[str, SyncMarker | None] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> bool:
        """Take in a marker; True when the kind's state, as `state` tells it, changed."""
        kind = marker_kind(key)
        markers = self._markers.setdefault(kind, {})
        if value is None:
            markers.pop(partition, None)
        else:
            markers[partition] = _marker.decode(value)
        before = self._known.get(kind)
        after = self._combine(markers)
        self._known[kind] = after
        return before != after

    def _combine(self, markers: dict[int, SyncMarker]) -> SyncMarker | None:
        if len(markers) < self._partitions:
            return None
        first, *others = markers.values()
        if all(m.state == first.state and m.epoch == first.epoch for m in others):
            return first
        return SyncMarker(state="syncing", epoch=max(m.epoch for m in markers.values()))

    def marker(self, kind: str) -> SyncMarker | None:
        """Return the marker all partitions agree on; None when the kind was never heard of."""
        return self._known.get(kind)

    def ok(self, kind: str) -> bool:
        marker = self._known.get(kind)
        return marker is not None and marker.state == "ok"

    def kinds(self) -> Iterator[tuple[str, SyncMarker]]:
        for kind, marker in self._known.items():
            if marker is not None:
                yield kind, marker
