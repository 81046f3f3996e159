"""Runs `pvbus` commands in forks of one process that has imported everything.

Most of the time of a short command is imports. A fork runs the same `main` with the caller's arguments,
folder, environment and standard streams, and its exit code is the caller's: only the start of the interpreter
is left out. So tests of what a command does use it (`run_command`), and those of its start and end do not.

    python -I -S warmcommand.py SOCKET ARGUMENT...

is a caller: a few milliseconds, as it imports nothing but what a socket needs.
"""

import atexit
import functools
import os
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

COMMAND_BYTES_MAX = 1 << 17
PARENT_SECONDS = 5.0
"""How long a server may outlive the process that started it."""
STREAMS = (0, 1, 2)
SOCKET = "socket"


def call(path: str, arguments: list[str]) -> int:
    """Run a command in a fork of the server at a socket, as this process is; return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        return _call(connection, path, os.getcwd(), os.environ, arguments, STREAMS)


def _call(
    connection: socket.socket,
    path: str,
    folder: str,
    environment: Mapping[str, str],
    arguments: Sequence[str],
    streams: Sequence[int],
) -> int:
    connection.connect(path)
    variables = [f"{name}={value}" for name, value in environment.items()]
    words = [folder, str(len(variables)), *variables, *arguments]
    socket.send_fds(connection, [b"\0".join(map(os.fsencode, words))], streams)
    connection.shutdown(socket.SHUT_WR)
    code = connection.recv(1)
    return code[0] if code else 1  # killed: nobody was left to report


def serve(path: str) -> None:
    """Import the command, say so in a line, then run each call in a fork, until this process is killed."""
    import gc
    import signal

    import pvbus.cli.plan
    import pvbus.cli.up  # noqa: F401 - what is called most, with all that both import

    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(PARENT_SECONDS)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks report to their callers, not to us
        gc.freeze()
        print("ready", flush=True)
        while os.getppid() == parent:  # who is killed cannot end it
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.setblocking(True)
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _run(connection)
            connection.close()


def _run(connection: socket.socket) -> None:
    """Run one call in this process, report its exit code, and end."""
    import traceback

    from pvbus.cli.main import main

    code = 1
    try:
        sent, streams, _, _ = socket.recv_fds(connection, COMMAND_BYTES_MAX, len(STREAMS))
        folder, count, *rest = map(os.fsdecode, sent.split(b"\0"))
        variables, arguments = rest[: int(count)], rest[int(count) :]
        os.environ.clear()
        for variable in variables:
            name, _, os.environ[name] = variable.partition("=")
        _take(streams)
        os.chdir(folder)
        main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(bytes([code]))
        os._exit(code)


def _take(streams: Iterable[int]) -> None:
    """Make the caller's standard streams those of this process."""
    for given, stream in zip(streams, STREAMS, strict=True):
        os.dup2(given, stream)
        os.close(given)
    # What Python knows of a stream, such as whether it can seek, it has asked of the server's.
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)


@contextmanager
def warm_command(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Run a server; yield the command line of a caller, to which a shell's words can be added."""
    import subprocess

    path = folder / SOCKET
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.tools.warmcommand", "--serve", str(path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield shlex.join([sys.executable, "-I", "-S", __file__, str(path)])
    finally:
        process.kill()
        process.communicate()


def run_command(
    arguments: Sequence[str], folder: str, environment: Mapping[str, str], seconds: float
) -> "subprocess.CompletedProcess[str]":
    """Run `pvbus` to its end in a fork of this process's own server; it has no input.

    Raises TimeoutError. A fork has the interpreter of the server: what its variables and its start decide is
    for tests that start a process.
    """
    import subprocess
    import tempfile

    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        open(os.devnull) as nothing,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.settimeout(seconds)
        streams = [nothing.fileno(), out.fileno(), err.fileno()]
        code = _call(connection, _own_server(), folder, environment, arguments, streams)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["pvbus", *arguments], code, out.read(), err.read())


@functools.cache
def _own_server() -> str:
    """Start a server that lives as long as this process; return its socket."""
    import tempfile

    stack = ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pvbus-warm-")))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PVBUS_")}
    checkout = str(Path(__file__).parents[2])
    stack.enter_context(warm_command(folder, {**variables, "PYTHONPATH": checkout}))
    return str(folder / SOCKET)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(call(sys.argv[1], sys.argv[2:]))
