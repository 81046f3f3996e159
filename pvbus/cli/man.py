"""`pvbus man`: writes a manual page of each command, from what its `--help` is made of.

A page is roff with the macros of man(7). Text is escaped, so no word of a help makes a request of roff.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from pvbus import __version__
from pvbus.adapters.files import reason_of
from pvbus.core.errors import PermanentError

VERBATIM = "\b\n"
"""The begin of a paragraph that click prints as it is."""


class Page(NamedTuple):
    """A manual page.

    file: its name, as `pvbus-rollout-status.1`
    """

    file: str
    text: str


@click.command(
    short_help="Write manual pages of all commands.",
    epilog="""\b
Examples:
  pvbus man --out ~/.local/share/man/man1      for man pvbus and man pvbus-rollout-status
  pvbus man --out build/man1                   for a package

Exit codes: 0 written; 1 the folder cannot be written; 2 bad usage.
""",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder; it is made if missing.")
@click.pass_context
def man(context: click.Context, out: Path) -> None:
    """Write a manual page of pvbus and of each of its commands: the same words as --help, in section 1."""
    written = 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        for page in pages_of(context.find_root().command):
            (out / page.file).write_text(page.text, encoding="utf-8")
            written += 1
    except OSError as exc:
        raise PermanentError(f"{out}: the pages cannot be written there: {reason_of(exc)}") from exc
    click.echo(f"{written} pages in {out}")


def pages_of(command: click.Command, words: tuple[str, ...] = ("pvbus",)) -> Iterator[Page]:
    """Yield the page of a command, then those of what is below it."""
    context = click.Context(command, info_name=" ".join(words))
    below: dict[str, click.Command] = {}
    if isinstance(command, click.Group):
        named = ((name, command.get_command(context, name)) for name in command.list_commands(context))
        below = {name: inner for name, inner in named if inner is not None}
    yield Page(f"{'-'.join(words)}.1", "".join(f"{line}\n" for line in _lines(context, words, below)))
    for name, inner in below.items():
        yield from pages_of(inner, (*words, name))


def _lines(context: click.Context, words: tuple[str, ...], below: dict[str, click.Command]) -> Iterator[str]:
    command, name = context.command, "-".join(words)
    yield f'.TH "{escaped(name.upper())}" "1" "" "pvbus {__version__}" "pvbus"'
    yield ".SH NAME"
    yield escaped(f"{name} - {command.get_short_help_str(1000).rstrip('.')}")
    yield ".SH SYNOPSIS"
    yield f".B {escaped(' '.join(words))}"
    yield escaped(" ".join(command.collect_usage_pieces(context)))
    yield ".SH DESCRIPTION"
    yield from paragraphs(command.help or "")
    options = [each.get_help_record(context) for each in command.get_params(context)]
    if any(options):
        yield ".SH OPTIONS"
    for record in filter(None, options):
        yield from (".TP", f".B {escaped(record[0])}", escaped(record[1]))
    if below:
        yield ".SH COMMANDS"
    for called, inner in below.items():
        yield from (".TP", f".BR {escaped('-'.join((*words, called)))} (1)")
        yield escaped(inner.get_short_help_str(1000))
    if command.epilog:
        yield ".SH NOTES"
        yield from paragraphs(command.epilog)
    if len(words) > 1:
        yield from (".SH SEE ALSO", f".BR {escaped('-'.join(words[:-1]))} (1)")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the roff of a help: paragraphs that are filled, and such as stay as they are."""
    for block in inspect.cleandoc(text).split("\n\n"):
        if block.startswith(VERBATIM):
            lines = block.removeprefix(VERBATIM).splitlines()
            yield from (".PP", ".nf", *map(escaped, lines), ".fi")
        elif block.strip():
            yield from (".PP", escaped(" ".join(block.split())))


def escaped(text: str) -> str:
    """Return one line of text as roff shows it."""
    line = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{line}" if line.startswith((".", "'")) else line
