"""cel-python behind our front end: the engine that is always there.

Its parser and its interpreter do the work; where they depart from cel-go they are corrected. Values
are ours (text, numbers and containers of Python are themselves), so inputs need no conversion, and
functions are those of our table, put over cel-python's own. Of the interpreter's methods those are
replaced that would make or expect cel-python's own types: literals, selections, lists, maps, loops.
Names are looked up in one dict per evaluation, which loops write to: cel-python copies its
activation for each iteration.

Only successes count. What it cannot parse, what fails and what reaches a limit is evaluated again
by the correction layer, whose outcome stands. So do two kinds of trees at once: those that it cuts
into other literals than we do, and names of types with dots, which it takes for selections.

The limit of loops is that of the correction layer, which counts to the end. Here an evaluation is
given up earlier, because an iteration takes some 100 us and a limit that costs seconds would be
none. cel-python evaluates both sides of `&&` and `||`, so it may count more iterations than cel-go
makes, never fewer.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import lark
from celpy import Environment, InterpretedRunner
from celpy.celparser import CELParseError
from celpy.evaluation import Activation, Evaluator
from celpy.evaluation import CELEvalError as Failure

from pvbus.core.cel import containers
from pvbus.core.cel import values as v
from pvbus.core.cel.checker import Checked
from pvbus.core.cel.corrections import Scope, Step, corrected, has_spent, loop, new_scope, take_text
from pvbus.core.cel.errors import CelEvalError
from pvbus.core.cel.functions import FUNCTIONS, narrowed
from pvbus.core.cel.library import CONVERSIONS
from pvbus.core.cel.reads import children
from pvbus.core.cel.syntax import Call, Const, Ident, Node

Tree = lark.Tree[Any]
_ITERATIONS_HERE = 1_000  # 0.1 s; a loop over more labels than any object has
_MACROS = frozenset(["all", "exists", "exists_one", "filter", "map"])
_PASSING = frozenset(  # levels of the grammar that mean nothing where they have a single child
    """expr conditionalor conditionaland relation addition multiplication unary member
    paren_expr""".split()  # noqa: SIM905 - a table of words
)
_PASSED = frozenset(["literal", "paren_expr"])  # what a primary only holds
_CONTENT = {"list_lit": "exprlist", "map_lit": "mapinits"}


class CelpyEngine:
    """Evaluates with cel-python where that is known to agree with cel-go, else in the correction layer."""

    name = "cel-python"

    def program(self, checked: Checked) -> Callable[[Mapping[str, Any]], Any]:
        """Return the evaluation of an expression."""
        otherwise = corrected(checked)
        runner = _runner(checked)
        if runner is None:
            return otherwise
        types = {name: v.TypeValue(name) for name in checked.type_names.values()}

        def evaluate(inputs: Mapping[str, Any]) -> Any:
            try:
                return runner.evaluate({**inputs, **types})
            except (Failure, CelEvalError):
                return otherwise(inputs)

        return evaluate


def _runner(checked: Checked) -> "_Runner | None":
    """Return what evaluates an expression in cel-python, None where the two would not agree."""
    if not all(isinstance(node, Ident) for node in checked.type_names):
        return None
    environment = _environment()
    try:
        binding = _Binding(checked)
        tree = binding.whole(environment.compile(checked.text))
    except (CELParseError, _Departure):
        return None
    runner = environment.program(tree, {**_TABLE, **binding.functions})
    assert isinstance(runner, _Runner)
    return runner


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the one environment of the process: its parser takes 150 ms to start."""
    return Environment(runner_class=_Runner)


class _Departure(Exception):  # noqa: N818 - never leaves this module
    """cel-python read the text in another way than we do."""


class _Binding:
    """Gives a tree of cel-python what we know of the expression.

    Levels of the grammar that mean nothing are left out, literals become our values, conversions
    that the checker narrowed become functions of their own. Both trees are walked in the order of
    the text.
    """

    def __init__(self, checked: Checked) -> None:
        nodes = sorted(_below(checked.tree), key=lambda node: node.offset)
        self._constants = [node for node in nodes if isinstance(node, Const)]
        self._conversions = [n for n in nodes if isinstance(n, Call) and n.function in CONVERSIONS]
        self._sources = checked.sources
        self.functions: dict[str, Callable[..., v.Value]] = {}

    def whole(self, tree: Tree) -> Tree:
        tree = self._bound(tree)
        if self._constants or self._conversions:
            raise _Departure
        return tree

    def _bound(self, tree: Tree) -> Tree:
        while len(tree.children) == 1:
            inner = tree.children[0]
            if tree.data not in _PASSING and not (tree.data == "primary" and inner.data in _PASSED):
                break
            tree = inner
        if tree.data == "literal":
            return lark.Tree("literal", [self._constant(tree.children[0])])
        children = [
            self._bound(child) if isinstance(child, lark.Tree) else self._name(child, tree.data)
            for child in tree.children
        ]
        if tree.data in _CONTENT and not children:
            children = [lark.Tree(_CONTENT[tree.data], [])]
        return lark.Tree(tree.data, children)

    def _constant(self, token: Any) -> v.Value:
        found = self._constants.pop(0) if self._constants else None
        if found is None or token.start_pos not in (None, found.offset):  # true and false have no place
            raise _Departure
        return found.value

    def _name(self, token: lark.Token, rule: str) -> lark.Token:
        if rule != "ident_arg" or token not in CONVERSIONS:
            return token
        call = self._conversions.pop(0) if self._conversions else None
        if call is None or call.function != token:
            raise _Departure
        kinds = self._sources.get(call)
        if kinds is None:
            return token
        name = f"{token}#{call.offset}"
        self.functions[name] = _entry(narrowed(call.function, kinds))
        return lark.Token("IDENT", name)


def _below(node: Node) -> list[Node]:
    return [node, *(found for child in children(node) for found in _below(child))]


class _Runner(InterpretedRunner):
    """Evaluates one expression, any number of times."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._activation = self.new_activation()  # has the functions; the same in all evaluations

    def evaluate(self, context: Mapping[str, Any]) -> v.Value:
        """Return the result.

        Raises:
            Failure, CelEvalError: it fails; the text is not the one to show.
        """
        scope = new_scope(context, iterations=_ITERATIONS_HERE)
        return _Interpreter(self.ast, self._activation, scope).evaluate()


class _Interpreter(Evaluator):
    """One evaluation. As in its base, failures are values until something needs the value."""

    def __init__(self, ast: Tree, activation: Activation, scope: Scope) -> None:
        super().__init__(ast, activation)
        self._scope = scope

    def ident_value(self, name: str, root_scope: bool = False) -> v.Value:
        try:
            return self._scope[name]
        except KeyError:
            return Failure(f"no such attribute(s): {name}")

    def literal(self, tree: Tree) -> v.Value:
        return tree.children[0]

    def exprlist(self, tree: Tree) -> v.Value:
        return _list_of(*self.visit_children(tree))

    def mapinits(self, tree: Tree) -> v.Value:
        return _map_of(*self.visit_children(tree))

    def member_dot(self, tree: Tree) -> v.Value:
        operand, field = tree.children
        return _index(self.visit(operand), str(field))

    def macro_has_eval(self, exprlist: Tree) -> v.Value:
        operand, field = exprlist.children[0].children
        return _has(self.visit(operand), str(field))

    def member_dot_arg(self, tree: Tree) -> v.Value:
        target, name, *lists = tree.children
        if name not in _MACROS:
            return super().member_dot_arg(tree)
        named, *terms = lists[0].children
        variable = str(named.children[0].children[0])
        first, last = self._step(terms[0]), self._step(terms[-1])
        condition = first if name == "filter" or len(terms) == 2 else None
        body = last if name != "filter" else None
        return self._looped(variable, loop(str(name), variable, self._step(target), condition, body))

    def _looped(self, variable: str, steps: Step) -> v.Value:
        """Loop as the correction layer does, counting what it counts; outer variables come back."""
        shadowed = {name: self._scope[name] for name in (variable,) if name in self._scope}
        try:
            return steps(self._scope)
        except CelEvalError as error:
            if has_spent(self._scope):
                raise
            return Failure(str(error))
        finally:
            self._scope.pop(variable, None)
            self._scope.update(shadowed)

    def _step(self, tree: Tree) -> Step:
        def step(scope: Scope) -> v.Value:
            value = self.visit(tree)
            if isinstance(value, Failure):
                raise CelEvalError(str(value))
            return value

        return step

    # What builds text is counted everywhere, not only in loops: too much only means to evaluate again.

    def addition(self, tree: Tree) -> v.Value:
        value = super().addition(tree)
        take_text(self._scope, value)
        return value

    def function_eval(self, name_token: lark.Token, exprlist: Any = None) -> v.Value:
        value = super().function_eval(name_token, exprlist)
        take_text(self._scope, value)
        return value


# --- functions


def _entry(function: Callable[..., v.Value]) -> Callable[..., v.Value]:
    """Return a function that takes and gives failures as values."""

    def entry(*args: v.Value) -> v.Value:
        for arg in args:
            if isinstance(arg, Failure):
                return arg
        try:
            return function(*args)
        except CelEvalError as error:
            return Failure(str(error))

    return entry


def _decided(decisive: bool) -> Callable[[v.Value, v.Value], v.Value]:
    """Return `||` or `&&`: what decides wins over what fails, on either side."""

    def decided(*terms: v.Value) -> v.Value:
        if any(term is decisive for term in terms):
            return decisive
        return next((Failure("no such overload") for term in terms if type(term) is not bool), not decisive)

    return decided


@_entry
def _conditional(condition: v.Value, yes: v.Value, no: v.Value) -> v.Value:
    if type(condition) is not bool:
        raise v.no_overload()
    return yes if condition else no


@_entry
def _list_of(*values: v.Value) -> v.Value:
    return list(values)


@_entry
def _map_of(*values: v.Value) -> v.Value:
    return {containers.map_key(key): value for key, value in zip(values[::2], values[1::2], strict=True)}


@_entry
def _has(operand: v.Value, field: str) -> bool:
    return v.type_name(operand) == "map" and field in operand


_index = _entry(containers.index)
_TABLE = {
    **{name: _entry(function) for name, function in FUNCTIONS.items()},
    "_in_": _entry(containers.contains),  # cel-python's name of `@in`
    "_||_": _decided(True),
    "_&&_": _decided(False),
    "_?_:_": _conditional,
}
