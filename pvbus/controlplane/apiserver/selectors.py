"""Field selectors of list and watch requests; label selectors are read in `pvbus.core.api.selectortext`.

The error texts are Kubernetes' own, so that kubectl prints the same messages as with any cluster.
Source: k8s.io/apimachinery pkg/fields/selector.go (v0.36).
"""

import re
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from pvbus.core.api.selectortext import check_count


class FieldRequirement(NamedTuple):
    """One requirement of a field selector.

    path: the path of the field
    equal: whether the field must have the value; otherwise it must have another one
    value: the value
    """

    path: str
    equal: bool
    value: str


class FieldSelector(NamedTuple):
    """All requirements must hold; none selects everything."""

    requirements: tuple[FieldRequirement, ...] = ()

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return all(
            (_field(obj, requirement.path) == requirement.value) == requirement.equal
            for requirement in self.requirements
        )

    def exact(self, path: str) -> str | None:
        """Return the value that the selector requires at `path`, None if it does not restrict the field."""
        return next((r.value for r in self.requirements if r.path == path and r.equal), None)


METADATA_FIELDS = frozenset({"metadata.name", "metadata.namespace"})
_REFERENCE = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")


class _PackageRevisionFields:
    """Porch's selectable fields, including one per label of the package's own metadata."""

    _FIXED = METADATA_FIELDS | {
        f"spec.{name}" for name in ("revision", "packageName", "repository", "workspaceName", "lifecycle")
    }

    def __contains__(self, path: object) -> bool:
        return path in self._FIXED or (
            isinstance(path, str) and path.startswith("spec.packageMetadata.labels[") and path.endswith("]")
        )


_SELECTABLE: dict[tuple[str, str], Container[str]] = {
    ("", "Event"): METADATA_FIELDS
    | {f"involvedObject.{name}" for name in _REFERENCE}
    | {"reason", "reportingComponent", "source", "type"},
    ("events.k8s.io", "Event"): METADATA_FIELDS
    | {f"regarding.{name}" for name in _REFERENCE}
    | {"reason", "reportingController", "type"},
    ("", "Secret"): METADATA_FIELDS | {"type"},
    ("", "Namespace"): METADATA_FIELDS | {"status.phase"},
    ("porch.kpt.dev", "PackageRevision"): _PackageRevisionFields(),
}


def selectable_fields(group: str, kind: str) -> Container[str]:
    """Return the fields that field selectors of this kind support."""
    return _SELECTABLE.get((group, kind), METADATA_FIELDS)


def parse_field_selector(text: str, supported: Container[str] = METADATA_FIELDS) -> FieldSelector:
    """Parse `metadata.name=a,type!=b`. Raises ValueError with Kubernetes' message."""
    requirements = []
    terms = _split(text)
    check_count(len(terms))
    for term in terms:
        match = re.match(r"((?:[^=!\\]|\\.)*?)(!=|==|=)(.*)", term, re.DOTALL)
        if match is None:
            raise ValueError(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = match.groups()
        if path not in supported:
            raise ValueError(f"field label not supported: {path}")
        requirements.append(FieldRequirement(path, operator != "!=", _unescape(value)))
    return FieldSelector(tuple(requirements))


def _split(text: str) -> list[str]:
    """Split at commas without a backslash; empty terms are ignored."""
    return [term for term in re.findall(r"(?:[^,\\]|\\.)+", text, re.DOTALL) if term]


def _unescape(value: str) -> str:
    if re.search(r"(?<!\\)(?:\\\\)*\\(?![\\,=])", value):
        raise ValueError(f"invalid field selector: invalid escape sequence in '{value}'")
    return re.sub(r"\\([\\,=])", r"\1", value)


_OMITTED = {"spec.revision": "0"}
"""Fields whose value is omitted from an object if it is this one: a draft has no number yet."""


def _field(obj: Mapping[str, Any], path: str) -> str:
    """Return a field as text, "" if it is missing."""
    head, bracket, key = path.partition("[")
    names = ["source", "component"] if path == "source" else head.split(".")
    if bracket:
        names.append(key.removesuffix("]"))
    value: Any = obj
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return _OMITTED.get(path, "")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
