"""The evaluator: cel-go's semantics, with a budget for what the work costs.

A checked tree becomes nested Python closures. A closure takes the scope of one evaluation and
returns a value. The scope holds the variables by name, and the budget under a name that no variable
has. Loop variables get unique names when the closures are made, so a loop saves and restores nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from pvbus.core.cel import containers, cost
from pvbus.core.cel import values as v
from pvbus.core.cel.checker import Checked
from pvbus.core.cel.cost import COSTS, Budget
from pvbus.core.cel.errors import CelCostError, CelEvalError, CelOverloadError
from pvbus.core.cel.functions import FUNCTIONS, METERED, narrowed
from pvbus.core.cel.syntax import (
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
_BUDGET: Final = ""


def set_budget(variables: Scope, budget: Budget) -> None:
    """Put a budget beside variables: all expressions that are evaluated with them share it."""
    variables[_BUDGET] = budget


def evaluation(checked: Checked) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function from variables to the expression's value.

    A missing variable is an error only where it is used. Without a budget beside the variables the expression
    has one of its own; with one, loops leave their variables there. The function raises CelEvalError.
    """
    builder = _Builder(checked)
    step = builder.step(checked.tree)
    text, fixed = checked.text, builder.fixed

    def evaluate(inputs: Mapping[str, Any]) -> Any:
        scope, budget = inputs, inputs.get(_BUDGET)
        if budget is None:
            budget = Budget()
            scope = {**inputs, _BUDGET: budget}
        try:
            budget.begin(fixed)
            return step(scope)  # type: ignore[arg-type]  # a dict, as it has a budget
        except CelCostError:
            raise budget.error(text) from None

    return evaluate


class _Builder:
    """Makes the closures of a tree. fixed: what one evaluation of those made so far costs, loops apart."""

    def __init__(self, checked: Checked) -> None:
        self._checked = checked
        self._names: list[tuple[str, str]] = []
        self._loops = 0
        self.fixed = 0

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
                self.fixed += cost.LIST_COST + len(items)
                steps = [self.step(item) for item in items]
                return lambda scope: [step(scope) for step in steps]
            case MapLiteral(entries=entries):
                self.fixed += cost.MAP_COST + len(entries)
                pairs = [(self.step(key), self.step(value)) for key, value in entries]
                return lambda scope: {containers.map_key(key(scope)): value(scope) for key, value in pairs}
            case Macro():
                return self._macro(node)
        raise AssertionError(node)

    def _ident(self, node: Ident) -> Step:
        self.fixed += 1
        name = next((inner for outer, inner in reversed(self._names) if outer == node.name), node.name)

        def ident(scope: Scope) -> Any:
            try:
                return scope[name]
            except KeyError:
                raise CelEvalError(f"no such attribute(s): {name}") from None

        return ident

    def _select(self, node: Select) -> Step:
        self.fixed += 1
        operand, field = self.step(node.operand), node.field
        if not node.test:
            return _field(operand, field)

        def test(scope: Scope) -> bool:
            value = operand(scope)
            return v.type_name(value) == "map" and field in value

        return test

    # --- calls

    def _call(self, node: Call) -> Step:
        name = node.function
        self.fixed += cost.weight(name)
        nodes = node.args if node.target is None else (node.target, *node.args)
        if name == "_[_]" and isinstance(nodes[1], Const) and type(nodes[1].value) is str:
            return _field(self.step(nodes[0]), nodes[1].value)
        args = [self.step(arg) for arg in nodes]
        if name in ("_&&_", "_||_"):
            self.fixed += cost.TERM_COST * len(args)
            return _logical(args, decisive=name == "_||_")
        if name == "_?_:_":
            return _conditional(*args)
        if name == "_+_":
            return _sum(*args)
        if name in METERED:
            return _metered(METERED[name], *args)
        kinds = self._checked.sources.get(node)
        function: Callable[..., v.Value] = FUNCTIONS[name] if kinds is None else narrowed(name, kinds)
        if name in COSTS:
            return _charged(function, COSTS[name], *args)
        if not args:
            return lambda scope: function()
        if len(args) == 1:
            arg = args[0]
            return lambda scope: function(arg(scope))
        left, right = args
        return lambda scope: function(left(scope), right(scope))

    # --- loops

    def _macro(self, node: Macro) -> Step:
        ranged = self.step(node.range)
        self._loops += 1
        name = f"{node.variable}#{self._loops}"
        self._names.append((node.variable, name))
        outside, self.fixed = self.fixed + 1, 0
        condition = self.step(node.condition) if node.condition is not None else None
        body = self.step(node.body) if node.body is not None else None
        looped, self.fixed = self.fixed + cost.ITERATION_COST, outside
        self._names.pop()
        return _loop(node.name, name, _items(ranged, looped), condition, body)


def _field(operand: Step, field: str) -> Step:
    def select(scope: Scope) -> Any:
        value = operand(scope)
        try:
            return value[field]
        except (KeyError, TypeError):
            return containers.index(value, field)  # raises the error that fits

    return select


def _sum(left: Step, right: Step) -> Step:
    def add(scope: Scope) -> Any:
        one, other = left(scope), right(scope)
        if type(one) is str and type(other) is str:
            size = len(one) + len(other)
            if size >= cost.SHORT:
                scope[_BUDGET].charge(size // 10)
            return one + other
        scope[_BUDGET].charge(COSTS["_+_"](one, other))
        return v.add(one, other)

    return add


def _charged(function: Callable[..., v.Value], size: Callable[..., int], *args: Step) -> Step:
    """Return a call that is charged for the size of its arguments."""
    if len(args) == 1:
        arg = args[0]

        def convert(scope: Scope) -> Any:
            value = arg(scope)
            scope[_BUDGET].charge(size(value))
            return function(value)

        return convert
    left, right = args

    def call(scope: Scope) -> Any:
        one, other = left(scope), right(scope)
        scope[_BUDGET].charge(size(one, other))
        return function(one, other)

    return call


def _metered(function: Callable[..., v.Value], *args: Step) -> Step:
    return lambda scope: function(scope[_BUDGET], *[arg(scope) for arg in args])


Items = Callable[[Scope], Iterator[Any]]


def _items(ranged: Step, looped: int) -> Items:
    """Return what gives the items of a loop's range, and charges each of them for what is done with it."""

    def items(scope: Scope) -> Iterator[Any]:
        value = ranged(scope)
        charge = scope[_BUDGET].charge
        kind = v.type_name(value)
        if kind == "map":
            charge(len(value))
            value = containers.keys_of(value)
        elif kind != "list":
            shown = kind.rpartition(".")[2]
            raise CelOverloadError(f"got 'types.{shown[0].upper()}{shown[1:]}', expected iterable type")
        for item in value:
            charge(looped)
            yield item

    return items


def _loop(macro: str, variable: str, items: Items, condition: Step | None, body: Step | None) -> Step:
    """Return a macro's loop; it sets the variable in the scope for each iteration."""
    if macro in ("all", "exists"):
        assert body is not None
        return _any_or_all(items, variable, body, decisive=macro == "exists")
    if macro == "exists_one":
        assert body is not None
        return _exists_one(items, variable, body)
    return _collect(items, variable, condition, body)


def _term(step: Step, scope: Scope) -> "bool | CelEvalError":
    """Evaluate one term of a logical operation. Return the error of one that fails or is not a bool: another
    term may still decide."""
    try:
        value = step(scope)
    except CelCostError:
        raise
    except CelEvalError as error:
        scope[_BUDGET].charge(cost.FAILURE_COST)
        return error.with_traceback(None)  # which would keep all frames
    return value if type(value) is bool else v.no_overload()


def _logical(terms: list[Step], *, decisive: bool) -> Step:
    def logical(scope: Scope) -> bool:
        failure: CelEvalError | None = None
        for term in terms:
            holds = _term(term, scope)
            if holds is decisive:
                return decisive
            if isinstance(holds, CelEvalError):
                failure = failure or holds
        if failure is not None:
            raise failure
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


def _any_or_all(items: Items, name: str, body: Step, *, decisive: bool) -> Step:
    def loop(scope: Scope) -> bool:
        failure: CelEvalError | None = None
        for item in items(scope):
            scope[name] = item
            holds = _term(body, scope)
            if holds is decisive:
                return decisive
            if isinstance(holds, CelEvalError):
                failure = holds
        if failure is not None:
            raise failure
        return not decisive

    return loop


def _exists_one(items: Items, name: str, body: Step) -> Step:
    def loop(scope: Scope) -> bool:
        count = 0
        for item in items(scope):
            scope[name] = item
            holds = body(scope)
            if type(holds) is not bool:
                raise v.no_overload()
            count += holds
        return count == 1

    return loop


def _collect(items: Items, name: str, condition: Step | None, body: Step | None) -> Step:
    def loop(scope: Scope) -> list[Any]:
        made = []
        for item in items(scope):
            scope[name] = item
            if condition is not None:
                holds = condition(scope)
                if type(holds) is not bool:
                    raise v.no_overload()
                if not holds:
                    continue
            made.append(item if body is None else body(scope))
        return made

    return loop
