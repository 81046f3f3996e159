"""A second opinion: cel-python, another implementation of CEL, beside our parser and our evaluator.

Ours decide. A disagreement is a warning: the expression may fail in another implementation of CEL, or ours
has a defect. cel-python checks no types and no names before it evaluates, so of an expression without values
only the syntax is compared.

`answer` evaluates with cel-python alone: its parser, its functions, its types. It departs from cel-go, which
ours follows, in known ways; where an expression comes near one of them there is no answer. The table of
cel-go's answers is the test: what has an answer here has cel-go's.

This is the only module that imports celpy, which takes 250 ms. Import it where it is used.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from celpy import Environment
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError, CELParser
from celpy.evaluation import CELEvalError

from pvbus.core import cel
from pvbus.core.cel.checker import Checked
from pvbus.core.cel.errors import CelCompileError, CelConvertError, CelEvalError, CompileProblem
from pvbus.core.cel.reads import children
from pvbus.core.cel.syntax import Call, Const, Ident, Macro, MapLiteral, Node, Select, parse

_grammar = CELParser()


def syntax_disagreement(text: str) -> str:
    """Return how cel-python and our parser differ about an expression, "" if they agree."""
    ours, theirs = _is_parsed(text), _refusal(text)
    if ours and theirs:
        return f"cel-python does not parse this expression, {theirs}: other CEL implementations may refuse it"
    if not ours and not theirs:
        return "cel-python parses this expression: other CEL implementations may accept it"
    return ""


def _is_parsed(text: str) -> bool:
    try:
        parse(text)
    except CompileProblem:
        return False
    return True


def _refusal(text: str) -> str:
    """Return the position where cel-python's grammar refuses the text, "" if it accepts it."""
    try:
        _grammar.parse(text)
    except CELParseError as error:
        return f"line {error.line}, column {error.column}"
    return ""


# ---------------------------------------------------------------- evaluation

PROGRAMS_KEPT: Final = 1024  # compiled expressions of cel-python, some 20 kB each: 0.4 ms to compile one


class NoAnswerError(Exception):
    """cel-python lacks a part of the expression, or is known to evaluate it otherwise than cel-go."""


def answer(text: str, variables: Mapping[str, Any]) -> str:
    """Return the string that cel-python gives for an expression. variables: of plain JSON.

    Raises:
        NoAnswerError: its answer would say nothing.
        CelEvalError, CelConvertError: it fails, or gives no string.
    """
    program, tests = _program(text)
    if not all(_is_there(path, variables) for path in tests):
        raise NoAnswerError
    try:
        value = program({name: json_to_cel(below) for name, below in variables.items()})
    except CELEvalError as error:
        if TypeError in error.args:  # an overload that it lacks, or a type that it does not take
            raise NoAnswerError from error
        raise CelEvalError(str(error.args[0])) from error
    except Exception as error:  # a defect of its own
        raise NoAnswerError from error
    if not isinstance(value, str):
        raise CelConvertError(f"the result is a {type(value).__name__}, not a string")
    return str(value)


_Program = tuple[Callable[[Mapping[str, Any]], Any], tuple[tuple[str, ...], ...]]
"""What evaluates an expression, and the paths in which `has()` looks for a field."""


def _program(text: str) -> _Program:
    program = _compiled(text)
    if program is None:
        raise NoAnswerError
    return program


@lru_cache(maxsize=PROGRAMS_KEPT)
def _compiled(text: str) -> _Program | None:
    """Compile an expression with cel-python; None if there is no answer for any variables."""
    try:
        checked = cel.checked(text)
        if _ESCAPES.search(text) or any(_departs(node, checked) for node in _nodes(checked.tree)):
            return None
        tests = [node.operand for node in _nodes(checked.tree) if isinstance(node, Select) and node.test]
        paths = tuple(map(_path, tests))
        environment = _environment()
        return environment.program(environment.compile(text)).evaluate, paths
    except (CelCompileError, CELParseError, NoAnswerError):
        return None


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Return the one environment of the process: its parser takes 150 ms to start."""
    return Environment()


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _nodes(child)


# --- where cel-python is known to depart from cel-go

_ESCAPES: Final = re.compile(r"\\[abfv?`C]")
"""Escapes of texts that it does not know, and the one of a pattern that RE2 takes and Go does not."""

_SAME: Final = frozenset(
    """_?_:_ !_ _&&_ _||_ _==_ _!=_ _<_ _<=_ _>_ _>=_ _+_ @in size contains endsWith startsWith
    matches""".split()  # noqa: SIM905 - a table of words
)
"""Functions that it has as cel-go has them. Its numbers, times and conversions differ in range and form."""


def _departs(node: Node, checked: Checked) -> bool:
    """Return whether cel-python is known to read or evaluate a node otherwise than cel-go."""
    match node:
        case Const(value=value):  # other literals have other texts and other equality
            return type(value) not in (str, int, bool)
        case Call(function="string", args=(value,)):
            return checked.types[value].kind not in ("string", "int", "dyn")
        case Call(function="_[_]", args=(_, index)):  # a text has indices there, and a list negative ones
            is_position = isinstance(index, Const) and type(index.value) is int and index.value >= 0
            operand = checked.types[node.args[0]].kind
            return checked.types[index].kind not in ("string", "dyn") and not (
                is_position and operand == "list"
            )
        case Call(function=name):
            return name not in _SAME
        case MapLiteral(entries=entries):  # it refuses a key that comes twice, and keys that are doubles
            keys = [key.value for key, _ in entries if isinstance(key, Const) and type(key.value) is str]
            return len(set(keys)) < len(entries)
        case Macro(name="map", condition=condition):  # it lacks the form with three arguments
            return condition is not None
    return node in checked.type_names


def _path(node: Node) -> tuple[str, ...]:
    """Return the path of the object in which `has()` looks. Raises NoAnswerError if it is another value."""
    if isinstance(node, Ident):
        return (node.name,)
    if isinstance(node, Select) and not node.test:
        return (*_path(node.operand), node.field)
    raise NoAnswerError


def _is_there(path: tuple[str, ...], variables: Mapping[str, Any]) -> bool:
    """Return whether there is an object at a path: if not, `has()` is an error, but there it is false."""
    value: Any = variables
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return isinstance(value, Mapping)
