"""Documents for programs: JSON or YAML on standard output."""

import json
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
