"""Sets of field paths, in the form in which `managedFields` has them (FieldsV1).

A set is a mapping from path elements to the sets below them. An element is a text: `f:<name>` for a field,
`k:<JSON>` for the item of a list with these keys, `v:<JSON>` for an item of a set, `i:<index>`. A path is in
the set if its mapping is empty or has the key `.`. Functions return canonical sets, share parts with their
arguments, and never change them.

Source: structured-merge-diff v6, fieldpath/serialize.go, behaviour only.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

FieldSet = Mapping[str, Any]
"""JSON's recursive form; the values are field sets."""

Path = tuple[str, ...]
SELF = "."
EMPTY: FieldSet = {}
_ORDER = {"f": 0, "k": 1, "v": 2, "i": 3}


def key_element(keys: Mapping[str, Any]) -> str:
    """Return the element of a list item with these keys."""
    return "k:" + _json(keys)


def value_element(value: Any) -> str:
    return "v:" + _json(value)


_encode = msgspec.json.Encoder(order="sorted").encode


def _json(value: Any) -> str:
    return _encode(value).decode()


def is_member(node: FieldSet) -> bool:
    """Return whether the path of a node is in the set."""
    return not node or SELF in node


def children(node: FieldSet) -> Iterator[tuple[str, FieldSet]]:
    return ((element, child) for element, child in node.items() if element != SELF)


def has_children(node: FieldSet) -> bool:
    return len(node) > (SELF in node)


def _node(member: bool, below: dict[str, Any]) -> FieldSet | None:
    """Return a canonical node, None if it has no member."""
    if member:
        return {SELF: EMPTY, **below} if below else EMPTY
    return below or None


def union(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths of both; `one` itself if it has all. It costs as much as `other` has paths."""
    result: dict[str, Any] | None = None
    for element, child in children(other):
        node = one.get(element)
        found = child if node is None else _united(node, child)
        if found is not node:
            result = dict(one) if result is None else result
            result[element] = found
    return one if result is None else result


def _united(node: FieldSet, other: FieldSet) -> FieldSet:
    below = union(node, other)
    if is_member(node) or not is_member(other):
        return below if below is node or node else {SELF: EMPTY, **below}
    return {SELF: EMPTY, **below}


def difference(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths of `one` that are not in `other`; `one` itself if it loses none.

    It costs as much as `other` has paths.
    """
    result: dict[str, Any] | None = None
    for element, child in children(other):
        node = one.get(element)
        found = None if node is None else _subtracted(node, child)
        if found is not node:
            result = dict(one) if result is None else result
            if found is None:
                del result[element]
            else:
                result[element] = found
    return one if result is None else result


def _subtracted(node: FieldSet, other: FieldSet) -> FieldSet | None:
    below = difference(node, other)
    if not is_member(node):
        return below or None
    if not is_member(other):
        return below if has_children(below) else EMPTY
    return dict(children(below)) or None


def intersection(one: FieldSet, other: FieldSet) -> FieldSet:
    below: dict[str, Any] = {}
    for element, child in children(one):
        node = other.get(element)
        if node is not None:
            member = is_member(child) and is_member(node)
            found = _node(member, dict(intersection(child, node)))
            if found is not None:
                below[element] = found
    return below


def recursive_difference(one: FieldSet, other: FieldSet) -> FieldSet:
    """Return the paths of `one` that are neither in `other` nor below one of its paths."""
    below = {}
    for element, child in children(one):
        removed = other.get(element)
        if removed is None:
            below[element] = child
        elif not is_member(removed):
            found = _node(is_member(child), dict(recursive_difference(child, removed)))
            if found is not None:
                below[element] = found
    return below


def of_paths(*paths: Path) -> FieldSet:
    """Return the set of these paths; the empty path has no effect."""
    found: FieldSet = EMPTY
    for path in paths:
        node: FieldSet = EMPTY
        for element in reversed(path):
            node = {element: node}
        found = union(found, node) if path else found
    return found


def paths(fields: FieldSet, prefix: Path = ()) -> Iterator[Path]:
    """Yield the paths of a set in order: those of one level before those below it."""
    ordered = sorted(children(fields), key=lambda item: _rank(item[0]))
    for element, child in ordered:
        if is_member(child):
            yield (*prefix, element)
    for element, child in ordered:
        yield from paths(child, (*prefix, element))


def has(fields: FieldSet, path: Path) -> bool:
    node: FieldSet | None = fields
    for element in path:
        node = node.get(element) if node is not None else None
    return bool(path) and node is not None and is_member(node)


def _rank(element: str) -> tuple[int, str]:
    return _ORDER[element[0]], element


def shown(path: Path) -> str:
    """Return a path as conflicts print it, such as `.spec.ports[name="http"].port`."""
    return "".join(map(_shown, path))


def _shown(element: str) -> str:
    kind, text = element[0], element[2:]
    if kind == "f":
        return f".{text}"
    if kind == "k":
        return "[" + ",".join(f"{name}={_json(value)}" for name, value in json.loads(text).items()) + "]"
    return f"[={text}]" if kind == "v" else f"[{text}]"


def parsed(fields: Any) -> FieldSet:
    """Return the canonical set of a `fieldsV1` that a client sent. Raises ValueError."""
    if not isinstance(fields, Mapping):
        raise ValueError("a field set must be an object")
    below: dict[str, Any] = {}
    for element, child in fields.items():
        if element == SELF:
            continue
        node = parsed(child)
        member = not child or SELF in child
        found = _node(member, dict(node))
        if found is not None:
            below[_canonical(element)] = found
    return below


def _canonical(element: str) -> str:
    kind, text = element[:2], element[2:]
    if kind == "f:":
        return element
    if kind == "k:":
        keys = json.loads(text)
        if isinstance(keys, dict):
            return key_element(keys)
    elif kind == "v:":
        return value_element(json.loads(text))
    elif kind == "i:":
        return f"i:{int(text)}"
    raise ValueError(f"{element[:80]!r} is not a path element")


def printed(fields: FieldSet) -> dict[str, Any]:
    """Return a set as JSON has it, sorted, so that equal sets have equal texts."""
    ordered = sorted(children(fields), key=lambda item: _rank(item[0]))
    below = {element: printed(child) for element, child in ordered}
    return {SELF: {}, **below} if SELF in fields else below
