"""Events have two faces: v1 and events.k8s.io/v1 show the same stored objects (as v1 has them).

Source: k8s.io/kubernetes/pkg/apis/events/v1/conversion.go.
"""

from collections.abc import Mapping
from typing import Any

from pvbus.ports.cluster import Object

_NAMES: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK: Mapping[str, str] = {core: new for new, core in _NAMES.items()}


def to_core(event: Object) -> Object:
    """Return an events.k8s.io Event as a v1 Event."""
    return _renamed(event, _NAMES, "v1")


def from_core(event: Object) -> Object:
    """Return a v1 Event as an events.k8s.io one."""
    return _renamed(event, _BACK, "events.k8s.io/v1")


def _renamed(event: Object, names: Mapping[str, str], api_version: str) -> dict[str, Any]:
    renamed = {names.get(field, field): value for field, value in event.items()}
    renamed["apiVersion"] = api_version
    return renamed
