"""The three ways to patch an object. All return a new value and leave their arguments alone.

Results may share unchanged parts with the object they came from. Server-side apply is not here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.ports.cluster import Object

OPERATIONS_MAX = 10_000
"""Operations of one JSON patch; the real API server has the same bound, so that a small request
cannot make it work for long (each `copy` may double the object)."""


class PatchError(Exception):
    """The patch cannot be applied. code, reason, message: of the Status to answer with."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message


def merge_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 7396 merge patch: null deletes, objects merge, anything else replaces."""
    if not isinstance(patch, Mapping):
        raise PatchError(400, "BadRequest", "a merge patch must be a JSON object")
    return _merged(obj, patch)


def _merged(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _merged(result.get(key), value)
        else:
            result[key] = value
    return result


# --- JSON patch (RFC 6902) ---


def json_patch(obj: Object, operations: Any) -> Object:
    """Apply the operations in order, all or none."""
    if not isinstance(operations, list) or not all(isinstance(step, Mapping) for step in operations):
        raise PatchError(400, "BadRequest", "a JSON patch must be an array of operations")
    if len(operations) > OPERATIONS_MAX:
        raise PatchError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {len(operations)}",
        )
    result: Any = obj
    for step in operations:
        apply = _STEPS.get(step.get("op"))
        if apply is None:
            raise PatchError(
                400, "BadRequest", f"unexpected kind of JSON patch operation: {step.get('op')!r}"
            )
        result = apply(result, step)
    if not isinstance(result, dict):
        raise _unprocessable("the result of the patch is not an object")
    return result


def _unprocessable(what: str) -> PatchError:
    return PatchError(
        422, "Invalid", f"the server rejected our request due to an error in our request: {what}"
    )


def _pointer(step: Mapping[str, Any], member: str) -> list[str]:
    text = step.get(member)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise PatchError(400, "BadRequest", f"{step.get('op')} operation has no valid {member!r}: {text!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _value(step: Mapping[str, Any]) -> Any:
    if "value" not in step:
        raise PatchError(400, "BadRequest", f"{step['op']} operation at {step.get('path')!r} has no value")
    return step["value"]


def _index(items: Sequence[Any], part: str, *, end: int) -> int:
    if not part.isdigit() or not 0 <= int(part) <= end:
        raise _unprocessable(f"{part!r} is not an index of a list of {len(items)}")
    return int(part)


def _read(value: Any, pointer: Sequence[str]) -> Any:
    for part in pointer:
        if isinstance(value, list):
            value = value[_index(value, part, end=len(value) - 1)]
        elif isinstance(value, dict) and part in value:
            value = value[part]
        else:
            raise _unprocessable(f"nothing at /{'/'.join(pointer)}")
    return value


def _changed(value: Any, pointer: Sequence[str], change: Callable[[Any, str], None], at: int = 0) -> Any:
    """Return a copy of `value`, new along the pointer, on whose last container `change` was done."""
    if not isinstance(value, (dict, list)):
        raise _unprocessable(f"nothing at /{'/'.join(pointer[:at])} that has members")
    copy: Any = value.copy()
    if at == len(pointer) - 1:
        change(copy, pointer[at])
    else:
        child = _read(copy, pointer[at : at + 1])
        key: Any = int(pointer[at]) if isinstance(copy, list) else pointer[at]
        copy[key] = _changed(child, pointer, change, at + 1)
    return copy


def _add_at(value: Any, pointer: Sequence[str], new: Any) -> Any:
    if not pointer:
        return new

    def change(container: Any, part: str) -> None:
        if isinstance(container, dict):
            container[part] = new
        elif part == "-":
            container.append(new)
        else:
            container.insert(_index(container, part, end=len(container)), new)

    return _changed(value, pointer, change)


def _remove_at(value: Any, pointer: Sequence[str]) -> Any:
    if not pointer:
        raise _unprocessable("the whole object cannot be removed")
    _read(value, pointer)

    def change(container: Any, part: str) -> None:
        del container[part if isinstance(container, dict) else int(part)]

    return _changed(value, pointer, change)


def _replace_at(value: Any, pointer: Sequence[str], new: Any) -> Any:
    _read(value, pointer)
    if not pointer:
        return new

    def change(container: Any, part: str) -> None:
        container[part if isinstance(container, dict) else int(part)] = new

    return _changed(value, pointer, change)


def _test(value: Any, step: Mapping[str, Any]) -> Any:
    found = _read(value, _pointer(step, "path"))
    if not _same(found, _value(step)):
        raise _unprocessable(f"testing value {step['path']} failed: test failed")
    return value


def _same(one: Any, other: Any) -> bool:
    """JSON equality: unlike in Python, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _move(value: Any, step: Mapping[str, Any]) -> Any:
    source, target = _pointer(step, "from"), _pointer(step, "path")
    if len(source) < len(target) and target[: len(source)] == source:
        raise _unprocessable(f"{step['from']} cannot be moved into itself")
    return _add_at(_remove_at(value, source), target, _read(value, source))


_STEPS: dict[Any, Callable[[Any, Mapping[str, Any]], Any]] = {
    "add": lambda value, step: _add_at(value, _pointer(step, "path"), _value(step)),
    "remove": lambda value, step: _remove_at(value, _pointer(step, "path")),
    "replace": lambda value, step: _replace_at(value, _pointer(step, "path"), _value(step)),
    "move": _move,
    "copy": lambda value, step: _add_at(value, _pointer(step, "path"), _read(value, _pointer(step, "from"))),
    "test": _test,
}


# --- strategic merge patch (built-in kinds only) ---


class _MergedList(NamedTuple):
    """A list that is merged instead of replaced. key: which member tells elements apart; "" for a set."""

    key: str


_METADATA_LISTS = {
    ("metadata", "finalizers"): _MergedList(""),
    ("metadata", "ownerReferences"): _MergedList("uid"),
}
_KIND_LISTS: dict[tuple[str, str], dict[tuple[str, ...], _MergedList]] = {
    ("", "Namespace"): {("status", "conditions"): _MergedList("type")},
}
_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"


def strategic_merge_patch(obj: Object, patch: Any, *, group: str, kind: str) -> Object:
    """Apply a strategic merge patch with the merge keys that Kubernetes declares for this built-in kind.

    Source: k8s.io/apimachinery pkg/util/strategicpatch (v0.36), behaviour only.
    """
    if not isinstance(patch, Mapping):
        raise PatchError(400, "BadRequest", "a strategic merge patch must be a JSON object")
    lists = _METADATA_LISTS | _KIND_LISTS.get((group, kind), {})
    return _strategic_map(obj, patch, (), lists)


_Lists = Mapping[tuple[str, ...], _MergedList]


def _strategic_map(
    target: Any, patch: Mapping[str, Any], path: tuple[str, ...], lists: _Lists
) -> dict[str, Any]:
    result = dict(target) if isinstance(target, Mapping) else {}
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise PatchError(400, "BadRequest", f"Unknown patch directive: {directive!r}")
    if "$retainKeys" in patch:
        retained = patch["$retainKeys"]
        unlisted = [key for key in patch if not key.startswith("$") and key not in retained]
        if unlisted:
            raise PatchError(400, "BadRequest", f"$retainKeys does not list {', '.join(sorted(unlisted))}")
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DROP):
            name = key.removeprefix(_DROP)
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _strategic_map(result.get(key), value, (*path, key), lists)
        elif isinstance(value, list) and (merged := lists.get((*path, key))) is not None:
            result[key] = _strategic_list(result.get(key) or [], value, merged.key)
        else:
            result[key] = value
    for key, order in patch.items():
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            merged = lists.get((*path, name)) or _MergedList("")
            if result.get(name):
                result[name] = _ordered(result[name], order, _rows(target, name), merged.key)
    return result


def _rows(target: Any, name: str) -> list[Any]:
    return (target.get(name) if isinstance(target, Mapping) else None) or []


def _strategic_list(target: list[Any], patch: list[Any], key: str) -> list[Any]:
    if not key:
        return list(dict.fromkeys([*target, *patch]))
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if item.get("$patch") != "replace"]
    result = list(target)
    for item in patch:
        if not isinstance(item, Mapping) or key not in item:
            raise PatchError(400, "BadRequest", f"map: {item!r} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_strategic_map({}, item, (), {}))
        else:
            result[at] = _strategic_map(result[at], item, (), {})
    return result


def _ordered(items: list[Any], order: list[Any], before: list[Any], key: str) -> list[Any]:
    """Put the listed items into that order; the others stay before what they stood before."""

    def identity(item: Any) -> Any:
        return item.get(key) if key else item

    rank = {identity(item): at for at, item in enumerate(order)}
    place = {identity(item): at for at, item in enumerate(before)}
    listed = sorted((i for i in items if identity(i) in rank), key=lambda item: rank[identity(item)])
    others = [item for item in items if identity(item) not in rank]
    result: list[Any] = []
    for item in listed:
        at = place.get(identity(item))
        while others and (at is None or place.get(identity(others[0]), -1) <= at):
            result.append(others.pop(0))
        result.append(item)
    return result + others
