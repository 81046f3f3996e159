"""The watch of the event loop: what is logged of a stall, and for how long a process is not ready."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client import REGISTRY

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.telemetry import logs
from pvbus.telemetry.loopwatch import Limits, loop_problem, watched_loop

SECRET = "mArk0fASecret"
STALL_SECONDS = 1.2
LIMITS = Limits(logged=0.2, unready=0.3, recent=2.0)


def compute(seconds: float) -> None:
    """Use the processor for so long, however busy the machine is."""
    token = SECRET  # a local variable, which no trace may show
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    assert token


def beats(le: str) -> float:
    return REGISTRY.get_sample_value("pvbus_loop_stall_seconds_bucket", {"le": le}) or 0.0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if is_so():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def plain_server() -> AsyncIterator[ApiServer]:
    server = ApiServer(None, tls=False)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ready(server: ApiServer) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{server.url}/readyz") as answer:
        return answer.status, await answer.text()


@pytest.mark.slow
async def test_a_stall_is_measured_logged_with_its_code_and_makes_unready(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The thread logs it while it lasts, without local variables; later the API server is ready again."""
    logs.configure("info", "json")
    lines: list[dict[str, Any]] = []

    def read() -> bool:
        lines.extend(json.loads(line) for line in capsys.readouterr().err.splitlines())
        return any(line["event"] == "the event loop answers again" for line in lines)

    assert loop_problem() == ""
    async with AsyncExitStack() as stack:
        stack.enter_context(watched_loop(LIMITS))
        api = await stack.enter_async_context(plain_server())
        late = beats("+Inf") - beats("0.25")
        compute(STALL_SECONDS)
        await until(read)
        assert beats("+Inf") - beats("0.25") > late
        assert "event loop: did not answer for" in loop_problem()
        code, text = await ready(api)
        assert (code, "event loop: did not answer for" in text) == (503, True)
        await until(lambda: loop_problem() == "")
        assert (await ready(api))[0] == 200
    first = next(line for line in lines if line["event"] == "the event loop does not answer")
    assert first["level"] == "warning"
    assert first["seconds"] >= LIMITS.logged
    assert first["cpu_seconds"] > 0
    assert "in compute" in first["trace"]
    assert SECRET not in str(lines)


async def test_a_loop_that_answers_is_ready_and_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    with watched_loop():
        count = beats("+Inf")
        await until(lambda: beats("+Inf") >= count + 3)
        assert loop_problem() == ""
    assert capsys.readouterr().err == ""
    assert loop_problem() == ""


IDLE = """
import asyncio, sys, time
from pvbus.telemetry.loopwatch import run_watched
async def idle():
    began = time.process_time()
    await asyncio.sleep(2)
    print((time.process_time() - began) / 2)
run_watched(idle())
"""


def test_an_idle_process_pays_next_to_nothing() -> None:
    """Far less than the 2 % that a process may take when nothing happens; measured is 0.1 %."""
    done = subprocess.run([sys.executable, "-c", IDLE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.01
