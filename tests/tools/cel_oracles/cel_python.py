"""cel-python's interpreter as an oracle.

Its parser and its interpreter do the work. Where they are known to depart from cel-go they are corrected:
functions are those of our table, literals and containers are Python's own. Of the interpreter's methods
those are replaced that would make or expect cel-python's own types: literals, selections, lists, maps,
loops. Names are looked up in one dict per evaluation, which loops write to: cel-python copies its
activation for each iteration.

It has no answer for two kinds of trees: those that it cuts into other literals than we do, and names of
types with dots, which it takes for selections. It gives up after 1,000 iterations, which take 0.1 s.
"""

from collections.abc import Callable, Iterator, Mapping
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
from pvbus.core.cel.errors import CelEvalError
from pvbus.core.cel.functions import FUNCTIONS, narrowed
from pvbus.core.cel.library import CONVERSIONS
from pvbus.core.cel.reads import children
from pvbus.core.cel.syntax import Call, Const, Ident, Node
from tests.tools.cel_oracles.answers import Evaluation, NoAnswer, no_answer

Tree = lark.Tree[Any]
ITERATIONS_MAX = 1_000  # 0.1 s
_MACROS = frozenset(["all", "exists", "exists_one", "filter", "map"])
_PASSING = frozenset(  # levels of the grammar that mean nothing where they have a single child
    """expr conditionalor conditionaland relation addition multiplication unary member
    paren_expr""".split()  # noqa: SIM905 - a table of words
)
_PASSED = frozenset(["literal", "paren_expr"])  # what a primary only holds
_CONTENT = {"list_lit": "exprlist", "map_lit": "mapinits"}


class PythonOracle:
    """Evaluates with cel-python where that is known to agree with cel-go."""

    name = "cel-python"

    def program(self, checked: Checked) -> Evaluation:
        """Return the evaluation of an expression; it raises NoAnswer."""
        runner = _runner(checked)
        if runner is None:
            return no_answer
        types = {name: v.TypeValue(name) for name in checked.type_names.values()}

        def evaluate(inputs: Mapping[str, Any]) -> Any:
            try:
                return runner.evaluate({**inputs, **types})
            except (Failure, CelEvalError) as error:
                raise NoAnswer from error

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
        return _Interpreter(self.ast, self._activation, dict(context)).evaluate()


class _Interpreter(Evaluator):
    """One evaluation. As in its base, failures are values until something needs the value."""

    def __init__(self, ast: Tree, activation: Activation, scope: dict[str, Any]) -> None:
        super().__init__(ast, activation)
        self._scope = scope
        self._iterations = 0

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
        items = _items(self.visit(target))
        if isinstance(items, Failure):
            return items
        rounds = self._rounds(str(named.children[0].children[0]), items, terms)
        if name in ("all", "exists"):
            return _folded([values[0] for _, values in rounds], decisive=name == "exists")
        if name == "exists_one":
            return _exactly_one(*(values[0] for _, values in rounds))
        return _collected(str(name), list(rounds))

    def _rounds(self, variable: str, items: list[Any], terms: list[Tree]) -> Iterator[tuple[Any, list[Any]]]:
        """Yield each item with what the terms give for it. Outer variables of the name come back."""
        shadowed = {name: self._scope[name] for name in (variable,) if name in self._scope}
        try:
            for item in items:
                self._iterations += 1
                if self._iterations > ITERATIONS_MAX:
                    raise NoAnswer
                self._scope[variable] = item
                yield item, [self.visit(term) for term in terms]
        finally:
            self._scope.pop(variable, None)
            self._scope.update(shadowed)


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


# --- loops


@_entry
def _items(value: v.Value) -> list[Any]:
    if v.type_name(value) == "map":
        return containers.keys_of(value)
    if v.type_name(value) == "list":
        return list(value)
    raise CelEvalError("not iterable")


def _folded(values: list[v.Value], *, decisive: bool) -> v.Value:
    if any(value is decisive for value in values):
        return decisive
    return next((_not_boolean(value) for value in values if type(value) is not bool), not decisive)


def _exactly_one(*values: v.Value) -> v.Value:
    wrong = [value for value in values if type(value) is not bool]
    return _not_boolean(wrong[0]) if wrong else values.count(True) == 1


def _collected(name: str, rounds: list[tuple[Any, list[v.Value]]]) -> v.Value:
    """The list of `filter`, and of `map` with or without a condition."""
    found = []
    for item, values in rounds:
        if name == "filter" or len(values) == 2:
            if type(values[0]) is not bool:
                return _not_boolean(values[0])
            if not values[0]:
                continue
        found.append(item if name == "filter" else values[-1])
    return _list_of(*found)


def _not_boolean(value: v.Value) -> Failure:
    return value if isinstance(value, Failure) else Failure("no such overload")
