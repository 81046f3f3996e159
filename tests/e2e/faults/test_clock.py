"""The clock of the machine is wrong by an hour, in either direction, between two runs."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli.command import environment, pvbus

pytestmark = [pytest.mark.long]


def test_a_clock_that_is_wrong_by_an_hour_stops_nothing(tmp_path: Path) -> None:
    """Certificates, tokens, leases and timers of the data folder hold: everything is ready again at once."""
    if shutil.which("faketime") is None:
        pytest.skip("faketime is not installed: a wrong clock cannot be tried (apt-get install faketime)")
    arguments = ("up", "--once", "--example", "fleet", "--clusters", "1", "--timeout", "120")
    assert pvbus(*arguments, cwd=tmp_path).code == 0
    for offset in ("+1h", "-1h"):
        done = subprocess.run(
            ["faketime", "-f", offset, sys.executable, "-P", "-m", "pvbus.cli", *arguments],
            cwd=tmp_path,
            env=environment(DONT_FAKE_MONOTONIC="1", FAKETIME_DONT_FAKE_MONOTONIC="1"),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert done.returncode == 0, (offset, done.stdout, done.stderr)
        assert "variants 4/4 ready" in done.stdout
        assert "Traceback" not in done.stderr
