"""The definitions of what packages and their installs are: Crossplane's kinds and Carvel's.

No code decodes objects with them, so they are data: `pvbus/core/api/crossplane.yaml` and `carvel.yaml` have
what differs from kind to kind, and this module makes the definitions of it. `pvbus.core.platform.packaging`
reads the objects.
"""

from importlib.resources import files
from typing import Any

import msgspec
import yaml

from pvbus.core.api.crds import OBJECT_SCHEMAS, definition, served_version

OWN = frozenset({"Package", "PackageRevision", "PackageLock"})
"""Kinds of Crossplane's group that no other project has."""


def packaging_crds() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions that no other project has.

    These are Package, PackageRevision and PackageLock.
    """
    return [crd for crd in _read("crossplane") if _kind(crd) in OWN]


def crossplane_crds() -> list[dict[str, Any]]:
    """Return the definitions of the kinds that Crossplane ships, for a cluster without Crossplane."""
    return [crd for crd in _read("crossplane") if _kind(crd) not in OWN]


def carvel_crds() -> list[dict[str, Any]]:
    """Return the definitions of Carvel's kinds, for a cluster without kapp-controller."""
    return _read("carvel")


def _kind(crd: dict[str, Any]) -> str:
    return str(crd["spec"]["names"]["kind"])


def _read(family: str) -> list[dict[str, Any]]:
    text = files("pvbus.core.api").joinpath(f"{family}.yaml").read_text(encoding="utf-8")
    definitions = [_definition(entry) for entry in yaml.load(text, Loader=yaml.CSafeLoader)]
    # What an anchor names is one object in all its places: a change of one must not change the others.
    return msgspec.convert(msgspec.to_builtins(definitions), list[dict[str, Any]])


def _definition(entry: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {**OBJECT_SCHEMAS, **entry["fields"]},
        **_present(entry, "required", "description"),
    }
    names = _present(entry, "shortNames", "categories")
    version = served_version(entry["version"], schema, entry["columns"])
    return definition(entry["kind"], entry["plural"], entry["group"], entry["scope"], names, [version])


def _present(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: entry[key] for key in keys if key in entry}
