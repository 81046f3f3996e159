"""What docs/rollouts.md promises, and the scenarios of rollouts: each has its tests, in rollouts.toml.

A statement is a row of a table, named by its first cell, or a sentence, named by how it begins. A new one
fails here until its tests are named, or until it is said to promise nothing.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.unit.documents.test_promotion_faults import ROOT, names_in

HERE = Path(__file__).parent
SCENARIOS = ROOT.parent.parent / "shared" / "reference" / "rollout-scenarios.md"
TABLE = tomllib.loads((HERE / "rollouts.toml").read_text())
PROMISES: Mapping[str, Mapping[str, list[str]]] = TABLE["promises"]
EXPLAINS: Mapping[str, list[str]] = TABLE["explains"]
NAMED = [
    *((f"{section}: {start}", tests) for section, rows in PROMISES.items() for start, tests in rows.items()),
    *((f"scenario {number}", tests) for number, tests in TABLE["scenarios"].items()),
    *TABLE["stories"].items(),
]


def statements(document: str) -> Iterator[tuple[str, str]]:
    """Yield each row of a table and each sentence with the heading that it is under. Code is no statement."""
    heading, paragraph, table_lines = "", list[str](), 0
    for line in [*without_code(document), ""]:
        if line[:1] in ("", "#", "|") or line.startswith("- "):
            yield from ((heading, sentence) for sentence in sentences_of(" ".join(paragraph)))
            paragraph = []
        table_lines = table_lines + 1 if line.startswith("|") else 0
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif table_lines > 2:
            yield heading, f"| {line.split('|')[1].strip()} |"
        elif line and not table_lines:
            paragraph.append(line.removeprefix("- "))


def without_code(document: str) -> Iterator[str]:
    """Yield the lines of a document that are no code: neither fenced nor indented."""
    is_code = False
    for line in document.splitlines():
        is_fence = line.startswith("```")
        is_code = is_code != is_fence
        if not is_code and not is_fence and not line.startswith("    "):
            yield line.strip()


def sentences_of(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, without its subject in bold letters."""
    text = re.sub(r"^\*\*.*?\*\* ", "", paragraph)
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[])", text) if sentence]


def starts_of(section: str) -> list[str]:
    return [*PROMISES.get(section, ()), *EXPLAINS.get(section, ())]


@cache
def all_statements() -> tuple[tuple[str, str], ...]:
    return tuple(statements((ROOT.parent / "docs" / "rollouts.md").read_text()))


def test_every_statement_of_the_document_has_its_tests_or_promises_nothing() -> None:
    for section, statement in all_statements():
        named = [start for start in starts_of(section) if statement.startswith(start)]
        assert len(named) == 1, f"{section}: {statement!r} is {named or 'not'} in rollouts.toml"


def test_every_entry_is_a_statement_of_the_document() -> None:
    for section in {*PROMISES, *EXPLAINS}:
        for start in starts_of(section):
            said = [
                text for heading, text in all_statements() if heading == section and text.startswith(start)
            ]
            assert len(said) == 1, f"{section}: {start!r} is how {len(said)} statements begin"


def test_a_new_row_and_a_new_sentence_are_statements() -> None:
    document = "# A\n\n**It.** It is. So\nit is `so`.\n\n```\nNo code.\n```\n\n| a |\n| --- |\n| `x` y |\n"
    said = [("A", "It is."), ("A", "So it is `so`."), ("A", "| `x` y |")]
    assert list(statements(document)) == said


@pytest.mark.shared
def test_every_scenario_has_its_tests() -> None:
    numbers = re.findall(r"^(\d+)\. ", SCENARIOS.read_text(), re.MULTILINE)
    assert list(TABLE["scenarios"]) == numbers
    assert len(numbers) == 77


@pytest.mark.parametrize(("name", "tests"), NAMED, ids=[name for name, _ in NAMED])
def test_the_tests_of_a_promise_exist(name: str, tests: Iterable[str]) -> None:
    assert tests, f"{name}: no test shows it"
    for test in tests:
        file, _, function = test.partition("::")
        path = ROOT / TABLE["files"][file]
        assert function in names_in(path), f"{name}: {path} has no {function}"
