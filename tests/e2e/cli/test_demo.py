"""`pvbus demo day2` with a small fleet: what it says of each step is read from the cluster."""

import os
import shutil
from pathlib import Path

import pytest

from tests.e2e.cli.command import pvbus
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
