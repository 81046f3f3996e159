"""The owners of an object's fields: `metadata.managedFields`, decoded and encoded.

Source: k8s.io/apimachinery pkg/util/managedfields/internal (v0.36), behaviour only.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.apply import fieldsets
from pvbus.controlplane.apiserver.apply.fieldsets import FieldSet

UPDATE, APPLY = "Update", "Apply"


class Manager(NamedTuple):
    """Who owns fields.

    name: the field manager
    operation: `Update` or `Apply`
    api_version: the version of its writes; "" for an applier, which has one entry for all versions
    subresource: the subresource of its writes, "" for the object itself
    """

    name: str
    operation: str
    api_version: str
    subresource: str = ""

    @property
    def rank(self) -> str:
        """The text by which managers are ordered where their names are not enough."""
        named = {"manager": self.name, "operation": self.operation, "apiVersion": self.api_version}
        named["subresource"] = self.subresource
        return json.dumps({key: value for key, value in named.items() if value})


class Owned(NamedTuple):
    """What a manager owns.

    fields: the fields, in the names of one version
    api_version: that version
    time: when the manager last changed them, as JSON has it; "" if unknown
    """

    fields: FieldSet
    api_version: str
    time: str = ""


Managers = Mapping[Manager, Owned]


def updater(name: str, api_version: str, subresource: str) -> Manager:
    return Manager(name or "unknown", UPDATE, api_version, subresource)


def applier(name: str, subresource: str) -> Manager:
    return Manager(name or "unknown", APPLY, "", subresource)


def is_reset(entries: Any) -> bool:
    """Return whether a client asks to forget all owners: by an empty list, or one empty entry."""
    return isinstance(entries, list) and (not entries or entries == [{}])


def stored(entries: Sequence[Any]) -> dict[Manager, Owned]:
    """Return the owners in `managedFields` that `encoded` made."""
    return {
        Manager(
            entry["manager"],
            entry["operation"],
            entry["apiVersion"] if entry["operation"] == UPDATE else "",
            entry.get("subresource", ""),
        ): Owned(entry["fieldsV1"], entry["apiVersion"], entry.get("time", ""))
        for entry in entries
    }


def decoded(entries: Sequence[Any]) -> dict[Manager, Owned]:
    """Return the owners in `managedFields`. Raises ValueError if one is not well-formed."""
    managers = {}
    for at, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise ValueError(f"managed fields entry {at} is not an object")
        operation, api_version = entry.get("operation"), entry.get("apiVersion")
        if operation not in (UPDATE, APPLY):
            raise ValueError("operation must be `Apply` or `Update`")
        if not api_version or not isinstance(api_version, str):
            raise ValueError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            raise ValueError(f"invalid fieldsType in managed fields entry {at}")
        name, subresource = str(entry.get("manager") or ""), str(entry.get("subresource") or "")
        version = api_version if operation == UPDATE else ""
        fields = fieldsets.parsed(entry.get("fieldsV1") or {})
        time = str(entry.get("time") or "")
        managers[Manager(name, operation, version, subresource)] = Owned(fields, api_version, time)
    return managers


def encoded(managers: Managers) -> list[dict[str, Any]]:
    """Return the entries for `managedFields`, oldest first, appliers before updaters."""
    return [_entry(manager, owned) for manager, owned in sorted(managers.items(), key=_order)]


def _order(item: tuple[Manager, Owned]) -> tuple[str, str, str, str, str]:
    manager, owned = item
    return manager.operation, owned.time, manager.name, owned.api_version, manager.subresource


def _entry(manager: Manager, owned: Owned) -> dict[str, Any]:
    entry: dict[str, Any] = {"manager": manager.name, "operation": manager.operation}
    entry["apiVersion"] = owned.api_version
    if owned.time:
        entry["time"] = owned.time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": owned.fields}
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry
