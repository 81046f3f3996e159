"""The evaluator: cel-go's semantics, with limits on loops and on the text that they build.

A checked tree becomes nested Python closures. A closure takes the scope of one evaluation and
returns a value. The scope holds the variables by name, and the remaining budgets of loops under two
names that no variable has. Loop variables get unique names when the closures are made, so a loop
saves and restores nothing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pvbus.core.cel import containers
from pvbus.core.cel import values as v
from pvbus.core.cel.checker import Checked
from pvbus.core.cel.errors import ITERATIONS_MAX, LOOP_TEXT_MAX, CelEvalError
from pvbus.core.cel.functions import BUILDERS, FUNCTIONS, narrowed
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
_LEFT: Final = ""
_TEXT_LEFT: Final = "+"
_ITERATIONS_MESSAGE = f"loops take more than {ITERATIONS_MAX} iterations in one evaluation"


def evaluation(checked: Checked) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function from variables to the expression's value.

    A missing variable is an error only where it is used. The function raises CelEvalError.
    """
    step = _Builder(checked).step(checked.tree)
    return lambda inputs: step({**inputs, _LEFT: ITERATIONS_MAX, _TEXT_LEFT: LOOP_TEXT_MAX})


def _is_spent(scope: Scope) -> bool:
    """Return whether a budget is exhausted. `&&` and `||` do not absorb that error."""
    return bool(scope[_LEFT] < 0)


def _take_text(scope: Scope, value: v.Value) -> None:
    """Charge text built inside loops: 10,000 copies of a long annotation would fill the memory."""
    if type(value) in (str, bytes, list):
        scope[_TEXT_LEFT] -= len(value)
        if scope[_TEXT_LEFT] < 0:
            scope[_LEFT] = -1
            raise CelEvalError(f"loops build more than {LOOP_TEXT_MAX} characters in one evaluation")


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
                return containers.index(value, field)  # raises the error that fits

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
        kinds = self._checked.sources.get(node)
        function: Callable[..., v.Value] = FUNCTIONS[name] if kinds is None else narrowed(name, kinds)
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
        condition = self.step(node.condition) if node.condition is not None else None
        body = self.step(node.body) if node.body is not None else None
        self._names.pop()
        return _loop(node.name, name, ranged, condition, body)


def _loop(macro: str, variable: str, ranged: Step, condition: Step | None, body: Step | None) -> Step:
    """Return a macro's loop; it sets the variable in the scope for each iteration, and counts them."""
    if macro in ("all", "exists"):
        assert body is not None
        return _any_or_all(ranged, variable, body, decisive=macro == "exists")
    if macro == "exists_one":
        assert body is not None
        return _exists_one(ranged, variable, body)
    return _collect(ranged, variable, condition, body)


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
    def metered(scope: Scope) -> Any:
        value = step(scope)
        _take_text(scope, value)
        return value

    return metered


def _absorbing(results: "list[CelEvalError]", decisive: bool, step: Step, scope: Scope) -> bool:
    """Evaluate one term of a logical operation; return whether it decides the whole. The error of a
    term that fails or is not a bool is collected: another term may still decide."""
    try:
        value = step(scope)
    except CelEvalError as error:
        if _is_spent(scope):
            raise
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
