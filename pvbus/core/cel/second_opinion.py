"""A second opinion on syntax: compares cel-python's grammar with our parser.

Our parser decides. A disagreement gives a warning: the expression may fail in another implementation
of CEL, or our parser has a defect. cel-python checks no types and no names before it evaluates, so
only the syntax is compared.

This is the only module that imports celpy, which takes 250 ms. Import it where it is used.
"""

from celpy.celparser import CELParseError, CELParser

from pvbus.core.cel.errors import CompileProblem
from pvbus.core.cel.syntax import parse

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
