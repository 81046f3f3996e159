"""The check of all tests of what serves others: what it calls a stall."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.stalls import STALL_SECONDS, STALL_UNSEEN_SECONDS, Stall, stalls_found

CODE = """
import time
def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
async def serve(seconds):
    compute(seconds)
async def serve_in_parts(seconds, pause):
    for _ in range(10):
        compute(seconds / 10)
        await pause(0)
async def wait(seconds):
    time.sleep(seconds)
"""
LONG = STALL_UNSEEN_SECONDS * 2  # also on a machine that is slow just now
TRIES_MAX = 5  # the thread that looks may have no processor meanwhile


def program() -> dict[str, Callable[..., Any]]:
    """Return the functions of CODE, as of a module of pvbus."""
    made: dict[str, Any] = {}
    exec(compile(CODE, "/x/pvbus/controlplane/serving.py", "exec"), made)
    return made


async def stalls_of(*calls: Any) -> list[Stall]:
    with stalls_found() as stalls:
        for call in calls:
            await asyncio.create_task(call)
    return stalls


async def test_a_task_that_computes_for_long_is_found_with_its_code() -> None:
    stalls: list[Stall] = []
    while not any(stall.trace for stall in stalls) and len(stalls) < TRIES_MAX:
        stalls += await stalls_of(program()["serve"](LONG))
    assert all(stall.seconds > STALL_SECONDS for stall in stalls)
    assert {stall.callback for stall in stalls} == {"/x/pvbus/controlplane/serving.py: serve"}
    # Beside other tests the thread that looks may get no processor in all tries: then there is no trace.
    assert all("in compute" in stall.trace for stall in stalls if stall.trace)


async def test_a_callback_that_computes_for_long_is_found() -> None:
    with stalls_found() as stalls:
        asyncio.get_running_loop().call_soon(program()["compute"], LONG)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert [stall.callback for stall in stalls] == ["/x/pvbus/controlplane/serving.py: compute"]


@pytest.mark.parametrize("name", ["in parts", "waiting", "of a test"])
async def test_what_is_no_stall(name: str) -> None:
    """Pauses let others run; time that passes is the machine's; a test may compute."""
    functions = program()

    async def compute() -> None:
        functions["compute"](STALL_SECONDS * 3)

    calls = {
        "in parts": functions["serve_in_parts"](STALL_SECONDS * 5, asyncio.sleep),
        "waiting": functions["wait"](STALL_SECONDS * 3),
        "of a test": compute(),
    }
    chosen = calls.pop(name)
    for other in calls.values():
        other.close()
    assert await stalls_of(chosen) == []
