"""Maps and lists of CEL: keys, elements, membership, size."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from pvbus.core.cel.conversions import string
from pvbus.core.cel.errors import CelEvalError, CelOverloadError
from pvbus.core.cel.values import NUMERIC, Value, equal, free, no_overload, type_name


class _Flag(Enum):
    """A boolean as a key: as a Python dict key, True equals 1."""

    FALSE = False
    TRUE = True


def map_key(key: Value) -> Any:
    """Return the dict key that represents a map key."""
    kind = type(key)
    if kind is bool:
        return _Flag(key)
    if kind in (list, dict, tuple):
        raise CelEvalError(f"unsupported key type: {type_name(key)}")
    return key


def keys_of(value: Mapping[Any, Value]) -> list[Value]:
    """Return the keys in the order of loops. Strings are sorted: CEL promises no order."""
    keys = [key.value if isinstance(key, _Flag) else key for key in value]
    return sorted(keys) if all(type(key) is str for key in keys) else keys


def index(operand: Value, key: Value) -> Value:
    """Return `operand[key]`."""
    kind = type_name(operand)
    if kind == "list":
        return _item(operand, key)
    if kind == "map":
        found = operand.get(map_key(key), _MISSING)
        if found is not _MISSING:
            return found
    raise CelEvalError(f"no such key: {_shown(key)}")


_MISSING = object()


def _item(items: list[Value], key: Value) -> Value:
    kind = type_name(key)
    if kind not in NUMERIC:
        raise CelEvalError(f"unsupported index type '{kind}' in list")
    if kind == "double" and not float(key).is_integer():
        raise CelEvalError(f"unsupported index value {_shown(key)} in list")
    if not 0 <= key < len(items):
        raise CelEvalError(f"index out of bounds: {int(key)}")
    return items[int(key)]


def _shown(value: Value) -> str:
    return string(value) if type_name(value) in NUMERIC | {"string", "bool"} else type_name(value)


def contains(item: Value, container: Value, charge: Callable[[int], None] = free) -> bool:
    """Return whether `item in container`. charge: see `equal`."""
    kind = type_name(container)
    if kind == "map":
        if type(item) in (str, bytes):
            charge(len(item) // 10)
        return type_name(item) not in ("list", "map") and map_key(item) in container
    if kind == "list":
        charge(4 * len(container))
        return any(equal(item, other, charge) for other in container)
    raise no_overload()


def size(value: Value) -> int:
    if type_name(value) not in ("string", "bytes", "list", "map"):
        raise CelOverloadError("no such overload: size")
    length: int = len(value)
    return length
