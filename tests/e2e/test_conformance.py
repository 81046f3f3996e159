"""Porch's own controller tests as data: the shared cases, run against the command as users have it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("PVBUS_CONFORMANCE") or Path(__file__).parents[3] / "shared" / "conformance")
RUN = FOLDER / "run.py"
SUITES = sorted(path.name for path in (FOLDER / "cases").glob("*") if path.is_dir())
SECONDS_MAX = 900.0
"""Each case is a process, and the largest suite has 80 of them."""

pytestmark = [
    pytest.mark.shared,
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS_MAX),
    pytest.mark.skipif(
        not RUN.is_file(), reason="needs ../shared/conformance, or PVBUS_CONFORMANCE naming it"
    ),
]


def cases() -> Iterator[Any]:
    """Every suite; `make test` leaves those of PackageVariants, the largest ones, to `make test-all`."""
    for suite in SUITES:
        yield pytest.param(suite, marks=[pytest.mark.long] if suite.startswith("pv-") else [])


@pytest.mark.parametrize("suite", list(cases()) or ["none"])
def test_every_case_passes(suite: str) -> None:
    command = shlex.join([sys.executable, "-m", "pvbus.cli"])
    done = subprocess.run(
        [sys.executable, str(RUN), "--command", command, str(FOLDER / "cases" / suite)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, _, rest = done.stdout.splitlines()[-1].partition(" passed, ")
    assert rest == "0 failed"
    assert int(passed) > 0
