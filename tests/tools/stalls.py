"""Finds callbacks that compute for long on an event loop, in the tests of what serves others.

Measured is the computing time of the loop's thread, not the time that passes, and in units of how fast the
machine is just then: machines that run tests are shared. The collector's time does not count either, as it
goes over the objects of all tests. What a test or a fixture computes in its own coroutine is its business.
"""

import asyncio
import gc
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

STALL_SECONDS = 0.1
LOOK_SECONDS = 0.05
FRAMES_MAX = 12  # of a trace, the innermost ones

LOOPS = 200_000
LOOPS_SECONDS = 0.0035
"""Computing time of LOOPS empty loops on a free processor."""

STALL_UNSEEN_SECONDS = 0.5
"""Limit where the thread had no processor to look: the cause may be one of _ONCE."""

WATCHED = (
    "tests/contract/",
    "tests/integration/aggregated/",
    "tests/integration/apiserver/",
    "tests/integration/bus/",
    "tests/integration/establish/",
    "tests/integration/ingest/",
    "tests/integration/packages/",
    "tests/unit/aggregated/",
    "tests/unit/apiserver/",
    "tests/unit/packages/",
    "tests/unit/runtime/",
)
"""Not the simulation: its time is virtual, so a turn of a worker, which ends by the clock, does not end."""

_ATTACKS = "tests/integration/apiserver/test_attacks.py::"
ALLOWED: Mapping[str, str] = {
    f"{_ATTACKS}test_an_attack_is_refused[a list copied into itself": "a patch may make so much of a list",
    f"{_ATTACKS}test_an_attack_is_refused[schema with 60,000 fields]": (
        "a definition of megabytes is decoded and judged in one piece"
    ),
}
"""Tests, by how their ids begin, with the reason why a stall is in order there."""


_ONCE = ("importlib._bootstrap", "/re/_parser.py", "/re/_compiler.py", "/msgspec/_utils.py", "/pygments/")
"""Where a process stands that makes what it makes once: modules, patterns, descriptions of types, and the
colours of the traces that structlog prints where nothing configures it, as in tests."""


class Stall(NamedTuple):
    """seconds: of computing. callback: its name, or that of a task's coroutine. trace: innermost last."""

    seconds: float
    callback: str
    trace: str

    def __str__(self) -> str:
        return (
            f"{self.callback}: {self.seconds:.2f} s of computing without an answer to anybody\n{self.trace}"
        )


class _Looking:
    """Reads where a callback stands that goes on for long. One thread for all tests."""

    def __init__(self) -> None:
        self.thread = 0
        self.since = 0.0
        self.trace = ""
        threading.Thread(target=self._look, name="stalls", daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            since = self.since
            if since and not self.trace and time.monotonic() - since > STALL_SECONDS / 2:
                frame = sys._current_frames().get(self.thread)
                if frame is not None and self.since == since:
                    with suppress(Exception):  # whatever a test did to files and clocks: the thread goes on
                        self.trace = "".join(traceback.format_stack(frame)[-FRAMES_MAX:])


@cache
def _looking() -> _Looking:
    return _Looking()


@contextmanager
def stalls_found() -> Iterator[list[Stall]]:
    """Yield the stalls of all event loops of this process within the block, filled as they happen."""
    found: list[Stall] = []
    run = asyncio.Handle._run
    clock = time.thread_time
    looking = _looking()
    collecting = [0.0, 0.0]  # since when, and how long so far

    def note_collection(phase: str, facts: dict[str, Any]) -> None:
        if phase == "start":
            collecting[0] = clock()
        else:
            collecting[1] += clock() - collecting[0]

    def measured(handle: asyncio.Handle) -> None:
        collecting[1] = 0.0
        looking.thread, looking.trace, looking.since = threading.get_ident(), "", time.monotonic()
        began = clock()
        run(handle)
        seconds = clock() - began
        looking.since = 0.0
        if seconds - collecting[1] > STALL_SECONDS and (name := _name_of(handle)):
            seconds = (seconds - collecting[1]) / _thread_slowness()
            limit = STALL_SECONDS if looking.trace else STALL_UNSEEN_SECONDS
            if seconds > limit and not any(part in looking.trace for part in _ONCE):
                found.append(Stall(seconds, name, looking.trace))

    gc.callbacks.append(note_collection)
    asyncio.Handle._run = measured  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.callbacks.remove(note_collection)


def _name_of(handle: asyncio.Handle) -> str:
    """Return the name of a callback, or of the coroutine of its task; "" for those of tests and fixtures."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    code = getattr(callback, "__code__", None)
    if isinstance(task, asyncio.Task):
        code = getattr(task.get_coro(), "cr_code", None)
    if code is None:
        return repr(callback)
    is_tests = "/tests/" in code.co_filename or "/pytest" in code.co_filename
    return "" if is_tests else f"{code.co_filename}: {code.co_qualname}"


def _thread_slowness() -> float:
    """Return how much slower than a free machine this one computes now, 1.0 if it is not slower."""
    began = time.thread_time()
    for _ in range(LOOPS):
        pass
    return max(1.0, (time.thread_time() - began) / LOOPS_SECONDS)


def reason_for(test: str) -> str:
    """Return why a test may stall, "" if it may not."""
    return next((reason for start, reason in ALLOWED.items() if test.startswith(start)), "")
