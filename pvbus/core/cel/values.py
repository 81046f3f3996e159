"""Values of CEL at run time, and the operators on them.

A value is the closest Python object: str, bytes, bool, int, float, None, list and dict represent
themselves; the types below are missing in Python. Inputs therefore need no conversion.

Results and error texts are those of cel-go v0.26.1; the tests compare them with its answers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pvbus.core.cel.errors import CelConvertError, CelEvalError, CelOverloadError

Value = Any
NANOS = 1_000_000_000
INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # years 1 to 9999


class Uint(int):
    """An unsigned integer, below 2**64."""

    __slots__ = ()


class Duration(NamedTuple):
    nanos: int


class Timestamp(NamedTuple):
    """An instant, and its written offset from UTC in seconds, which only string() shows."""

    nanos: int
    offset: int = 0


class TypeValue(NamedTuple):
    name: str


_NAMES: dict[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes",
    type(None): "null_type", list: "list", tuple: "list", dict: "map", Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration", TypeValue: "type",
}  # fmt: skip


def type_name(value: Value) -> str:
    """Return the name of a value's type, as type() shows it."""
    name = _NAMES.get(type(value))
    if name is None:
        if isinstance(value, Mapping):
            return "map"
        raise CelEvalError(f"unsupported type conversion: {type(value).__name__}")
    return name


def no_overload(function: str = "", *args: Value) -> CelOverloadError:
    if not function:
        return CelOverloadError("no such overload")
    return CelOverloadError(f"no such overload: {function}({', '.join(map(type_name, args))})")


def result_string(value: Value) -> str:
    """Return the result of an expression.

    Raises:
        CelConvertError: it is not a string.
    """
    if type(value) is str:
        return value
    name = type_name(value)
    if name in ("int", "uint"):
        raise CelConvertError(f"unsupported type conversion from '{name}' to string")
    if name == "type":
        raise CelConvertError("type conversion not supported for 'type'")
    shown = {
        "double": "Double", "bytes": "Bytes", "null_type": "'null_type'",
        "google.protobuf.Timestamp": "'Timestamp'", "google.protobuf.Duration": "'Duration'",
    }.get(name, name)  # fmt: skip
    raise CelConvertError(f"type conversion error from {shown} to 'string'")


# --- equality and order


def free(cost: int) -> None:
    """Charge nothing."""


def equal(left: Value, right: Value, charge: Callable[[int], None] = free) -> bool:
    """Return whether two values are equal. Different types are unequal; all numbers are one type.

    charge: called with the cost of each comparison before it is made.
    """
    pairs = [(left, right)]  # a stack of our own, as values may be nested deeper than Python's
    while pairs:
        left, right = pairs.pop()
        one, other = type_name(left), type_name(right)
        if one != other:
            if not (one in NUMERIC and other in NUMERIC and _same_number(left, right, one, other)):
                return False
        elif one in ("string", "bytes"):
            if len(left) != len(right):
                return False
            charge(len(left) // 10)
            if left != right:
                return False
        elif one == "list":
            if len(left) != len(right):
                return False
            charge(5 * len(left))
            pairs.extend(zip(left, right, strict=True))
        elif one == "map":
            if len(left) != len(right):
                return False
            charge(10 * len(left))
            for key, value in left.items():
                found = right.get(key, _MISSING)
                if found is _MISSING:
                    return False
                pairs.append((value, found))
        elif (left.nanos != right.nanos) if one == "google.protobuf.Timestamp" else (left != right):
            return False
    return True


_MISSING = object()


def _same_number(left: Value, right: Value, one: str, other: str) -> bool:
    return float(left) == float(right) if "double" in (one, other) else bool(left == right)


NUMERIC = frozenset(["int", "uint", "double"])
_ORDERED = frozenset(["string", "bytes", "bool", "google.protobuf.Timestamp", "google.protobuf.Duration"])


def compare(left: Value, right: Value, operator: str) -> int:
    """Return a number below, equal to or above 0.

    Raises:
        CelEvalError: the values have no order.
    """
    one, other = type_name(left), type_name(right)
    if one in NUMERIC and other in NUMERIC:
        if left != left or right != right:
            raise CelEvalError("NaN values cannot be ordered")
        if one != other and "double" in (one, other):
            left, right = float(left), float(right)
    elif one not in _ORDERED | NUMERIC:
        raise CelOverloadError(f"no such overload: {operator}")
    elif one != other:
        raise no_overload()
    elif one == "google.protobuf.Timestamp":
        left, right = left.nanos, right.nanos
    return int(left > right) - int(left < right)


# --- arithmetic


def in_range(number: int, unsigned: bool) -> int:
    if unsigned:
        if not 0 <= number <= UINT_MAX:
            raise CelEvalError("unsigned integer overflow")
        return Uint(number)
    if not INT_MIN <= number <= INT_MAX:
        raise CelEvalError("integer overflow")
    return number


def instant(nanos: int, offset: int) -> Timestamp:
    if not _FIRST_SECOND <= nanos // NANOS <= _LAST_SECOND:
        raise CelEvalError("timestamp overflow")
    return Timestamp(nanos, offset)


def _span(nanos: int) -> Duration:
    return Duration(in_range(nanos, unsigned=False))


def add(left: Value, right: Value) -> Value:
    pair = (type(left), type(right))
    if pair == (str, str) or pair == (bytes, bytes):
        return left + right
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return in_range(int(left) + int(right), kinds[0] == "uint")
        case ("double", "double") | ("list", "list"):
            return left + right
        case "google.protobuf.Duration", "google.protobuf.Duration":
            return _span(left.nanos + right.nanos)
        case "google.protobuf.Timestamp", "google.protobuf.Duration":
            return instant(left.nanos + right.nanos, left.offset)
        case "google.protobuf.Duration", "google.protobuf.Timestamp":
            return instant(left.nanos + right.nanos, right.offset)
        case ("map" | "bool" | "null_type" | "type", _):
            raise CelOverloadError("no such overload: _+_")
    raise no_overload()


def subtract(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return in_range(int(left) - int(right), kinds[0] == "uint")
        case "double", "double":
            return left - right
        case ("google.protobuf.Duration", "google.protobuf.Duration") | (
            "google.protobuf.Timestamp", "google.protobuf.Timestamp",
        ):  # fmt: skip
            return _span(left.nanos - right.nanos)
        case "google.protobuf.Timestamp", "google.protobuf.Duration":
            return instant(left.nanos - right.nanos, left.offset)
    raise no_overload()


def multiply(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return in_range(int(left) * int(right), kinds[0] == "uint")
        case "double", "double":
            return left * right
    raise no_overload()


def divide(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            if right == 0:
                raise CelEvalError("division by zero")
            quotient = abs(left) // abs(right)
            return in_range(quotient if (left < 0) == (right < 0) else -quotient, kinds[0] == "uint")
        case "double", "double":
            if right != 0:
                return left / right
            if left == 0 or left != left:
                return math.nan
            return math.copysign(math.inf, left) * math.copysign(1.0, right)
    raise no_overload()


def modulo(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            if right == 0:
                raise CelEvalError("modulus by zero")
            if left == INT_MIN and right == -1:
                raise CelEvalError("integer overflow")
            rest = abs(left) % abs(right)
            return in_range(rest if left >= 0 else -rest, kinds[0] == "uint")
    raise no_overload()


def negate(value: Value) -> Value:
    match type_name(value):
        case "int":
            return in_range(-value, unsigned=False)
        case "double":
            return -value
    raise no_overload()


def negation(value: Value) -> bool:
    if type(value) is not bool:
        raise no_overload()
    return not value
