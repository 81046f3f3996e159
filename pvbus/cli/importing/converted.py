"""What an import gives: the objects of pvbus, and notes on all that was not carried over.

What cannot be carried over exactly is left out with a note: a set never selects more than the definition did.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pvbus.core.errors import UsageError

FUNCTIONS = "ghcr.io/kptdev/krm-functions-catalog"
REVISION = re.compile(r"(?:.*/)?v([1-9][0-9]{0,8})")


class Note(NamedTuple):
    """What a person has to know about one field.

    field: for example `spec.generators[0].git`
    message: why it has no counterpart, or what was assumed, and what to do
    """

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Converted(NamedTuple):
    objects: tuple[dict[str, Any], ...]
    notes: tuple[Note, ...]


class Wanted(NamedTuple):
    """What the person has given on the command line: names of Repository objects, a package, a revision.

    "" and 0 where the definition is to tell.
    """

    upstream_repository: str = ""
    upstream_package: str = ""
    upstream_revision: int = 0
    repository: str = "deployments"


class NoCounterpartError(Exception):
    """A part of a definition that pvbus cannot express; the text says why, and what to do."""


def fields(value: Any, field: str) -> Mapping[str, Any]:
    """Return an object's fields, none of an absent one. Raises UsageError for any other value."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{field}: must be an object")
    return value


def items(value: Any, field: str) -> list[Any]:
    """Return a list's items, none of an absent one. Raises UsageError for any other value."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UsageError(f"{field}: must be a list")
    return value


def text_of(value: Any, field: str) -> str:
    """Return a text, "" if it is absent; numbers and truth as YAML has them. Raises UsageError otherwise."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise UsageError(f"{field}: must be a text")
    return str(value)


def repository_of(url: str, field: str, wanted: Wanted, notes: list[Note]) -> str:
    """Return the name of the Repository object of a URL: the last part of it, unless it was given.

    Raises UsageError.
    """
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git").lower()
    if not (wanted.upstream_repository or name):
        raise UsageError(f"{field}: is missing: name the Repository by --upstream-repository")
    if not wanted.upstream_repository:
        message = f"assumed to be the Repository {name}; name another one by --upstream-repository"
        notes.append(Note(field, message))
    return wanted.upstream_repository or name


def revision_of(reference: str, field: str, wanted: Wanted) -> int:
    """Return the published revision that a reference of git names, or that was given. Raises UsageError."""
    found = REVISION.fullmatch(reference)
    if not (wanted.upstream_revision or found):
        raise UsageError(
            f"{field}: names no published revision, as v3 would: give one by --upstream-revision"
        )
    return wanted.upstream_revision or int(found[1] if found else 0)


def variant_set(
    source: Mapping[str, Any], name: str, upstream: Mapping[str, Any], targets: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the set that takes the place of an object, in the namespace of that object."""
    namespace = fields(source.get("metadata"), "metadata").get("namespace") or "default"
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"upstream": dict(upstream), "targets": targets},
    }


def namespace_pipeline(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pipeline that puts a package's objects into a namespace.

    config: `configMap` or `configMapExprs` of the function
    """
    return {"mutators": [{"image": f"{FUNCTIONS}/set-namespace:v0.4.1", **config}]}
