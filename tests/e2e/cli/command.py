"""The command `pvbus` as a person runs it: a process, its output and its exit code."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.tools.warmcommand import run_command

REPOSITORY = Path(__file__).parent.parent.parent.parent
SECONDS_MAX = 300
"""An idle machine needs a tenth of it; the others that run tests on this one take their share."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def environment(**more: str) -> dict[str, str]:
    """No settings of the person who runs the tests, and a kubeconfig that must not be looked at."""
    retained = {name: value for name, value in os.environ.items() if not name.startswith("PVBUS_")}
    return {**retained, "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": "/nonexistent/kubeconfig", **more}


def pvbus(*arguments: str | Path, cwd: Path, seconds: float = SECONDS_MAX, **variables: str) -> Done:
    """Run a command to its end, in a fork of a process that has imported it."""
    done = run_command([*map(str, arguments)], str(cwd), environment(**variables), seconds)
    return Done(done.returncode, done.stdout, done.stderr)


class Running:
    """A command that goes on, with its output in a file."""

    def __init__(self, process: "subprocess.Popen[str]", output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, *, seconds: float = SECONDS_MAX) -> str:
        """Wait until the output has this text; returns the line."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.output.splitlines():
                if text in line:
                    return line
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.output}"
            time.sleep(0.05)
        raise AssertionError(f"no {text!r} within {seconds} s:\n{self.output}")

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(SECONDS_MAX)


@contextmanager
def running(*arguments: str | Path, cwd: Path, **variables: str) -> Iterator[Running]:
    """Start a command; it is killed at the end of the block if it still runs."""
    output = cwd / f"output-{time.monotonic_ns()}"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "pvbus.cli", *map(str, arguments)],
            cwd=cwd,
            env=environment(PYTHONUNBUFFERED="1", **variables),
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Running(process, output)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(SECONDS_MAX)


def git(repository: Path, *arguments: str) -> str:
    """Ask plain git."""
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout
