"""Runs other programs with a time limit, and with bounded memory in this process."""

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple

CHUNK_BYTES = 64 * 1024
LAST_WORDS_SECONDS = 2.0
"""How long to wait for output after a program's end: a child that left its group may hold the pipe."""


_LIMITED = """
exec 3>&2 2>/dev/null
ulimit -d "$1"; ulimit -f "$2"; ulimit -c 0; ulimit -u "$3" || ulimit -p "$3"
shift 3; unset PWD OLDPWD
exec "$@" 2>&3 3>&-
"""
"""Sets the limits of a program in its own process, then executes the program. A limit that the system does
not allow is silently left unchanged: the shell's errors are discarded until the exec."""
_NAMESPACES = ("--user", "--map-current-user", "--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child")
_FIRST = ("/bin/sh", "-c", '"$@"; exit $?', "sh")
"""The first process of the namespaces: when it ends, the kernel kills all others. It is not the program
itself, as the kernel hides signals from a first process."""
_OWN_COUNT = (5, 14)
"""The Linux version from which processes are counted by user namespace. An older one counts all processes
of the user, so that a limit would depend on the user's other programs."""
_ULIMIT_DATA_BYTES = 1024
_ULIMIT_FILE_BYTES = 512


class Limits(NamedTuple):
    """Resource limits of a program and of each of its children.

    memory_bytes: private memory of one process (on Linux only)
    file_bytes: the size of one file that it writes
    processes: the processes of an isolated program with its children; the superuser has no such limit
    """

    memory_bytes: int
    file_bytes: int
    processes: int = 256


class Outcome(NamedTuple):
    """The end of a program.

    code: its exit code, None if the time limit ended it
    out: its standard output
    err: its standard error
    excess: whether it was killed because of too much output
    """

    code: int | None
    out: bytes
    err: bytes
    excess: bool


class _Reader(threading.Thread):
    def __init__(self, pipe: IO[bytes], bytes_max: int, on_excess: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._bytes_max = bytes_max
        self._on_excess = on_excess
        self._chunks: list[bytes] = []
        self._size = 0
        self.excess = False

    def run(self) -> None:
        try:
            while chunk := self._pipe.read1(CHUNK_BYTES):  # type: ignore[attr-defined]  # a pipe is buffered
                if self._size + len(chunk) > self._bytes_max:
                    self.excess = True
                    self._chunks.append(chunk[: self._bytes_max - self._size])
                    self._on_excess()
                    return
                self._chunks.append(chunk)
                self._size += len(chunk)
        except (OSError, ValueError):
            return  # another thread closed the pipe
        finally:
            self._pipe.close()

    def text(self) -> bytes:
        return b"".join(self._chunks)


def run(process: "subprocess.Popen[bytes]", given: bytes, *, seconds_max: float, bytes_max: int) -> Outcome:
    """Write the input of a program that `start` started, and wait until it ends.

    Its whole process group is killed afterwards.

    given: the input, in bytes
    seconds_max: the time limit
    bytes_max: the limit of each of its two outputs
    """

    def end() -> None:
        kill_group(process)

    pipes = (process.stdout, process.stderr)
    readers = [_Reader(pipe, bytes_max, end) for pipe in pipes if pipe is not None]
    writer = threading.Thread(target=_feed, args=(process, given), daemon=True)
    for thread in (*readers, writer):
        thread.start()
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        end()

    # Waiting with a limit would poll, up to 50 ms late, with a sleep that some wrong clocks refuse.
    limit = threading.Timer(seconds_max, expire)
    limit.daemon = True
    limit.start()
    code = process.wait()
    limit.cancel()
    end()
    for reader in readers:
        reader.join(LAST_WORDS_SECONDS)
    writer.join(LAST_WORDS_SECONDS)
    out, err = (reader.text() for reader in readers)
    return Outcome(None if expired.is_set() else code, out, err, any(reader.excess for reader in readers))


def _feed(process: "subprocess.Popen[bytes]", given: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(OSError, ValueError):  # the program does not read its input
        process.stdin.write(given)
    with suppress(OSError, ValueError):
        process.stdin.close()


_started: "weakref.WeakSet[subprocess.Popen[bytes]]" = weakref.WeakSet()


def kill_all() -> None:
    """Kill all programs that have not ended, with their children: this process ends by force."""
    for process in list(_started):
        if process.returncode is None:
            kill_group(process)


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a program with its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


@cache
def isolation() -> tuple[str, ...]:
    """Return the command that isolates another one; () if this system does not permit it.

    The other command has no network, sees no process of this system, and its children die with it. Where
    /proc cannot be replaced, as in many containers, it sees the system's processes.
    """
    for more in (("--mount-proc",), ()):
        command = ("unshare", *_NAMESPACES, *more, "--", *_FIRST)
        with suppress(OSError, subprocess.TimeoutExpired):
            if not subprocess.run((*command, "true"), timeout=10, capture_output=True).returncode:
                return command
    return ()


def start(
    command: Sequence[str],
    folder: Path | str,
    environment: dict[str, str],
    *,
    with_input: bool,
    limits: Limits | None = None,
    isolated: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program in a session of its own: without a terminal, and with one process group to kill.

    The program is searched in `PATH` of the environment.

    limits: apply from the program's first instruction on, and disable core dumps
    isolated: whether to run it in namespaces of its own, as far as `isolation` can
    Raises: OSError, ValueError if it cannot be started.
    """
    outer = isolation() if isolated else ()
    if limits is not None:
        command = _limited(command, folder, environment, limits, counted=bool(outer))
    process = subprocess.Popen(
        [*outer, *command],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE if with_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _started.add(process)
    return process


def _limited(
    command: Sequence[str],
    folder: Path | str,
    environment: dict[str, str],
    limits: Limits,
    *,
    counted: bool = False,
) -> list[str]:
    """Return the command that starts a program with limits. Raises: OSError if it does not exist.

    A shell between fork and exec sets them: `preexec_fn` may deadlock with threads, and `prlimit` from here
    would be too late, as the program runs already.
    """
    program = str(Path(folder, command[0])) if os.path.dirname(command[0]) else command[0]
    found = shutil.which(program, path=environment.get("PATH"))
    if found is None:
        number = errno.EACCES if os.path.exists(program) else errno.ENOENT
        raise OSError(number, os.strerror(number), command[0])
    data = str(limits.memory_bytes // _ULIMIT_DATA_BYTES)
    files = str(limits.file_bytes // _ULIMIT_FILE_BYTES)
    processes = str(limits.processes) if counted and _counts_by_namespace() else "unlimited"
    return ["/bin/sh", "-c", _LIMITED, "sh", data, files, processes, found, *command[1:]]


def _counts_by_namespace() -> bool:
    match = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return match is not None and (int(match[1]), int(match[2])) >= _OWN_COUNT
