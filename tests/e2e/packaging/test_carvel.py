"""Carvel's packages on `pvbus up`: what the documents show, as a person would do it."""

from pathlib import Path

import pytest

from tests.e2e.cli.command import REPOSITORY, pvbus

pytestmark = pytest.mark.slow

EXAMPLE = REPOSITORY / "examples" / "dependencies" / "carvel.yaml"


def test_the_example_of_dependencies_installs(tmp_path: Path) -> None:
    """What it needs is created and installed, but for the optional package, which nobody has."""
    up = pvbus("up", "--packages", "--no-web", "--once", str(EXAMPLE), cwd=tmp_path)
    assert up.code == 0, up.out + up.err
    assert "installs 4/4 ready" in up.out
