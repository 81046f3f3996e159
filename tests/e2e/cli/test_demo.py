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
from tests.tools import prometheus
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


@pytest.mark.parametrize("has_prometheus", [True, False], ids=["prometheus", "object"])
def test_a_rollout_is_told(tmp_path: Path, path: str, has_prometheus: bool) -> None:
    """It goes bad in its third wave: all that was approved is rolled back, and no attempt follows."""
    if has_prometheus:
        path = f"{prometheus.found_or_skipped().parent}:{path}"
    else:
        path = _without_prometheus(tmp_path, path)
    arguments = ("demo", "rollout", "--data", tmp_path / "fleet", "--clusters", str(REGION))
    done = pvbus(*arguments, cwd=tmp_path, PATH=path)
    assert done.code == 0, done.out + done.err
    assert ("Prometheus: http" in done.out) == has_prometheus
    outcomes = [line for line in done.out.splitlines() if line.startswith("now: ")]
    half = SIZE // 2
    for words in (
        f"{SIZE} packages are published with web:1.0.0",
        f"{SIZE - 1} have a license, that of asia-01 has none",
        "the draft of asia-01 has example.dev/Licensed Unknown",
        f"{SIZE - 1} drafts are proposed after",
        "that of asia-01 is Draft",
        f"{SIZE} drafts are proposed, that of asia-01",
        f"drafts: {half} Proposed, {half} Published",
        f"{half} packages are rolled back after",
        f"{SIZE} of {SIZE} packages have web:1.0.0 in git, {half} of them by the rollback",
    ):
        assert any(words in line for line in outcomes), (words, outcomes)
    assert "attempt 1 is RolledBack" in done.out
    history = done.out.partition("ATTEMPT")[2]
    assert ("health (7 is above max 1)" in history) == has_prometheus
    assert [line for line in history.splitlines() if line.startswith("  2 ")] == []
    again = pvbus(*arguments, cwd=tmp_path, PATH=path)
    assert again.code == 1
    assert "choose a fresh folder" in again.err


def _without_prometheus(tmp_path: Path, path: str) -> str:
    """Return a PATH of one folder, which has what is on the other one except prometheus."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("kubectl", "git", "sed", "sh", "cat", "env"):
        if found := shutil.which(name, path=path):
            (folder / name).symlink_to(found)
    return str(folder)
