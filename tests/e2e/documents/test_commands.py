"""The commands of the README's quick start, of the tutorial and of the platform work as they are written.

The `sh` blocks of a document run in one shell, in order, as a person runs them. A block that starts pvbus and
does not end runs in the background; the next one begins when pvbus says that everything is ready. Where a
document starts pvbus again, its reader has ended it with Ctrl-C; so the script ends the one that runs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.cli.command import REPOSITORY, environment
from tests.e2e.kubectl.conftest import VERSIONS
from tests.tools.kubectl import KubectlUnavailableError, find_or_build

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.kubectl, pytest.mark.timeout(600)]

START = re.compile(r"(make run|pvbus up)\b")
SERVER = re.compile(r"(make run|pvbus up)\b(?!.*--once)")
SECONDS_MAX = 400
"""Ten times what an idle machine needs; the others that run tests on this one take their share."""
READY = "sets 1/1 ready"
WAIT = """server=$!
while ! grep -q '{ready}' server.log; do kill -0 $server; sleep 0.2; done 2>/dev/null
"""
"""Ends the script, which is run with -e, when the server ends first."""
END = "kill -TERM $server; wait $server\n"


def blocks(text: str) -> list[str]:
    """Return the shell blocks of a document."""
    return re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)


def section(text: str, heading: str) -> str:
    """Return one section of a document, without its heading."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def script(commands: list[str], ready: str) -> str:
    """Return one shell script: each block as it is, a server in the background."""
    text, runs = "set -eux\n", False
    for block in commands:
        text += END if runs and START.match(block) else ""
        starts = bool(SERVER.match(block))
        runs = starts or (runs and not START.match(block))
        waiting = WAIT.format(ready=ready)
        begun = f"rm -f server.log\n{{ exec {block.strip()}; }} > server.log 2>&1 &\n{waiting}"
        text += begun if starts else block
    return text


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that is for these commands what a checkout is, after `make setup-run`."""
    folder = tmp_path / "checkout"
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "install.py").write_text("# everything is installed\n")
    shutil.copy(REPOSITORY / "Makefile", folder)
    (programs / "pvbus").write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m pvbus.cli "$@"\n')
    (programs / "pvbus").chmod(0o755)
    return folder


@pytest.fixture
def kubectl() -> Path:
    found = shutil.which("kubectl")
    try:
        return Path(found) if found else find_or_build(VERSIONS[-1])
    except KubectlUnavailableError as exc:
        pytest.skip(f"the documents' commands need kubectl: {exc}")


OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")
"""Variables that a make hands to one that a test starts: a user's shell has none of them."""


def run(commands: list[str], cwd: Path, kubectl: Path, ready: str = READY) -> str:
    """Run the commands, end what they started, and return what they printed."""
    path = f"{kubectl.parent}:{os.environ['PATH']}"
    variables = environment(PYTHONUNBUFFERED="1", PATH=path, GIT_CONFIG_GLOBAL=os.devnull)
    for name in ("KUBECONFIG", *OF_MAKE):
        variables.pop(name, None)
    log = cwd / "commands.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["bash", "-c", script(commands, ready)],
            cwd=cwd,
            env=variables,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    killed = ""
    try:
        process.wait(SECONDS_MAX)
    except subprocess.TimeoutExpired:
        killed = f"not done after {SECONDS_MAX} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    logs = "".join(path.read_text() for path in cwd.glob("**/*.log"))
    assert (process.returncode, killed) == (0, ""), f"{killed}\n{logs}"
    return log.read_text()


def test_the_quick_start_runs(checkout: Path, kubectl: Path) -> None:
    """It makes 200 variants, publishes one, and explains one."""
    commands = blocks(section((REPOSITORY / "README.md").read_text(), "Quick start"))
    output = run(commands, checkout, kubectl)
    assert "packagevariantset.config.porch.kpt.dev/web" in output
    assert (checkout / ".pvbus/example/edge-asia.git/refs/tags/asia-01-web/v1").exists()


def test_the_tutorial_runs(checkout: Path, kubectl: Path) -> None:
    """It ends with a published package that has the region and the injected data of its cluster."""
    output = run(blocks((REPOSITORY / "docs" / "tutorial.md").read_text()), checkout, kubectl)
    assert "region: eu # kpt-set: ${region}" in output
    assert 'nodes: "9"' in output.rpartition("us-2-hello/v1:")[2]
    assert "applied: everything is as the plan announced" in output
    assert "+  text: hello from the second revision" in output.rpartition("pvbus diff")[2]


def test_the_walk_through_a_platform_runs(checkout: Path, kubectl: Path) -> None:
    """It installs, upgrades, goes back, is refused, publishes, removes, and starts again."""
    path = f"{checkout / '.venv' / 'bin'}"
    commands = [f"export PATH={path}:$PATH\n", *blocks((REPOSITORY / "docs" / "platform.md").read_text())]
    output = run(commands, checkout, kubectl, "installs 11/11 ready")
    assert "Composition shops belongs to Configuration shop" in output
    assert '["small","medium","large"]' in output
    assert output.count("all ready after") == 2
    assert "configuration.pkg.crossplane.io/legacy " in output.rpartition("get crds,xrds")[2]
