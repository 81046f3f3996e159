"""Runs `pvbus` commands in forks of one process that has imported everything.

Most of the time of a short command is imports. A fork runs the same `main` with the caller's arguments,
folder and standard streams, and its exit code is the caller's: only the start of the interpreter is left out.
The environment is that of the server.

    python -I -S warmcommand.py SOCKET ARGUMENT...

is a caller: a few milliseconds, as it imports nothing but what a socket needs.
"""

import os
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND_BYTES_MAX = 1 << 17
STREAMS = (0, 1, 2)


def call(path: str, arguments: list[str]) -> int:
    """Run a command in a fork of the server at a socket; return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        words = [os.getcwd(), *arguments]
        socket.send_fds(connection, [b"\0".join(map(os.fsencode, words))], STREAMS)
        connection.shutdown(socket.SHUT_WR)
        code = connection.recv(1)
        return code[0] if code else 1  # killed: nobody was left to report


def serve(path: str) -> None:
    """Import the command, say so in a line, then run each call in a fork, until this process is killed."""
    import gc
    import signal

    import pvbus.cli.plan  # noqa: F401 - the command that is called, with all that it imports

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks report to their callers, not to us
        gc.freeze()
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
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
        folder, *arguments = map(os.fsdecode, sent.split(b"\0"))
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

    from tests.tools.kafka import _detach

    path = folder / "socket"
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.tools.warmcommand", "--serve", str(path)],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=_detach,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield shlex.join([sys.executable, "-I", "-S", __file__, str(path)])
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    sys.exit(call(sys.argv[1], sys.argv[2:]))
