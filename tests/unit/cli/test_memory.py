"""Commands that get no memory end with 1 and a sentence, and those that get no thread end in time."""

import signal
import subprocess
import sys

import pytest

from pvbus.core.errors import NO_MEMORY, lacks_memory
from tests.e2e.cli.command import environment

END = """
import threading
from pvbus.runtime.process.signals import end_within

def start(thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = start
end_within(0.2, lambda: None, "why")
while True:
    pass
"""


@pytest.mark.parametrize(
    ("error", "is_of_memory"),
    [
        (MemoryError(), True),
        (OSError(12, "Cannot allocate memory"), True),
        (OSError(28, "No space left on device"), False),
        (RuntimeError("can't start new thread"), True),
        (RuntimeError("no running event loop"), False),
        (ImportError("libcrypto.so: failed to map segment from shared object"), True),
        (ImportError("No module named 'x'"), False),
    ],
)
def test_errors_of_memory(error: Exception, is_of_memory: bool) -> None:
    assert lacks_memory(error) == is_of_memory


def test_a_command_without_memory_ends_with_a_sentence() -> None:
    """What it would print takes more than it may have."""
    code = (
        "import resource, sys, click\n"
        "from pvbus.cli import main as module\n"
        "@click.command()\n"
        "def greedy():\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "    bytearray(1 << 31)\n"
        "module.Commands.get_command = lambda *_: greedy\n"
        "module.main(['version'])\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: {NO_MEMORY}\n")


def test_a_process_that_gets_no_thread_for_its_end_is_ended_by_the_kernel() -> None:
    command = [sys.executable, "-c", END]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGALRM, done.stderr
