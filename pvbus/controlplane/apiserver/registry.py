"""The served kinds, by a request's group, version and plural.

Built-in kinds are served from the start. A CustomResourceDefinition adds its kind when it is committed, and
removes it when it is deleted. An `Endpoint`, found by (group, version, plural), has all that handlers need.
"""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from pvbus.controlplane.apiserver.apply.fieldtypes import FieldType, of_object
from pvbus.controlplane.apiserver.entries import Entry, encode
from pvbus.controlplane.apiserver.kinds import ServedKind, ServedVersion, from_crd
from pvbus.controlplane.apiserver.status import Subject
from pvbus.controlplane.apiserver.structural import Schema, compile_schema
from pvbus.ports.cluster import Kind, Object

CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
NAMESPACE = Kind("", "Namespace")
EVENT = Kind("", "Event")
NEW_EVENT = Kind("events.k8s.io", "Event")
PACKAGE_REVISION = Kind("porch.kpt.dev", "PackageRevision")
PACKAGE_RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")


class Endpoint:
    """One version of one kind, ready to serve."""

    def __init__(self, served: ServedKind, version: ServedVersion) -> None:
        self.served = served
        self.version = version
        self.kind = Kind(served.group, served.kind)
        self.api_version = served.api_version(version.name)
        self.stored_kind = EVENT if self.kind == NEW_EVENT else self.kind
        self.stored_api_version = served.api_version(served.storage_version.name)
        self.converts = self.stored_kind != self.kind or self.api_version != self.stored_api_version
        self.has_status = "status" in version.subresources and not version.shares_status

    @cached_property
    def schema(self) -> Schema | None:
        """The compiled schema; it is compiled at the first write of an object of the kind."""
        return None if self.version.schema is None else compile_schema(self.version.schema)

    @cached_property
    def field_type(self) -> FieldType:
        """How the fields of the kind are owned and merged."""
        return of_object(self.version.schema)

    def subject(self, name: str = "") -> Subject:
        return Subject(self.served.group, self.served.plural, self.served.kind, name)

    def raw(self, entry: Entry) -> bytes:
        """Return the object's JSON in this version."""
        return encode(self.presented(entry.opened())) if self.converts else entry.raw

    def presented(self, obj: Object) -> Object:
        """Return a stored object in this version."""
        if self.stored_kind != self.kind:
            return _renamed(obj, NEW_EVENT_NAMES, "events.k8s.io/v1")
        if self.converts:
            return {**obj, "apiVersion": self.api_version}
        return obj

    def stored(self, obj: Object) -> Object:
        """Convert an object of this version to the storage version."""
        if self.stored_kind != self.kind:
            return _renamed(obj, _NAMES, "v1")
        if self.converts:
            return {**obj, "apiVersion": self.stored_api_version}
        return obj


class Registry:
    """The kinds that are currently served."""

    def __init__(self, builtin: Iterable[ServedKind]) -> None:
        self._builtin = tuple(builtin)
        self._custom: dict[str, ServedKind] = {}
        self._endpoints: dict[tuple[str, str, str], Endpoint] = {}
        self._by_kind: dict[Kind, Endpoint] = {}
        self.terminating: set[Kind] = set()
        self.edition = 0
        self._families: dict[Kind, bytes] = {}
        for served in self._builtin:
            self._add(served)

    def _add(self, served: ServedKind) -> None:
        for version in served.versions:
            if version.served:
                endpoint = Endpoint(served, version)
                self._endpoints[served.group, version.name, served.plural] = endpoint
        self._by_kind[Kind(served.group, served.kind)] = Endpoint(served, served.storage_version)
        self._families.clear()
        self.edition += 1

    def _drop(self, served: ServedKind) -> None:
        for version in served.versions:
            self._endpoints.pop((served.group, version.name, served.plural), None)
        self._by_kind.pop(Kind(served.group, served.kind), None)
        self._families.clear()
        self.edition += 1

    def kinds(self) -> Sequence[ServedKind]:
        """Return every served kind, built-in ones first."""
        return (*self._builtin, *self._custom.values())

    @property
    def custom_count(self) -> int:
        return len(self._custom)

    def endpoint(self, group: str, version: str, plural: str) -> Endpoint | None:
        return self._endpoints.get((group, version, plural))

    def storage(self, kind: Kind) -> Endpoint | None:
        """Return the endpoint of a kind in the version it is stored in."""
        return self._by_kind.get(kind)

    def family(self, endpoint: Endpoint) -> bytes:
        """Return the pickled kinds that serve the objects of a kind: more than itself only for events."""
        family = self._families.get(endpoint.stored_kind)
        if family is None:
            kinds = [
                self._by_kind[kind] for kind in (endpoint.stored_kind, NEW_EVENT) if kind in self._by_kind
            ]
            served = [other.served for other in kinds if other.stored_kind == endpoint.stored_kind]
            family = self._families[endpoint.stored_kind] = pickle.dumps(served)
        return family

    def set_crd(self, crd: Object) -> None:
        """Serve the kind of a CustomResourceDefinition in its present form, or stop serving it."""
        self.drop_crd(crd["metadata"]["name"])
        if not is_established(crd):
            return
        served = from_crd(crd)
        self._custom[crd["metadata"]["name"]] = served
        if "deletionTimestamp" in crd["metadata"]:
            self.terminating.add(Kind(served.group, served.kind))
        self._add(served)

    def drop_crd(self, name: str) -> None:
        served = self._custom.pop(name, None)
        if served is not None:
            self.terminating.discard(Kind(served.group, served.kind))
            self._drop(served)

    def name_conflict(self, crd: Object) -> str:
        """Return the conflict of a CustomResourceDefinition's names with another kind of its group, or ""."""
        wanted = from_crd(crd)
        own = crd["metadata"]["name"]
        others = [*self._builtin, *(kind for name, kind in self._custom.items() if name != own)]
        return next((conflict for other in others if (conflict := _conflict(wanted, other))), "")


def _conflict(wanted: ServedKind, other: ServedKind) -> str:
    if wanted.group != other.group:
        return ""
    taken = {other.plural, other.singular, *other.short_names}
    for name in (wanted.plural, wanted.singular, *wanted.short_names):
        if name in taken:
            return f'"{name}" is already in use'
    if wanted.kind in (other.kind, other.list_kind):
        return f'"{wanted.kind}" is already in use'
    return ""


def is_established(crd: Object) -> bool:
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Established" and c.get("status") == "True" for c in conditions)


# Events have two APIs: v1 and events.k8s.io/v1 serve the same objects, which are stored as v1.
# Source: k8s.io/kubernetes/pkg/apis/events/v1/conversion.go.
_NAMES: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
NEW_EVENT_NAMES: Mapping[str, str] = {core: new for new, core in _NAMES.items()}


def _renamed(event: Object, names: Mapping[str, str], api_version: str) -> dict[str, Any]:
    renamed = {names.get(field, field): value for field, value in event.items()}
    renamed["apiVersion"] = api_version
    return renamed
