"""Texts with placeholders, as ApplicationSets have them, and the CEL expressions that take their place.

Of Go's templates only plain placeholders have a counterpart: `{{ .name }}`, `{{.metadata.labels.region}}` and
`{{ index .metadata.labels "example.com/region" }}`. Functions and pipes have none.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from pvbus.cli.importing.converted import NoCounterpartError

PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.S)
GO_FIELD = re.compile(r"\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
GO_INDEX = re.compile(r'index\s+\.((?:\w+\.)*\w+)\s+"([^"\\]+)"')


class Expression(NamedTuple):
    """A CEL expression of one string."""

    cel: str


Text = tuple[str | Expression, ...]
"""Constants and expressions, in order: the text is all of them together. Adjacent constants are joined."""

Lookup = Callable[[str], Text]
"""Gives the value of a parameter, for example of `metadata.labels.region`. Raises NoCounterpartError."""


def parse(text: str, lookup: Lookup, *, is_go: bool) -> Text:
    """Put values in place of a text's placeholders. Raises NoCounterpartError.

    is_go: whether it is a template of Go; otherwise one with `{{name}}` alone
    """
    parts: list[str | Expression] = []
    for number, piece in enumerate(PLACEHOLDER.split(text)):
        parts += lookup(parameter_of(piece.strip(), is_go=is_go)) if number % 2 else (piece,)
    return _joined(parts)


def parameter_of(placeholder: str, *, is_go: bool) -> str:
    """Return the parameter that a placeholder names. Raises NoCounterpartError for anything else."""
    if not is_go:
        return placeholder
    if field := GO_FIELD.fullmatch(placeholder):
        return field[1]
    if index := GO_INDEX.fullmatch(placeholder):
        return f"{index[1]}.{index[2]}"
    raise NoCounterpartError(
        f"{{{{{placeholder}}}}} is computed by a Go template; write it as a CEL expression"
    )


def constant(text: Text) -> str | None:
    """Return the text if it is the same for all targets."""
    return "".join(map(str, text)) if not any(isinstance(part, Expression) for part in text) else None


def expression(text: Text) -> str:
    """Return the CEL expression that gives the text."""
    return " + ".join(part.cel if isinstance(part, Expression) else quoted(part) for part in text) or "''"


def quoted(text: str) -> str:
    """Return a text as a literal of CEL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


def _joined(parts: list[str | Expression]) -> Text:
    joined: list[str | Expression] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part != "":
            joined.append(part)
    return tuple(joined)
