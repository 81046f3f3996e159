"""The standard library at run time: the implementation of each operator and function.

The logical operators and the conditional are not here: they do not evaluate all their arguments.
"""

from collections.abc import Callable
from functools import partial

from pvbus.core.cel import containers, cost
from pvbus.core.cel import conversions as convert
from pvbus.core.cel import values as v
from pvbus.core.cel.cost import Budget
from pvbus.core.cel.errors import CelEvalError
from pvbus.core.cel.patterns import go_pattern
from pvbus.core.cel.wrappers import WRAPPER_FUNCTIONS


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


def _matches(text: v.Value, pattern: v.Value, budget: Budget | None = None) -> bool:
    if type(text) is not str or type(pattern) is not str:
        raise v.no_overload()
    if budget is None:
        budget = Budget()
        budget.begin(0)
    classes = pattern.count("\\p") + pattern.count("\\P")
    parsing = len(pattern) * cost.PATTERN_BYTE_COST + classes * cost.PATTERN_CLASS_COST
    budget.charge_once("parse", pattern, parsing)
    try:
        compiled = go_pattern(pattern)
    except ValueError as error:
        budget.charge_once("compile", pattern, cost.PATTERN_REFUSED_COST)
        raise CelEvalError(str(error)) from None
    budget.charge_once("compile", pattern, compiled.steps * cost.PATTERN_STEP_COST)
    size = len(text) if text.isascii() else len(text.encode())
    budget.charge((size + 1) * compiled.steps // cost.MATCH_STEPS)
    return compiled.found_in(text)


def _time_part(name: str, budget: Budget, value: v.Value, *zone: v.Value) -> int:
    if zone and type(zone[0]) is str:
        budget.charge_once("zone", zone[0], cost.ZONE_COST + len(zone[0]))
    try:
        return convert.time_part(name, value, *zone)
    except CelEvalError:
        if zone:
            budget.charge(cost.ZONE_COST)  # one that does not exist is looked for each time
        raise


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
    "endsWith": _of_strings(str.endswith), "matches": _matches,
    **{name: partial(convert.time_part, name) for name in convert.TIME_PARTS},
    **WRAPPER_FUNCTIONS,
}  # fmt: skip

METERED: dict[str, Callable[..., v.Value]] = {
    "_==_": lambda budget, a, b: v.equal(a, b, budget.charge),
    "_!=_": lambda budget, a, b: not v.equal(a, b, budget.charge),
    "@in": lambda budget, a, b: containers.contains(a, b, budget.charge),
    "matches": lambda budget, a, b: _matches(a, b, budget),
    **{name: partial(_time_part, name) for name in convert.TIME_PARTS},
}
"""Those that charge a budget themselves while they work; the others have their costs in `cost.COSTS`."""
