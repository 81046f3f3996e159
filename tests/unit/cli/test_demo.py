"""`pvbus demo`: what it needs is named before anything starts."""

import importlib.util
import shutil
from pathlib import Path

import msgspec
import pytest
import yaml

from pvbus.cli.demos.deploying import EVIDENCE, status_of
from pvbus.cli.main import run
from pvbus.core.api.rollouts import EvidenceObject
from pvbus.core.promotion.protocol.evidence import Published, object_proof

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


@pytest.mark.parametrize(("is_compared", "verdict"), [(False, None), (True, True)])
def test_an_application_of_the_story_proves_its_target_when_it_is_compared_after_the_sync(
    *, is_compared: bool, verdict: bool | None
) -> None:
    """The story has the recipe of the document; new revision and old health prove nothing."""
    rule = msgspec.convert(yaml.safe_load(EVIDENCE)["evidence"]["object"], EvidenceObject)
    document = (Path(__file__).parents[3] / "docs" / "rollouts.md").read_text("utf-8")
    assert f"    current: >-\n      {rule.current[:60]}" in document
    commit = "a" * 40
    found = {
        "metadata": {"name": "web", "namespace": "argocd"},
        "status": status_of(commit, 1e9, is_compared=is_compared),
    }
    assert object_proof(rule, found, Published("web.v2", commit)).verdict is verdict
    assert object_proof(rule, found, Published("web.v3", "b" * 40)).verdict is None
