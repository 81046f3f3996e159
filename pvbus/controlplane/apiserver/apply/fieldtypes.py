"""The types of fields, as far as ownership and merging need them: scalar, list or map, and how it merges.

A type comes from an openAPIV3Schema. Lists are atomic unless `x-kubernetes-list-type` makes them sets or maps
by key; objects merge field by field unless `x-kubernetes-map-type` makes them atomic.

Source: kube-openapi pkg/schemaconv (v0.36), behaviour only.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Scalar = Literal["", "string", "numeric", "boolean", "untyped"]


class FieldType:
    """What a field may be; more than one only if the schema leaves it open."""

    __slots__ = ("list", "map", "scalar")

    def __init__(
        self, scalar: Scalar = "", list_: "ListType | None" = None, map_: "MapType | None" = None
    ) -> None:
        self.scalar: Scalar = scalar
        self.list = list_
        self.map = map_

    def of(self, value: Any) -> "ListType | MapType | Scalar":
        """Return the part of the type that fits a value; the first part for any other one, as null."""
        if isinstance(value, dict):
            fitting: Any = self.map
        elif isinstance(value, list):
            fitting = self.list
        else:
            fitting = None if value is None else self.scalar
        return fitting or self.map or self.scalar or self.list or "untyped"


class ListType(NamedTuple):
    """How a list is owned and merged.

    items: the type of its items
    merges: whether its items are compared one by one; otherwise the list is one value
    keys: the fields that identify an item, () for a set
    defaults: the values of keys that an item leaves out
    """

    items: FieldType
    merges: bool = False
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}


class MapType(NamedTuple):
    """How an object is owned and merged.

    fields: the types of the declared fields
    extra: the type of other fields, None if there must be none
    merges: whether its fields are compared one by one; otherwise the object is one value
    deduced: whether the schema leaves its fields open
    """

    fields: Mapping[str, FieldType]
    extra: FieldType | None
    merges: bool = True
    deduced: bool = False

    def field(self, name: str) -> FieldType | None:
        return self.fields.get(name) or self.extra


ATOMIC = FieldType("untyped")
ATOMIC.list = ListType(ATOMIC)
ATOMIC.map = MapType({}, ATOMIC, merges=False)

DEDUCED = FieldType("untyped", ListType(ATOMIC))
DEDUCED.map = MapType({}, DEDUCED, deduced=True)
"""What the schema leaves open: objects merge, lists do not."""

UNTYPED = FieldType("untyped")
_STRING = FieldType("string")
_STRINGS = FieldType(map_=MapType({}, _STRING))
_OWNER = FieldType(map_=MapType({}, UNTYPED, merges=False))

METADATA = FieldType(
    map_=MapType(
        {
            **dict.fromkeys(("name", "generateName", "namespace", "uid", "resourceVersion"), _STRING),
            "selfLink": _STRING,
            "generation": FieldType("numeric"),
            "deletionGracePeriodSeconds": FieldType("numeric"),
            "creationTimestamp": UNTYPED,
            "deletionTimestamp": UNTYPED,
            "labels": _STRINGS,
            "annotations": _STRINGS,
            "finalizers": FieldType(list_=ListType(_STRING, merges=True)),
            "ownerReferences": FieldType(
                list_=ListType(_OWNER, merges=True, keys=("uid",), defaults={"uid": ""})
            ),
            "managedFields": FieldType(list_=ListType(ATOMIC)),
        },
        None,
    )
)
"""The metadata of every kind."""

_SCALARS: Mapping[str, Scalar] = {"integer": "numeric", "number": "numeric", "boolean": "boolean"}


def of_object(schema: Mapping[str, Any] | None) -> FieldType:
    """Return the type of a kind's objects.

    schema: the kind's openAPIV3Schema, None if fields are not checked
    """
    if schema is None:
        return FieldType(
            map_=MapType({"apiVersion": _STRING, "kind": _STRING, "metadata": METADATA}, DEDUCED)
        )
    return _embedded(of_schema(schema))


def of_schema(schema: Mapping[str, Any], *, preserves: bool = False) -> FieldType:
    """Return the type of a field.

    preserves: whether a schema above it keeps unknown fields
    """
    if schema.get("x-kubernetes-int-or-string"):
        return UNTYPED
    preserves |= schema.get("x-kubernetes-preserve-unknown-fields") is True
    kind = schema.get("type", "")
    if kind == "object":
        found = FieldType(map_=_map(schema, preserves))
        return _embedded(found) if schema.get("x-kubernetes-embedded-resource") else found
    if kind == "array":
        return FieldType(list_=_list(schema, preserves))
    if kind == "":
        return FieldType("untyped", _list(schema, preserves), _map(schema, preserves))
    if kind == "string":
        return _STRING if schema.get("format", "") in ("", "byte") else UNTYPED
    return FieldType(_SCALARS.get(kind, "untyped"))


def _embedded(type_: FieldType) -> FieldType:
    """Add the fields that every whole object has."""
    assert type_.map is not None
    own = {"apiVersion": _STRING, "kind": _STRING, "metadata": METADATA}
    return FieldType(map_=type_.map._replace(fields={**type_.map.fields, **own}))


def _map(schema: Mapping[str, Any], preserves: bool) -> MapType:
    fields = {
        name: of_schema(child, preserves=preserves)
        for name, child in (schema.get("properties") or {}).items()
    }
    extra = schema.get("additionalProperties")
    other: FieldType | None = None
    if isinstance(extra, Mapping):
        other = of_schema(extra, preserves=preserves)
    elif extra is True or (extra is None and (preserves or not fields)):
        other = DEDUCED
    merges = schema.get("x-kubernetes-map-type") != "atomic"
    return MapType(fields, other, merges, deduced=other is DEDUCED and not fields)


def _list(schema: Mapping[str, Any], preserves: bool) -> ListType:
    items = schema.get("items")
    below = of_schema(items, preserves=preserves) if isinstance(items, Mapping) else ATOMIC
    kind = schema.get("x-kubernetes-list-type", "atomic")
    if kind == "set":
        return ListType(below, merges=True)
    if kind != "map" or not isinstance(items, Mapping):
        return ListType(below)
    keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    properties = items.get("properties") or {}
    defaults = {key: properties[key]["default"] for key in keys if "default" in properties.get(key, {})}
    return ListType(below, merges=True, keys=keys, defaults=defaults)
