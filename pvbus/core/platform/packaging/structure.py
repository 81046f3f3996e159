"""Whether a served API has the fields that a package needs.

A version of an API may gain fields without a new name. A Package of Carvel names the fields that it needs in
the annotation `pvbus.dev/required-fields`, as JSON: `{"some.api.org/v1 MainAPI": ["spec.size"]}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pvbus.core.platform.solver.model import api

REQUIRED_FIELDS = "pvbus.dev/required-fields"
RequiredFields = tuple[tuple[str, tuple[str, ...]], ...]


def required_fields(text: str) -> RequiredFields:
    """Read the annotation: offers, as `api` writes them, with the fields.

    Raises ValueError with the reason.
    """
    try:
        found = msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.DecodeError as exc:
        raise ValueError(f"{REQUIRED_FIELDS} is no JSON of API kinds and lists of fields: {exc}") from exc
    result = []
    for name, fields in sorted(found.items()):
        version, space, kind = name.partition(" ")
        if not space or not version or not kind or " " in kind:
            raise ValueError(f"{REQUIRED_FIELDS}: {name!r} is no API kind: write `group/version Kind`")
        if not fields or any(not part for field in fields for part in field.split(".")):
            raise ValueError(f"{REQUIRED_FIELDS}: {name!r} needs fields such as `spec.size`")
        result.append((api(version, kind), tuple(sorted(set(fields)))))
    return tuple(result)


def missing_fields(schema: Mapping[str, Any], fields: Sequence[str]) -> tuple[str, ...]:
    """Return the fields that objects with this openAPIV3Schema cannot have, in order.

    A field in a list or a map is written without an index: `spec.items.name`. A part that keeps unknown
    fields has every field.
    """
    return tuple(field for field in fields if not _has(schema, field.split(".")))


def _has(schema: Mapping[str, Any], parts: Sequence[str]) -> bool:
    while isinstance(schema.get("items"), Mapping):
        schema = schema["items"]
    if not parts or schema.get("x-kubernetes-preserve-unknown-fields") is True:
        return True
    if schema.get("x-kubernetes-embedded-resource") is True and parts[0] in _EMBEDDED:
        return True
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and isinstance(properties.get(parts[0]), Mapping):
        return _has(properties[parts[0]], parts[1:])
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        return _has(additional, parts[1:]) or _has(additional, parts)
    return additional is True


_EMBEDDED = frozenset({"apiVersion", "kind", "metadata"})
