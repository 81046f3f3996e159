"""Applies structural schemas to objects: defaults, pruning and validation.

A schema is compiled once into `Node`s, which are walked with an object. `structural` avoids the walk for
valid objects that need no change.

Messages are those of Kubernetes (kube-openapi's validation as the API server reports it).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from pvbus.controlplane.apiserver.rules import Budget, Rule
from pvbus.core.cel.patterns import go_pattern

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_IPV6 = r"(?=[^ ]*:[^ ]*:)[0-9a-fA-F:]{2,39}(?:\.\d{1,3}){0,3}"
_DATE = r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
_LABEL = r"[0-9A-Za-z](?:[-0-9A-Za-z]{0,61}[0-9A-Za-z])?"
_HOST = rf"(?=.{{1,255}}$){_LABEL}(?:\.{_LABEL})*"

FORMAT_PATTERNS = {
    name: rf"(?a)\A(?:{body})\Z"
    for name, body in {
        "date": _DATE,
        "date-time": rf"{_DATE}[Tt ]{_TIME}(?:[Zz]|[+-]\d\d:?\d\d)",
        "byte": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
        "duration": r"(?:\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|m|h|d|w))+|0",
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "ip": rf"{_IPV4}|{_IPV6}",
        "cidr": rf"(?:{_IPV4}/(?:3[0-2]|[12]?\d))|(?:{_IPV6}/(?:12[0-8]|1[01]\d|\d?\d))",
        "email": r"[^@\s]+@[^@\s]+",
        "hostname": _HOST,
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S*|/\S*",
        "uuid": r"(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})",
        "mac": r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}",
    }.items()
}
"""Formats that are checked; others are ignored, as in Kubernetes. Each pattern matches the whole text."""

Json = Any
_STRING_MAP = {"type": "object", "additionalProperties": {"type": "string"}}

METADATA_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "generateName": {"type": "string"},
        "namespace": {"type": "string"},
        "uid": {"type": "string"},
        "resourceVersion": {"type": "string"},
        "generation": {"type": "integer"},
        "selfLink": {"type": "string"},
        "creationTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        "deletionTimestamp": {"type": "string", "format": "date-time", "nullable": True},
        "deletionGracePeriodSeconds": {"type": "integer", "nullable": True},
        "labels": _STRING_MAP,
        "annotations": _STRING_MAP,
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    **{name: {"type": "string"} for name in ("apiVersion", "kind", "name", "uid")},
                    **{name: {"type": "boolean"} for name in ("controller", "blockOwnerDeletion")},
                },
            },
        },
        "managedFields": {
            "type": "array",
            "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    },
}
"""The fields of metadata; `openapi` documents the same fields."""


_OWNERS = METADATA_SCHEMA["properties"]["ownerReferences"]
_METADATA = {
    **METADATA_SCHEMA,
    "properties": {
        **METADATA_SCHEMA["properties"],
        "ownerReferences": {**_OWNERS, "items": {**_OWNERS["items"], "required": []}},
    },
}
"""As each schema has it; `metadata.problems` reports what an owner lacks."""

ROOT = "<nil>"
"""Kubernetes' name for the path of the whole object."""


class FieldError(NamedTuple):
    """One finding about a field.

    path: the path of the field
    reason: the reason of the cause (FieldValueInvalid, ...)
    message: the text, without the path
    """

    path: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Node:
    """One compiled level of a schema.

    extra: the node of additionalProperties, None if the schema has no such node
    """

    def __init__(self, schema: Mapping[str, Any], *, root: bool = False) -> None:
        self.schema = schema
        self.type: str = schema.get("type", "")
        self.int_or_string = bool(schema.get("x-kubernetes-int-or-string"))
        self.preserve = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        self.nullable = bool(schema.get("nullable"))
        self.properties = {name: Node(child) for name, child in (schema.get("properties") or {}).items()}
        self.required: tuple[str, ...] = tuple(schema.get("required") or ())
        if root or self.embedded:
            self.properties |= {"apiVersion": _STRING, "kind": _STRING, "metadata": Node(_METADATA)}
        if self.embedded:
            self.required = (*self.required, "apiVersion", "kind", "metadata")
        extra = schema.get("additionalProperties")
        self.extra = Node(extra) if isinstance(extra, Mapping) else None
        self.preserve |= extra is True
        items = schema.get("items")
        self.items = Node(items) if isinstance(items, Mapping) else None
        self.has_default = "default" in schema
        pattern = schema.get("pattern")
        self.pattern = go_pattern(pattern) if pattern else None
        self.choices = frozenset(map(_canonical, schema["enum"])) if schema.get("enum") else None
        self.format = FORMAT_PATTERNS.get(schema.get("format", "")) if self.type == "string" else None
        self.rules = tuple(Rule(rule) for rule in schema.get("x-kubernetes-validations") or ())
        self.combined = {name: _nodes(schema[name]) for name in _COMBINATORS if schema.get(name)}
        own = (schema.get("properties") or {}).get("metadata") or {}
        if (root or self.embedded) and own.get("properties"):  # it may restrict the name further
            self.combined.setdefault("allOf", []).append(Node({"properties": {"metadata": own}}))

    def children(self, value: Json, path: str) -> Iterator[tuple[Any, Json, "Node", str]]:
        """Yield (key or index, child, its node, its path) of the children that the schema declares."""
        if isinstance(value, dict):
            for name, child in value.items():
                node = self.properties.get(name) or self.extra
                if node is not None:
                    yield name, child, node, f"{path}.{name}" if path else name
        elif isinstance(value, list) and self.items is not None:
            for index, child in enumerate(value):
                yield index, child, self.items, f"{path}[{index}]"


_COMBINATORS = ("allOf", "anyOf", "oneOf", "not")


def _nodes(schemas: Any) -> list[Node]:
    return [Node(schema) for schema in (schemas if isinstance(schemas, list) else [schemas])]


def _canonical(value: Json) -> bytes:
    """Return bytes that are equal for equal JSON values; 1 and 1.0 are equal."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _sorted.encode(value)


_sorted = msgspec.json.Encoder(order="sorted")

_STRING = Node({"type": "string"})


# --- defaults and pruning ---


def default(node: Node, value: Json, path: str = "", *, nulls: bool = False) -> Json:
    """Return `value` with defaults, without nulls in fields that are not nullable; itself if unchanged.

    nulls: whether nulls stay where there is no default
    """
    changes: dict[Any, Json] = {}
    dropped = []
    for key, child, below, child_path in node.children(value, path):
        if child is None and not below.nullable:
            if below.has_default:
                changes[key] = below.schema["default"]
            elif isinstance(value, dict) and not nulls:
                dropped.append(key)
        elif isinstance(child, (dict, list)):
            new = default(below, child, child_path, nulls=nulls)
            if new is not child:
                changes[key] = new
    if isinstance(value, dict):
        for name, below in node.properties.items():
            if below.has_default and name not in value:
                changes[name] = default(below, below.schema["default"])
    return _changed(value, changes, dropped)


def prune(node: Node, value: Json, path: str, unknown: list[str]) -> Json:
    """Return `value` without undeclared fields, whose paths go to `unknown`; itself if unchanged."""
    changes: dict[Any, Json] = {}
    for key, child, below, child_path in node.children(value, path):
        if isinstance(child, (dict, list)):
            new = prune(below, child, child_path, unknown)
            if new is not child:
                changes[key] = new
    strange: list[str] = []
    if isinstance(value, dict) and not node.preserve and node.extra is None:
        strange = [name for name in value if name not in node.properties]
        unknown.extend(f"{path}.{name}" if path else name for name in strange)
    return _changed(value, changes, strange)


def _changed(value: Json, changes: Mapping[Any, Json], dropped: Iterable[str]) -> Json:
    if not changes and not dropped:
        return value
    result = value.copy()
    for key in dropped:
        del result[key]
    for key, new in changes.items():
        result[key] = new
    return result


# --- validation ---

_TYPES: dict[str, Callable[[Json], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(value),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
}


def _is_integer(value: Json) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def type_name(value: Json) -> str:
    """Return JSON schema's word for the type of a value."""
    if value is None:
        return "null"
    return next(name for name, is_type in _TYPES.items() if is_type(value))


PROBLEMS_MAX = 100
"""Maximum number of errors reported for one object: more are not useful, and 100,000 would take megabytes."""

SHOWN_MAX = 1000
"""Characters of a value in an error: enough to recognize it, without copying 3 MB to the answer."""


def shown(value: Json) -> str:
    """Return a value as Kubernetes' field errors print it, shortened if it is long."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def required(path: str, why: str = "") -> FieldError:
    return FieldError(path, "FieldValueRequired", f"Required value: {why}" if why else "Required value")


def forbidden(path: str, why: str) -> FieldError:
    return FieldError(path, "FieldValueForbidden", f"Forbidden: {why}")


def invalid(path: str, value: Json, why: str) -> FieldError:
    return FieldError(path, "FieldValueInvalid", f"Invalid value: {shown(value)}: {why}")


def unsupported(path: str, value: Json, supported: Iterable[Json]) -> FieldError:
    choices = ", ".join(shown(choice) for choice in supported)
    message = f"Unsupported value: {shown(value)}: supported values: {choices}"
    return FieldError(path, "FieldValueNotSupported", message)


def too_many(path: str, count: int, limit: int) -> FieldError:
    return FieldError(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def _in_body(path: str, value: Json, why: str) -> FieldError:
    return invalid(path, value, f"{path} in body {why}")


def validate(node: Node, value: Json, old: Json, path: str, budget: Budget) -> Iterator[FieldError]:
    if value is None and node.nullable:
        return
    wrong_type = _type_error(node, value, path)
    if wrong_type is not None:
        yield wrong_type
        return
    yield from _scalar_errors(node, value, path, budget)
    if isinstance(value, dict):
        yield from _object_errors(node, value, path)
    elif isinstance(value, list):
        yield from _array_errors(node, value, old, path)
    yield from _combined_errors(node, value, path, budget)
    before = _children_before(node, value, old)
    for key, child, below, child_path in node.children(value, path):
        yield from validate(below, child, before(key), child_path, budget)
    for rule in node.rules:
        if (message := budget.judge(rule, value, old, is_root=not path)) is not None:
            yield invalid(rule.path(path), type_name(value), message)


def _type_error(node: Node, value: Json, path: str) -> FieldError | None:
    if node.int_or_string:
        if isinstance(value, str) or _is_integer(value):
            return None
        return _type_invalid(path, value, "integer,string")
    if node.type and not _TYPES[node.type](value):
        return _type_invalid(path, value, node.type)
    return None


def _type_invalid(path: str, value: Json, expected: str) -> FieldError:
    actual = type_name(value)
    why = f'{path} in body must be of type {expected}: "{actual}"'
    return FieldError(path, "FieldValueTypeInvalid", f'Invalid value: "{actual}": {why}')


def _scalar_errors(node: Node, value: Json, path: str, budget: Budget) -> Iterator[FieldError]:
    schema = node.schema
    if node.choices is not None and _canonical(value) not in node.choices:
        yield unsupported(path, value, schema["enum"][:PROBLEMS_MAX])
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield _in_body(path, value, f"should be at least {schema['minLength']} chars long")
        if len(value) > schema.get("maxLength", len(value)):
            message = f"Too long: may not be more than {schema['maxLength']} bytes"
            yield FieldError(path, "FieldValueTooLong", message)
        if node.pattern is not None and not budget.matches(node.pattern, value):
            yield _in_body(path, value, f"should match '{schema['pattern']}'")
        if node.format is not None and re.search(node.format, value) is None:
            yield _in_body(path, value, f"must be of type {schema['format']}: {shown(value)}")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _number_errors(schema, value, path)


def _number_errors(schema: Mapping[str, Any], value: float, path: str) -> Iterator[FieldError]:
    low, high, step = schema.get("minimum"), schema.get("maximum"), schema.get("multipleOf")
    if low is not None and (value <= low if schema.get("exclusiveMinimum") else value < low):
        words = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield _in_body(path, value, f"should be {words} {low}")
    if high is not None and (value >= high if schema.get("exclusiveMaximum") else value > high):
        words = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield _in_body(path, value, f"should be {words} {high}")
    if step and value % step != 0:
        yield _in_body(path, value, f"should be a multiple of {step}")


def _object_errors(node: Node, value: dict[str, Json], path: str) -> Iterator[FieldError]:
    for name in node.required:
        if name not in value:
            yield required(f"{path}.{name}" if path else name)
    schema = node.schema
    if len(value) < schema.get("minProperties", 0):
        yield _in_body(path, len(value), f"should have at least {schema['minProperties']} properties")
    if len(value) > schema.get("maxProperties", len(value)):
        yield too_many(path, len(value), schema["maxProperties"])


def _array_errors(node: Node, value: list[Json], old: Json, path: str) -> Iterator[FieldError]:
    schema = node.schema
    if len(value) < schema.get("minItems", 0):
        yield _in_body(path, len(value), f"should have at least {schema['minItems']} items")
    if len(value) > schema.get("maxItems", len(value)):
        yield too_many(path, len(value), schema["maxItems"])
    doubled = list(_doubled(schema, value))
    if doubled and not (isinstance(old, list) and any(_doubled(schema, old))):
        for index, identity in doubled:
            text = f"Duplicate value: {shown(identity)}"
            yield FieldError(f"{path}[{index}]", "FieldValueDuplicate", text)


def _doubled(schema: Mapping[str, Any], items: list[Json]) -> Iterator[tuple[int, Json]]:
    """Yield index and identity of the items whose identity an earlier one has.

    Those that are stored are no reason to refuse an update, as in Kubernetes: a Kptfile may have them.
    """
    identity = list_identity(schema)
    if identity is None:
        return
    seen = set()
    for index, item in enumerate(items):
        key = _canonical(identity(item))
        if key in seen:
            yield index, identity(item)
        seen.add(key)


def list_identity(schema: Mapping[str, Any]) -> Callable[[Json], Json] | None:
    """Return the function for the identity of a list's items: the item itself or its map keys."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        keys = schema.get("x-kubernetes-list-map-keys") or ()
        return lambda item: {key: item.get(key) for key in keys} if isinstance(item, dict) else item
    if kind == "set" or schema.get("uniqueItems"):
        return lambda item: item
    return None


def _children_before(node: Node, value: Json, old: Json) -> Callable[[Any], Json]:
    """Return the function that finds a child's old value. List items only correspond by their map keys."""
    if isinstance(value, dict):
        return old.get if isinstance(old, dict) else lambda key: None
    if node.schema.get("x-kubernetes-list-type") != "map" or not isinstance(old, list):
        return lambda key: None
    identity = list_identity(node.schema)
    assert identity is not None
    known = {_canonical(identity(item)): item for item in reversed(old)}
    return lambda index: known.get(_canonical(identity(value[index])))


def _combined_errors(node: Node, value: Json, path: str, budget: Budget) -> Iterator[FieldError]:
    for name, branches in node.combined.items():
        if node.int_or_string and name == "anyOf":
            continue  # the customary anyOf of integer and string, already checked
        if name == "allOf":
            for branch in branches:
                yield from validate(branch, value, None, path, budget)
            continue
        valid = sum(not any(validate(branch, value, None, path, budget)) for branch in branches)
        if name == "anyOf" and not valid:
            yield _in_body(path, value, "must validate at least one schema (anyOf)")
        elif name == "oneOf" and valid != 1:
            found = f"Found {valid} valid alternatives" if valid else "Found none valid"
            yield _in_body(path, value, f"must validate one and only one schema (oneOf). {found}")
        elif name == "not" and valid:
            yield _in_body(path, value, "must not validate the schema (not)")
