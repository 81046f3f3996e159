"""Finds sentences of the documents that no native writer would write: `python -m tests.tools.language`.

Looked at are the prose of the documents, without code and headings, the help of every command, and the
messages in the code of pvbus: its texts of several words but docstrings. Exits with 1 and one line per
sentence when there is any. Everything else about style is for people to judge.
"""

import ast
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
FILES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "pvbus/*.py")

WORDS_MIN = 4
"""A shorter text of the code is a name, a key or a part of a message."""
_THE = r"(?:the|a|an|its|their|each|every|all)"
_NOUNS = r"(?:(?:the|a|an|its|their|each|all|every|any|no) )?[\w`'./-]+"
CLAUSE_AS_SUBJECT = "a sentence begins with a clause as its subject: write anyone who can"
RULES = {
    "a user is no he: write they, or the user": re.compile(r"\b(?:he|him|his|himself|she|herself)\b", re.I),
    CLAUSE_AS_SUBJECT: re.compile(r"(?:^|[.:;!] |\| )Who (?![^.;|]*\?)\w"),
    "a thing belongs to another or comes from it, and is not of it": re.compile(
        r"\b(?:is|are|was|were) of (?!type\b|no\b|use\b|code\b|course\b)(?!`)\w+"
    ),
    "what ended is there no longer, not no more": re.compile(
        r"\bno more(?= (?:is|when|and|or)\b|\W*(?:$|[.,;|)]))"
    ),
    "two genitives in a row: name the thing by one of them, or make two sentences": re.compile(
        rf"\b{_THE} [\w'-]+ of {_THE} [\w'-]+ of {_THE} [\w'-]+", re.I
    ),
    "a person who may: write who can, or name the persons": re.compile(r"\bwho(?:ever)? may\b", re.I),
    "a sentence begins with what belongs to its object: begin with the subject": re.compile(
        r"(?:^|[.:;] )Of (?!course\b)[a-z`]"
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


def messages_of(module: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the words of each message in a module's text; what is filled in is `code`."""
    tree = ast.parse(module)
    passed = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in ast.walk(node) if part is not node}
        if id(node) not in passed and isinstance(node, ast.Constant | ast.JoinedStr):
            words = _words_of(node)
            if len(words.split()) >= WORDS_MIN:
                yield node.lineno, words


def _words_of(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_words_of(part) if isinstance(part, ast.Constant) else "`code`" for part in node.values)


def message_faults_of(module: str) -> Iterator[tuple[int, str, str]]:
    """Yield the faults of a module's messages. A description may be no sentence: "Who published it"."""
    for begin, message in messages_of(module):
        for _, words, problem in faults_of(message):
            if problem != CLAUSE_AS_SUBJECT:
                yield begin, words, problem


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "--", *FILES], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    texts = [(file, (CHECKOUT / file).read_text(encoding="utf-8")) for file in listed.stdout.split()]
    modules = [file for file, _ in texts if file.endswith(".py")]
    prose = [(name, text, faults_of) for name, text in (*texts, *helps_of(pvbus)) if name not in modules]
    code = [(name, text, message_faults_of) for name, text in texts if name in modules]
    count = 0
    for name, text, faults in (*prose, *code):
        for line, words, problem in faults(text):
            print(f"{name}:{line}: {words!r}: {problem}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
