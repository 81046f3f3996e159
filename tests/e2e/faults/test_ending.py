"""`pvbus up` ends in time, with a sentence, whatever keeps it from ending in order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.datafolder import DataFolder
from tests.e2e.cli.command import environment, pvbus, running
from tests.tools.installation import Installation, children_of, words_of

SECONDS_MAX = 20.0
"""The promise is 5 s on a machine of one's own; without it, the cases here took minutes, or never ended."""

TIMEOUT_SECONDS = 6

BUSY = """
import asyncio, time
from pvbus.runtime.process.signals import stop_on_signals

async def main():
    with stop_on_signals(asyncio.Event(), seconds=0.5, last=lambda: print("last", flush=True)) as begun:
        begun()
        print("busy", flush=True)
        while True:
            time.sleep(0.01)

asyncio.run(main())
"""


def test_a_loop_that_computes_does_not_keep_a_process_alive() -> None:
    """The event loop never gets to the signal; the process ends all the same, after its last deeds."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (1, "last\n")
    assert err == (
        "error: SIGTERM arrived, and this process had not ended 0.5 s later: it ends by force; nothing that "
        "was answered is lost\n"
    )


def test_a_stopped_api_server_does_not_keep_it_alive(tmp_path: Path) -> None:
    """The child cannot hear anything: it is killed, and one signal is enough."""
    with running("up", "--example", "fleet", "--clusters", "1", "--no-web", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ")
        listed = subprocess.run(["pgrep", "-P", str(up.process.pid)], capture_output=True, text=True)
        (child,) = map(int, listed.stdout.split())
        os.kill(child, signal.SIGSTOP)
        began = time.monotonic()
        up.end(signal.SIGINT)
        assert time.monotonic() - began < SECONDS_MAX
        assert "ended by a signal" in up.output or "it ends by force" in up.output
        assert "Traceback" not in up.output
    folder = DataFolder(tmp_path / ".pvbus")
    folder.open()  # the child is gone, too: nobody holds the folder
    folder.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB: less than the example needs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount: a small disk cannot be made")
    if mounted.returncode:
        pytest.skip(f"this user may not mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_does_not_keep_once_waiting(small_disk: Path, tmp_path: Path) -> None:
    """It ends soon after its timeout with 1 and what to do; with room again it goes on to the end."""
    began = time.monotonic()
    arguments = ("up", "--example", "fleet", "--clusters", "1", "--once", "--data", small_disk / "data")
    done = pvbus(*arguments, "--timeout", str(TIMEOUT_SECONDS), cwd=tmp_path)
    assert done.code == 1
    assert "not ready after " in done.out + done.err
    assert "make room on the disk" in done.out + done.err or "still starting" in done.err
    assert time.monotonic() - began < TIMEOUT_SECONDS + 3 * SECONDS_MAX
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    done = pvbus(*arguments, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "variants 4/4 ready" in done.out


def test_ctrl_c_in_the_middle_of_a_start_shows_no_trace(tmp_path: Path) -> None:
    """A terminal sends it to all processes, also to those that Python still sets up."""
    installation = Installation(tmp_path / "data", arguments=("--processes", "1", "--no-web"))
    installation.start()
    try:
        deadline = time.monotonic() + SECONDS_MAX
        while not any("run" in words_of(pid) for pid in children_of(installation.pid)):
            assert time.monotonic() < deadline, installation.output
            time.sleep(0.02)
        os.killpg(installation.pid, signal.SIGINT)
        assert installation.wait_ended() == 0
    finally:
        installation.kill()
    assert "Traceback" not in installation.output
    assert "KeyboardInterrupt" not in installation.output
