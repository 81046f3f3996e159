"""`pvbus demo`: what it needs is named before anything starts."""

import importlib.util
import shutil
from pathlib import Path

import pytest

from pvbus.cli.main import run

LOCK = Path(__file__).parents[3] / "requirements" / "run.lock"


def test_a_rollout_needs_the_interpreter_of_its_validator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it every draft of the story would fail, and the story would wait for them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    assert run(["demo", "rollout", "--data", str(tmp_path / "fleet")]) == 1
    assert "pip install 'pvbus[starlark]'" in capsys.readouterr().err
    assert not (tmp_path / "fleet").exists()


def test_what_make_installs_has_the_interpreter() -> None:
    """`make demo-rollout` and `make run` install this lock file alone."""
    assert [line for line in LOCK.read_text().splitlines() if line.startswith("starlark-pyo3==")]
