"""Finds sentences of the documents that no native writer would write: `python -m tests.tools.language`.

Looked at are the prose of the documents, without code and headings, and the help of every command. Exits with
1 and one line per sentence when there is any. Everything else about style is for people to judge.
"""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from pvbus.cli.main import pvbus

CHECKOUT = Path(__file__).parents[2]
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md")

_NOUNS = r"(?:(?:the|a|an|its|their|each|all|every|any|no) )?[\w`'./-]+"
RULES = {
    "a user is no he: write they, or the user": re.compile(r"\b(?:he|him|his|himself|she|herself)\b", re.I),
    "a sentence begins with a clause as its subject: write anyone who can": re.compile(
        r"(?:^|[.:;!] |\| )Who (?![^.;|]*\?)\w"
    ),
    "a thing belongs to another or comes from it, and is not of it": re.compile(
        r"\b(?:is|are|was|were) of (?!type\b|no\b|use\b|code\b|course\b)(?!`)\w+"
    ),
    "what ended is there no longer, not no more": re.compile(
        r"\bno more(?= (?:is|when|and|or)\b|\W*(?:$|[.,;|)]))"
    ),
    "nouns hang on each other: make two sentences, or one noun the subject": re.compile(
        rf"\bof {_NOUNS} of {_NOUNS} of \w+|\w(?:'s|s') [\w-]+(?:'s|s') [\w-]+"
    ),
}


class Block(NamedTuple):
    """A paragraph, an item of a list, or a row of a table, on one line.

    line: where it begins
    """

    line: int
    text: str


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the prose of a Markdown text: code is left out, and what is quoted of it is `code`."""
    begin, is_code = 0, False
    lines: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("```"):
            is_code = not is_code
        is_apart = is_code or line.startswith(("```", "#", "![")) or raw.startswith("    ") or not line
        if (is_apart or re.match(r"[-*|>]|\d+\.", line)) and lines:
            yield Block(begin, " ".join(lines))
            lines = []
        if not is_apart:
            begin = begin if lines else number
            lines.append(re.sub(r"^(?:[-*>|] )+", "", line))
    if lines:
        yield Block(begin, " ".join(lines))


def faults_of(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each fault's block, the words, and what is wrong."""
    for block in blocks_of(text):
        prose = re.sub(r"`[^`]*`", "`code`", re.sub(r"^\*?\*[^*]+\*\*", "", block.text))
        for problem, pattern in RULES.items():
            for found in pattern.finditer(prose):
                yield block.line, prose[max(0, found.start() - 20) : found.end() + 40], problem


def helps_of(command: click.Command, words: tuple[str, ...] = ("pvbus",)) -> Iterator[tuple[str, str]]:
    """Yield the name and the help of a command, with that of its options, and of those below it."""
    options = (each.help or "" for each in command.params if isinstance(each, click.Option))
    texts = (command.get_short_help_str(1000), command.help or "", command.epilog or "", *options)
    yield " ".join(words), "\n\n".join(inspect.cleandoc(text).replace("\b\n", "") for text in texts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from helps_of(inner, (*words, name))


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--", *FILES], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    texts = [(file, (CHECKOUT / file).read_text(encoding="utf-8")) for file in listed.stdout.split()]
    count = 0
    for name, text in (*texts, *helps_of(pvbus)):
        for line, words, problem in faults_of(text):
            print(f"{name}:{line}: {words!r}: {problem}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
