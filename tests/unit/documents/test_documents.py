"""The documents say what is so: links, paths, names and generated parts agree with the code."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from docs import generate, states
from pvbus.runtime.process.configuration import CONFIG_VARIABLE, all_fields, variable_of
from tests.e2e.cli.command import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
README_LINES_MAX = 120
GLOSSARY_TERMS_MAX = 50  # what fits on a page
FOLDERS = r"(?:pvbus|services|schemas|tests|docs|deploy|requirements)"
OF_TESTS = {
    "PVBUS_API_CALLS",
    "PVBUS_CARVEL_SEEDS",
    "PVBUS_MODEL",
    "PVBUS_CACHE",
    "PVBUS_CONFORMANCE_PROCESSES",
    "PVBUS_RESOLVE_FIRST",
    "PVBUS_RESOLVE_GRAPHS",
    "PVBUS_TEST_CARVEL",
    "PVBUS_TEST_CHURN",
    "PVBUS_TEST_EVENTS",
    "PVBUS_TEST_FAULTS",
    "PVBUS_TEST_HOSTILE",
    "PVBUS_TEST_KAFKA",
    "PVBUS_TEST_KILLS",
    "PVBUS_TEST_LIVES",
    "PVBUS_TEST_PACKAGES",
    "PVBUS_TEST_PACKAGE_KILLS",
    "PVBUS_TEST_PACKAGE_SEED",
    "PVBUS_TEST_PAIRS",
    "PVBUS_TEST_PICTURES",
    "PVBUS_TEST_PORCH",
    "PVBUS_TEST_PROMOTIONS",
    "PVBUS_TEST_REVISIONS",
}
"""Variables that make and the tests read."""

SETTINGS = {variable_of(field.name) for field in all_fields()}


def text(document: Path) -> str:
    return document.read_text()


def by_name(document: Path) -> str:
    return str(document.relative_to(REPOSITORY))


every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=by_name)


def anchors(document: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text(document), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    assert len(text(REPOSITORY / "README.md").splitlines()) <= README_LINES_MAX


def test_the_glossary_fits_on_a_page() -> None:
    glossary = text(REPOSITORY / "docs" / "concepts.md").partition("## Glossary")[2]
    assert 0 < glossary.count("\n| ") - 2 <= GLOSSARY_TERMS_MAX


@every_document
def test_links_lead_somewhere(document: Path) -> None:
    """Every link within the repository names a file, and a heading of it where it has an anchor."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text(document)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@every_document
def test_paths_exist(document: Path) -> None:
    """Every path of the repository that a document names is there; so is what is named in it after `::`."""
    for path, name in re.findall(rf"`({FOLDERS}/[\w./-]*\w)/?(?:::(\w+))?`", text(document)):
        assert (REPOSITORY / path).exists(), path
        if name:
            assert re.search(rf"\b(?:def|class) {name}\b", (REPOSITORY / path).read_text()), f"{path}::{name}"


@every_document
def test_names_are_those_of_the_code(document: Path) -> None:
    """Every metric, setting and make target that a document names exists."""
    metrics = set(re.findall(r"`(pvbus_\w+)`", generate.metric_table()))
    named = {
        re.sub("_(bucket|count|sum)$", "", name) for name in re.findall(r"\bpvbus_[a-z]\w+", text(document))
    }
    assert named <= metrics
    known = SETTINGS | OF_TESTS | {CONFIG_VARIABLE}
    assert set(re.findall(r"\bPVBUS_[A-Z_]*[A-Z]\b(?!_\*)", text(document))) <= known
    targets = set(re.findall(r"^([a-z-]+):", text(REPOSITORY / "Makefile"), re.M))
    assert set(re.findall(r"`make ([a-z-]+)[` ]", text(document))) <= targets


def test_every_setting_has_a_row() -> None:
    """A setting of a new class of settings is not left out of the reference."""
    rows = re.findall(r"^\| `(PVBUS_\w+)` \|", text(REPOSITORY / "docs" / "reference.md"), re.M)
    assert sorted(rows) == sorted(SETTINGS)


def section(title: str) -> str:
    """Return a section of ARCHITECTURE.md."""
    return re.split(rf"^##+ {title}$", text(REPOSITORY / "ARCHITECTURE.md"), flags=re.M)[1].partition("\n##")[
        0
    ]


def test_every_step_of_the_resolver_names_what_takes_it() -> None:
    """Thirteen steps, each with modules and functions that exist."""
    rows = re.findall(r"^\| (\d+) \| .+ \| `(\w+)` \| (.+) \|$", section("The resolver"), re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, 14))
    for number, service, means in rows:
        folder = REPOSITORY / "pvbus/core/platform" / service
        for name in re.findall(r"`(\w+\.py)`", means):
            assert (folder / name).exists(), f"step {number}: {name}"
        for name, function in re.findall(r"`(\w+\.py)` \(`(\w+)`\)", means):
            assert f"def {function}(" in text(folder / name), f"step {number}: {function}"


def test_every_invariant_names_what_keeps_and_what_shows_it() -> None:
    """Twelve rows, each with a module and a test."""
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \| (.+) \|$", section("Invariants"), re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, 13))
    for number, modules, tests in rows:
        assert "`pvbus/" in modules, number
        assert "`tests/" in tests, number


def test_continuous_integration_and_hooks_call_what_people_call() -> None:
    """The workflow runs targets of the Makefile; every hook is a command of `make check`."""
    makefile = text(REPOSITORY / "Makefile")
    jobs = yaml.safe_load(text(REPOSITORY / ".github" / "workflows" / "ci.yaml"))["jobs"].values()
    runs = "\n".join(step["run"] for job in jobs for step in job["steps"] if "run" in step)
    called = set(re.findall(r"\bmake ([a-z-]+)", runs))
    assert called == {"check", "audit", "test", "test-rest", "simulate"}
    steps = re.findall(r'^step "[^"]+" make ([a-z-]+)', text(REPOSITORY / ".ci" / "run"), re.M)
    assert steps == ["check", "audit", "test", "test-rest"]
    assert called <= set(re.findall(r"^([a-z-]+):", makefile, re.M))
    check = makefile.partition("\ncheck: ")[2].partition("\n\n")[0]
    (repo,) = yaml.safe_load(text(REPOSITORY / ".pre-commit-config.yaml"))["repos"]
    for hook in repo["hooks"]:
        assert f"\t{hook['entry']}\n" in f"{check}\n", hook["id"]


def test_the_readme_names_the_two_commands_and_ci_calls_the_second_as_it_is_written() -> None:
    """`make run` and `make test` stand before everything else, and need no option."""
    start = text(REPOSITORY / "README.md").partition("\n## Quick start\n")[2].partition("```sh")[0]
    assert re.findall(r"`(make [a-z ]+)`", start) == ["make run", "make test"]
    assert re.search(r'^step "make test" make test$', text(REPOSITORY / ".ci" / "run"), re.M)


def test_what_make_test_leaves_out_is_in_no_folder_that_make_test_rest_leaves_out() -> None:
    """Each test is of exactly one phase, so all of them run but those that are campaigns of people."""
    makefile = text(REPOSITORY / "Makefile")
    ignored = re.findall(r"--ignore (\S+)", makefile)
    assert ignored == ["tests/unit"]
    marks = re.compile(r"\bmark\.(kafka|cluster|long)\b")
    marked = [
        path for folder in ignored for path in (REPOSITORY / folder).rglob("*.py") if marks.search(text(path))
    ]
    assert marked == []
    phases = dict(re.findall(r"^(OFTEN|LONG|REAL) = (.*)$", makefile, re.M))
    recipes = dict(re.findall(r"^(test|test-rest):.*\n((?:\t.*\n)+)", makefile, re.M))
    assert re.findall(r'-m "(\$\(\w+\))"', recipes["test"] + recipes["test-rest"]) == [
        *("$(OFTEN)", "$(LONG)", "$(REAL)")
    ]
    for values in itertools.product((False, True), repeat=3):
        marked_with = dict(zip(("kafka", "cluster", "long"), values, strict=True)) | {"campaign": False}
        assert sum(eval(phase, marked_with.copy()) for phase in phases.values()) == 1, marked_with


def test_every_state_machine_is_printed_and_documented() -> None:
    """As `make states` does it."""
    command = [sys.executable, "-m", "docs.states"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    for machine in states.MACHINES:
        assert f"# {machine.title}\n\n{machine.table()}\n" in done.stdout
        assert f"<!-- generated: states-{machine.name} -->" in text(REPOSITORY / "ARCHITECTURE.md")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("informer", "| Resolving | NotServed | Unserved |"),
        ("child", "| held | hold ended | waiting |"),
        ("child", "| gone | forgotten | (no row) |"),
        ("lease", "| Restoring | Restored | Running |"),
    ],
)
def test_a_state_machine_has_a_row_per_pair(name: str, row: str) -> None:
    (machine,) = [each for each in states.MACHINES if each.name == name]
    lines = machine.table().splitlines()
    assert lines[:2] == ["| state | event | next state |", "| --- | --- | --- |"]
    assert row in lines
    assert len(lines) == 2 + sum(map(len, machine.transitions.values()))


@pytest.mark.slow
def test_generated_parts_are_up_to_date() -> None:
    """In a process of its own, as `make check` asks: other tests change what commands show by default."""
    command = [sys.executable, "-m", "docs.generate", "--check"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for name in generate.FILES:
        assert "<!-- generated: " in text(REPOSITORY / name)


def test_a_part_that_differs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check names file and part and changes nothing; the generator writes the part and nothing else."""
    (tmp_path / "docs").mkdir()
    for name in generate.FILES:
        (tmp_path / name).write_text(text(REPOSITORY / name))
    stale = text(REPOSITORY / "ARCHITECTURE.md").replace("| `pvbus.meta` |", "| `pvbus.old` |")
    (tmp_path / "ARCHITECTURE.md").write_text(stale)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "ARCHITECTURE.md: the part 'topics' differs" in capsys.readouterr().err
    assert text(tmp_path / "ARCHITECTURE.md") == stale
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    assert text(tmp_path / "ARCHITECTURE.md") == text(REPOSITORY / "ARCHITECTURE.md")
