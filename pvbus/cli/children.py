"""Runs commands of pvbus as child processes, which end when this process ends for any reason.

A child's standard input is a pipe from its parent, and the child runs until that is closed. It reports by one
line of JSON on its standard output that it is ready, or why it cannot start: `child` is the child's side.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pvbus
from pvbus.core.errors import PermanentError, PvbusError, UsageError
from pvbus.runtime.process.signals import do_nothing, end_within

STOP_SECONDS = 3.0
"""How long a child may take to shut down: services drain for 2 s. Then it is killed, as one that is stopped
ends in no other way; its parent has to end in time, too."""

CHILD_SECONDS = 2.7
"""How long a child waits before it ends by force: less than its parent does, as it must kill its own
programs, which would go on without it."""

USAGE_CODE = 2  # the exit code of a command with invalid settings


class DiedError(PvbusError):
    """A signal killed a child before it was ready."""


_running: set[int] = set()


def kill_children() -> None:
    """Kill the children that have not ended. May be called in any thread."""
    for number in tuple(_running):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


class ChildProcess:
    """`pvbus ARGUMENTS --child`. An async context manager: inside, the child is ready."""

    def __init__(self, what: str, *arguments: str, settings: Mapping[str, str] | None = None) -> None:
        """Prepare a child; the context starts it.

        what: its name in errors
        settings: environment variables to add to this process's own
        """
        self.what = what
        self.reported: Mapping[str, Any] = {}
        self._command = (sys.executable, "-P", "-m", "pvbus.cli", *arguments, "--child")
        self._settings = settings or {}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Raises UsageError or PermanentError with the child's reason, DiedError if a signal killed it."""
        pipe = asyncio.subprocess.PIPE
        # Ctrl-C reaches all processes of a terminal: Python would write a trace before `child` ignores it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=pipe, stdout=pipe, env=_environment(self._settings)
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _running.add(self._process.pid)
        assert self._process.stdout is not None
        try:
            line = await self._process.stdout.readline()
            reported = json.loads(line) if line.startswith(b"{") else {}
            if "url" not in reported:
                raise _refusal(self.what, reported, await self._end())
        except BaseException:
            await self._end()
            raise
        self.reported = reported
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def wait_until_ended(self) -> int:
        """Wait until the child ends; return its exit code, or minus the signal that killed it."""
        assert self._process is not None
        return await self._process.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> int:
        process = self._process
        assert process is not None
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return await process.wait()
        finally:
            if process.returncode is not None:
                _running.discard(process.pid)


def ending(code: int) -> str:
    """Return how a process ended, for a sentence about it.

    code: its return code, -N for signal N
    """
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


def _refusal(what: str, reported: Mapping[str, Any], code: int) -> PvbusError:
    """Return the error for a child that did not become ready."""
    if code < 0:
        return DiedError(f"{what} {ending(code)} at its start")
    words = reported.get("error") or f"{what} {ending(code)} at its start; its log is above"
    return UsageError(words) if code == USAGE_CODE else PermanentError(words, reason="Child")


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the child's environment. It runs the same pvbus, regardless of the current folder."""
    paths = [str(Path(pvbus.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **settings}


# The child's side


class Parent:
    """The parent process, at the other end of the pipe.

    stop: set when the parent ends, or at SIGTERM
    code: the exit code of this child
    """

    def __init__(self, last: Callable[[], None]) -> None:
        """Wait for the parent. Caller: within the task to cancel while the child starts.

        last: what to do before the end by force
        """
        self._last = last
        self.stop = asyncio.Event()
        self.code = 0
        self._knows = False
        self._starting = asyncio.current_task()

    def tell(self, **message: str) -> None:
        """Report that this child is ready, and its addresses."""
        self._say(message)
        self._knows = True

    def end(self) -> None:
        """Stop this child. A task that is still starting does not check `stop`, so it is cancelled."""
        if not self.stop.is_set():
            end_within(CHILD_SECONDS, self._last, "the parent process ended or wants this one to end")
        self.stop.set()
        if not self._knows and self._starting is not None:
            self._starting.cancel()

    @property
    def ended_early(self) -> bool:
        return self.stop.is_set() and not self._knows

    def refuse(self, error: PvbusError) -> None:
        """Report why this child cannot start. After its start, raise the error, which is then logged."""
        if self._knows:
            raise error
        self._say({"error": str(error)})
        self.code = USAGE_CODE if isinstance(error, UsageError) else 1

    def _say(self, message: Mapping[str, str]) -> None:
        print(json.dumps(message), flush=True)


@asynccontextmanager
async def child(last: Callable[[], None] = do_nothing) -> AsyncIterator[Parent]:
    """Run the block as a child of its parent; `code` is the exit code after it.

    Ctrl-C at the terminal is ignored: the parent decides when its children end.

    last: what to do before an end by force, as in `end_within`
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = asyncio.get_running_loop()
    parent = Parent(last)
    loop.add_signal_handler(signal.SIGTERM, parent.end)
    pipe = sys.stdin.fileno()

    def ended() -> None:
        loop.remove_reader(pipe)  # a closed pipe stays readable
        parent.end()

    loop.add_reader(pipe, ended)
    try:
        yield parent
    except PvbusError as exc:
        parent.refuse(exc)
    except asyncio.CancelledError:
        if not parent.ended_early:
            raise
    finally:
        loop.remove_reader(pipe)
