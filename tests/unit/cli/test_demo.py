"""`pvbus demo`: what it needs is named before anything starts."""

import asyncio
import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import yaml

from pvbus.cli.demo import tell_step
from pvbus.cli.demos.deploying import EVIDENCE, status_of
from pvbus.cli.demos.rollout import STATIONS, with_needed
from pvbus.cli.demos.story import Fleet, Step
from pvbus.cli.main import run
from pvbus.core.api.rollouts import EvidenceObject
from pvbus.core.errors import PermanentError
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


@pytest.mark.parametrize(
    ("stations", "names"),
    [
        ((), ["canary", "train", "quarantine", "joiner", "gates", "waves"]),
        (("train",), ["train"]),
        (("waves", "joiner"), ["canary", "joiner", "gates", "waves"]),
    ],
)
def test_a_station_comes_with_those_that_it_needs(stations: tuple[str, ...], names: list[str]) -> None:
    assert with_needed(stations) == names


def test_the_help_says_the_stations(capsys: pytest.CaptureFixture[str]) -> None:
    """The other story has none."""
    assert run(["demo", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n    {name} " in shown for name in STATIONS)
    assert run(["demo", "day2", "--station", "train"]) == 2


def test_a_step_that_shows_something_else_ends_the_story() -> None:
    """Its exit code alone says nothing: a refusal may be another one."""

    async def outcome(_: Fleet) -> str:
        raise AssertionError("it is not asked")

    step = Step("It is refused.", "echo refused for its name; false", outcome, codes=(1,), shows="quarantine")
    with pytest.raises(PermanentError, match='does not have "quarantine"'):
        asyncio.run(tell_step(cast("Fleet", SimpleNamespace()), 1, step, {}, pause=False))


@pytest.mark.parametrize(
    ("is_compared", "health", "verdict"),
    [(False, "Degraded", None), (True, "Healthy", True), (True, "Degraded", False)],
)
def test_an_application_of_the_story_proves_its_target_when_it_is_compared_after_the_sync(
    *, is_compared: bool, health: str, verdict: bool | None
) -> None:
    """The story has the recipe of the document; new revision and old health prove nothing."""
    rule = msgspec.convert(yaml.safe_load(EVIDENCE)["evidence"]["object"], EvidenceObject)
    document = (Path(__file__).parents[3] / "docs" / "rollouts.md").read_text("utf-8")
    assert f"    current: >-\n      {rule.current[:60]}" in document
    commit = "a" * 40
    found = {
        "metadata": {"name": "web", "namespace": "argocd"},
        "status": status_of(commit, 1e9, is_compared=is_compared, health=health),
    }
    assert object_proof(rule, found, Published("web.v2", commit)).verdict is verdict
    assert object_proof(rule, found, Published("web.v3", "b" * 40)).verdict is None
