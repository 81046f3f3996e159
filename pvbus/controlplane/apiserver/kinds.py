"""A kind as clients see it: its names, versions, schemas, columns and verbs.

A `ServedKind` has all that discovery, OpenAPI, table output and the REST handlers need; it comes from
`builtin` or, through `from_crd`, from a CustomResourceDefinition.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


class Column(NamedTuple):
    """A column of the table that kubectl prints.

    priority: 0 is printed always, a higher one only with `-o wide`
    """

    name: str
    type: str
    json_path: str
    priority: int = 0
    format: str = ""
    description: str = ""


class ServedVersion(NamedTuple):
    """One version of a kind.

    name: the version
    schema: its openAPIV3Schema, None if the kind's fields are not checked
    columns: the columns of its tables
    subresources: the names of its subresources
    shares_status: whether a write of the object changes its status, too, although there is a subresource for
        it
    served: whether requests may use it
    storage: whether objects are stored in it
    """

    name: str
    schema: Mapping[str, Any] | None = None
    columns: tuple[Column, ...] = ()
    subresources: frozenset[str] = frozenset()
    shares_status: bool = False
    served: bool = True
    storage: bool = True


class ServedKind(NamedTuple):
    """A kind with the names by which clients find it.

    custom: whether it comes from a CustomResourceDefinition, and so has pruning and no strategic merge patch
    """

    group: str
    kind: str
    list_kind: str
    plural: str
    singular: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    namespaced: bool
    versions: tuple[ServedVersion, ...]
    verbs: tuple[str, ...] = ALL_VERBS
    custom: bool = False

    @property
    def preferred_version(self) -> ServedVersion:
        """Return the served version that ranks highest: GA above beta above alpha, then the number."""
        served = [version for version in self.versions if version.served] or list(self.versions)
        return min(served, key=lambda version: version_rank(version.name))

    @property
    def storage_version(self) -> ServedVersion:
        return next((version for version in self.versions if version.storage), self.preferred_version)

    def version(self, name: str) -> ServedVersion | None:
        """Return the version of this name if it is served."""
        return next((version for version in self.versions if version.name == name and version.served), None)

    def api_version(self, version: str) -> str:
        return f"{self.group}/{version}" if self.group else version


_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")
_STABILITY = {None: 0, "beta": 1, "alpha": 2}


def version_rank(name: str) -> tuple[int, int, int, str]:
    """Return a key that sorts versions as Kubernetes prefers them; other names come last, A to Z."""
    match = _VERSION.fullmatch(name)
    if match is None:
        return (3, 0, 0, name)
    major, stability, minor = match.groups()
    return (_STABILITY[stability], -int(major), -int(minor or 0), "")


def from_crd(crd: Mapping[str, Any]) -> ServedKind:
    """Return the served kind of a valid CustomResourceDefinition (apiextensions.k8s.io/v1)."""
    spec = crd["spec"]
    names = spec["names"]
    kind = names["kind"]
    return ServedKind(
        group=spec["group"],
        kind=kind,
        list_kind=names.get("listKind") or f"{kind}List",
        plural=names["plural"],
        singular=names.get("singular") or kind.lower(),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        namespaced=spec["scope"] == "Namespaced",
        versions=tuple(_version(version) for version in spec["versions"]),
        custom=True,
    )


def _version(version: Mapping[str, Any]) -> ServedVersion:
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    return ServedVersion(
        name=version["name"],
        schema=schema,
        columns=tuple(_column(column) for column in version.get("additionalPrinterColumns") or ()),
        subresources=frozenset(version.get("subresources") or {}) & {"status"},
        served=bool(version.get("served")),
        storage=bool(version.get("storage")),
    )


def _column(column: Mapping[str, Any]) -> Column:
    return Column(
        name=column["name"],
        type=column["type"],
        json_path=column["jsonPath"],
        priority=column.get("priority", 0),
        format=column.get("format", ""),
        description=column.get("description", ""),
    )
