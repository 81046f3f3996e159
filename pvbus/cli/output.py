"""What commands print: JSON or YAML for programs, columns for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
import yaml

FORMATS = ("text", "json", "yaml")


def emit(document: Any, output: str) -> None:
    """Print plain values. output: json or yaml."""
    if output == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), nl=False)


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under headings as kubectl does: aligned, and never folded, so that `grep` works."""
    lines = [tuple(headings), *(tuple(row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headings) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        click.echo("   ".join([*cells, line[-1]]).rstrip())
