"""The main job over Kafka, each service as two processes, one of which is killed every five seconds.

PVBUS_TEST_FAULTS sets how many kills there are (four times as many), PVBUS_KILL_SEED another sequence.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pvbus.core.kernel.topics import SERVICES
from tests.e2e.kafka.job import ROUNDS_MIN, Job, Killer, settled, wait_for_server
from tests.e2e.kafka.outcome import State, differences, final_state
from tests.tools.installation import Installation
from tests.tools.kafka import FAULTS, KafkaCluster

KILLS = 4 * FAULTS
SEED = int(os.environ.get("PVBUS_KILL_SEED", "20260301"))
KILL_SECONDS = 5.0
CHANGES_SECONDS_MIN = 40.0
SETTINGS = {
    "PVBUS_REMOVALS_MAX": "1000000",  # nobody is there to confirm them
    "PVBUS_REMOVAL_QUIET_SECONDS": "0.5",
    "PVBUS_POLL_SECONDS": "0.5",
    "PVBUS_KAFKA_SESSION_SECONDS": "6",  # what brokers allow: so long the keys of a dead worker wait
}


async def run(
    up: Installation, bus: str, folder: Path, *, rounds: int = 0, killer: Killer | None = None
) -> tuple[State, int, Job]:
    """Do the job: apply the fleet, and change it in rounds, so many or until there were enough kills."""
    up.start()
    await asyncio.to_thread(wait_for_server, up)
    job = Job(folder, SEED)
    await job.connect(up.kubeconfig)
    try:
        number = await _change(job, up, rounds, killer)
        await settled(up)
        await job.arrived(up)
        state = await final_state(job, str(up.data), bus)
    finally:
        await job.close()
    await asyncio.to_thread(up.end)
    return state, number, job


async def _change(job: Job, up: Installation, rounds: int, killer: Killer | None) -> int:
    stop = asyncio.Event()
    killing = asyncio.create_task(killer.work(stop) if killer is not None else stop.wait())
    try:
        began, number = time.monotonic(), 0
        await job.settle_in()
        await job.arrived(up)
        while number < max(rounds, ROUNDS_MIN) or (killer is not None and not _had_enough(killer, began)):
            assert not killing.done(), killing.result()
            await job.round(number)
            await job.arrived(up)
            number += 1
        return number
    finally:
        stop.set()
        await killing


def _had_enough(killer: Killer, began: float) -> bool:
    return killer.count >= KILLS and time.monotonic() - began >= CHANGES_SECONDS_MIN


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_with_processes_killed_the_outcome_is_that_of_one_process_left_alone(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    """Variants, sets, revisions, drafts and last conditions are the same, whoever died on the way."""
    began = time.monotonic()
    bus = f"kafka://{kafka_one.bootstrap}/job-{secrets.token_hex(4)}"
    many = Installation(tmp_path / "kafka", settings=SETTINGS, arguments=("--bus", bus, "--processes", "2"))
    killer = Killer(many, SEED, processes=2 * len(SERVICES), every_seconds=KILL_SECONDS, kills_max=2 * KILLS)
    one = Installation(tmp_path / "embedded", settings=SETTINGS)
    try:
        found, rounds, job = await run(many, bus, tmp_path / "git-kafka", killer=killer)
        seconds = time.monotonic() - began
        expected, _, _ = await run(one, f"sqlite:{one.bus}", tmp_path / "git-embedded", rounds=rounds)
    finally:
        many.kill()
        one.kill()
    assert killer.count >= KILLS
    problems = differences(found, expected)
    assert problems == [], f"seed {SEED}: {len(problems)} differ, Kafka first:\n" + "\n".join(problems[:10])
    print(
        f"\n{killer.count} kills ({_counted(killer.killed)}) in {seconds:.0f} s; {job.changes} changes in "
        f"{rounds} rounds; one process alone {time.monotonic() - began - seconds:.0f} s; "
        f"the same: {_counted(_kinds(found))}"
    )


def _kinds(state: State) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for name, value in state.items():
        kind = name.partition(" ")[0]
        found[kind] = found.get(kind, 0) + 1
        if kind == "git":
            found["files"] = found.get("files", 0) + len(value)
    return found


def _counted(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
