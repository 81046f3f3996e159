"""Merges an applied object into the one that is there, and checks that it has the types of its schema.

What the applied object has wins; maps and lists that merge keep what it does not name.

Source: structured-merge-diff v6, typed/merge.go and typed/validate.go, behaviour only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pvbus.controlplane.apiserver.apply.fieldsets import shown
from pvbus.controlplane.apiserver.apply.fieldtypes import UNTYPED, FieldType, ListType, MapType, Scalar
from pvbus.controlplane.apiserver.apply.objectfields import ABSENT, ItemError, item_element

Json = Any


def merge(type_: FieldType, live: Json, applied: Json) -> Json:
    """Return the live value with the applied one on top."""
    merged = _merged(type_, live, applied)
    return None if merged is ABSENT else merged


def _merged(type_: FieldType, live: Json, applied: Json) -> Json:
    """Merge two values, of which either may be ABSENT.

    An object or list in which nothing is left is ABSENT, too.
    """
    if applied is ABSENT:
        return live
    part = type_.of(applied)
    if isinstance(part, MapType) and part.merges:
        one = live if isinstance(live, dict) else {}
        other = applied if isinstance(applied, dict) else {}
        if not one and not other:
            return applied
        found = {
            name: _merged(part.field(name) or UNTYPED, one.get(name, ABSENT), other.get(name, ABSENT))
            for name in (*one, *(name for name in other if name not in one))
        }
        return {name: value for name, value in found.items() if value is not ABSENT} or ABSENT
    if isinstance(part, ListType) and part.merges:
        items = live if isinstance(live, list) else []
        others = applied if isinstance(applied, list) else []
        return _merged_list(part, items, others) if items or others else applied
    return applied


def _merged_list(part: ListType, live: Sequence[Json], applied: Sequence[Json]) -> Json:
    """Merge item by item. Items of both come in the applied order; the others keep their neighbours.

    `at` walks the live items and `position` the applied ones; `shared` has the identities that both have and
    that are still to come, in the applied order. An item that only the live list has is copied at once, and
    so stays behind the item that it followed. A live item that both have waits until the applied list reaches
    it, unless it is the next one of `shared`: then the applied items before it are taken first.
    """
    old = [(item_element(part, item), item) for item in live]
    new = {item_element(part, item): item for item in applied}
    counted: dict[str, Json] = {}
    for element, item in old:
        counted[element] = ABSENT if element in counted else item  # several of one identity do not merge
    shared = [element for element in new if element in counted]
    order = list(new)
    result: list[Json] = []
    done: set[str] = set()

    def take(element: str) -> None:
        done.add(element)
        value = _merged(part.items, counted.get(element, ABSENT), new[element])
        if value is not ABSENT:
            result.append(value)

    def advance() -> None:
        if shared:
            shared.pop(0)

    at = position = 0
    while at < len(old) or position < len(order):
        if at < len(old):
            element, item = old[at]
            if position < len(order) and element == order[position]:
                take(element)
                at, position = at + 1, position + 1
                advance()
                continue
            if position < len(order) and element in new and shared and shared[0] != element:
                at += 1  # its turn comes with the applied order
                continue
            if element not in new:
                result.append(item)
                at += 1
                continue
            if element in done:
                at += 1
        if position < len(order):
            element = order[position]
            take(element)
            position += 1
            if shared and shared[0] == element:
                advance()
    return result or ABSENT


# --- validation ---


def type_errors(type_: FieldType, value: Json) -> list[str]:
    """Return why a value does not fit its schema, each with its path; an applied object must fit."""
    return [f"{path}: {text}" if path else text for path, text in _errors(type_, value, "")]


def _errors(type_: FieldType, value: Json, path: str) -> Iterator[tuple[str, str]]:
    part = type_.of(value)
    if isinstance(part, MapType):
        yield from _map_errors(part, value, path)
    elif isinstance(part, ListType):
        yield from _list_errors(part, value, path)
    elif text := _scalar_error(part, value):
        yield path, text


def _map_errors(part: MapType, value: Json, path: str) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if not isinstance(value, dict):
        yield path, f"expected map, got &{{{_go(value)}}}"
        return
    for name, child in value.items():
        type_ = part.field(name)
        if type_ is None:
            yield f"{path}.{name}", "field not declared in schema"
        else:
            yield from _errors(type_, child, f"{path}.{name}")


def _list_errors(part: ListType, value: Json, path: str) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if not isinstance(value, list):
        yield path, f"expected list, got &{{{_go(value)}}}"
        return
    seen: set[str] = set()
    for at, item in enumerate(value):
        element = f"i:{at}"
        if part.merges:
            try:
                element = item_element(part, item)
            except ItemError as exc:
                yield path, f"element {at}: {exc}"
                return
            if element in seen:
                yield path, f"duplicate entries for key {shown((element,))}"
            seen.add(element)
        yield from _errors(part.items, item, path + shown((element,)))


def _scalar_error(scalar: Scalar, value: Json) -> str:
    if value is None:
        return ""
    if scalar == "string" and not isinstance(value, str):
        return f"expected string, got {_go(value, full=True)}"
    if scalar == "boolean" and not isinstance(value, bool):
        return f"expected boolean, got &{{{_go(value)}}}"
    if scalar == "numeric" and (isinstance(value, bool) or not isinstance(value, (int, float))):
        return f"expected numeric (int or float), got {_go_type(value)}"
    if isinstance(value, (dict, list)):
        return f"expected any scalar, got &{{{_go(value)}}}"
    return ""


_GO_TYPES = {str: "string", bool: "bool", int: "int64", float: "float64", dict: "map[string]interface {}"}


def _go_type(value: Json) -> str:
    return _GO_TYPES.get(type(value), "[]interface {}")


def _go(value: Json, *, full: bool = False) -> str:
    """Return a value as the real API server's messages print it."""
    if full:
        text = _quoted(value)
        return f"&value.valueUnstructured{{Value:{text}}}"
    if isinstance(value, dict):
        return "map[" + " ".join(f"{name}:{_go(child)}" for name, child in sorted(value.items())) + "]"
    if isinstance(value, list):
        return "[" + " ".join(map(_go, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "<nil>" if value is None else str(value)


def _quoted(value: Json) -> str:
    if isinstance(value, dict):
        pairs = ", ".join(f'"{name}":{_quoted(child)}' for name, child in sorted(value.items()))
        return f"map[string]interface {{}}{{{pairs}}}"
    if isinstance(value, list):
        return f"[]interface {{}}{{{', '.join(map(_quoted, value))}}}"
    return f'"{value}"' if isinstance(value, str) else _go(value)
