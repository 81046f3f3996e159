"""`pvbus up --processes N`: each service as processes, which are watched over."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from pvbus.runtime.process.hosting import BUS_SECONDS_MAX
from tests.e2e.cli.command import Running, pvbus, running
from tests.tools.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.long]

SERVICES = ("conditions", "ingest", "inject", "render", "unroll")


def children(up: Running) -> dict[int, str]:
    """Return the processes that `up` has started, by id, with their commands."""
    listed = Path(f"/proc/{up.process.pid}/task/{up.process.pid}/children").read_text().split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in listed}
    return {pid: command.replace(b"\0", b" ").decode() for pid, command in commands.items()}


def serving(up: Running) -> list[str]:
    return re.findall(r"^(\w+)/\d+: metrics and health: ", up.output, re.MULTILINE)


def wait_until_serving(up: Running, count: int) -> None:
    deadline = time.monotonic() + 90
    while len(serving(up)) < count:
        assert up.process.poll() is None, up.output
        assert time.monotonic() < deadline, up.output
        time.sleep(0.1)


def one_of(up: Running, service: str) -> int:
    return next(pid for pid, command in children(up).items() if f" run {service} " in command)


def test_all_is_ready_with_services_as_processes(tmp_path: Path) -> None:
    """`--once` knows when processes are done, says so as one process does, and leaves none behind."""
    done = pvbus("up", "--once", "--processes", "1", cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "all ready after" in done.out
    assert sorted(re.findall(r"^(\w+)/1: metrics", done.out, re.MULTILINE)) == list(SERVICES)
    left = [each for each in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _text(each)]
    assert left == []


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:  # it has just ended
        return ""


def test_what_dies_is_started_again_and_a_signal_ends_all(tmp_path: Path) -> None:
    """A killed process is named with its code, and comes back; SIGTERM ends `up` and its children with 0."""
    with running("up", "--processes", "1", cwd=tmp_path) as up:
        wait_until_serving(up, 5)
        os.kill(one_of(up, "render"), signal.SIGKILL)
        up.wait_for("render/1 was killed by signal 9 (Killed); restarting in ")
        wait_until_serving(up, 6)
        assert serving(up)[-1] == "render"
        pids = list(children(up))
        assert len(pids) == 6  # the API server, too
        assert up.end() == 0, up.output
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        assert "Traceback" not in up.output


def test_children_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """`kill -9` of `up` leaves no process."""
    with running("up", "--processes", "1", cwd=tmp_path) as up:
        wait_until_serving(up, 5)
        pids = list(children(up))
        up.end(signal.SIGKILL)
        deadline = time.monotonic() + 30
        while [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, up.output
            time.sleep(0.1)


@pytest.mark.parametrize("command", ["run", "up"])
def test_a_signal_ends_what_still_begins(command: str, tmp_path: Path) -> None:
    """Who waits for a Kafka that is not there ends with 0 at SIGTERM, not when the wait is over."""
    (port,) = free_ports(1)
    services = ("unroll",) if command == "run" else ()
    with running(command, *services, "--bus", f"kafka://127.0.0.1:{port}", cwd=tmp_path) as waiting:
        waiting.wait_for("the bus does not answer yet")
        began = time.monotonic()
        assert waiting.end() == 0, waiting.output
        assert time.monotonic() - began < BUS_SECONDS_MAX / 3
        assert "Traceback" not in waiting.output


def test_settings_that_became_wrong_end_up(tmp_path: Path) -> None:
    """A process that cannot come back as its settings are refused is not started for ever: exit code 2."""
    settings = tmp_path / "pvbus.yaml"
    settings.write_text("removalsMax: 10\n")
    with running("up", "--processes", "1", cwd=tmp_path, PVBUS_CONFIG=str(settings)) as up:
        wait_until_serving(up, 5)
        settings.write_text("removalsMax: many\n")
        os.kill(one_of(up, "unroll"), signal.SIGKILL)
        assert up.process.wait(60) == 2, up.output
        assert "removalsMax" in up.output
        assert up.output.count("restarting in") == 1


def test_hints_name_the_bus_and_the_folder(tmp_path: Path) -> None:
    """What `up` tells to run next works as it is, wherever bus and data are."""
    bus = f"sqlite:{tmp_path / 'my bus.db'}"
    (tmp_path / "set.yaml").write_text(SET)
    done = pvbus("up", "set.yaml", "--once", "--data", "here", "--bus", bus, "--timeout", "60", cwd=tmp_path)
    assert done.code == 1
    assert f"export PVBUS_BUS='{bus}'" in done.out
    hint = f"pvbus explain --set default/sites --data here --bus '{bus}'"
    assert f"see: {hint}\n" in done.out
    explained = pvbus("explain", "--set", "default/sites", "--data", "here", "--bus", bus, cwd=tmp_path)
    assert explained.code == 0, explained.err
    assert "Ready=False" in explained.out


SET = """\
apiVersion: config.porch.kpt.dev/v1alpha2
kind: PackageVariantSet
metadata: {name: sites, namespace: default}
spec:
  upstream: {repo: blueprints, package: web, revision: 1}
  targets:
  - objectSelector: {apiVersion: v1, kind: ConfigMap, matchLabels: {kind: site}}
    template: {downstream: {repo: edge}}
"""
