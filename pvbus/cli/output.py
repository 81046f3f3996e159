"""Prints the output of commands: JSON or YAML for programs, columns for people."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
import yaml

from pvbus.core.yaml.scalars import has_other_value
from pvbus.telemetry.terminal import one_line, printable

FORMATS = ("text", "json", "yaml")


def emit(document: Any, output: str) -> None:
    """Print plain values. output: json or yaml."""
    if output == "json":
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        dumped = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
        click.echo(dumped, nl=False)


def yaml_stream(documents: Iterable[Any]) -> str:
    """Return plain values as one stream of YAML documents, which `kubectl apply -f -` takes."""
    return yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, explicit_start=True
    )


class _Dumper(yaml.SafeDumper):
    """Writes shared values in full, without aliases, so that people need not look them up."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Quote a text that kubectl would not read back unchanged: one like a number, or unprintable."""
    style = '"' if printable(text) != text else "'" if has_other_value(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]], *, gap: int = 3) -> None:
    """Print rows under headings as kubectl does: aligned, and never wrapped, so that `grep` works.

    gap: spaces between two columns.
    """
    lines = [tuple(headings), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headings) - 1)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        click.echo((" " * gap).join([*cells, line[-1]]).rstrip())
