"""The tables of mutations fit the code and the tests, and the tool says so when they do not."""

import re
from pathlib import Path

import pytest

from tests.mutants import __main__ as tool
from tests.mutants.mutation import Mutation, read_tables

TESTS = tool.ROOT / "tests"
MUTATIONS_MIN = 60

CODE = "def is_even(number):\n    return number % 2 == 0\n"
GOOD = "from pvbus import is_even\n\n\ndef test_even():\n    assert is_even(2) and not is_even(3)\n"
WEAK = "from pvbus import is_even\n\n\ndef test_weak():\n    assert is_even(2)\n"


def test_every_mutation_fits_the_code_and_names_tests_that_exist() -> None:
    mutations = read_tables()
    active = [m for m in mutations if not m.pending]
    assert len([m for m in active if not m.equivalent]) >= MUTATIONS_MIN
    problems = {m.name: tool.find_problem(m, tool.ROOT) for m in active}
    assert {name: problem for name, problem in problems.items() if problem} == {}
    named = {test for m in active for test in m.killed_by}
    for test in named:
        path, _, function = test.partition("::")
        text = (TESTS / path).read_text()
        name = function.partition("[")[0]
        assert not name or re.search(rf"def {name}\(", text), test


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project in place of the checkout."""
    for folder in ("pvbus", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pvbus/__init__.py").write_text(CODE)
    (tmp_path / "tests/__init__.py").write_text("")
    (tmp_path / "tests/test_good.py").write_text(GOOD)
    (tmp_path / "tests/test_weak.py").write_text(WEAK)
    (tmp_path / "tests/test_red.py").write_text("def test_red():\n    assert False\n")
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    return tmp_path


def mutation(test: str, old: str = "== 0", new: str = ">= 0", **fields: str) -> Mutation:
    return Mutation("m", "pvbus/__init__.py", old, new, (f"test_{test}.py",) if test else (), **fields)


@pytest.mark.parametrize(
    ("one", "code", "words"),
    [
        (mutation("good"), 0, "1 of 1 killed"),
        (mutation("weak"), 1, "SURVIVED: m"),
        (mutation("red"), 1, "the tests fail without any mutation"),
        (mutation("missing"), 1, "the tests fail without any mutation"),
        (mutation("good", new="=="), 1, "the tests cannot run"),
        (mutation("good", old="number"), 1, "is found 2 times"),
        (mutation("good", old="nowhere"), 1, "is found 0 times"),
        (mutation("", equivalent="it is so"), 0, "1 equivalent"),
        (mutation(""), 1, "either tests that kill it, or a reason"),
        (mutation("good", old="nowhere", pending="later"), 0, "1 pending"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_tool_says_what_became_of_a_mutation(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one: Mutation,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(tool, "read_tables", lambda: [one])
    assert tool.main(["--workers", "1"]) == code
    assert words in capsys.readouterr().out
    assert (project / "pvbus/__init__.py").read_text() == CODE


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["no-such"]) == 1
    assert "no such mutation: no-such; see --list" in capsys.readouterr().out
