"""The well-known wrappers of protobuf as message literals: `google.protobuf.StringValue{value: 'a'}` is 'a'.

CEL has no message types here, but each implementation knows these. A literal becomes a call of a function
with the message's name, which no expression can spell. Its type is that of its value, or null.
"""

import struct
from collections.abc import Callable
from typing import Any

from pvbus.core.cel import types as t
from pvbus.core.cel.errors import CelEvalError
from pvbus.core.cel.types import Type
from pvbus.core.cel.values import Uint, Value, no_overload

PACKAGE = "google.protobuf"
FIELD = "value"
"""The only field of each of them."""

INT32 = range(-(2**31), 2**31)
UINT32 = range(2**32)


def _in(allowed: range) -> Callable[[Any], Value]:
    def checked(number: Any) -> Value:
        if not allowed.start <= number < allowed.stop:  # `in` would look at each number for a Uint
            raise CelEvalError("unsigned integer overflow" if allowed is UINT32 else "integer overflow")
        return number

    return checked


def _single(number: Any) -> Value:
    """Round to 32 bits; what is too large is infinite."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return rounded


def _as_is(value: Any) -> Value:
    return value


_WRAPPERS: dict[str, tuple[Type, Value, Callable[[Any], Value]]] = {
    "BoolValue": (t.BOOL, False, _as_is),
    "BytesValue": (t.BYTES, b"", _as_is),
    "DoubleValue": (t.DOUBLE, 0.0, _as_is),
    "FloatValue": (t.DOUBLE, 0.0, _single),
    "Int32Value": (t.INT, 0, _in(INT32)),
    "Int64Value": (t.INT, 0, _as_is),
    "StringValue": (t.STRING, "", _as_is),
    "UInt32Value": (t.UINT, Uint(0), _in(UINT32)),
    "UInt64Value": (t.UINT, Uint(0), _as_is),
}
"""Type of the field, its value if it is not set, and what becomes of one that is set."""

WRAPPER_TYPES: dict[str, Type] = {f"{PACKAGE}.{name}": kind for name, (kind, _, _) in _WRAPPERS.items()}


def _made(name: str, default: Value, convert: Callable[[Any], Value]) -> Callable[..., Value]:
    def make(value: Value = default) -> Value:
        if type(value) is not type(default):  # of an argument whose type is not known before
            raise no_overload(name, value)
        return convert(value)

    return make


WRAPPER_FUNCTIONS: dict[str, Callable[..., Value]] = {
    f"{PACKAGE}.{name}": _made(f"{PACKAGE}.{name}", default, convert)
    for name, (_, default, convert) in _WRAPPERS.items()
}
