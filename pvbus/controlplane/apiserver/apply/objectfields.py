"""Field sets of objects, and merging by type: what an object has, how two differ, and what an apply makes.

Values are JSON. No function changes its arguments; results may share parts with them.

Source: structured-merge-diff v6, typed/, behaviour only.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.apply import fieldsets
from pvbus.controlplane.apiserver.apply.fieldsets import EMPTY, SELF, FieldSet
from pvbus.controlplane.apiserver.apply.fieldtypes import UNTYPED, FieldType, ListType, MapType, Scalar

Json = Any


class _Absent:
    """The value of a field that is not there, which null is not."""


ABSENT = _Absent()


class ItemError(ValueError):
    """A list item has no identity."""


class Comparison(NamedTuple):
    """The paths in which an object differs from its previous version.

    removed: the paths that it lacks
    modified: the paths that have other values
    added: the paths that are new
    """

    removed: FieldSet
    modified: FieldSet
    added: FieldSet

    def without(self, ignored: FieldSet) -> "Comparison":
        """Leave out some paths, and what is below them."""
        if not ignored:
            return self
        return Comparison(*(fieldsets.recursive_difference(part, ignored) for part in self))


def item_element(type_: ListType, item: Json) -> str:
    """Return the path element of an item of a list that merges. Raises ItemError."""
    if type_.keys:
        if not isinstance(item, dict):
            what = "null" if item is None else "non-map"
            raise ItemError(f"associative list with keys may not have {_article(what)} element{_many(what)}")
        keys = {key: item.get(key, type_.defaults.get(key, ABSENT)) for key in type_.keys}
        given = {key: value for key, value in keys.items() if value is not ABSENT}
        if not given:
            shown = " ".join(f'"{key}"' for key in type_.keys)
            raise ItemError(
                f"associative list with keys has an element that omits all key fields [{shown}] "
                "(and doesn't have default values for any key fields)"
            )
        return fieldsets.key_element(given)
    if isinstance(item, dict):
        raise ItemError("associative list without keys has an element that's a map type")
    if isinstance(item, list):
        raise ItemError("not supported: associative list with lists as elements")
    if item is None:
        raise ItemError("associative list without keys has an element that's an explicit null")
    return fieldsets.value_element(item)


def _article(what: str) -> str:
    return f"a {what}" if what == "null" else what


def _many(what: str) -> str:
    return "" if what == "null" else "s"


def _by_element(type_: ListType, items: Iterable[Json]) -> dict[str, list[Json]]:
    """Group items by their path elements; one that has none is left out."""
    found: dict[str, list[Json]] = {}
    for item in items:
        try:
            found.setdefault(item_element(type_, item), []).append(item)
        except ItemError:
            continue
    return found


# --- the fields of an object ---


def field_set(type_: FieldType, value: Json) -> FieldSet:
    """Return the fields that an applied object names, which its manager wants to own."""
    return _own(type_, value) or EMPTY


def _own(type_: FieldType, value: Json) -> FieldSet | None:
    """Return the node of a value, None if the value names nothing by itself.

    A scalar, an atomic value and a list item name themselves. An object names only the fields in it, unless
    it is empty or null, or its field is not declared.
    """
    part = type_.of(value)
    below: dict[str, Any] = {}
    if isinstance(part, MapType) and part.merges:
        for name, child in _mapping(value).items():
            field = part.field(name)
            node = _own(field or UNTYPED, child)
            if child is None or child == {} or name not in part.fields:
                node = _with_self(node)
            if node is not None:
                below[f"f:{name}"] = node
    elif isinstance(part, ListType) and part.merges:
        for element, found in _by_element(part, _sequence(value)).items():
            below[element] = EMPTY if len(found) > 1 else _with_self(_own(part.items, found[0]))
    else:
        return EMPTY
    return below or None


def _with_self(node: FieldSet | None) -> FieldSet:
    """Make the path of a node a member, too."""
    if not node or SELF in node:
        return node or EMPTY
    return {SELF: EMPTY, **node}


# --- comparison ---

_CONTAINERS = (dict, list)
_Nodes = tuple[FieldSet | None, FieldSet | None, FieldSet | None]
_NOTHING: _Nodes = (None, None, None)


def compare(type_: FieldType, old: Json, new: Json) -> Comparison:
    """Return how an object differs from its previous version.

    Both are walked together, but not into equal values, so it costs little more than what differs. A path is
    modified if its own value differs, and not because of something below it. Where a value became another
    type (an object became a list), the findings in both types count.
    """
    return Comparison(*(node or EMPTY for node in _changes(type_, old, new)))


def _changes(type_: FieldType, old: Json, new: Json) -> _Nodes:
    if old is ABSENT:
        return None, None, _whole(type_, new)
    if new is ABSENT:
        return _whole(type_, old), None, None
    if old == new:
        return _NOTHING
    before, after = type_.of(old), type_.of(new)
    found = _part_changes(after, old, new)
    if before is after or before == after:
        return found
    return _joined(_part_changes(before, old, new), found)


def _whole(type_: FieldType, value: Json) -> FieldSet:
    """Return the node of a value that came or went as a whole: each path in it is a member."""
    part = type_.of(value)
    below: dict[str, Any] = {}
    if isinstance(part, MapType) and part.merges:
        for name, child in _mapping(value).items():
            is_leaf = child.__class__ not in _CONTAINERS  # most fields: without a call
            below[f"f:{name}"] = EMPTY if is_leaf else _whole(part.field(name) or UNTYPED, child)
    elif isinstance(part, ListType) and part.merges:
        for element, found in _by_element(part, _sequence(value)).items():
            below[element] = EMPTY if len(found) > 1 else _whole(part.items, found[0])
    return {SELF: EMPTY, **below} if below else EMPTY


def _part_changes(part: ListType | MapType | Scalar, old: Json, new: Json) -> _Nodes:
    if isinstance(part, MapType) and part.merges:
        one, other = _mapping(old), _mapping(new)
        if one or other:
            return _map_changes(part, one, other)
    elif isinstance(part, ListType) and part.merges:
        items, others = _sequence(old), _sequence(new)
        if items or others:
            return _list_changes(part, items, others)
    return None, EMPTY, None


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Json) -> Sequence[Json]:
    return value if isinstance(value, list) else ()


def _map_changes(part: MapType, old: Mapping[str, Json], new: Mapping[str, Json]) -> _Nodes:
    found: tuple[dict[str, Any], ...] = ({}, {}, {})
    for name in (*old, *(name for name in new if name not in old)):
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if before is not after and before != after:
            _put(found, f"f:{name}", _changes(part.field(name) or UNTYPED, before, after))
    return _nodes(found)


def _list_changes(part: ListType, old: Sequence[Json], new: Sequence[Json]) -> _Nodes:
    found: tuple[dict[str, Any], ...] = ({}, {}, {})
    one, other = _by_element(part, old), _by_element(part, new)
    for element in one | other:
        _put(found, element, _item_changes(part, one.get(element, []), other.get(element, [])))
    return _nodes(found)


def _item_changes(part: ListType, old: list[Json], new: list[Json]) -> _Nodes:
    """Compare the items of one identity; several of them are one leaf."""
    before, after = old[0] if old else ABSENT, new[0] if new else ABSENT
    if len(old) <= 1 and len(new) <= 1:
        return _changes(part.items, before, after)
    if len(old) > 1 and len(new) > 1:
        return _NOTHING if old == new else (None, EMPTY, None)
    if len(old) > 1:
        return EMPTY, None, None if after is ABSENT else _whole(part.items, after)
    return None if before is ABSENT else _whole(part.items, before), None, EMPTY


def _put(found: tuple[dict[str, Any], ...], element: str, nodes: _Nodes) -> None:
    for part, node in zip(found, nodes, strict=True):
        if node is not None:
            part[element] = node


def _nodes(found: tuple[dict[str, Any], ...]) -> _Nodes:
    removed, modified, added = found
    return removed or None, modified or None, added or None


def _joined(one: _Nodes, other: _Nodes) -> _Nodes:
    """Unite the findings of a field that became another type."""
    joined = []
    for first, second in zip(one, other, strict=True):
        if first is None or second is None:
            joined.append(first if second is None else second)
        else:
            node = fieldsets.union(first, second)
            is_member = fieldsets.is_member(first) or fieldsets.is_member(second)
            joined.append(_with_self(node) if is_member else node)
    return joined[0], joined[1], joined[2]


# --- removal of fields ---


def remove(type_: FieldType, value: Json, gone: FieldSet) -> Json:
    """Return a value without some fields and items; None if nothing is left of an object or a list."""
    part = type_.of(value)
    if isinstance(part, MapType):
        return _without_fields(part, value, gone) if part.merges else None
    if isinstance(part, ListType):
        return _without_items(part, value, gone) if part.merges else None
    return value


def _without_fields(part: MapType, value: Json, gone: FieldSet) -> Json:
    result = {}
    for name, child in _mapping(value).items():
        node = gone.get(f"f:{name}")
        if node is None:
            result[name] = child
        elif not fieldsets.is_member(node):
            result[name] = remove(part.field(name) or UNTYPED, child, node)
    return result or None


def _without_items(part: ListType, value: Json, gone: FieldSet) -> Json:
    result = []
    for item in _sequence(value):
        try:
            node = gone.get(item_element(part, item))
        except ItemError:
            node = None
        if node is None:
            result.append(item)
        elif not fieldsets.is_member(node):
            result.append(remove(part.items, item, node))
    return result or None


# --- sets and their types ---


def with_named(type_: FieldType | None, fields: FieldSet) -> FieldSet:
    """Add the declared fields on the way to each path: removing a path then leaves no empty object."""
    part = type_.map if type_ is not None else None
    below: dict[str, Any] = {}
    for element, child in fields.items():
        if element == SELF:
            below[SELF] = child
            continue
        node = with_named(_type_below(type_, element), child)
        if fieldsets.has_children(child) and part is not None and element[2:] in part.fields:
            node = _with_self(node) if element.startswith("f:") else node
        below[element] = node
    return below


def reconciled(type_: FieldType | None, fields: FieldSet) -> FieldSet:
    """Return a set as the present schema has it: what became atomic is owned as a whole."""
    return {
        element: child if element == SELF else _reconciled(_type_below(type_, element), child)
        for element, child in fields.items()
    }


def _reconciled(type_: FieldType | None, node: FieldSet) -> FieldSet:
    if type_ is None or not fieldsets.has_children(node):
        return node
    part = type_.map or (None if type_.scalar else type_.list)
    if part is None or (isinstance(part, MapType) and part.deduced):
        return node
    return reconciled(type_, node) if part.merges else EMPTY


def _type_below(type_: FieldType | None, element: str) -> FieldType | None:
    if type_ is None:
        return None
    if element.startswith("f:"):
        return type_.map.field(element[2:]) if type_.map is not None else None
    return type_.list.items if type_.list is not None else None
