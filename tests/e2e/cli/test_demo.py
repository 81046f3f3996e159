"""`pvbus demo` with a small fleet: what it says of each step is read from the cluster."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from pvbus.cli.datafolder import DataPaths, held
from tests.e2e.cli.command import SECONDS_MAX, pvbus, running
from tests.e2e.kubectl.conftest import VERSIONS
from tests.tools.kubectl import KubectlUnavailableError, find_or_build

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.kubectl, pytest.mark.timeout(600)]

REGION = 6
SIZE = 4 * REGION


@pytest.fixture
def path() -> str:
    """PATH with kubectl."""
    found = shutil.which("kubectl")
    try:
        kubectl = Path(found) if found else find_or_build(VERSIONS[-1])
    except KubectlUnavailableError as exc:
        pytest.skip(f"the story's commands need kubectl: {exc}")
    return f"{kubectl.parent}:{os.environ['PATH']}"


def test_the_second_day_is_told(tmp_path: Path, path: str) -> None:
    """Upgrades keep an edit, one is in conflict, a region goes first, nothing is deleted by a slip."""
    arguments = ("demo", "day2", "--data", tmp_path / "day", "--clusters", str(REGION))
    done = pvbus(*arguments, cwd=tmp_path, PATH=path)
    assert done.code == 0, done.out + done.err
    outcomes = [line for line in done.out.splitlines() if line.startswith("now: ")]
    for words in (
        f"now: {SIZE} variants are ready",
        f"{SIZE} packages are published in git",
        f"{SIZE} upgrade drafts after",
        "has `image: registry.example.dev/web:2.0.0` and keeps `pathType: Exact`",
        f"1 of {SIZE} drafts in conflict: edge-europe.europe-01-web.packagevariant-2",
        f"second revisions: {SIZE - REGION} Draft, {REGION} Published",
        f"second revisions of europe: 1 Draft, {REGION - 1} Proposed",
        "europe-01-web.packagevariant-2 is Proposed with `image: registry.example.dev/web:1.0.1`",
        f"its draft is gone; its published package is DeletionProposed, for a person to approve; {SIZE - 1}",
        "packagevariant-1 is Published and edge-africa.africa-01-web.packagevariant-2 is Draft after",
        f"nothing was deleted: {SIZE} variants",
    ):
        assert any(words in line for line in outcomes), (words, outcomes)
    assert "1 to settle" in done.out.partition("\n5. ")[2].partition("\n6. ")[0]
    again = pvbus(*arguments, cwd=tmp_path, PATH=path)
    assert again.code == 1
    assert "choose a fresh folder" in again.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "hung up"])
def test_a_story_that_is_ended_leaves_nothing_running(
    tmp_path: Path, path: str, number: signal.Signals
) -> None:
    """The fleet that it has started ends with it, as after Ctrl-C."""
    folder = tmp_path / "day"
    arguments = ("demo", "day2", "--data", folder, "--clusters", str(REGION))
    with running(*arguments, cwd=tmp_path, PATH=path) as story:
        story.wait_for("in the background")
        deadline = time.monotonic() + SECONDS_MAX
        while not (folder / "kubeconfig").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert story.end(number) == 128 + number
    with held(DataPaths(folder)):
        pass  # nobody else has the folder


def test_what_fails_in_a_rollout_goes_out_to_nobody_else(tmp_path: Path, path: str) -> None:
    """A canary fails by its Application, a joiner gets nothing of it, and a train waits for its members."""
    stations = ("--station", "train", "--station", "quarantine", "--station", "joiner")
    output, outcomes = tell_a_rollout(tmp_path, path, *stations)
    for words in (
        f"{SIZE} packages are published with web:1.0.0",
        "its Application lags, so it proves nothing: wave 1 of 3 (web-edge-asia-asia-01-web: Evidence",
        "proposed on 2 sites, and nothing goes: train edge-asia/schema+shop waits for member shop",
        "on each of 2 sites the schema was published before the shop",
        "of all clusters asia-01 alone had web:2.0.0",
        f"blueprints/web@v2 is quarantined; {SIZE - 1} proposals of it wait, and none was approved",
        "asia-99 got nothing: its one revision is a draft",
    ):
        assert any(words in line for line in outcomes), (words, outcomes)
    assert "go back to the last good revision blueprints/web@v1" in output


def test_a_rollout_is_rolled_back_in_its_second_wave(tmp_path: Path, path: str) -> None:
    """Drafts wait for their gates, the canary for a person; a larger wave brings errors, with or without a
    Prometheus to see them."""
    output, outcomes = tell_a_rollout(tmp_path, path, "--station", "waves")
    half = SIZE // 2
    for words in (
        f"now: {SIZE - 1} drafts have an address and a license, passed the validator, and are proposed",
        "that of asia-01 has no license, and is Draft",
        "the policy approves nobody before its canary (CanaryNotReady)",
        f"all {SIZE} drafts are proposed",
        f"{half} packages are rolled back after",
        f"{SIZE} of {SIZE} packages have web:1.0.0 in git, {half} of them by a rollback",
    ):
        assert any(words in line for line in outcomes), (words, outcomes)
    has_prometheus = "Prometheus: http" in output
    history = output.partition("ATTEMPT")[2]
    assert ("health (7 is above max 1)" in history) == has_prometheus
    assert ("RollBackRequested" in history) != has_prometheus


def tell_a_rollout(folder: Path, path: str, *stations: str) -> tuple[str, list[str]]:
    """Return what the story says, and its outcomes."""
    arguments = ("demo", "rollout", "--data", str(folder / "fleet"), "--clusters", str(REGION), *stations)
    done = pvbus(*arguments, cwd=folder, PATH=path)
    assert done.code == 0, done.out + done.err
    return done.out, [line for line in done.out.splitlines() if line.startswith("now: ")]
