"""CEL as Porch uses it: compile once, evaluate many times, string results only.

One front end (lexer, parser, type check after cel-go v0.26.1) decides what compiles; engines only
evaluate what it let through. `cel-python` is always there, `cel-cpp` where the extra `fast-cel` is
installed; they give the same results and the same errors, because one correction layer takes what
an engine gets differently from cel-go, and both stop an evaluation after 10,000 loop iterations.
Which one an installation uses is chosen once, by name.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, Final, Protocol

from pvbus.core.cel import types as _types
from pvbus.core.cel.checker import Checked, check
from pvbus.core.cel.errors import (
    EXPRESSION_BYTES_MAX,
    EXPRESSIONS_MAX,
    ITERATIONS_MAX,
    CelCompileError,
    CelConvertError,
    CelError,
    CelEvalError,
)
from pvbus.core.cel.reads import Path, paths
from pvbus.core.cel.values import result_string

__all__ = [
    "EXPRESSIONS_MAX",
    "EXPRESSION_BYTES_MAX",
    "ITERATIONS_MAX",
    "ROOTS",
    "CelCompileError",
    "CelConvertError",
    "CelError",
    "CelEvalError",
    "Engine",
    "Path",
    "Program",
    "available_engines",
    "compilations",
    "compile_expression",
    "default_engine",
    "engine_named",
]

ROOTS: Final = ("repoDefault", "packageDefault", "upstream", "repository", "target")
_STRING_ROOTS = frozenset(["repoDefault", "packageDefault"])
_PROGRAMS_KEPT = (
    8192  # about 10 kB each; a set has at most 64, so more than a hundred full sets stay compiled
)


class Engine(Protocol):
    """Evaluates checked expressions. Two engines of one name behave alike in every release."""

    @property
    def name(self) -> str: ...

    def program(self, checked: Checked) -> Callable[[Mapping[str, Any]], Any]: ...

    def __hash__(self) -> int: ...


class Program:
    """A compiled expression. Immutable, and safe to share.

    roots: the variables it reads. reads: the same as far as it is known which part of them, for
    example `("target", "labels", "region")`; nothing else of the inputs changes the outcome.
    """

    __slots__ = ("_evaluate", "reads", "roots", "text")

    def __init__(self, checked: Checked, engine: Engine) -> None:
        self.text = checked.text
        self.reads = paths(checked)
        self.roots = frozenset(path[0] for path in self.reads)
        self._evaluate = engine.program(checked)

    def evaluate(self, inputs: Mapping[str, Any]) -> str:
        """Evaluate for these variables; one that is missing fails only where it is used.

        Raises:
            CelEvalError: it does not work for these inputs, or its loops take too long.
            CelConvertError: the result is no string.
        """
        return result_string(self._evaluate(inputs))


def compile_expression(text: str, *, engine: Engine, variables: tuple[str, ...] = ROOTS) -> Program:
    """Compile an expression; the same text is compiled once per engine.

    Raises:
        CelCompileError: its text begins with `ERROR: ` and tells every problem.
    """
    return _compiled(text, engine, variables)


@lru_cache(maxsize=_PROGRAMS_KEPT)
def _compiled(text: str, engine: Engine, variables: tuple[str, ...]) -> Program:
    kinds = {name: _types.STRING if name in _STRING_ROOTS else _types.DYN for name in variables}
    return Program(check(text, kinds), engine)


def compilations() -> int:
    """Return how many compilations were started in this process: a measure for tests and benchmarks."""
    return _compiled.cache_info().misses


def available_engines() -> tuple[str, ...]:
    """Return the names of the engines of this installation, the default one first: the faster."""
    return ("cel-cpp", "cel-python") if find_spec("cel_expr_python") is not None else ("cel-python",)


@cache
def engine_named(name: str) -> Engine:
    """Return an engine. Each loads megabytes, so only the one that is wanted is imported.

    Raises:
        LookupError: there is none of this name here; the text says how to get it.
    """
    if name in available_engines():
        if name == "cel-cpp":
            from pvbus.core.cel.cpp_engine import CppEngine

            return CppEngine()
        from pvbus.core.cel.celpy_engine import CelpyEngine

        return CelpyEngine()
    hint = " (install pvbus[fast-cel])" if name == "cel-cpp" else ""
    raise LookupError(f"no CEL engine {name!r} here{hint}; there are: {', '.join(available_engines())}")


def default_engine() -> Engine:
    """Return the engine that an installation chooses where nobody names one."""
    return engine_named(available_engines()[0])
