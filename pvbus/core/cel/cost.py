"""What expressions cost: a count of work that depends on nothing but the expression and its inputs.

The model is that of cel-go and Kubernetes: a step costs 1, text a tenth of its length, a list literal 10, a
map literal 30. It departs from them where the work differs here: a match costs the size of the compiled
pattern and not of its text, and steps that take Python long cost more. One unit is at most 0.2 µs.

A step's own cost is known when an expression is compiled, and charged at once: for the whole expression
before it runs, for a loop's body before each iteration. What depends on the size of values is charged before
the work is done.
"""

from collections.abc import Callable
from typing import Final

from pvbus.core.cel.errors import EXPRESSION_COST_MAX, TARGET_COST_MAX, CelCostError
from pvbus.core.cel.values import Value

LIST_COST: Final = 10
MAP_COST: Final = 30
ITERATION_COST: Final = 3
TERM_COST: Final = 2  # of a logical operation, beside what it consists of
FAILURE_COST: Final = 25
"""An error that `&&`, `||`, `all` or `exists` absorb."""

COMPILED_BYTE_COST: Final = 60  # of an expression, to compile it; no limit counts it, but turns do
PATTERN_BYTE_COST: Final = 2  # to parse it
PATTERN_CLASS_COST: Final = 1_000  # of `\\pL`, which has 600 ranges of characters
PATTERN_STEP_COST: Final = 4  # to compile it
PATTERN_REFUSED_COST: Final = 25_000  # of one that is too large, which shows only once it is large
MATCH_STEPS: Final = 20
"""Steps of a match per unit. A step is one of the pattern's for one byte of the text: RE2 needs up to 7 ns if
the pattern has too many states to remember them."""

ZONE_COST: Final = 3_000  # to read a time zone's file
_KNOWN_MAX = 64  # patterns and zones of one budget whose first use alone is charged
_TEXT_SHOWN = 200

_WEIGHTS: Final = {
    **dict.fromkeys(("_-_", "_*_", "_/_", "_%_", "-_", "_<_", "_<=_", "_>_", "_>=_"), 6),
    **dict.fromkeys(("@in", "_[_]", "contains", "bool", "bytes"), 3),
    **dict.fromkeys(("_+_", "type"), 5),
    **dict.fromkeys(("_==_", "_!=_"), 2),
    **dict.fromkeys(("int", "uint", "double"), 8),
    "matches": 12,
    **dict.fromkeys(("duration", "timestamp", "string"), 30),
}
_TIME_WEIGHT = 20


class Budget:
    """What the expressions of one target may still cost. `begin` gives each of them a limit of its own."""

    __slots__ = ("_begun", "_floor", "_known", "_left", "_limit")

    def __init__(self, limit: int = TARGET_COST_MAX) -> None:
        self._limit = self._left = limit
        self._known: set[tuple[str, str]] | None = None

    @property
    def spent(self) -> int:
        return self._limit - self._left

    @property
    def charged(self) -> int:
        """What was done, without the operation that was refused."""
        return min(self._limit - self._left, self._limit)

    def begin(self, cost: int) -> None:
        """Charge the next expression for what it costs in any case. Raises CelCostError."""
        begun = self._begun = self._left
        self._floor = begun - EXPRESSION_COST_MAX if begun > EXPRESSION_COST_MAX else 0
        self._left = begun - cost
        if self._left < self._floor:
            raise CelCostError

    def charge(self, cost: int) -> None:
        """Take the cost of an operation, before it is done. Raises CelCostError."""
        self._left -= cost
        if self._left < self._floor:
            raise CelCostError

    def charge_once(self, what: str, name: str, cost: int) -> None:
        """Charge the first use of something that is remembered after it."""
        known = self._known
        if known is None:
            known = self._known = set()
        if (what, name) not in known:
            self.charge(cost)
            if len(known) < _KNOWN_MAX:
                known.add((what, name))

    def error(self, text: str) -> CelCostError:
        """Return the error of the expression that was begun last and costs too much."""
        shown = text if len(text) <= _TEXT_SHOWN else f"{text[:_TEXT_SHOWN]}..."
        own = self._begun - self._left
        if own > EXPRESSION_COST_MAX:
            counted = f"the expression costs at least {own:,}, and its limit is {EXPRESSION_COST_MAX:,}"
        else:
            counted = (
                f"with this expression, which costs at least {own:,}, all expressions together cost at least "
                f"{self.spent:,}, and their limit is {self._limit:,}"
            )
        return CelCostError(f"operation cancelled: actual cost limit exceeded: {counted}: {shown}")


def weight(function: str) -> int:
    """Return what a call costs apart from the size of its arguments."""
    if function.startswith("get"):
        return _TIME_WEIGHT
    return _WEIGHTS.get(function, 1)


SHORT: Final = 100  # characters that are joined for the weight of the call alone


def length_cost(value: Value) -> int:
    """Return the cost of reading a text, bytes or the items of a list."""
    return len(value) // 10 if type(value) in _SIZED else 0


_SIZED = frozenset([str, bytes, list, tuple])


def _read_cost(value: Value) -> int:
    """Return the cost of a conversion that understands each character."""
    return len(value) if type(value) is str else 0


def _both_cost(left: Value, right: Value) -> int:
    size = length_cost(left) + length_cost(right)
    return size if size >= SHORT // 10 else 0


def _shorter_cost(left: Value, right: Value) -> int:
    return min(length_cost(left), length_cost(right))


def _second_cost(left: Value, right: Value) -> int:
    return length_cost(right)


def _product_cost(text: Value, sought: Value) -> int:
    """Return the cost of a search: the product of the lengths, and more where the shorter is very short."""
    if type(sought) is not str:
        return 0
    return (length_cost(text) + 1) * (len(sought) // 10 + 1 + min(len(sought), 12) // 4)


COSTS: Final[dict[str, Callable[..., int]]] = {
    "_+_": _both_cost,
    **dict.fromkeys(("_<_", "_<=_", "_>_", "_>=_"), _shorter_cost),
    **dict.fromkeys(("_[_]", "startsWith", "endsWith"), _second_cost),
    "contains": _product_cost,
    **dict.fromkeys(("string", "bytes"), length_cost),
    **dict.fromkeys(("bool", "int", "uint", "double", "timestamp"), _read_cost),
    "duration": lambda value: 3 * _read_cost(value),
}
"""Costs that depend on the size of the arguments, beside the weight of the call."""
