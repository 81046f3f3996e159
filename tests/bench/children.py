"""Processes of a benchmark: started, asked one line at a time, and measured by themselves.

A child answers each line of its standard input with one line of JSON, and ends when that input does,
so none outlives its parent. CPU and memory are what the operating system counts for the process.
"""

import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

REPOSITORY = Path(__file__).parents[2]
ANSWER_BYTES_MAX = 1 << 20
STOP_SECONDS = 30.0
WITHOUT_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Installed programs are compiled once; with this set, every start of a process would compile ours again."""

Command = Callable[[], Awaitable[Any]]


class Child:
    """`python -m MODULE ARGUMENT...` as an async context manager."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self.hello: Any = None
        self.started_seconds = 0.0

    async def __aenter__(self) -> Self:
        """Start it, and wait for its first line: it says that it is ready."""
        began = time.perf_counter()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=REPOSITORY,
            env={name: value for name, value in os.environ.items() if name != WITHOUT_BYTECODE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
        )
        self.hello = await self._answer()
        self.started_seconds = time.perf_counter() - began
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def ask(self, command: str) -> Any:
        """Send a command; return its answer. Raises RuntimeError when the child ended instead."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        return await self._answer()

    async def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._command)} ended with {await self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Tell it to end, and do not wait for that."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self.end()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


def tell(answer: Any) -> None:
    """Give one answer, as a child."""
    print(json.dumps(answer), flush=True)


async def answer_commands(commands: Mapping[str, Command]) -> None:
    """Answer what comes on standard input until it ends, as a child."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:  # a daemon: a blocked read must not keep a failed process from ending
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        tell(await commands[line]())


def usage() -> dict[str, float]:
    """Return this process's CPU seconds, and its resident memory now and at its highest, in bytes.

    privateBytes: the resident memory without pages of files: processes share these, the bus's file among
        them, and the system takes them back when memory is short
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    highest = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "cpuSeconds": used.ru_utime + used.ru_stime,
        "residentBytes": resident_bytes(highest),
        "residentBytesMax": highest,
        "privateBytes": private_bytes(highest),
    }


class Used(NamedTuple):
    """What a command used. seconds: until it ended. peak_bytes: its memory at its highest."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def use_of(*arguments: str, output: Path) -> Used:
    """Run `pvbus ARGUMENT...` to its end, in a process of its own. output: takes what it prints."""
    command = [sys.executable, "-m", "pvbus.cli", *arguments]
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    opened = [
        (os.POSIX_SPAWN_OPEN, stream, str(path), flags, 0o600)
        for stream, path in ((1, output), (2, os.devnull))
    ]
    began = time.perf_counter()
    process = os.posix_spawn(sys.executable, command, os.environ, file_actions=opened)
    _, status, used = os.wait4(process, 0)
    assert status == 0, f"{' '.join(command)}: status {status}"
    seconds = time.perf_counter() - began
    return Used(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time that another process has used, by Linux's /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime, stime


async def cpu_of(children: Iterable[Child]) -> list[float]:
    """Return the CPU seconds of each, by its own count. They answer the command `usage`."""
    return [(await child.ask("usage"))["cpuSeconds"] for child in children]


def resident_bytes(otherwise: int) -> int:
    """Return the resident memory, where the system tells it; else the highest it was."""
    return _in_memory(otherwise)[0]


def private_bytes(otherwise: int) -> int:
    """Return the resident memory without pages of files, where the system tells it; else `otherwise`."""
    resident, of_files = _in_memory(otherwise)
    return resident - of_files


def _in_memory(otherwise: int) -> tuple[int, int]:
    """Return the bytes of all resident pages, and of those of files."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return otherwise, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return int(fields[1]) * page, int(fields[2]) * page


@asynccontextmanager
async def running_beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let work go on as long as the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def eventually(
    condition: Callable[[], Awaitable[bool]], what: str, *, seconds: float, every: float = 0.1
) -> float:
    """Wait until a condition holds; return how long that took. Raises TimeoutError that says `what`."""
    began = time.perf_counter()
    while not await condition():
        if time.perf_counter() - began > seconds:
            raise TimeoutError(f"still not so after {seconds:.0f} s: {what}")
        await asyncio.sleep(every)
    return time.perf_counter() - began


def share(values: Sequence[float], part: float) -> float:
    """Return the value below which `part` of the values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
