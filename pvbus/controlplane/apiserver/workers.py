"""Runs pure work on large values in processes of its own, so that the event loop answers others meanwhile.

A thread would hold the interpreter. Each worker is a process (`workload`) that does one piece of work at a
time; it starts when it is first needed, and ends with the server, as its input then ends: also if the server
is killed. Its memory is limited. If a worker dies or takes too long, its request gets an error that says so,
and the worker is replaced.
"""

import asyncio
import contextlib
import gc
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, NamedTuple

from pvbus.controlplane.apiserver.hooks import StatusError

WORK = "pvbus.controlplane.apiserver.workload"
"""The module that a worker runs: it calls `serve` with its jobs."""

DONE, REFUSED, FAILED, BROKEN = "done", "refused", "failed", "broken"


class Failure(NamedTuple):
    """A StatusError, in the form in which processes send it."""

    code: int
    reason: str
    message: str
    causes: tuple[tuple[str, str, str], ...]
    details: Any
    retry_after_seconds: int | None


WORKERS_MAX = 2
"""Processes: one large request does not wait for another, and the server keeps a core."""

WAITING_MAX = 64
"""Requests that wait for a worker: so many take some 20 s. Their users' shares bound the bodies."""

SECONDS_MAX = 30.0
"""The time of one piece of work: ten times what the slowest body within the limits takes."""


_SMALLER = "send a smaller body, in JSON if it is YAML"


class Workers:
    """The worker processes of one server."""

    def __init__(
        self,
        seconds_max: float = SECONDS_MAX,
        memory_bytes: int = 1 << 30,
        *,
        work: str = WORK,
        workers_max: int = WORKERS_MAX,
        waiting_max: int | None = WAITING_MAX,
        wait_seconds_max: float | None = None,
        idle_seconds: float | None = None,
    ) -> None:
        """Start no process yet.

        seconds_max: the time of one job
        memory_bytes: the limit of each process's memory
        work: the module that a process runs
        workers_max: the number of processes
        waiting_max: the number of jobs that wait or run, None if callers bound it
        wait_seconds_max: how long a job waits for a process, None for any time
        idle_seconds: the processes end when they had no job for so long, None if they stay
        """
        self._work = work
        self._seconds_max = seconds_max
        self._memory_bytes = memory_bytes
        self._waiting_max = waiting_max
        self._wait_seconds_max = wait_seconds_max
        self._idle_seconds = idle_seconds
        self._idle: list[asyncio.subprocess.Process] = []
        self._ending: list[asyncio.subprocess.Process] = []
        self._free = asyncio.Semaphore(workers_max)
        self._waiting = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._is_stopped = False

    async def run(self, job: str, *arguments: Any) -> Any:
        """Return the result of a job.

        Raises ValueError and StatusError as the job does, StatusError (429, 500, 504) if it cannot be done,
        and RuntimeError for a bug in it.
        """
        if self._waiting_max is not None and self._waiting >= self._waiting_max:
            raise _too_many()
        self._waiting += 1
        try:
            await self._take()
            try:
                return await self._run(job, arguments)
            finally:
                self._free.release()
        finally:
            self._waiting -= 1

    async def stop(self) -> None:
        """End the idle workers, and wait for them. Those at work end with their request."""
        self._is_stopped = True
        if self._expiry is not None:
            self._expiry.cancel()
        self._idle += self._ending
        self._ending.clear()
        while self._idle:
            worker = self._idle.pop()
            try:
                await _end(worker)
            except BaseException:  # cancelled: another call ends it
                self._idle.append(worker)
                raise

    async def _take(self) -> None:
        """Wait until one more process may work."""
        try:
            async with asyncio.timeout(self._wait_seconds_max):
                await self._free.acquire()
        except TimeoutError as exc:
            raise _too_many() from exc

    async def _run(self, job: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._idle.pop() if self._idle else await self._start()
        try:
            async with asyncio.timeout(self._seconds_max):
                code, result = await _exchange(worker, (job, arguments))
        except TimeoutError as exc:
            await _end(worker)
            text = f"the computation took more than {self._seconds_max:g} s: {_SMALLER}"
            raise StatusError(504, "Timeout", text) from exc
        except (EOFError, OSError) as exc:
            await _end(worker)
            text = (
                f"the process that computed ended (code {worker.returncode}), as it does if it needs "
                f"more than {self._memory_bytes >> 20} MB: {_SMALLER}"
            )
            raise StatusError(500, "InternalError", text) from exc
        except BaseException:
            await _end(worker)
            raise
        await self._rest(worker)
        if code == REFUSED:
            raise ValueError(result)
        if code == FAILED:
            number, reason, message, causes, details, retry_after = Failure(*result)
            raise StatusError(
                number, reason, message, causes=causes, details=details, retry_after_seconds=retry_after
            )
        if code == BROKEN:
            text, trace = result
            error = RuntimeError(text)
            error.add_note(trace)
            raise error
        return result

    async def _rest(self, worker: asyncio.subprocess.Process) -> None:
        """Let a worker wait for its next job."""
        if self._is_stopped:
            await _end(worker)
            return
        self._idle.append(worker)
        if self._idle_seconds is not None:
            if self._expiry is not None:
                self._expiry.cancel()
            self._expiry = asyncio.get_running_loop().call_later(self._idle_seconds, self._expire)

    def _expire(self) -> None:
        """Close the input of the idle workers, so that they end. `stop` waits for them."""
        self._ending = [worker for worker in self._ending if worker.returncode is None] + self._idle
        self._idle = []
        for worker in self._ending:
            assert worker.stdin is not None
            worker.stdin.close()

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._work, str(self._memory_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )


def _too_many() -> StatusError:
    text = "too many large bodies and objects wait: try again later"
    return StatusError(429, "TooManyRequests", text, retry_after_seconds=1)


async def _exchange(worker: asyncio.subprocess.Process, request: Any) -> tuple[str, Any]:
    """Send a piece of work, and return its result. Raises EOFError or OSError if the worker dies."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    content = pickle.dumps(request)
    worker.stdin.writelines((struct.pack("!Q", len(content)), content))
    await worker.stdin.drain()
    size = struct.unpack("!Q", await worker.stdout.readexactly(8))[0]
    code, result = pickle.loads(await worker.stdout.readexactly(size))  # our own process
    return code, result


async def _end(worker: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        worker.kill()
    await worker.wait()


# ---------------------------------------------------------------- in the other process


def serve(memory_bytes: int, jobs: Mapping[str, Callable[..., Any]], *, has_cycles: bool = False) -> None:
    """Do one piece of work after another, until the input ends: the server has ended, or has no more.

    has_cycles: whether jobs leave values or errors with cycles. Looking for them takes half of the time that
        plain values take.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C goes to the server, which ends this process
    if not has_cycles:
        gc.disable()
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    requests = os.fdopen(0, "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write into the answers
    while head := requests.read(8):
        job, arguments = pickle.loads(requests.read(struct.unpack("!Q", head)[0]))  # the server's
        _answer(answers, _result(jobs[job], arguments))


def _result(job: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return DONE, job(*arguments)
    except ValueError as exc:
        return REFUSED, str(exc)
    except StatusError as exc:
        return FAILED, Failure(
            exc.code, exc.reason, exc.message, tuple(exc.causes), exc.details, exc.retry_after_seconds
        )
    except MemoryError:
        raise  # the process has no room for more: another one takes its place
    except Exception as exc:  # the server answers and logs a bug, as it does for its own
        return BROKEN, (f"{type(exc).__name__}: {exc}", traceback.format_exc())


def _answer(answers: BinaryIO, result: tuple[str, Any]) -> None:
    content = pickle.dumps(result)
    answers.write(struct.pack("!Q", len(content)))
    answers.write(content)
    answers.flush()
