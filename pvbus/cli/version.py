"""`pvbus version`."""

import platform

import click

from pvbus import __version__
from pvbus.cli.output import FORMATS, emit
from pvbus.core.kernel.records import SCHEMA_VERSION


@click.command()
@click.option("-o", "--output", type=click.Choice(FORMATS), default="text", help="Format of the output.")
def version(output: str) -> None:
    """Show the version.

    \b
    Examples:
      pvbus version
      pvbus version -o json
    """
    facts = {
        "version": __version__,
        "python": platform.python_version(),
        "tables": SCHEMA_VERSION,
    }
    if output != "text":
        emit(facts, output)
        return
    click.echo(f"pvbus {__version__} (Python {facts['python']})")
