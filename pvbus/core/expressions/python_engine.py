"""The engine that is always there: a checked tree becomes nested Python closures.

A closure takes the scope of one evaluation and returns a value. The scope holds the variables by
name, and under two names that no variable has what loops may still take. Loop variables get names
of their own when the closures are made, so nothing has to be saved or restored around a loop.

Why not cel-python: of 600 expressions that compile, 133 gave another answer than cel-go (numbers as
text, equality across types, nanoseconds, negative indexes, macros), its parser takes 250 ms to
start, and an evaluation took 160-385 us where this takes about one.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from pvbus.core.expressions import containers
from pvbus.core.expressions import conversions as convert
from pvbus.core.expressions import values as v
from pvbus.core.expressions.checker import Checked
from pvbus.core.expressions.errors import ITERATIONS_MAX, LOOP_TEXT_MAX, CelEvalError
from pvbus.core.expressions.syntax import (
    Call,
    Const,
    Ident,
    ListLiteral,
    Macro,
    MapLiteral,
    Node,
    Select,
)

Scope = dict[str, Any]
Step = Callable[[Scope], Any]
_LEFT: Final = ""
_TEXT_LEFT: Final = "+"
_ITERATIONS_MESSAGE = f"loops take more than {ITERATIONS_MAX} iterations in one evaluation"

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "_+_": v.add, "_-_": v.subtract, "_*_": v.multiply, "_/_": v.divide, "_%_": v.modulo,
    "_==_": v.equal, "_[_]": containers.index, "@in": containers.contains,
    "_!=_": lambda a, b: not v.equal(a, b),
    "_<_": lambda a, b: v.compare(a, b, "_<_") < 0, "_<=_": lambda a, b: v.compare(a, b, "_<=_") <= 0,
    "_>_": lambda a, b: v.compare(a, b, "_>_") > 0, "_>=_": lambda a, b: v.compare(a, b, "_>=_") >= 0,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "!_": v.negation, "-_": v.negate, "size": containers.size, "dyn": lambda x: x,
    "type": lambda x: v.TypeValue(v.type_name(x)),
    "bool": convert.to_bool, "bytes": convert.to_bytes, "double": convert.to_double,
    "duration": convert.to_duration, "int": convert.to_int,
    "string": convert.string, "timestamp": convert.to_timestamp, "uint": convert.to_uint,
}  # fmt: skip
_OF_STRINGS: dict[str, Callable[[str, str], bool]] = {
    "contains": lambda a, b: b in a,
    "startsWith": str.startswith,
    "endsWith": str.endswith,
}
BUILDERS = frozenset(["_+_", "string", "bytes"])  # what makes a value that is as large as its arguments
_KIND_NAMES = {"timestamp": "google.protobuf.Timestamp", "duration": "google.protobuf.Duration"}


class PythonEngine:
    """Evaluates in Python."""

    name = "python"

    def program(self, checked: Checked) -> Callable[[Mapping[str, Any]], Any]:
        """Return the evaluation of an expression; missing variables are told when they are used."""
        step = _Builder(checked).step(checked.tree)

        def evaluate(inputs: Mapping[str, Any]) -> Any:
            scope = dict(inputs)
            scope[_LEFT] = ITERATIONS_MAX
            scope[_TEXT_LEFT] = LOOP_TEXT_MAX
            return step(scope)

        return evaluate


class _Builder:
    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._names: list[tuple[str, str]] = []
        self._loops = 0

    def step(self, node: Node) -> Step:
        if node in self._checked.type_names:
            named = v.TypeValue(self._checked.type_names[node])
            return lambda scope: named
        match node:
            case Const(value=value):
                return lambda scope: value
            case Ident():
                return self._ident(node)
            case Select():
                return self._select(node)
            case Call():
                return self._call(node)
            case ListLiteral(items=items):
                steps = [self.step(item) for item in items]
                return lambda scope: [step(scope) for step in steps]
            case MapLiteral(entries=entries):
                pairs = [(self.step(key), self.step(value)) for key, value in entries]
                return lambda scope: {containers.map_key(key(scope)): value(scope) for key, value in pairs}
            case Macro():
                return self._macro(node)
        raise AssertionError(node)

    def _ident(self, node: Ident) -> Step:
        name = next((inner for outer, inner in reversed(self._names) if outer == node.name), node.name)

        def ident(scope: Scope) -> Any:
            try:
                return scope[name]
            except KeyError:
                raise CelEvalError(f"no such attribute(s): {name}") from None

        return ident

    def _select(self, node: Select) -> Step:
        operand, field = self.step(node.operand), node.field
        if node.test:

            def test(scope: Scope) -> bool:
                value = operand(scope)
                return v.type_name(value) == "map" and field in value

            return test

        def select(scope: Scope) -> Any:
            value = operand(scope)
            try:
                return value[field]
            except (KeyError, TypeError):
                return containers.index(value, field)  # tells what is wrong

        return select

    # --- calls

    def _call(self, node: Call) -> Step:
        step = self._plain_call(node)
        return _metered(step) if self._names and node.function in BUILDERS else step

    def _plain_call(self, node: Call) -> Step:
        name = node.function
        nodes = node.args if node.target is None else (node.target, *node.args)
        args = [self.step(arg) for arg in nodes]
        if name in ("_&&_", "_||_"):
            return _logical(args, decisive=name == "_||_")
        if name == "_?_:_":
            return _conditional(*args)
        if name in _BINARY:
            binary, (left, right) = _BINARY[name], args
            return lambda scope: binary(left(scope), right(scope))
        if name in _OF_STRINGS:
            return _of_strings(name, *args)
        if name == "matches":
            return _matches(*args)
        if name in _UNARY:
            return self._unary(node, args[0])
        return lambda scope: convert.time_part(name, *(arg(scope) for arg in args))

    def _unary(self, node: Call, arg: Step) -> Step:
        function = _UNARY[node.function]
        kinds = self._checked.sources.get(node)
        if kinds is None:
            return lambda scope: function(arg(scope))
        allowed = frozenset(_KIND_NAMES.get(kind, kind) for kind in kinds)

        def narrowed(scope: Scope) -> Any:
            value = arg(scope)
            if v.type_name(value) not in allowed:
                raise v.no_overload(node.function, value)
            return function(value)

        return narrowed

    # --- loops

    def _macro(self, node: Macro) -> Step:
        ranged = self.step(node.range)
        self._loops += 1
        name = f"{node.variable}#{self._loops}"
        self._names.append((node.variable, name))
        condition = self.step(node.condition) if node.condition is not None else None
        body = self.step(node.body) if node.body is not None else None
        self._names.pop()
        if node.name in ("all", "exists"):
            assert body is not None
            return _any_or_all(ranged, name, body, decisive=node.name == "exists")
        if node.name == "exists_one":
            assert body is not None
            return _exists_one(ranged, name, body)
        return _collect(ranged, name, condition, body)


def _items(value: Any) -> list[Any]:
    kind = v.type_name(value)
    if kind == "list":
        return list(value)
    if kind == "map":
        return containers.keys_of(value)
    shown = kind.rpartition(".")[2]
    raise CelEvalError(f"got 'types.{shown[0].upper()}{shown[1:]}', expected iterable type")


def _count(scope: Scope) -> None:
    scope[_LEFT] -= 1
    if scope[_LEFT] < 0:
        raise CelEvalError(_ITERATIONS_MESSAGE)


def _metered(step: Step) -> Step:
    """Count what is built inside loops: 10,000 copies of a long annotation would fill the memory."""

    def metered(scope: Scope) -> Any:
        value = step(scope)
        if type(value) in (str, bytes, list):
            scope[_TEXT_LEFT] -= len(value)
            if scope[_TEXT_LEFT] < 0:
                scope[_LEFT] = -1
                raise CelEvalError(f"loops build more than {LOOP_TEXT_MAX} characters in one evaluation")
        return value

    return metered


def _absorbing(results: "list[CelEvalError]", decisive: bool, step: Step, scope: Scope) -> bool:
    """Take one term of a logical operation; True when it decides the whole. A term that fails, or
    is no bool, is remembered: another term may still decide."""
    try:
        value = step(scope)
    except CelEvalError as error:
        if scope[_LEFT] < 0:
            raise  # a limit is no value that && and || may absorb
        results.append(error)
        return False
    if type(value) is not bool:
        results.append(v.no_overload())
        return False
    return value is decisive


def _logical(terms: list[Step], *, decisive: bool) -> Step:
    def logical(scope: Scope) -> bool:
        failures: list[CelEvalError] = []
        for term in terms:
            if _absorbing(failures, decisive, term, scope):
                return decisive
        if failures:
            raise failures[0]
        return not decisive

    return logical


def _conditional(condition: Step, yes: Step, no: Step) -> Step:
    def conditional(scope: Scope) -> Any:
        chosen = condition(scope)
        if chosen is True:
            return yes(scope)
        if chosen is False:
            return no(scope)
        raise v.no_overload()

    return conditional


def _of_strings(name: str, left: Step, right: Step) -> Step:
    function = _OF_STRINGS[name]

    def call(scope: Scope) -> bool:
        one, other = left(scope), right(scope)
        if type(one) is not str or type(other) is not str:
            raise v.no_overload()
        return function(one, other)

    return call


# RE2's words for what is wrong with a pattern, and those of Go's regexp package, which users of Porch know.
_PATTERN_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "bad repetition operator": "invalid nested repetition operator",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
}
_ANY_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\C")  # RE2 takes a single byte of UTF-8 for a match, Go never does


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
        words, _, place = shown.partition(": ")
        if words == "trailing \\":
            words, place = "trailing backslash at end of expression", ""
        message = f"{_PATTERN_REASONS.get(words, words)}: `{place}`"
        raise CelEvalError(f"error parsing regexp: {message}") from None


def _matches(left: Step, right: Step) -> Step:
    def matches(scope: Scope) -> bool:
        text, pattern = left(scope), right(scope)
        if type(text) is not str or type(pattern) is not str:
            raise v.no_overload()
        return _pattern(pattern).search(text) is not None

    return matches


def _any_or_all(ranged: Step, name: str, body: Step, *, decisive: bool) -> Step:
    def loop(scope: Scope) -> bool:
        failures: list[CelEvalError] = []
        for item in _items(ranged(scope)):
            _count(scope)
            scope[name] = item
            if _absorbing(failures, decisive, body, scope):
                return decisive
        if failures:
            raise failures[-1]
        return not decisive

    return loop


def _exists_one(ranged: Step, name: str, body: Step) -> Step:
    def loop(scope: Scope) -> bool:
        found = 0
        for item in _items(ranged(scope)):
            _count(scope)
            scope[name] = item
            holds = body(scope)
            if type(holds) is not bool:
                raise v.no_overload()
            found += holds
        return found == 1

    return loop


def _collect(ranged: Step, name: str, condition: Step | None, body: Step | None) -> Step:
    def loop(scope: Scope) -> list[Any]:
        found = []
        for item in _items(ranged(scope)):
            _count(scope)
            scope[name] = item
            if condition is not None:
                holds = condition(scope)
                if type(holds) is not bool:
                    raise v.no_overload()
                if not holds:
                    continue
            found.append(item if body is None else body(scope))
        return found

    return loop
