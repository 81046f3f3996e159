"""The finder of kubectl says in words what is missing, and takes no other version for the one asked."""

from pathlib import Path

import pytest

from tests.tools import gomodules, kubectl


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache, no Go, and one folder on PATH."""
    monkeypatch.setenv("PVBUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gomodules, "GO_FOLDER", str(tmp_path))
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def pretend(path: Path, version: str) -> None:
    answer = f'{{"clientVersion": {{"gitVersion": "{version}"}}}}'
    path.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    path.chmod(0o755)


def test_without_go(bare: Path) -> None:
    """Where nothing can be had the message names what to install."""
    with pytest.raises(kubectl.KubectlUnavailableError, match=r"install kubectl 1\.36, or Go"):
        kubectl.find_or_build("1.36.3")


def test_on_path(bare: Path) -> None:
    """A kubectl of the same minor version is taken, another is not."""
    pretend(bare / "kubectl", "v1.36.9")
    assert kubectl.find_or_build("1.36.3") == bare / "kubectl"
    with pytest.raises(kubectl.KubectlUnavailableError):
        kubectl.find_or_build("1.32.4")


def test_behind_a_dispatcher(bare: Path) -> None:
    """A dispatcher runs what fits the server, so the binary of the version beside it is taken."""
    pretend(bare / "kubectl", "v1.32.4-dispatcher")
    with pytest.raises(kubectl.KubectlUnavailableError):
        kubectl.find_or_build("1.32.4")
    pretend(bare / "kubectl.1.32", "v1.32.5")
    assert kubectl.find_or_build("1.32.4") == bare / "kubectl.1.32"


def test_cached(bare: Path) -> None:
    """What was built once is not looked for again."""
    built = kubectl.cached("1.36.3")
    built.parent.mkdir(parents=True)
    built.touch()
    assert kubectl.find_or_build("1.36.3") == built
