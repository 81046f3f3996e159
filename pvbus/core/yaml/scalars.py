"""The value of a YAML scalar, as the Go tools of Kubernetes read it.

One table with two columns: KUBECTL is what kubectl and the API server read (sigs.k8s.io/yaml with go-yaml
v2), KPT is what kpt's tools read in the files of packages (go-yaml v3). `yes`, `on` and `y` are true for
kubectl, and text for kpt. The recorded answers of Go are in tests/data/yaml/scalars.json.

A number is taken apart by Go's rules, not Python's: `0777` and `0o777` are octal, `08` is the decimal 8, `_`
may stand anywhere, `1:30` is text. All of it is linear in the length of the text: digits are converted only
if their number fits into 64 bits.

Source: go.yaml.in/yaml v2.4.3 and v3.0.4, resolve.go; sigs.k8s.io/yaml v1.6.0, yaml.go.
"""

import base64
import binascii
import math
import re
import struct
from datetime import date
from decimal import Decimal
from typing import NamedTuple, TypeAlias

Scalar: TypeAlias = str | int | float | bool | None

TAG = "tag:yaml.org,2002:"
MERGE = "<<"

_NULLS: dict[str, Scalar] = dict.fromkeys(("", "~", "null", "Null", "NULL"))
_WORDS: dict[str, Scalar] = {
    **_NULLS,
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{f"{sign}{word}": math.inf for sign in ("", "+") for word in (".inf", ".Inf", ".INF")},
    **{f"-{word}": -math.inf for word in (".inf", ".Inf", ".INF")},
}
_WORDS_1_1: dict[str, Scalar] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
}


class Dialect(NamedTuple):
    """How a group of tools reads scalars. words: plain texts with a meaning, and their values."""

    words: dict[str, Scalar]
    bases: dict[str, int]
    """Prefixes after which a sign may stand, as in `0b-11`, with the base of their digits."""

    is_json: bool
    """Whether values are those of JSON that was sent: 1.0 is 1, an integer of more than 63 bits is a float,
    the key `yes` is `true`, .inf is refused. In edited files numbers and keys stay what is written."""

    own_keys_win: bool
    """Whether a key of a mapping wins over a merged one that follows it."""


KUBECTL = Dialect({**_WORDS, **_WORDS_1_1}, {"0b": 2}, is_json=True, own_keys_win=False)
KPT = Dialect(_WORDS, {"0b": 2, "0o": 8}, is_json=False, own_keys_win=True)

HINTS = frozenset(("", *"+-.0123456789~yYnNtTfFoO"))
"""First characters of plain texts that may be other than text."""

_DECIMAL = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_POINT_FIRST = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
_DIGITS = {
    2: re.compile("[01]+"),
    8: re.compile("[0-7]+"),
    10: re.compile("[0-9]+"),
    16: re.compile("[0-9a-fA-F]+"),
}
_BASES = {"b": 2, "o": 8, "x": 16}
_INT64_DIGITS = {2: 64, 8: 22, 10: 20, 16: 16}
"""The digits of 2**64 - 1 in each base: a number with more is out of range."""

INT64_MAX = 2**63 - 1
UINT64_MAX = 2**64 - 1
_EXACT = 2.0**53
"""Whole floats below it are exact; above, the shortest decimal digits are what Go writes."""

_FLOAT32_DIGITS = 9
"""Digits that tell every float of 32 bits from its neighbours."""

_PLAIN_EXPONENT = 6
"""Go writes larger numbers with an exponent."""

_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:(?:[Tt]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?(?:Z|[-+][0-9]{2}:[0-9]{2}))"
    r"|(?: +([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?))?"
)


def value_of(text: str, dialect: Dialect = KUBECTL, tag: str | None = None) -> Scalar:
    """Return the value of a plain scalar, or of any scalar with a tag.

    tag: the full name of the tag, None if there is none. A tag that YAML does not define leaves a text.
    Raises ValueError for a text that is not of its tag's type, and for a number that JSON does not have.
    """
    value = _go_value(text, dialect, tag)
    if not dialect.is_json:
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{text} is not a number of JSON, which are finite")
        return _json_number(value)
    if type(value) is int and value > INT64_MAX:
        return float(value)
    return value


def key_of(text: str, dialect: Dialect = KUBECTL, tag: str | None = None) -> str:
    """Return the key that a plain scalar is, as a text. Raises ValueError if Go has no text for it."""
    if not dialect.is_json:
        return text
    value = _go_value(text, dialect, tag)
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _short_float(value)
    if value is None or value > INT64_MAX:
        raise ValueError(
            f"the key {text} is {'null' if value is None else 'out of range'}: write it in quotes"
        )
    return str(value)


def has_other_value(text: str) -> bool:
    """Return whether a tool of either group reads this plain text as anything but a text."""
    return text == MERGE or any(type(_plain(text, dialect)) is not str for dialect in (KUBECTL, KPT))


def _go_value(text: str, dialect: Dialect, tag: str | None) -> Scalar:
    if tag is None:
        return _plain(text, dialect)
    name = tag.removeprefix(TAG)
    return _TYPES[name](text, dialect) if tag != name and name in _TYPES else text


def _plain(text: str, dialect: Dialect) -> Scalar:
    if text[:1] not in HINTS:
        return text
    if text in dialect.words:
        return dialect.words[text]
    number = _number(text, dialect)
    return text if number is None else number


def _number(text: str, dialect: Dialect) -> int | float | None:
    """Return the number of a plain text, None if it is none. An integer is one of 64 bits."""
    if text[0] == ".":
        return _finite(text.replace("_", "")) if _POINT_FIRST.fullmatch(text) else None
    if text[0] not in "+-0123456789":
        return None
    plain = text.replace("_", "")
    if (integer := _integer(plain)) is not None:
        return integer
    if _DECIMAL.fullmatch(plain):
        return _finite(plain)
    return _signed_digits(plain, dialect)


def _finite(text: str) -> float | None:
    """Return a float, None if it is too large: Go takes such a number for a text."""
    value = float(text)
    return value if math.isfinite(value) else None


def _integer(plain: str) -> int | None:
    """Return the integer of a literal of Go, None if it is none, or beyond 64 bits."""
    sign, digits = (plain[0], plain[1:]) if plain[:1] in ("+", "-") else ("", plain)
    base = 10
    if digits[:1] == "0" and len(digits) > 1:
        if len(digits) > 2 and (prefixed := _BASES.get(digits[1].lower())):
            base, digits = prefixed, digits[2:]
        else:
            base, digits = 8, digits[1:]
    return _of_digits(sign, digits, base)


def _of_digits(sign: str, digits: str, base: int) -> int | None:
    if not _DIGITS[base].fullmatch(digits):
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _INT64_DIGITS[base]:
        return None
    value = int(digits, base)
    if sign == "-":
        return -value if value <= INT64_MAX + 1 else None
    return value if value <= (INT64_MAX if sign else UINT64_MAX) else None


def _signed_digits(plain: str, dialect: Dialect) -> int | None:
    """Return the integer of digits with a sign after their prefix, as in `0b-11`."""
    base = dialect.bases.get(plain[:2])
    if base is None or plain[2:3] not in ("+", "-"):
        return None
    return _of_digits(plain[2], plain[3:], base)


def _json_number(value: float) -> int | float:
    """Return a float as JSON reads it back: whole numbers of 64 bits are integers."""
    if not value.is_integer() or abs(value) > INT64_MAX:
        return value
    if abs(value) < _EXACT:
        return int(value)
    written = int(Decimal(repr(value)))
    return written if -INT64_MAX <= written <= INT64_MAX else value


def _short_float(value: float) -> str:
    """Return a float as Go's FormatFloat(value, 'g', -1, 32) does: the fewest digits that keep 32 bits."""
    try:
        packed = struct.pack("f", value)
    except OverflowError:
        packed = struct.pack("f", math.copysign(math.inf, value))
    single: float = struct.unpack("f", packed)[0]
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else ".inf" if single > 0 else "-.inf"
    texts = (f"{single:.{digits}e}" for digits in range(_FLOAT32_DIGITS))
    short = next(text for text in texts if float(text) == single or struct.pack("f", float(text)) == packed)
    return f"{Decimal(short):f}" if -4 <= int(short.partition("e")[2]) < _PLAIN_EXPONENT else short


# --- tags ---


def _mismatch(text: str, name: str) -> ValueError:
    shown = f"{text[:40]}..." if len(text) > 40 else text
    return ValueError(f"`{shown}` is no !!{name}")


def _tagged_int(text: str, dialect: Dialect) -> Scalar:
    value = _plain(text, dialect)
    if type(value) is not int:
        raise _mismatch(text, "int")
    return value


def _tagged_float(text: str, dialect: Dialect) -> Scalar:
    value = _plain(text, dialect)
    if type(value) is int and value <= INT64_MAX:
        return float(value)
    if type(value) is not float:
        raise _mismatch(text, "float")
    return value


def _tagged_bool(text: str, dialect: Dialect) -> Scalar:
    value = dialect.words.get(text)
    if type(value) is not bool:
        raise _mismatch(text, "bool")
    return value


def _tagged_null(text: str, _: Dialect) -> Scalar:
    if text not in _NULLS:
        raise _mismatch(text, "null")
    return None


def _tagged_binary(text: str, _: Dialect) -> Scalar:
    try:
        data = base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _mismatch(text, "binary") from exc
    return data.decode(errors="replace")


def _tagged_timestamp(text: str, _: Dialect) -> Scalar:
    match = _TIMESTAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date(int(match[1]) or 4, int(match[2]), int(match[3]))  # year 0 is a leap year
    except ValueError:
        raise _mismatch(text, "timestamp") from None
    return text


_TYPES = {
    "int": _tagged_int,
    "float": _tagged_float,
    "bool": _tagged_bool,
    "null": _tagged_null,
    "binary": _tagged_binary,
    "timestamp": _tagged_timestamp,
}
