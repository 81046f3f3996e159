"""Conversions between values of CEL: the functions named after types, and the parts of times.

Named time zones come from the system's database, the only input besides an expression's variables.
"""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

from pvbus.core.cel.errors import CelEvalError
from pvbus.core.cel.values import (
    INT_MAX,
    INT_MIN,
    NANOS,
    UINT_MAX,
    Duration,
    Timestamp,
    Uint,
    Value,
    in_range,
    instant,
    no_overload,
    type_name,
)


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


_DECIMAL = re.compile(r"([+-]?)(?=[0-9])0*+([0-9]{0,20})", re.ASCII)  # no integer has more digits


def _decimal(text: str) -> int | None:
    """Return the number, None if the text is none or it is out of range."""
    match = _DECIMAL.fullmatch(text)
    return int(match[1] + (match[2] or "0")) if match is not None else None


def to_int(value: Value) -> int:
    match type_name(value):
        case "int":
            return int(value)
        case "uint":
            return in_range(int(value), unsigned=False)
        case "double":
            if not -(2.0**63) < value < 2.0**63:
                raise CelEvalError("integer overflow")
            return int(value)
        case "string":
            number = _decimal(value)
            if number is not None and INT_MIN <= number <= INT_MAX:
                return number
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
            return Uint(in_range(value, unsigned=True))
        case "double":
            if not 0 <= value < 2.0**64:
                raise CelEvalError("unsigned integer overflow")
            return Uint(value)
        case "string":
            number = _decimal(value)
            if number is not None and value[0] not in "+-" and number <= UINT_MAX:
                return Uint(number)
            raise _conversion(value, "uint")
    raise no_overload("uint", value)


_FLOAT = re.compile(
    r"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|inf|infinity|nan)", re.ASCII | re.IGNORECASE
)
_HEX_FLOAT = re.compile(
    r"[+-]?0x(?:[0-9a-f]+(?:\.[0-9a-f]*)?|\.[0-9a-f]+)p[+-]?\d+", re.ASCII | re.IGNORECASE
)


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
    """Write seconds with the precision of a double: beyond 104 days the last digits are lost."""
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
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
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
_FIGURES = 20  # of a number: before the point more are out of range, behind it more are lost
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_timestamp(value: Value) -> Timestamp:
    match type_name(value):
        case "google.protobuf.Timestamp":
            return Timestamp(value.nanos, value.offset)
        case "int":
            return instant(value * NANOS, 0)
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
    return instant(seconds * NANOS + int((match[4] or "0")[:9].ljust(9, "0")), offset)


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
        unit, whole, part = _UNITS[match[2]], whole.lstrip("0")[:_FIGURES], part[:_FIGURES]
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
    from zoneinfo import ZoneInfo  # its import reads how Python was built, which few processes need

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
    """Return a part of a timestamp (in UTC, or in the given zone) or of a duration."""
    kind = type_name(value)
    if kind == "google.protobuf.Timestamp" and all(type(name) is str for name in zone):
        moment = _local(value, _zone(zone[0]) if zone else UTC)
        return _OF_TIMESTAMP[name](moment, value.nanos % NANOS)
    if kind == "google.protobuf.Duration" and name in _OF_DURATION and not zone:
        return _toward_zero(value.nanos, _OF_DURATION[name])
    raise no_overload(name, value, *zone)
