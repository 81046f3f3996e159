"""`make run-cluster`: the example fleet on a real Kubernetes API server, as a person runs it."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cli.command import Running, environment
from tests.tools.clusterprograms import VERSION, ClusterUnavailableError, find_or_build
from tests.tools.kubectl import KubectlUnavailableError
from tests.tools.kubectl import find_or_build as find_or_build_kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600, func_only=True)]

SMALL = "5"
"""Clusters per region; the whole fleet is that of test_same_fleet."""
TOOL = (sys.executable, "-m", "tests.tools.runcluster")


@pytest.fixture(scope="module")
def kubectl() -> Path:
    """A kubectl for the cluster; the cluster's programs are there, too."""
    try:
        find_or_build()
        return find_or_build_kubectl(VERSION)
    except (ClusterUnavailableError, KubectlUnavailableError) as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextmanager
def run_cluster(folder: Path, *arguments: str) -> Iterator[Running]:
    """Run the command with its output in a file."""
    output = folder / "output"
    cache = {name: os.environ[name] for name in ("PVBUS_CACHE",) if name in os.environ}  # with the programs
    with output.open("w") as stream:
        process = subprocess.Popen(
            [*TOOL, *arguments],
            env=environment(**cache),
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Running(process, output)
    finally:
        process.kill()
        process.wait(60)


def processes_of(kubeconfig: str) -> list[str]:
    """Return the command lines that name the folder of this kubeconfig."""
    folder = str(Path(kubeconfig).parent)
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = each.read_bytes().decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if folder in line:
            found.append(line.replace("\0", " "))
    return found


def kubeconfig_of(running: Running) -> str:
    return running.wait_for("export KUBECONFIG=").partition("=")[2]


def test_a_time_that_is_too_short_is_a_failure(kubectl: Path, tmp_path: Path) -> None:
    """It ends with 1, says how far it came, and leaves no process."""
    with run_cluster(tmp_path, "--once", "--timeout", "0.1", "--clusters", SMALL) as running:
        code = running.process.wait(200)
        assert code == 1, running.output
        assert "not there after 0 s: PackageVariants: " in running.output
        assert processes_of(kubeconfig_of(running)) == []


def test_what_it_says_to_type_works_and_ctrl_c_ends_everything(kubectl: Path, tmp_path: Path) -> None:
    """A label gives one more variant; after Ctrl-C no process and no file is left, and the code is 0."""
    with run_cluster(tmp_path, "--clusters", SMALL) as running:
        kubeconfig = kubeconfig_of(running)
        running.wait_for("Ctrl-C ends everything")
        commands = re.findall(r"^  (kubectl (?:get|label) .*?)(?:  +#.*)?$", running.output, re.M)
        assert len(commands) == 4, running.output
        listed, label, get, drafts = commands
        path = f"{kubectl.parent}:{os.environ['PATH']}"
        variables = {"KUBECONFIG": kubeconfig, "PATH": path, "HOME": str(tmp_path)}  # kubectl's cache
        assert "packagevariantset.config.porch.kpt.dev/web" in shell(listed, variables)
        shell(label, variables)
        deadline = time.monotonic() + 120
        while subprocess.run(["sh", "-c", get], env=variables, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, running.output
            time.sleep(0.2)
        while "asia-06-web" not in shell(drafts, variables):  # the draft of the new variant
            assert time.monotonic() < deadline, running.output
            time.sleep(0.2)
        # three programs, the services and the package store, which names its folder in its environment only
        programs = [line for line in processes_of(kubeconfig) if ".git" not in line]  # git comes and goes
        assert len(programs) == 4
        store = running.wait_for("of the package store: ").partition("http")[2]
        assert running.end(signal.SIGINT) == 0, running.output
        assert processes_of(kubeconfig) == []
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(f"http{store}", timeout=5.0)
        assert not Path(kubeconfig).exists()
        assert "Traceback" not in running.output


def shell(command: str, variables: dict[str, str]) -> str:
    """Run a command that must succeed; return what it prints."""
    done = subprocess.run(
        ["sh", "-c", command], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
