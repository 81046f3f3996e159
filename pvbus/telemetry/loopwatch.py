"""Watches the event loop of a process: a callback that computes for long lets everybody else wait.

A beat in the loop measures how late the loop runs it. While the loop does not answer, a thread reads where it
stands. Idle, this is five callbacks and two looks of the thread per second, a thousandth of a processor.

Time in which the loop's thread was ready to run and the machine had no processor for it is no fault of the
process: it is in the metric, but neither logged nor a reason not to be ready. Code in C that holds the
interpreter's lock keeps the thread from looking, too: of such a stall the log has the time, but no trace.
"""

import asyncio
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

T = TypeVar("T")

BEAT_SECONDS = 0.2
"""The time between two beats. A stall is measured this much too short at most."""

LOOK_SECONDS = 0.5
"""The time between two looks of the thread."""

FRAMES_MAX = 40  # in a trace, the innermost ones: asyncio has six, and aiohttp another four

_STALLED = "the event loop does not answer"
_SCHEDULING = "/proc/self/task/{}/schedstat"


class Limits(NamedTuple):
    """When a stall of the event loop is reported, in seconds.

    logged: a stall of this length is logged
    unready: after a stall of this length, the process is not ready
    recent: how long it is not ready then, so that other replicas are asked while this one answers the
        requests that waited
    """

    logged: float = 1.0
    unready: float = 5.0
    recent: float = 30.0


class _Times(NamedTuple):
    """Times of the loop's thread, in seconds.

    now: the present time
    cpu: its computing time
    queued: its wait for a processor
    """

    now: float
    cpu: float
    queued: float


class LoopWatch:
    """Watches the running loop of this thread from `start` to `stop`."""

    def __init__(self, limits: Limits = Limits()) -> None:  # noqa: B008  # it is frozen
        self._limits = limits
        self._log = get_logger("loop")
        self._stopped = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._scheduling = -1
        self._reported = 0.0
        self._stall = 0.0
        self._stalled_at = float("-inf")

    @property
    def problem(self) -> str:
        """Return what keeps the process from being ready, "" if nothing does."""
        ago = time.monotonic() - self._stalled_at
        if ago > self._limits.recent:
            return ""
        return f"did not answer for {self._stall:.1f} s, until {ago:.0f} s ago; the log says where it stood"

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._thread)
        with contextlib.suppress(OSError):  # not every kernel has it
            self._scheduling = os.open(
                _SCHEDULING.format(threading.get_native_id()), os.O_RDONLY | os.O_CLOEXEC
            )
        self._begin_beat()
        self._looking = threading.Thread(target=self._look_until_stopped, name="loop watch", daemon=True)
        self._looking.start()

    def stop(self) -> None:
        self._stopped.set()
        self._looking.join()
        if self._timer is not None:
            self._timer.cancel()
        if self._scheduling >= 0:
            os.close(self._scheduling)

    def _begin_beat(self) -> None:
        self._began = self._times()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        stall, own, cpu = self._stall_until(self._times())
        metrics.LOOP_STALL.observe(stall)
        if own >= self._limits.unready:
            self._stall, self._stalled_at = own, time.monotonic()
        if self._reported:
            self._report("the event loop answers again", stall, cpu)
        elif own >= self._limits.logged:
            self._report(_STALLED, stall, cpu)
        self._reported = 0.0
        self._begin_beat()

    def _look_until_stopped(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if time.monotonic() - self._began.now > BEAT_SECONDS + self._limits.logged:
                self._look()

    def _look(self) -> None:
        """Report where the loop stands, once, and again each time a stall is ten times as long."""
        began = self._began
        frame = sys._current_frames().get(self._thread)
        trace = "".join(traceback.format_stack(frame)[-FRAMES_MAX:]) if frame is not None else ""
        del frame
        stall, own, cpu = self._stall_until(self._times())
        if own >= max(self._limits.logged, 10 * self._reported) and began is self._began:
            self._reported = own
            self._report(_STALLED, stall, cpu, trace=trace)

    def _report(self, event: str, stall: float, cpu: float, **facts: str) -> None:
        self._log.warning(event, seconds=round(stall, 2), cpu_seconds=round(cpu, 2), **facts)

    def _stall_until(self, end: _Times) -> tuple[float, float, float]:
        """Return how late the beat is, how much of that is the process' own time, and the computing time."""
        began = self._began
        stall = max(0.0, end.now - began.now - BEAT_SECONDS)
        return stall, max(0.0, stall - (end.queued - began.queued)), end.cpu - began.cpu

    def _times(self) -> _Times:
        queued = 0.0
        if self._scheduling >= 0:
            with contextlib.suppress(OSError, IndexError, ValueError):
                queued = int(os.pread(self._scheduling, 100, 0).split()[1]) / 1e9
        return _Times(time.monotonic(), time.clock_gettime(self._clock), queued)


_watches: list[LoopWatch] = []
"""Of this process: one, if it runs `run_watched`."""


def loop_problem() -> str:
    """Return why the event loop of this process keeps it from being ready, "" if it does not."""
    return next((f"event loop: {problem}" for watch in _watches if (problem := watch.problem)), "")


@contextmanager
def watched_loop(limits: Limits = Limits()) -> Iterator[LoopWatch]:  # noqa: B008  # it is frozen
    """Watch the running loop within the block."""
    watch = LoopWatch(limits)
    watch.start()
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)
        watch.stop()


def run_watched(main: Coroutine[Any, Any, T]) -> T:
    """Run a process in an event loop that is watched."""

    async def run() -> T:
        with watched_loop():
            return await main

    return asyncio.run(run())
