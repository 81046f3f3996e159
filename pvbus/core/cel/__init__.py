"""CEL as Porch uses it: compile once, evaluate many times. Results are strings, those of tests bools.

One evaluator decides, our own: lexer, parser, type check and evaluation follow cel-go v0.26.1. Its test is a
table of cel-go's answers. Another implementation of CEL gives second opinions (`second_opinion`).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from pvbus.core.cel import types as _types
from pvbus.core.cel.checker import Checked, check
from pvbus.core.cel.cost import COMPILED_BYTE_COST, Budget
from pvbus.core.cel.errors import (
    EXPRESSION_BYTES_MAX,
    EXPRESSION_COST_MAX,
    EXPRESSIONS_MAX,
    TARGET_COST_MAX,
    CelCompileError,
    CelConvertError,
    CelCostError,
    CelError,
    CelEvalError,
    CelOverloadError,
)
from pvbus.core.cel.evaluator import evaluation, set_budget
from pvbus.core.cel.reads import Path, fields, paths
from pvbus.core.cel.values import result_string, type_name

__all__ = [
    "EXPRESSIONS_MAX",
    "EXPRESSION_BYTES_MAX",
    "EXPRESSION_COST_MAX",
    "ROOTS",
    "TARGET_COST_MAX",
    "Budget",
    "CelCompileError",
    "CelConvertError",
    "CelCostError",
    "CelError",
    "CelEvalError",
    "CelOverloadError",
    "Path",
    "Program",
    "checked",
    "compilations",
    "compile_ahead",
    "compile_expression",
    "set_budget",
]

ROOTS: Final = ("repoDefault", "packageDefault", "upstream", "repository", "target")
_STRING_ROOTS = frozenset(["repoDefault", "packageDefault"])
_PROGRAMS_KEPT = (
    8192  # about 10 kB each; a set has at most 64, so more than a hundred full sets stay compiled
)


class Program:
    """A compiled expression. Immutable, and safe to share.

    roots: the variables that it reads
    reads: the paths that it reads, as far as they are known, for example `("target", "labels", "region")`; no
        other part of the inputs changes the outcome
    fields: pairs of a variable and a field without which the expression fails
    kind: the type of the result, `dyn` if it depends on the inputs
    """

    __slots__ = ("_evaluate", "fields", "kind", "reads", "roots", "text")

    def __init__(self, checked: Checked) -> None:
        self.text = checked.text
        self.kind = checked.types[checked.tree].kind
        self.reads = paths(checked)
        self.fields = fields(checked)
        self.roots = frozenset(path[0] for path in self.reads)
        self._evaluate = evaluation(checked)

    def evaluate(self, inputs: Mapping[str, Any]) -> str:
        """Evaluate with these variables; a missing one fails only where it is used. See `set_budget`.

        Raises:
            CelEvalError: it fails for these inputs, or costs too much (`CelCostError`).
            CelConvertError: the result is not a string.
        """
        return result_string(self._evaluate(inputs))

    def test(self, inputs: Mapping[str, Any]) -> bool:
        """Evaluate an expression that gives true or false.

        Raises:
            CelEvalError: it fails for these inputs, or costs too much.
            CelConvertError: the result is no bool.
        """
        result = self._evaluate(inputs)
        if type(result) is not bool:
            raise CelConvertError(f"the result is a {type_name(result)}, not true or false")
        return result


def compile_expression(text: str, *, variables: tuple[str, ...] = ROOTS) -> Program:
    """Compile an expression; the same text is compiled once.

    Raises:
        CelCompileError: the text begins with `ERROR: ` and lists every problem.
    """
    program = _compiled(text, variables)
    if isinstance(program, str):
        raise CelCompileError(program)
    return program


def checked(text: str, *, variables: tuple[str, ...] = ROOTS) -> Checked:
    """Return the tree of an expression with its types. Raises CelCompileError."""
    kinds = {name: _types.STRING if name in _STRING_ROOTS else _types.DYN for name in variables}
    return check(text, kinds)


@lru_cache(maxsize=_PROGRAMS_KEPT)
def _compiled(text: str, variables: tuple[str, ...]) -> Program | str:
    """Return the program, or why there is none: a bad expression is as long to check as a good one."""
    try:
        return Program(checked(text, variables=variables))
    except CelCompileError as error:
        return str(error)


def compilations() -> int:
    """Return the number of compilations started in this process, for tests and benchmarks."""
    return _compiled.cache_info().misses


def compile_ahead(text: str) -> int:
    """Compile an expression over the usual variables, right or wrong, for a later `compile_expression`.

    Returns what that cost, 0 if it was compiled already.
    """
    before = compilations()
    _compiled(text, ROOTS)
    return min(len(text), EXPRESSION_BYTES_MAX) * COMPILED_BYTE_COST if compilations() > before else 0
