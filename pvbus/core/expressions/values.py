"""Values of CEL at run time, and what the operators do to them.

A value is the Python object that comes closest: str, bytes, bool, int, float, None, list and dict
are themselves; the types below are what Python lacks. Inputs therefore need no conversion. A dict
that was written as a literal keys its booleans by `_Flag`, because Python takes True for 1.

Results and texts of errors are those of cel-go v0.26.1, which the tests hold up against its own
answers.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from pvbus.core.expressions.errors import CelConvertError, CelEvalError

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
    """An instant, and the offset from UTC in seconds it was written with (only string() tells)."""

    nanos: int
    offset: int = 0


class TypeValue(NamedTuple):
    name: str


class _Flag(Enum):
    FALSE = False
    TRUE = True


_NAMES: dict[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes",
    type(None): "null_type", list: "list", tuple: "list", dict: "map", Timestamp: "google.protobuf.Timestamp",
    Duration: "google.protobuf.Duration", TypeValue: "type",
}  # fmt: skip
TYPE_NAMES = frozenset(_NAMES.values())


def type_name(value: Value) -> str:
    """Return the name of a value's type, as type() shows it."""
    name = _NAMES.get(type(value))
    if name is None:
        if isinstance(value, Mapping):
            return "map"
        raise CelEvalError(f"unsupported type conversion: {type(value).__name__}")
    return name


def no_overload(function: str = "", *args: Value) -> CelEvalError:
    if not function:
        return CelEvalError("no such overload")
    return CelEvalError(f"no such overload: {function}({', '.join(map(type_name, args))})")


def result_string(value: Value) -> str:
    """Return the result of an expression.

    Raises:
        CelConvertError: it is no string.
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


def equal(left: Value, right: Value) -> bool:
    """Tell whether two values are equal; values of different types are unequal, numbers are one type."""
    if type(left) is str and type(right) is str:
        return left == right
    one, other = type_name(left), type_name(right)
    if one in _NUMERIC and other in _NUMERIC:
        if one != other and "double" in (one, other):
            return float(left) == float(right)
        return bool(left == right)
    if one != other:
        return False
    if one == "list":
        return len(left) == len(right) and all(map(equal, left, right))
    if one == "map":
        missing = object()
        return len(left) == len(right) and all(
            (found := right.get(key, missing)) is not missing and equal(value, found)
            for key, value in left.items()
        )
    if one == "google.protobuf.Timestamp":
        return bool(left.nanos == right.nanos)
    return bool(left == right)


_NUMERIC = frozenset(["int", "uint", "double"])
_ORDERED = frozenset(["string", "bytes", "bool", "google.protobuf.Timestamp", "google.protobuf.Duration"])


def compare(left: Value, right: Value, operator: str) -> int:
    """Return a number below, equal to or above 0.

    Raises:
        CelEvalError: the values have no order.
    """
    one, other = type_name(left), type_name(right)
    if one in _NUMERIC and other in _NUMERIC:
        if left != left or right != right:
            raise CelEvalError("NaN values cannot be ordered")
        if one != other and "double" in (one, other):
            left, right = float(left), float(right)
    elif one not in _ORDERED | _NUMERIC:
        raise CelEvalError(f"no such overload: {operator}")
    elif one != other:
        raise no_overload()
    elif one == "google.protobuf.Timestamp":
        left, right = left.nanos, right.nanos
    return int(left > right) - int(left < right)


# --- maps and lists


def map_key(key: Value) -> Any:
    """Return what stands for a key in the dict of a map."""
    kind = type(key)
    if kind is bool:
        return _Flag(key)
    if kind in (list, dict, tuple):
        raise CelEvalError(f"unsupported key type: {type_name(key)}")
    return key


def keys_of(value: Mapping[Any, Value]) -> list[Value]:
    """Return the keys in the order in which loops take them: strings sorted, as no order is promised."""
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
    if kind not in _NUMERIC:
        raise CelEvalError(f"unsupported index type '{kind}' in list")
    if kind == "double" and not float(key).is_integer():
        raise CelEvalError(f"unsupported index value {_shown(key)} in list")
    if not 0 <= key < len(items):
        raise CelEvalError(f"index out of bounds: {int(key)}")
    return items[int(key)]


def _shown(value: Value) -> str:
    return string(value) if type_name(value) in _NUMERIC | {"string", "bool"} else type_name(value)


def contains(item: Value, container: Value) -> bool:
    """Tell whether `item in container`."""
    kind = type_name(container)
    if kind == "map":
        return map_key(item) in container
    if kind == "list":
        return any(equal(item, other) for other in container)
    raise no_overload()


def size(value: Value) -> int:
    if type_name(value) not in ("string", "bytes", "list", "map"):
        raise CelEvalError("no such overload: size")
    length: int = len(value)
    return length


# --- arithmetic


def _in_range(number: int, unsigned: bool) -> int:
    if unsigned:
        if not 0 <= number <= UINT_MAX:
            raise CelEvalError("unsigned integer overflow")
        return Uint(number)
    if not INT_MIN <= number <= INT_MAX:
        raise CelEvalError("integer overflow")
    return number


def _instant(nanos: int, offset: int) -> Timestamp:
    if not _FIRST_SECOND <= nanos // NANOS <= _LAST_SECOND:
        raise CelEvalError("timestamp overflow")
    return Timestamp(nanos, offset)


def _span(nanos: int) -> Duration:
    return Duration(_in_range(nanos, unsigned=False))


def add(left: Value, right: Value) -> Value:
    pair = (type(left), type(right))
    if pair == (str, str) or pair == (bytes, bytes):
        return left + right
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return _in_range(int(left) + int(right), kinds[0] == "uint")
        case ("double", "double") | ("list", "list"):
            return left + right
        case "google.protobuf.Duration", "google.protobuf.Duration":
            return _span(left.nanos + right.nanos)
        case "google.protobuf.Timestamp", "google.protobuf.Duration":
            return _instant(left.nanos + right.nanos, left.offset)
        case "google.protobuf.Duration", "google.protobuf.Timestamp":
            return _instant(left.nanos + right.nanos, right.offset)
        case ("map" | "bool" | "null_type" | "type", _):
            raise CelEvalError("no such overload: _+_")
    raise no_overload()


def subtract(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return _in_range(int(left) - int(right), kinds[0] == "uint")
        case "double", "double":
            return left - right
        case ("google.protobuf.Duration", "google.protobuf.Duration") | (
            "google.protobuf.Timestamp", "google.protobuf.Timestamp",
        ):  # fmt: skip
            return _span(left.nanos - right.nanos)
        case "google.protobuf.Timestamp", "google.protobuf.Duration":
            return _instant(left.nanos - right.nanos, left.offset)
    raise no_overload()


def multiply(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            return _in_range(int(left) * int(right), kinds[0] == "uint")
        case "double", "double":
            return left * right
    raise no_overload()


def divide(left: Value, right: Value) -> Value:
    match type_name(left), type_name(right):
        case ("int", "int") | ("uint", "uint") as kinds:
            if right == 0:
                raise CelEvalError("division by zero")
            quotient = abs(left) // abs(right)
            return _in_range(quotient if (left < 0) == (right < 0) else -quotient, kinds[0] == "uint")
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
            return _in_range(rest if left >= 0 else -rest, kinds[0] == "uint")
    raise no_overload()


def negate(value: Value) -> Value:
    match type_name(value):
        case "int":
            return _in_range(-value, unsigned=False)
        case "double":
            return -value
    raise no_overload()


def negation(value: Value) -> bool:
    if type(value) is not bool:
        raise no_overload()
    return not value


# --- conversions


def _conversion(value: Value, wanted: str) -> CelEvalError:
    return CelEvalError(f"type conversion error from '{type_name(value)}' to '{wanted}'")


def to_bool(value: Value) -> bool:
    if type(value) is bool:
        return value
    if type(value) is str:
        if value in ("1", "t", "T", "true", "TRUE", "True"):
            return True
        if value in ("0", "f", "F", "false", "FALSE", "False"):
            return False
        raise _conversion(value, "bool")
    raise no_overload("bool", value)


def to_int(value: Value) -> int:
    match type_name(value):
        case "int":
            return int(value)
        case "uint":
            return _in_range(int(value), unsigned=False)
        case "double":
            if not -(2.0**63) < value < 2.0**63:
                raise CelEvalError("integer overflow")
            return int(value)
        case "string":
            if re.fullmatch(r"[+-]?[0-9]+", value, re.ASCII) and INT_MIN <= int(value) <= INT_MAX:
                return int(value)
            raise _conversion(value, "int")
        case "google.protobuf.Timestamp":
            return int(value.nanos // NANOS)
        case "google.protobuf.Duration":
            return int(value.nanos)
    raise no_overload("int", value)


def to_uint(value: Value) -> Uint:
    match type_name(value):
        case "uint":
            return Uint(value)
        case "int":
            return Uint(_in_range(value, unsigned=True))
        case "double":
            if not 0 <= value < 2.0**64:
                raise CelEvalError("unsigned integer overflow")
            return Uint(value)
        case "string":
            if re.fullmatch(r"[0-9]+", value, re.ASCII) and int(value) <= UINT_MAX:
                return Uint(value)
            raise _conversion(value, "uint")
    raise no_overload("uint", value)


_FLOAT = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_HEX_FLOAT = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?\d+", re.ASCII | re.IGNORECASE)


def to_double(value: Value) -> float:
    match type_name(value):
        case "double" | "int" | "uint":
            return float(value)
        case "string":
            value = re.sub(r"(?<=\d)_(?=\d)", "", value, flags=re.ASCII)
            if _HEX_FLOAT.fullmatch(value):
                return float.fromhex(value)
            if _FLOAT.fullmatch(value) and not (value[0] in "+-" and value[1:].lower() == "nan"):
                number = float(value)
                if not math.isinf(number) or "n" in value.lower():
                    return number
            raise _conversion(value, "double")
    raise no_overload("double", value)


def to_bytes(value: Value) -> bytes:
    match type_name(value):
        case "bytes":
            return bytes(value)
        case "string":
            return str(value).encode()
    raise no_overload("bytes", value)


def _double_text(value: float) -> str:
    """Write a number as Go's shortest %g does: with an exponent below 1e-04 and from 1e+06 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    minus, figures = "-" * sign, "".join(map(str, digits))
    power = len(figures) - 1 + exponent  # of the first figure
    if value != 0 and not -4 <= power < 6:
        point = "." * (len(figures) > 1)
        return f"{minus}{figures[0]}{point}{figures[1:]}e{power:+03d}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{figures}"
    whole, part = figures[: power + 1].ljust(power + 1, "0"), figures[power + 1 :]
    return f"{minus}{whole}.{part}" if part else f"{minus}{whole}"


def _fraction(nanos: int) -> str:
    return f".{nanos:09d}".rstrip("0") if nanos else ""


def _duration_text(nanos: int) -> str:
    """Write seconds as a double has them: beyond 104 days the last digits are lost."""
    whole, rest = divmod(abs(nanos), NANOS)
    seconds = format(Decimal(repr(float(whole) + rest / NANOS)), "f").removesuffix(".0")
    return f"{'-' if nanos < 0 else ''}{seconds}s"


def _timestamp_text(value: Timestamp) -> str:
    moment = _local(value, timezone(timedelta(seconds=value.offset)))
    zone = "Z"
    if value.offset:
        minutes = abs(value.offset) // 60
        zone = f"{'-' if value.offset < 0 else '+'}{minutes // 60:02d}:{minutes % 60:02d}"
    return (
        f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}{_fraction(value.nanos % NANOS)}{zone}"
    )


def string(value: Value) -> str:
    match type_name(value):
        case "string":
            return str(value)
        case "bool":
            return "true" if value else "false"
        case "int" | "uint":
            return str(int(value))
        case "double":
            return _double_text(value)
        case "bytes":
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise CelEvalError("invalid UTF-8 in bytes, cannot convert to string") from None
        case "google.protobuf.Timestamp":
            return _timestamp_text(value)
        case "google.protobuf.Duration":
            return _duration_text(value.nanos)
    raise no_overload("string", value)


# --- time

_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d\d?)(:\d\d:\d\d)(?:[.,](\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": NANOS,
    "m": 60 * NANOS,
    "h": 3600 * NANOS,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_timestamp(value: Value) -> Timestamp:
    match type_name(value):
        case "google.protobuf.Timestamp":
            return Timestamp(value.nanos, value.offset)
        case "int":
            return _instant(value * NANOS, 0)
        case "string":
            return _parsed_timestamp(value)
    raise no_overload("timestamp", value)


def _parsed_timestamp(text: str) -> Timestamp:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise _conversion(text, "google.protobuf.Timestamp")
    if match[1].startswith("0000"):
        raise CelEvalError("timestamp overflow")
    try:
        moment = datetime.fromisoformat(f"{match[1]}T{match[2]:0>2}{match[3]}").replace(tzinfo=UTC)
    except ValueError:
        raise _conversion(text, "google.protobuf.Timestamp") from None
    offset = 0
    if match[5]:
        if int(match[6]) > 24 or int(match[7]) > 59:
            raise _conversion(text, "google.protobuf.Timestamp")
        offset = (int(match[6]) * 3600 + int(match[7]) * 60) * (-1 if match[5] == "-" else 1)
    seconds = (moment - _EPOCH) // timedelta(seconds=1) - offset
    return _instant(seconds * NANOS + int((match[4] or "0")[:9].ljust(9, "0")), offset)


def to_duration(value: Value) -> Duration:
    match type_name(value):
        case "google.protobuf.Duration":
            return Duration(value.nanos)
        case "int":
            raise _conversion(value, "google.protobuf.Duration")  # declared, but not implemented
        case "string":
            return _parsed_duration(value)
    raise no_overload("duration", value)


def _parsed_duration(text: str) -> Duration:
    body = text[1:] if text[:1] in ("-", "+") else text
    if body == "0":
        return Duration(0)
    nanos, at = 0, 0
    while (match := _DURATION.match(body, at)) is not None:
        whole, _, part = match[1].partition(".")
        unit = _UNITS[match[2]]
        nanos += int(whole or "0") * unit + int(part or "0") * unit // 10 ** len(part)
        at = match.end()
    if at == 0 or at != len(body):
        raise _conversion(text, "google.protobuf.Duration")
    nanos = -nanos if text[0] == "-" else nanos
    if not INT_MIN <= nanos <= INT_MAX:
        raise _conversion(text, "google.protobuf.Duration")
    return Duration(nanos)


def _zone(name: str) -> tzinfo:
    if name in ("", "UTC"):
        return UTC
    if ":" in name:
        match = re.fullmatch(r"([+-]?)(\d{1,2}):(\d{1,2})", name, re.ASCII)
        if match is None or int(match[2]) > 23:
            raise CelEvalError(f"invalid time zone: {name}")
        span = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-span if match[1] == "-" else span)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise CelEvalError(f"unknown time zone {name}") from None


def _local(value: Timestamp, zone: tzinfo) -> datetime:
    try:
        return (_EPOCH + timedelta(seconds=value.nanos // NANOS)).astimezone(zone)
    except OverflowError:
        raise CelEvalError("timestamp overflow") from None


def _toward_zero(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)


_OF_TIMESTAMP: dict[str, Callable[[datetime, int], int]] = {
    "getFullYear": lambda at, nanos: at.year,
    "getMonth": lambda at, nanos: at.month - 1,
    "getDate": lambda at, nanos: at.day,
    "getDayOfMonth": lambda at, nanos: at.day - 1,
    "getDayOfWeek": lambda at, nanos: at.isoweekday() % 7,
    "getDayOfYear": lambda at, nanos: at.timetuple().tm_yday - 1,
    "getHours": lambda at, nanos: at.hour,
    "getMinutes": lambda at, nanos: at.minute,
    "getSeconds": lambda at, nanos: at.second,
    "getMilliseconds": lambda at, nanos: nanos // 10**6,
}
_OF_DURATION = {
    "getHours": 3600 * NANOS,
    "getMinutes": 60 * NANOS,
    "getSeconds": NANOS,
    "getMilliseconds": 10**6,
}
TIME_PARTS = tuple(_OF_TIMESTAMP)
DURATION_PARTS = tuple(_OF_DURATION)


def time_part(name: str, value: Value, *zone: Value) -> int:
    """Return a part of a timestamp (in UTC, or in the zone named) or of a duration."""
    kind = type_name(value)
    if kind == "google.protobuf.Timestamp" and all(type(name) is str for name in zone):
        moment = _local(value, _zone(zone[0]) if zone else UTC)
        return _OF_TIMESTAMP[name](moment, value.nanos % NANOS)
    if kind == "google.protobuf.Duration" and name in _OF_DURATION and not zone:
        return _toward_zero(value.nanos, _OF_DURATION[name])
    raise no_overload(name, value, *zone)
