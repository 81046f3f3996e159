"""The tables of mutations fit the code and the tests, and the tool says so when they do not."""

import re
from pathlib import Path

import pytest

from tests.mutants import __main__ as tool
from tests.mutants.mutation import Mutation, read_tables

TESTS = tool.ROOT / "tests"
MUTATIONS_MIN = 60
MODEL_MUTATIONS_MIN = 10

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


def mutation(name: str, test: str, old: str = "== 0", new: str = ">= 0", **fields: str) -> Mutation:
    return Mutation(name, "pvbus/__init__.py", old, new, (f"test_{test}.py",) if test else (), **fields)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *mutations: Mutation
) -> tuple[int, str]:
    monkeypatch.setattr(tool, "read_tables", lambda: list(mutations))
    return tool.main(["--workers", "2"]), capsys.readouterr().out


@pytest.mark.slow
def test_the_tool_says_what_became_of_each_mutation(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(
        monkeypatch,
        capsys,
        mutation("found", "good"),
        mutation("missed", "weak"),
        mutation("broken", "good", new="=="),
        mutation("twice", "good", old="number"),
        mutation("nowhere", "good", old="no such text"),
        mutation("untested", ""),
        mutation("equal", "", equivalent="it is so"),
        mutation("later", "good", old="no such text", pending="not yet"),
    )
    assert code == 1
    verdicts = {line.split()[1]: line.split()[0] for line in text.splitlines() if "pvbus/__init__.py" in line}
    invalid = dict.fromkeys(("broken", "twice", "nowhere", "untested"), "INVALID")
    assert verdicts == {"found": "killed", "missed": "SURVIVED", **invalid}
    for words in ("found 2 times", "found 0 times", "either tests that kill it", "the tests cannot run"):
        assert words in text
    assert "1 of 6 killed, 1 equivalent, 1 pending" in text
    assert (project / "pvbus/__init__.py").read_text() == CODE


def test_the_tool_is_content_when_all_are_killed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(monkeypatch, capsys, mutation("found", "good"))
    assert (code, "1 of 1 killed" in text) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("test", ["red", "missing"])
def test_tests_that_fail_by_themselves_prove_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], test: str
) -> None:
    code, text = run(monkeypatch, capsys, mutation("m", test))
    assert (code, "the tests fail without any mutation" in text) == (1, True)


def test_the_name_of_a_table_stands_for_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """The model check finds each of its table alone: those are no row for a slower or a narrower test."""
    assert tool.main(["--list", "model"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    mutations = [mutation for mutation in read_tables() if mutation.table == "model"]
    assert listed == [mutation.name for mutation in mutations]
    assert len(listed) >= MODEL_MUTATIONS_MIN
    files = {test.partition("::")[0] for mutation in mutations for test in mutation.killed_by}
    assert files == {"simulation/test_rollout_model.py"}


def test_an_unknown_name_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["no-such"]) == 1
    assert "no such mutation: no-such; see --list" in capsys.readouterr().out
