"""`make run` where something is missing: one sentence says what to install."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli.command import REPOSITORY

TOOLS = ("make", "sh", "env", "rm")


def checkout(folder: Path) -> Path:
    """The few files that are looked at, in a folder whose name has spaces."""
    made = folder / "a check out"
    (made / "requirements").mkdir(parents=True)
    for name in ("Makefile", "requirements/install.py"):
        shutil.copy(REPOSITORY / name, made / name)
    for lock in ("run", "dev"):
        (made / "requirements" / f"{lock}.lock").write_text("")
    return made


def tools(folder: Path, **scripts: str) -> Path:
    """A PATH with what make needs, and these programs."""
    found = folder / "bin"
    found.mkdir()
    for name in TOOLS:
        program = shutil.which(name)
        assert program is not None
        (found / name).symlink_to(program)
    for name, text in scripts.items():
        (found / name).write_text(f"#!/bin/sh\n{text}\n")
        (found / name).chmod(0o755)
    return found


def make_run(folder: Path, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["make", "run"],
        cwd=folder,
        env={"PATH": str(path), "HOME": os.environ.get("HOME", "/")},
        executable=str(path / "make"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


OLD = 'case "$*" in *version_info*) exit 1;; esac'
REAL = f'exec "{sys.executable}" "$@"'
WITHOUT_VENV = f"""case "$*" in *install.py*)
  exec "{sys.executable}" -c '
import runpy, sys
sys.modules["ensurepip"] = None
sys.argv = ["requirements/install.py", "run"]
runpy.run_path("requirements/install.py", run_name="__main__")';;
esac
exec "{sys.executable}" "$@" """


@pytest.mark.parametrize(
    ("reason", "scripts", "words"),
    [
        ("no Python", {"git": "exit 0"}, "no Python 3.11 or newer was found: install it"),
        (
            "only an old one",
            {"git": "exit 0", "python3": OLD},
            "no Python 3.11 or newer was found: install it",
        ),
        ("no git", {"python3": REAL}, "git was not found: install it"),
        ("Debian's Python", {"git": "exit 0", "python3": WITHOUT_VENV}, "ensurepip is missing: install it"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, reason: str, scripts: dict[str, str], words: str) -> None:
    """The error is one line that says what and how, and nothing is left behind."""
    folder = checkout(tmp_path)
    done = make_run(folder, tools(tmp_path, **scripts))
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert words in line, reason
    assert not (folder / ".venv").exists()
