"""Prints the output of commands: JSON or YAML for programs, columns for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from pvbus.runtime.yamltext import yaml_text
from pvbus.telemetry.terminal import one_line

FORMATS = ("text", "json", "yaml")


def emit(document: Any, output: str) -> None:
    """Print plain values. output: json or yaml."""
    if output == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml_text(document), nl=False)


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]], *, gap: int = 3) -> None:
    """Print rows under headings as kubectl does: aligned, and never wrapped, so that `grep` works.

    gap: spaces between two columns.
    """
    lines = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headings) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        click.echo((" " * gap).join([*cells, line[-1]]).rstrip())


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
