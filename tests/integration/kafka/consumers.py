"""The example consumers as processes: followed, killed, frozen, and made to print their views."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tests.tools.installation import CHECKOUT, environment
from tests.tools.kafka import java_command, libraries

FOLDER = CHECKOUT / "examples" / "consumers"

NEEDED = {"kcat": "kcat", "jq": "jq", "javac": "openjdk-17-jdk-headless"}
"""What the examples run on, and Debian's package of it."""


class Printed(NamedTuple):
    """What a consumer printed. repeated, stale: the events that it dropped; unknown: those of other types."""

    lines: list[str]
    applied: int
    repeated: int
    stale: int
    unknown: int
    errors: str

    @property
    def redelivered(self) -> int:
        return self.repeated + self.stale

    @property
    def read(self) -> int:
        return self.applied + self.redelivered + self.unknown


class Consumers:
    """The commands of the three examples, for one installation."""

    def __init__(self, bootstrap: str, prefix: str, java: list[str]) -> None:
        """java: the command of the example in Java, see `compiled`."""
        self.bootstrap, self.prefix, self._java = bootstrap, prefix, java

    def python(self, *options: str) -> list[str]:
        given = ("--bootstrap", self.bootstrap, "--prefix", self.prefix)
        return [sys.executable, str(FOLDER / "fleet_view.py"), *given, *options]

    def java(self, *options: str) -> list[str]:
        return [*self._java, self.bootstrap, self.prefix, *options]

    def shell(self, folder: Path) -> list[str]:
        return [str(FOLDER / "fleet-view.sh"), self.bootstrap, self.prefix, str(folder)]

    @property
    def waiting(self) -> list[Callable[..., list[str]]]:
        """Return the three commands that wait for a set: of its name, uid, generation and condition."""
        script = str(FOLDER / "wait-applied.sh")
        return [
            lambda *wanted: self.python("--wait", *wanted),
            lambda *wanted: self.java("--wait", *wanted),
            lambda *wanted: [script, self.bootstrap, self.prefix, *wanted],
        ]

    def group(self, name: str) -> str:
        return f"{self.prefix}.pvbus-consumer-{name}"


def compiled(folder: Path) -> list[str]:
    """Compile the example in Java, and return its command. `java FleetView.java` compiles at each start."""
    jars = f"{libraries()}/*"
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(FOLDER / "FleetView.java")], check=True)
    program, *options = java_command()
    return [
        program,
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        *options[:-1],
        f"{jars}:{folder}",
        "FleetView",
    ]


def printed(output: bytes, errors: bytes) -> Printed:
    text = errors.decode()
    found = re.search(r"applied (\d+), repeated (\d+), stale (\d+), unknown (\d+)", text)
    assert found is not None, text
    applied, repeated, stale, unknown = map(int, found.groups())
    return Printed(output.decode().splitlines(), applied, repeated, stale, unknown, text)


def run(command: list[str], seconds_max: float) -> Printed:
    """Run a consumer to its end."""
    done = subprocess.run(command, capture_output=True, timeout=seconds_max, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return printed(done.stdout, done.stderr)


def timed(command: list[str], seconds_max: float) -> tuple[Printed, float]:
    began = time.perf_counter()
    return run(command, seconds_max), time.perf_counter() - began


@contextlib.contextmanager
def running(command: list[str], log: BinaryIO | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until the block ends. log: of its output; by default it is read at its end."""
    process = subprocess.Popen(
        command, stdout=log or subprocess.PIPE, stderr=log or subprocess.PIPE, env=environment()
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Follower:
    """A consumer that follows the changes. Made by `following`."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self.process = self._start()

    def _start(self, *options: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*self._command, "--follow", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def kill(self) -> None:
        """End it as kill -9 does."""
        self.process.kill()
        self.process.communicate()

    def restart_from_the_oldest(self) -> None:
        """Kill it, and start another one, which gets every retained change again."""
        self.kill()
        self.process = self._start("--replay")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ended(self, seconds_max: float) -> Printed:
        """Let it read to the end, and print its view."""
        assert self.process.poll() is None, self.process.communicate()
        self.process.send_signal(signal.SIGTERM)
        return printed(*self.process.communicate(timeout=seconds_max))


@contextlib.asynccontextmanager
async def following(*commands: list[str]) -> AsyncIterator[list[Follower]]:
    """Run consumers until the block ends."""
    followers = [Follower(command) for command in commands]
    try:
        yield followers
    finally:
        for each in followers:
            each.thaw()
            await asyncio.to_thread(each.kill)


def killed_half_way(command: list[str], folder: Path, seconds_max: float) -> bool:
    """Start the shell's consumer, and kill it and its children once it reads; return whether it was killed.

    folder: where it has its view.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + seconds_max
    try:
        while not list(folder.glob("new.*/changes")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait(seconds_max)
    return code == -signal.SIGKILL
