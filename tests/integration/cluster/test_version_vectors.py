"""The vectors of versions and ranges are what the Go libraries answer today."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.tools.gomodules import go

TESTS = Path(__file__).parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_the_go_libraries_still_answer_what_the_vectors_say() -> None:
    """The program prints the file that the unit tests read, byte for byte; go.sum pins the libraries."""
    compiler = go()
    if compiler is None:
        assert not os.environ.get("CI"), "Go is missing"
        pytest.skip("Go is missing: it builds the program that asks the libraries")
    done = subprocess.run(
        [compiler, "run", "-mod=readonly", "."],
        cwd=TESTS / "tools" / "versionvectors",
        env={**os.environ, "GOTOOLCHAIN": os.environ.get("GOTOOLCHAIN", "auto"), "CGO_ENABLED": "0"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert done.stdout == (TESTS / "data" / "resolve" / "versions.json").read_bytes()
