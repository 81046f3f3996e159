"""The standard library at run time: the implementation of each operator and function.

The logical operators and the conditional are not here: they do not evaluate all their arguments.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import re2  # type: ignore[import-untyped]  # it has no types

from pvbus.core.cel import containers
from pvbus.core.cel import conversions as convert
from pvbus.core.cel import values as v
from pvbus.core.cel.errors import CelEvalError

BUILDERS = frozenset(["_+_", "string", "bytes"])  # their result is as large as their arguments


def _of_strings(function: Callable[[str, str], bool]) -> Callable[[v.Value, v.Value], bool]:
    def call(left: v.Value, right: v.Value) -> bool:
        if type(left) is not str or type(right) is not str:
            raise v.no_overload()
        return function(left, right)

    return call


_KIND_NAMES = {"timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


def narrowed(name: str, kinds: frozenset[str]) -> Callable[[v.Value], v.Value]:
    """Return a conversion that accepts only the kinds of values that the checker left."""
    function = FUNCTIONS[name]
    allowed = frozenset(_KIND_NAMES.get(kind, kind) for kind in kinds)

    def call(value: v.Value) -> v.Value:
        if v.type_name(value) not in allowed:
            raise v.no_overload(name, value)
        return function(value)

    return call


# RE2's messages for a bad pattern, and those of Go's regexp package, which users of Porch know.
_PATTERN_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "bad repetition operator": "invalid nested repetition operator",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
}
_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")  # RE2 matches a single byte of UTF-8, Go never does


def _pattern(text: str) -> Any:
    if _ANY_BYTE.search(text):
        raise CelEvalError("error parsing regexp: invalid escape sequence: `\\C`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0]
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        words, _, pattern = shown.partition(": ")
        if words == "trailing \\":
            words, pattern = "trailing backslash at end of expression", ""
        message = f"{_PATTERN_REASONS.get(words, words)}: `{pattern}`"
        raise CelEvalError(f"error parsing regexp: {message}") from None


def _matches(text: str, pattern: str) -> bool:
    return _pattern(pattern).search(text) is not None


FUNCTIONS: dict[str, Callable[..., v.Value]] = {
    "_+_": v.add, "_-_": v.subtract, "_*_": v.multiply, "_/_": v.divide, "_%_": v.modulo,
    "_==_": v.equal, "_[_]": containers.index, "@in": containers.contains,
    "_!=_": lambda a, b: not v.equal(a, b),
    "_<_": lambda a, b: v.compare(a, b, "_<_") < 0, "_<=_": lambda a, b: v.compare(a, b, "_<=_") <= 0,
    "_>_": lambda a, b: v.compare(a, b, "_>_") > 0, "_>=_": lambda a, b: v.compare(a, b, "_>=_") >= 0,
    "!_": v.negation, "-_": v.negate, "size": containers.size, "dyn": lambda x: x,
    "type": lambda x: v.TypeValue(v.type_name(x)),
    "bool": convert.to_bool, "bytes": convert.to_bytes, "double": convert.to_double,
    "duration": convert.to_duration, "int": convert.to_int,
    "string": convert.string, "timestamp": convert.to_timestamp, "uint": convert.to_uint,
    "contains": _of_strings(lambda a, b: b in a), "startsWith": _of_strings(str.startswith),
    "endsWith": _of_strings(str.endswith), "matches": _of_strings(_matches),
    **{name: partial(convert.time_part, name) for name in convert.TIME_PARTS},
}  # fmt: skip
