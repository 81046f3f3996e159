"""`kill -9` of `pvbus up` at random moments, again and again, under load.

PVBUS_KILLS sets how often, PVBUS_KILL_SEED another sequence of moments and changes.
"""

import asyncio
import os
import random
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.faults.fleet import Fleet
from tests.tools.busfile import Snapshot
from tests.tools.installation import Installation

KILLS = int(os.environ.get("PVBUS_KILLS", "10"))
SEED = int(os.environ.get("PVBUS_KILL_SEED", "20260101"))
KILLS_AT_FIRST_START = 5
CONVERGED_SECONDS_MAX = 120.0
SETTINGS = {
    # The client removes far more at once than anybody should without being asked.
    "PVBUS_REMOVALS_MAX": "1000000",
    "PVBUS_REMOVAL_QUIET_SECONDS": "0.5",
    "PVBUS_POLL_SECONDS": "0.5",
}


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    made = Installation(tmp_path / "data", settings=SETTINGS)
    yield made
    made.kill()


async def killed_early(installation: Installation, rng: random.Random) -> None:
    """Kill it while it starts."""
    installation.start()
    await asyncio.sleep(rng.uniform(0.1, 2.5))
    installation.kill()


async def ready(installation: Installation) -> float:
    return await asyncio.to_thread(installation.wait_ready)


async def converged(fleet: Fleet) -> float:
    """Wait until the world is what it must be, and stays so; returns the seconds until then."""
    began = time.monotonic()
    problems: list[str] = []
    while time.monotonic() - began < CONVERGED_SECONDS_MAX:
        problems = await fleet.differences()
        if not problems:
            seconds = time.monotonic() - began
            await asyncio.sleep(3.0)
            problems = await fleet.differences()
            if not problems:
                return seconds
        await asyncio.sleep(0.5)
    raise AssertionError(f"after {CONVERGED_SECONDS_MAX:.0f} s:\n" + "\n".join(problems[:40]))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_after_any_kills_the_world_is_what_the_oracle_expects(
    installation: Installation, tmp_path: Path
) -> None:
    rng = random.Random(SEED)
    began = time.monotonic()
    for _ in range(min(KILLS_AT_FIRST_START, KILLS)):
        await killed_early(installation, rng)
    installation.start()
    await ready(installation)
    fleet = Fleet(tmp_path / "git", SEED)
    await fleet.connect(installation.kubeconfig)
    await fleet.settle_in()
    stop = asyncio.Event()
    load = asyncio.create_task(fleet.work(stop))
    seconds_to_ready = []
    before = Snapshot.of(installation.bus)
    try:
        for number in range(KILLS - KILLS_AT_FIRST_START):
            assert not load.done(), load.result()
            await asyncio.sleep(rng.uniform(0.1, 2.5))
            if number % 5 != 4:  # every fifth time it dies again before it was ready
                await ready(installation)
                await asyncio.sleep(rng.uniform(0.1, 1.5))
            await strike(installation, rng)
            now = await asyncio.to_thread(Snapshot.of, installation.bus)
            problems = [*now.problems(), *now.problems_since(before)]
            assert not problems, f"seed {SEED}, kill {number}:\n" + "\n".join(problems)
            before = now
            installation.start()
            if number % 5 != 3:
                seconds_to_ready.append(await ready(installation))
                lost = await fleet.lost_writes()
                assert not lost, f"seed {SEED}, kill {number}:\n" + "\n".join(lost)
    finally:
        stop.set()
        await load
    await ready(installation)
    assert await fleet.lost_writes() == []
    seconds_to_converge = await converged(fleet)
    versions = await fleet.versions()
    assert await asyncio.to_thread(installation.stop) == 0
    last = Snapshot.of(installation.bus)
    assert last.problems() == []
    assert {tp: offset for tp, offset in last.offsets.items() if offset != last.ends[tp[2], tp[1]]} == {}
    installation.start()
    await ready(installation)
    await asyncio.sleep(2.0)
    assert await fleet.versions() == versions, "a restart of a settled system wrote something"
    await fleet.close()
    median, most = statistics.median(seconds_to_ready), max(seconds_to_ready)
    print(
        f"\n{KILLS} kills in {time.monotonic() - began:.0f} s; {fleet.ledger.answered} writes answered; "
        f"ready after {median:.2f} s (median), {most:.2f} s (most); "
        f"converged {seconds_to_converge:.1f} s after the last change; {len(versions)} objects"
    )


async def strike(installation: Installation, rng: random.Random) -> None:
    """Kill all of it; sometimes one half, and let the other notice."""
    match rng.randrange(6):
        case 0:
            installation.kill_parent()
        case 1:
            await asyncio.to_thread(installation.kill_child)
            await asyncio.to_thread(installation.wait_ended)
        case _:
            installation.kill()
