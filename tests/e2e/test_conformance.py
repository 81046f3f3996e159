"""Porch's own controller tests as data: the shared cases, run against the command as users have it."""

import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.cel import available_engines

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
    """Every suite with its engine; those of PackageVariants, which hold no expression, with one."""
    for suite in SUITES:
        if suite.startswith("pv-"):
            yield pytest.param(suite, "cel-cpp", marks=pytest.mark.long)
        else:
            yield pytest.param(suite, "cel-cpp")
            yield pytest.param(suite, "cel-python", marks=pytest.mark.long)


def command(engine: str, tmp_path: Path) -> Path:
    """`pvbus` with its CEL engine chosen."""
    if engine not in available_engines():
        pytest.skip(f"the CEL engine {engine} is not installed here (extra fast-cel)")
    script = tmp_path / "pvbus"
    call = shlex.join([sys.executable, "-m", "pvbus.cli"])
    script.write_text(f'#!/bin/sh\nexec {call} "$@" --engine {engine}\n', encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


@pytest.mark.parametrize(("suite", "engine"), list(cases()) or [("none", "none")])
def test_every_case_passes(suite: str, engine: str, tmp_path: Path) -> None:
    script = command(engine, tmp_path)
    done = subprocess.run(
        [sys.executable, str(RUN), "--command", shlex.quote(str(script)), str(FOLDER / "cases" / suite)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed, _, rest = done.stdout.splitlines()[-1].partition(" passed, ")
    assert rest == "0 failed"
    assert int(passed) > 0
