"""Compiled structural schemas, with a fast path for valid objects.

Most objects need no change, so each schema is also compiled to a msgspec type that accepts only objects
without missing defaults, unknown fields and type errors. For them one call in C suffices, besides the match
of patterns. All other objects walk the nodes.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Literal

import msgspec

from pvbus.controlplane.apiserver.nodes import (
    PROBLEMS_MAX,
    ROOT,
    FieldError,
    Json,
    Node,
    default,
    invalid,
    list_identity,
    prune,
    validate,
)
from pvbus.controlplane.apiserver.rules import Budget, OutOfBudgetError

_NOT_NULL = bool | int | float | str | list[Any] | dict[str, Any]


class _Quick:
    """Builds the msgspec type of a node.

    The type accepts no object that misses a default, has an unknown field or a field of the wrong type. A
    rule of the schema that a type cannot express makes `complete` False; an object that fits the type is then
    walked as well.

    complete: whether type and patterns suffice to validate an object
    """

    def __init__(self) -> None:
        self.complete = True

    def type_of(self, node: Node) -> Any:
        found = self._bare_type(node)
        if node.rules or (node.combined and not node.int_or_string) or node.embedded:
            self.complete = False
        return found | None if node.nullable else found

    def _bare_type(self, node: Node) -> Any:
        schema = node.schema
        if node.int_or_string:
            return int | str
        if "enum" in schema:
            if all(isinstance(choice, str) for choice in schema["enum"]) and node.type == "string":
                self.complete &= not {"minLength", "maxLength", "pattern", "format"} & schema.keys()
                return Literal[tuple(schema["enum"])]
            self.complete = False
        match node.type:
            case "object":
                return self._object_type(node)
            case "array":
                if list_identity(schema) is not None:
                    self.complete = False
                items = (Any if node.items is None else self.type_of(node.items),)
                return _bounded(list.__class_getitem__(items), schema, "minItems", "maxItems")
            case "string":
                # Without the schema's pattern: Python's own regular expressions can take exponential time.
                return _bounded(str, schema, "minLength", "maxLength", pattern=node.format)
            case "integer" | "number":
                if "multipleOf" in schema:
                    self.complete = False
                low = "gt" if schema.get("exclusiveMinimum") else "ge"
                high = "lt" if schema.get("exclusiveMaximum") else "le"
                bounds = {low: schema.get("minimum"), high: schema.get("maximum")}
                return _limited(int if node.type == "integer" else float, bounds)
            case "boolean":
                return bool
            case _:
                return _NOT_NULL

    def _object_type(self, node: Node) -> Any:
        schema = node.schema
        if set(node.required) - node.properties.keys():
            self.complete = False
        if not node.properties and (node.extra is not None or node.preserve):
            values = Any if node.extra is None else self.type_of(node.extra)
            return _bounded(dict.__class_getitem__((str, values)), schema, "minProperties", "maxProperties")
        if node.extra is not None or {"minProperties", "maxProperties"} & schema.keys():
            self.complete = False
        fields: list[Any] = []
        for position, (name, child) in enumerate(node.properties.items()):
            child_type = self.type_of(child)
            if name in node.required or child.has_default:
                fields.append((f"f{position}", child_type))
            else:
                fields.append((f"f{position}", child_type | msgspec.UnsetType, msgspec.UNSET))
        names = {f"f{position}": name for position, name in enumerate(node.properties)}
        return msgspec.defstruct(
            "Quick", fields, rename=names, kw_only=True, gc=False, forbid_unknown_fields=not node.preserve
        )


def _bounded(base: Any, schema: Mapping[str, Any], low: str, high: str, pattern: str | None = None) -> Any:
    return _limited(base, {"min_length": schema.get(low), "max_length": schema.get(high), "pattern": pattern})


def _limited(base: Any, bounds: dict[str, Any]) -> Any:
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return Annotated[base, msgspec.Meta(**given)] if given else base


class _Patterned:
    """The part of a schema with patterns, which the quick type leaves out."""

    def __init__(self, node: Node) -> None:
        self._pattern = node.pattern
        self._fields = {
            name: below for name, child in node.properties.items() if (below := patterned(child)) is not None
        }
        self._extra = patterned(node.extra) if node.extra else None
        self._items = patterned(node.items) if node.items else None

    def __bool__(self) -> bool:
        return bool(self._pattern or self._fields or self._extra or self._items)

    def fits(self, value: Json, budget: Budget) -> bool:
        """Return whether a value of the right type matches all patterns."""
        if isinstance(value, str):
            return self._pattern is None or budget.matches(self._pattern, value)
        if isinstance(value, list):
            below = self._items
            return below is None or all(below.fits(item, budget) for item in value)
        if isinstance(value, dict):
            if self._extra is not None:
                return all(self._extra.fits(item, budget) for item in value.values())
            fields = self._fields.items()
            return all(below.fits(value[name], budget) for name, below in fields if name in value)
        return True


def patterned(node: Node) -> _Patterned | None:
    return _Patterned(node) or None


class Schema:
    """A compiled schema. Methods never change their arguments, and return unchanged objects themselves."""

    def __init__(self, open_api_v3: Mapping[str, Any]) -> None:
        self._root = Node(open_api_v3, root=True)
        quick = _Quick()
        self._quick = quick.type_of(self._root)
        self._quick_is_complete = quick.complete
        self._patterns = patterned(self._root)

    def is_clean(self, obj: Json) -> bool:
        """Return whether no default, pruning or type error applies; False if that is uncertain."""
        try:
            msgspec.convert(obj, self._quick)
        except msgspec.ValidationError:
            return False
        return True

    def defaulted(self, obj: Json, *, nulls: bool = False) -> Json:
        """Return the object with defaults, and without nulls in fields that are not nullable.

        nulls: whether nulls stay where there is no default
        """
        return obj if self.is_clean(obj) else default(self._root, obj, nulls=nulls)

    def pruned(self, obj: Json) -> tuple[Json, list[str]]:
        """Return the object without unknown fields, and their paths."""
        if self.is_clean(obj):
            return obj, []
        unknown: list[str] = []
        return prune(self._root, obj, "", unknown), unknown

    def validate(self, obj: Json, old: Json = None) -> list[FieldError]:
        """Return all errors.

        old: the object before an update, which rules may compare with; None for a new one
        """
        budget = Budget()
        found: list[FieldError] = []
        try:
            if self._quick_is_complete and self.is_clean(obj):
                if self._patterns is None or self._patterns.fits(obj, budget):
                    return []
                budget = Budget()
            # One by one, to keep the errors found before the budget is exhausted.
            for error in islice(validate(self._root, obj, old, "", budget), PROBLEMS_MAX + 1):
                found.append(error)  # noqa: PERF402 - extend would lose them at the error
        except OutOfBudgetError:
            found.append(_OUT_OF_BUDGET)
        return [error if error.path else error._replace(path=ROOT) for error in found]

    def default_errors(self) -> Iterator[tuple[str, Json, FieldError]]:
        """Yield (path in the schema, default, error) for every error of a default."""
        yield from _default_errors(self._root, "")


def _default_errors(node: Node, path: str) -> Iterator[tuple[str, Json, FieldError]]:
    """Check that the schema accepts its own defaults without pruning a field."""
    children = [(f"{path}.properties[{name}]", child) for name, child in node.properties.items()]
    children += [
        (f"{path}.{name}", child)
        for name, child in (("items", node.items), ("additionalProperties", node.extra))
        if child
    ]
    for at, child in children:
        yield from _default_errors(child, at)
    if not node.has_default:
        return
    given = node.schema["default"]
    unknown: list[str] = []
    pruned = prune(node, given, "default", unknown)
    for field in unknown:
        yield path, given, invalid(field, given, "must not have unknown fields")
    for error in validate(node, default(node, pruned), None, "default", Budget()):
        yield path, given, error


_OUT_OF_BUDGET = invalid(
    "", None, "validation failed due to running out of cost budget, no further validation rules will be run"
)


def compile_schema(open_api_v3: Mapping[str, Any]) -> Schema:
    """Compile an openAPIV3Schema. Raises ValueError for an invalid pattern or rule."""
    return Schema(open_api_v3)
