"""Tables that controllers share: sync markers, and decoding of rows."""

import msgspec

from pvbus.core.kernel.keys import SYNC_PREFIX
from pvbus.core.kernel.records import SyncMarker

NOT_SERVED = "no matches"
"""Begins the API's words for a kind that it does not know: such a kind has no objects."""

_marker = msgspec.json.Decoder(SyncMarker)


def is_marker(key: str) -> bool:
    """Return whether a key is a marker's."""
    return key.startswith(SYNC_PREFIX)


def marker_kind(key: str) -> str:
    """Return `<group>/<kind>` of a marker's key."""
    return key[len(SYNC_PREFIX) :]


class SyncView:
    """The completeness of each kind, as seen by a reader of one topic.

    partitions: how many the reader sees: all of a broadcast topic, one of an owned topic. A kind is ok
    if the markers of all of them are, with one epoch.
    """

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._markers: dict[str, dict[int, SyncMarker]] = {}
        self._known: dict[str, SyncMarker | None] = {}

    def load(self, partition: int, key: str, value: bytes | None) -> bool:
        """Apply a marker; return whether the kind's combined marker changed."""
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
        """Return a kind's combined marker: `syncing` if they differ, None until every partition has one."""
        return self._known.get(kind)

    def ok(self, kind: str, namespace: str) -> bool:
        """Return whether a missing object of this kind does not exist in this namespace."""
        marker = self._known.get(kind)
        return marker is not None and marker.state == "ok" and marker.coverage.covers(namespace)

    def problem(self, kind: str, namespace: str) -> str:
        """Return why a namespace of a listed kind is not covered, "" if it is, or nothing is known."""
        marker = self._known.get(kind)
        return marker.coverage.problem(namespace) if marker is not None and marker.state == "ok" else ""

    def hidden(self, kind: str) -> str:
        """Return why the objects of a kind cannot be read, in the API's words; "" if they can, or if there
        are none, as the kind is not served."""
        marker = self._known.get(kind)
        if marker is None or marker.state != "unavailable" or marker.message.startswith(NOT_SERVED):
            return ""
        return marker.message or "they cannot be listed"
