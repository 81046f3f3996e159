"""Porch's own controller tests as data: the shared cases, run against `pvbus plan`."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tools.warmcommand import warm_command

FOLDER = Path(os.environ.get("PVBUS_CONFORMANCE") or Path(__file__).parents[3] / "shared" / "conformance")
RUN = FOLDER / "run.py"
SUITES = sorted(path.name for path in (FOLDER / "cases").glob("*") if path.is_dir())
SECONDS_MAX = 900.0
"""With a process for each, all cases together."""
ALL_PROCESSES = os.environ.get("PVBUS_CONFORMANCE_PROCESSES") == "all"

pytestmark = [
    pytest.mark.shared,
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS_MAX),
    pytest.mark.skipif(
        not RUN.is_file(), reason="needs ../shared/conformance, or PVBUS_CONFORMANCE naming it"
    ),
]


def cases() -> Iterator[Any]:
    """Every suite; `make test` leaves those of PackageVariants, the largest ones, to `make test-rest`."""
    for suite in SUITES:
        yield pytest.param(suite, marks=[pytest.mark.long] if suite.startswith("pv-") else [])


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command without its imports: a fork for each call."""
    with warm_command(tmp_path_factory.mktemp("forked"), dict(os.environ)) as command:
        yield command


def run_cases(command: str, paths: Sequence[Path]) -> int:
    """Run cases against a command, all of which must pass; return how many there are."""
    done = subprocess.run(
        [sys.executable, str(RUN), "--command", command, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, _, rest = done.stdout.splitlines()[-1].partition(" passed, ")
    assert rest == "0 failed"
    return int(passed)


@pytest.mark.parametrize("suite", list(cases()) or ["none"])
def test_every_case_passes(suite: str, forked: str) -> None:
    """By a fork for each call: of the second that a call takes, nine tenths are imports."""
    assert run_cases(forked, [FOLDER / "cases" / suite]) > 0


def test_a_case_of_each_suite_passes_in_a_process_of_its_own() -> None:
    """As users run the command. PVBUS_CONFORMANCE_PROCESSES=all: every case."""
    suites = [sorted((FOLDER / "cases" / suite).rglob("*.yaml")) for suite in SUITES]
    chosen = [file for files in suites for file in (files if ALL_PROCESSES else files[:1])]
    command = shlex.join([sys.executable, "-m", "pvbus.cli"])
    assert run_cases(command, chosen) >= len(chosen)
