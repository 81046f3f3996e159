"""The definitions of what packages and their installs are: Crossplane's kinds and Carvel's.

No code decodes objects with them, so they are data: `pvbus/core/api/crossplane.yaml` and `carvel.yaml`.
`pvbus.core.platform.packaging` reads the objects.
"""

from importlib.resources import files
from typing import Any

import msgspec
import yaml

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
    definitions = yaml.load(text, Loader=yaml.CSafeLoader)
    # What an anchor names is one object in all its places: a change of one must not change the others.
    return msgspec.convert(msgspec.to_builtins(definitions), list[dict[str, Any]])
