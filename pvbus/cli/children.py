"""Commands of pvbus as children of this process, which end when it does, however that happens.

A child holds the other end of a pipe as its standard input, and goes on until that ends. It tells by one
line of JSON on its standard output that it serves, or why it cannot: `child` is its part of this.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pvbus
from pvbus.core.errors import PermanentError, PvbusError, UsageError

STOP_SECONDS = 15.0
"""How long a child may take to end in order: the services' drain, and the goodbye to each group."""

USAGE_CODE = 2  # how a command ends when its settings are wrong


class DiedError(PvbusError):
    """A child was killed before it had told anything."""


class ChildProcess:
    """`pvbus ARGUMENTS --child`. An async context manager: inside, the child has told that it serves."""

    def __init__(self, what: str, *arguments: str, settings: Mapping[str, str] | None = None) -> None:
        """what: its name in errors. settings: variables that it gets besides this process's own."""
        self.what = what
        self.reported: Mapping[str, Any] = {}
        self._command = (sys.executable, "-P", "-m", "pvbus.cli", *arguments, "--child")
        self._settings = settings or {}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        """Raises UsageError or PermanentError with the reason it gives, DiedError where it gave none."""
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, env=_environment(self._settings)
        )
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

    async def ended(self) -> int:
        """Return the exit code once the child has ended by itself; negative, the signal that killed it."""
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


def _refusal(what: str, reported: Mapping[str, Any], code: int) -> PvbusError:
    """What a child that does not serve is to whoever started it."""
    if code < 0:
        return DiedError(f"{what} was killed by signal {-code} at its start")
    words = reported.get("error") or f"{what} ended with code {code} at its start; its log is above"
    return UsageError(words) if code == USAGE_CODE else PermanentError(words, reason="Child")


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """The child must run this very pvbus, wherever it was started from."""
    paths = [str(Path(pvbus.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **settings}


# The child's part


class Parent:
    """The process at the other end of the pipe. stop: set when it ends, or at SIGTERM."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.code = 0
        self._knows = False
        self._starting = asyncio.current_task()

    def tell(self, **message: str) -> None:
        """Tell that this child serves, and where."""
        self._say(message)
        self._knows = True

    def end(self) -> None:
        """End what goes on; whoever is still starting looks at no event, and is cancelled."""
        self.stop.set()
        if not self._knows and self._starting is not None:
            self._starting.cancel()

    @property
    def ended_early(self) -> bool:
        return self.stop.is_set() and not self._knows

    def refuse(self, error: PvbusError) -> None:
        """Tell what this child cannot begin with. Raises it where it has begun: then the log tells."""
        if self._knows:
            raise error
        self._say({"error": str(error)})
        self.code = USAGE_CODE if isinstance(error, UsageError) else 1

    def _say(self, message: Mapping[str, str]) -> None:
        print(json.dumps(message), flush=True)


@asynccontextmanager
async def child() -> AsyncIterator[Parent]:
    """Be a child within the block; `code` is the exit code after it.

    What is typed at the terminal is the parent's: it decides when its children end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = asyncio.get_running_loop()
    parent = Parent()
    loop.add_signal_handler(signal.SIGTERM, parent.end)
    pipe = sys.stdin.fileno()

    def ended() -> None:
        loop.remove_reader(pipe)  # the end of a pipe can be read for ever
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
