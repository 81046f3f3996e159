"""The three kinds of patches that do not depend on who writes. All functions return a new value and do not
change their arguments, or raise the StatusError for the answer. `apply` has server-side apply.

Results may share unchanged parts with the original object.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.entries import decode, encode
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.status import bad_request
from pvbus.ports.cluster import Object

PATCHES = ("application/json-patch+json", "application/merge-patch+json")
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
"""Content types; the last is only for built-in kinds."""

APPLY_PATCH = "application/apply-patch+yaml"
"""Content type of a server-side apply; the body may be JSON, too."""

OPERATIONS_MAX = 10_000
"""Maximum operations of one JSON patch, as in the real API server, so that a small request cannot cause much
work."""

COPIED_BYTES_MAX = 3 * 1024 * 1024
"""Bytes that the `copy` operations of one JSON patch may add, as in the real API server: each can double the
object."""

SHIFTED_ITEMS_MAX = 50_000_000
"""List items that the operations of one JSON patch may shift by insertions and removals: about 0.1 s of work.
10,000 insertions at the start of a list of 1,000,000 would take 10 s."""


def merge_patch(obj: Object, patch: Any) -> Object:
    """Apply an RFC 7396 merge patch: null deletes, objects merge, anything else replaces."""
    if not isinstance(patch, Mapping):
        raise bad_request("a merge patch must be a JSON object")
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
    """Apply all operations in order, or raise without an effect."""
    if not isinstance(operations, list) or not all(isinstance(step, Mapping) for step in operations):
        raise bad_request("a JSON patch must be an array of operations")
    if len(operations) > OPERATIONS_MAX:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {len(operations)}",
        )
    document = _Document(decode(encode(obj)))
    for step in operations:
        operation = step.get("op")
        apply = _STEPS.get(operation) if isinstance(operation, str) else None
        if apply is None:
            raise _unprocessable(f"unexpected kind of JSON patch operation: {str(operation)[:40]!r}")
        apply(document, step)
    if not isinstance(document.value, dict):
        raise _unprocessable("the result of the patch is not an object")
    return document.value


def _unprocessable(what: str) -> StatusError:
    text = f"the server rejected our request due to an error in our request: {what}"
    return StatusError(422, "Invalid", text, details={})


def _pointer(step: Mapping[str, Any], member: str) -> list[str]:
    text = step.get(member)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        shown = repr(text)[:200]
        raise _unprocessable(f"{step.get('op')} operation has no valid {member!r}: {shown}")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _value(step: Mapping[str, Any]) -> Any:
    if "value" not in step:
        path = repr(step.get("path"))[:200]
        raise _unprocessable(f"{step['op']} operation at {path} has no value")
    return step["value"]


def _index(items: Sequence[Any], part: str, *, end: int) -> int:
    if not _INDEX.fullmatch(part) or int(part) > end:
        raise _unprocessable(f"{part[:40]!r} is not an index of a list of {len(items)}")
    return int(part)


_INDEX = re.compile(r"[0-9]{1,9}")


class _Document:
    """A private value that operations change in place, with counts of their work."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._copied_bytes = 0
        self._shifted = 0

    def read(self, pointer: Sequence[str]) -> Any:
        value = self.value
        for part in pointer:
            if isinstance(value, list):
                value = value[_index(value, part, end=len(value) - 1)]
            elif isinstance(value, dict) and part in value:
                value = value[part]
            else:
                raise _unprocessable(f"nothing at {_shown(pointer)}")
        return value

    def _container(self, pointer: Sequence[str]) -> Any:
        container = self.read(pointer[:-1])
        if not isinstance(container, (dict, list)):
            raise _unprocessable(f"nothing at {_shown(pointer[:-1])} that has members")
        return container

    def add(self, pointer: Sequence[str], new: Any) -> None:
        if not pointer:
            self.value = new
            return
        container, part = self._container(pointer), pointer[-1]
        if isinstance(container, dict):
            container[part] = new
        elif part == "-":
            container.append(new)
        else:
            at = _index(container, part, end=len(container))
            self._shift(len(container) - at)
            container.insert(at, new)

    def remove(self, pointer: Sequence[str]) -> Any:
        """Remove a value, and return it."""
        if not pointer:
            raise _unprocessable("the whole object cannot be removed")
        found = self.read(pointer)
        container, part = self._container(pointer), pointer[-1]
        if isinstance(container, dict):
            del container[part]
        else:
            self._shift(len(container) - int(part))
            del container[int(part)]
        return found

    def replace(self, pointer: Sequence[str], new: Any) -> None:
        """Set a value; like kube-apiserver, and unlike RFC 6902, a field of an object need not be there."""
        if not pointer:
            self.value = new
            return
        container, part = self._container(pointer), pointer[-1]
        if isinstance(container, list):
            container[_index(container, part, end=len(container) - 1)] = new
        else:
            container[part] = new

    def found(self, pointer: Sequence[str]) -> Any:
        """Return a value, None for a field that its object lacks: `test` takes it for null."""
        container = self._container(pointer) if pointer else None
        if isinstance(container, dict):
            return container.get(pointer[-1])
        return self.read(pointer)

    def copy(self, pointer: Sequence[str]) -> Any:
        """Return a copy of a value; the total size of a patch's copies is limited."""
        raw = encode(self.read(pointer))
        self._copied_bytes += len(raw)
        if self._copied_bytes > COPIED_BYTES_MAX:
            raise _unprocessable(
                "unable to complete the copy: the accumulated size increase of copy is "
                f"{self._copied_bytes}, exceeding the limit {COPIED_BYTES_MAX}"
            )
        return decode(raw)

    def _shift(self, items: int) -> None:
        self._shifted += items
        if self._shifted > SHIFTED_ITEMS_MAX:
            raise _unprocessable(f"the operations move more than {SHIFTED_ITEMS_MAX} items of a list")


def _shown(pointer: Sequence[str]) -> str:
    text = "/" + "/".join(pointer[:40])
    return text if len(text) <= 300 else text[:300] + "..."


def _test(document: _Document, step: Mapping[str, Any]) -> None:
    if not _same(document.found(_pointer(step, "path")), _value(step)):
        raise _unprocessable(f"testing value {step['path'][:200]} failed: test failed")


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: unlike in Python, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _move(document: _Document, step: Mapping[str, Any]) -> None:
    source, target = _pointer(step, "from"), _pointer(step, "path")
    if len(source) < len(target) and target[: len(source)] == source:
        raise _unprocessable(f"{step['from'][:200]} cannot be moved into itself")
    document.add(target, document.remove(source))


_STEPS: dict[str, Callable[[_Document, Mapping[str, Any]], Any]] = {
    "add": lambda document, step: document.add(_pointer(step, "path"), _value(step)),
    "remove": lambda document, step: document.remove(_pointer(step, "path")),
    "replace": lambda document, step: document.replace(_pointer(step, "path"), _value(step)),
    "move": _move,
    "copy": lambda document, step: document.add(
        _pointer(step, "path"), document.copy(_pointer(step, "from"))
    ),
    "test": _test,
}


# --- strategic merge patch (built-in kinds only) ---


class _MergedList(NamedTuple):
    """A list that is merged, not replaced.

    key: the field that identifies its items, "" for a set
    """

    key: str


_METADATA_LISTS = {
    ("metadata", "finalizers"): _MergedList(""),
    ("metadata", "ownerReferences"): _MergedList("uid"),
}
_CONDITIONS: dict[tuple[str, ...], _MergedList] = {("status", "conditions"): _MergedList("type")}
_TEMPLATE = ("spec", "template", "spec")
_PODS: dict[tuple[str, ...], _MergedList] = {
    **_CONDITIONS,
    (*_TEMPLATE, "volumes"): _MergedList("name"),
    (*_TEMPLATE, "imagePullSecrets"): _MergedList("name"),
    (*_TEMPLATE, "tolerations"): _MergedList("key"),
    **{
        (*_TEMPLATE, containers, *path): _MergedList(key)
        for containers in ("containers", "initContainers")
        for path, key in (
            ((), "name"),
            (("env",), "name"),
            (("ports",), "containerPort"),
            (("volumeMounts",), "mountPath"),
        )
    },
}
_KIND_LISTS: dict[tuple[str, str], dict[tuple[str, ...], _MergedList]] = {
    ("", "Namespace"): _CONDITIONS,
    ("", "Service"): {**_CONDITIONS, ("spec", "ports"): _MergedList("port")},
    ("", "ServiceAccount"): {("secrets",): _MergedList("name"), ("imagePullSecrets",): _MergedList("name")},
    ("apps", "Deployment"): _PODS,
    ("batch", "Job"): _PODS,
}
"""Of a list within a list, the path without positions."""
_ORDER = "$setElementOrder/"
_DROP = "$deleteFromPrimitiveList/"


def strategic_merge_patch(obj: Object, patch: Any, *, group: str, kind: str) -> Object:
    """Apply a strategic merge patch with the merge keys that Kubernetes declares for this built-in kind.

    Source: k8s.io/apimachinery pkg/util/strategicpatch (v0.36), behaviour only.
    """
    if not isinstance(patch, Mapping):
        raise bad_request("a strategic merge patch must be a JSON object")
    lists = _METADATA_LISTS | _KIND_LISTS.get((group, kind), {})
    return _strategic_map(obj, patch, (), lists)


_Lists = Mapping[tuple[str, ...], _MergedList]


def _strategic_map(
    target: Any, patch: Mapping[str, Any], path: tuple[str, ...], lists: _Lists
) -> dict[str, Any]:
    """Return an object with a patch merged into it.

    Directives that concern the whole object come first (`$patch`, `$retainKeys`), then the fields, then the
        orders of
    lists: an order is of the list as it is after the merge.

    path: the fields from the root to this object
    lists: the lists that are merged, by their paths
    """
    result = dict(target) if isinstance(target, Mapping) else {}
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch directive: {directive!r}")
    if "$retainKeys" in patch:
        retained = _listed(patch, "$retainKeys")
        unlisted = [key for key in patch if not key.startswith("$") and key not in retained]
        if unlisted:
            raise bad_request(f"$retainKeys does not list {', '.join(sorted(unlisted))}")
        result = {key: value for key, value in result.items() if key in retained}
    for key, value in patch.items():
        if key.startswith(_DROP):
            name, dropped = key.removeprefix(_DROP), _listed(patch, key)
            result[name] = [item for item in _rows(result, name) if item not in dropped]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = _strategic_map(result.get(key), value, (*path, key), lists)
        elif isinstance(value, list) and (merged := lists.get((*path, key))) is not None:
            result[key] = _strategic_list(_rows(result, key), value, merged.key, (*path, key), lists)
        else:
            result[key] = value
    for key in patch:
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            merged = lists.get((*path, name)) or _MergedList("")
            order = _listed(patch, key)
            if rows := _rows(result, name):
                result[name] = _in_order(rows, order, _rows(target, name), merged.key)
    return result


def _rows(target: Any, name: str) -> list[Any]:
    found = target.get(name) if isinstance(target, Mapping) else None
    return found if isinstance(found, list) else []


def _listed(patch: Mapping[str, Any], key: str) -> list[Any]:
    """Return the value of a directive, which must be a list."""
    if not isinstance(patch[key], list):
        raise bad_request(f"{key}: must be a list")
    return list(patch[key])


def _strategic_list(
    target: list[Any], patch: list[Any], key: str, path: tuple[str, ...], lists: _Lists
) -> list[Any]:
    """Return a list with a patch merged into it.

    A set gets the items that it lacks. In a list with a key, each item of the patch changes, deletes or adds
    the item with the same key.
    """
    if not key:
        if any(isinstance(item, (dict, list)) for item in (*target, *patch)):
            raise bad_request("the items of a set must be texts or numbers")
        return list(dict.fromkeys([*target, *patch]))
    if any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if not isinstance(item, Mapping) or item.get("$patch") != "replace"]
    result = list(target)
    for item in patch:
        if not isinstance(item, Mapping) or key not in item:
            raise bad_request(f"map: {item!r} does not contain declared merge key: {key}")
        same = (i for i, old in enumerate(result) if isinstance(old, Mapping) and old.get(key) == item[key])
        at = next(same, None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_strategic_map({}, item, path, lists))
        else:
            result[at] = _strategic_map(result[at], item, path, lists)
    return result


def _in_order(items: list[Any], order: list[Any], before: list[Any], key: str) -> list[Any]:
    """Sort the items listed in `order` by it; the other items keep their position from `before`.

    The listed items are taken in their order. Before each of them go the other items that stood before it in
    `before`, or that are new themselves; before a listed item that is new go all others that are left.
    """

    def identity(item: Any) -> Any:
        found = item.get(key) if key and isinstance(item, Mapping) else item
        return encode(found) if isinstance(found, (dict, list)) else found

    rank = {identity(item): at for at, item in enumerate(order)}
    index = {identity(item): at for at, item in enumerate(before)}
    listed = sorted((i for i in items if identity(i) in rank), key=lambda item: rank[identity(item)])
    others = [item for item in items if identity(item) not in rank]
    result: list[Any] = []
    for item in listed:
        at = index.get(identity(item))
        while others and (at is None or index.get(identity(others[0]), -1) <= at):
            result.append(others.pop(0))
        result.append(item)
    return result + others
