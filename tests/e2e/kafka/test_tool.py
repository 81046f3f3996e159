"""`python -m tests.tools.kafka run -- COMMAND`: a command that has a Kafka while it runs."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import kafka
from tests.tools.installation import CHECKOUT

TOOL = (sys.executable, "-m", "tests.tools.kafka", "run", "--")
GIVEN = "127.0.0.1:1234"


def variables(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "PVBUS_TEST_KAFKA"}, **more}


def tool(*command: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TOOL, *command],
        cwd=CHECKOUT,
        env=variables(**more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("cache", [{}, {"PVBUS_CACHE": "an empty one"}])
def test_without_java_one_line_says_what_to_install(tmp_path: Path, cache: dict[str, str]) -> None:
    """The command is not run, and the exit code is 1, whether Kafka's jars are there or not."""
    empty = {name: str(tmp_path / value) for name, value in cache.items()}
    done = tool("sh", "-c", "echo it ran", PATH=str(tmp_path), **empty)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert re.search(r"^error: Kafka .* needs Java \d+ or newer .*apt install .*PVBUS_TEST_KAFKA=", line)


def test_a_running_kafka_is_used_and_the_exit_code_is_the_commands() -> None:
    """Where it is stands in every argument that asks for it."""
    script = 'test "$0 $1" = "kafka://127.0.0.1:1234/x 127.0.0.1:1234" && exit 7'
    done = tool("sh", "-c", script, "kafka://{kafka}/x", "{kafka}", PVBUS_TEST_KAFKA=GIVEN)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"Kafka of PVBUS_TEST_KAFKA: {GIVEN}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_the_commands(number: int) -> None:
    """It gets each signal once, and may end as it likes."""
    traps = "trap 'echo got TERM; exit 3' TERM; trap 'echo got INT; exit 3' INT"
    script = f"{traps}; echo on; while :; do sleep 0.1; done"
    with subprocess.Popen(
        [*TOOL, "sh", "-c", script],
        cwd=CHECKOUT,
        env=variables(PVBUS_TEST_KAFKA=GIVEN),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Kafka")
        assert process.stdout.readline() == "on\n"
        process.send_signal(number)
        assert process.stdout.read() == f"got {signal.Signals(number).name[3:]}\n"
        assert process.wait(10) == 3


@pytest.mark.kafka
@pytest.mark.timeout(300)
def test_the_broker_is_there_for_the_command_and_gone_after_it() -> None:
    """A broker of its own listens while the command runs, wherever Kafka can be started."""
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("a running Kafka is used instead")
    connect = "import socket, sys; h, p = sys.argv[1].split(':'); socket.create_connection((h, int(p)), 5)"
    done = subprocess.run(
        [*TOOL, sys.executable, "-c", connect, "{kafka}"],
        cwd=CHECKOUT,
        env=variables(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    if "needs Java" in done.stderr and os.environ.get("CI") != "true":
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    port = int(done.stdout.strip().rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


@pytest.mark.kafka
@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_an_archive_of_classes_that_java_cannot_use_is_left_aside(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's tools work, and print nothing else."""
    jars, made = kafka.libraries(), kafka.archive()
    (tmp_path / jars.name).symlink_to(jars)
    (tmp_path / made.name).write_bytes(content)
    monkeypatch.setenv("PVBUS_CACHE", str(tmp_path))
    command = kafka.tool("TopicCommand", "--version")
    assert any(str(tmp_path / made.name) in word for word in command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == (kafka.VERSION, "")
