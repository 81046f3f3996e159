"""kill -9, and SIGSTOP past the session timeout, at each await of a step of each service.

One process with all services goes on all the time; victims take shares of its leases and are struck in the
middle of a step (`victim`). `PVBUS_TEST_FAULTS` is how many there are of each kind, a few by default.
"""

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pvbus.core.kernel.topics import SERVICES
from tests.integration.kafka.faults.deployment import PARTITIONS, Deployment, ServiceProcess, deployment
from tests.integration.kafka.faults.victim import STRIKING
from tests.tools.kafka import FAULTS, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(3600)]

POINTS = 16
"""Twice the suspensions of a step with an await for each of two batches, and two behind its end."""

STRUCK_SECONDS_MAX = 90.0
TAKEN_SECONDS_MAX = 60.0


class Strike(NamedTuple):
    service: str
    step: int
    point: int
    how: str


def strikes(count: int) -> Iterator[tuple[Strike, ...]]:
    """Yield rounds of one victim per service at most: `count` of each kind, over services and points."""
    rng = random.Random(7)
    points = {how: rng.sample(range(POINTS), POINTS) for how in ("kill", "stop")}
    planned = []
    for number in range(count):
        for offset, how in enumerate(points):
            service = SERVICES[(2 * number + offset) % len(SERVICES)]
            planned.append(Strike(service, rng.randint(1, 4), points[how][number % POINTS], how))
    for start in range(0, len(planned), len(SERVICES)):
        yield tuple(planned[start : start + len(SERVICES)])


async def struck(made: Deployment, strike: Strike) -> str:
    """Run one victim to its end; returns where it was struck."""
    arguments = (strike.service, str(strike.step), str(strike.point), strike.how)
    victim = made.run(f"{strike.service}-{strike.how}", "tests.integration.kafka.faults.victim", *arguments)
    await made.until(lambda: victim.says(STRIKING), STRUCK_SECONDS_MAX, victim)
    if strike.how == "kill":
        await made.until(lambda: not victim.is_running, 5.0, victim)
        assert victim.process.returncode == -signal.SIGKILL
    else:
        await made.until(lambda: victim.is_stopped, 5.0, victim)
        await made.until(lambda: has_taken_over(made, strike.service), TAKEN_SECONDS_MAX, victim)
        victim.continue_()
        await woken(made, strike, victim)
    where = victim.output.rpartition(STRIKING)[2].split()[0]
    return f"{strike.service} {strike.how} {where}"


def has_taken_over(made: Deployment, service: str) -> bool:
    """Whether the one that goes on has all leases of the service, and the group knows of nobody else."""
    members = made.members(service)
    return [len(share) for share in members.values()] == [PARTITIONS]


async def woken(made: Deployment, strike: Strike, victim: ServiceProcess) -> None:
    """Who wakes up late finds its leases gone, comes back as a member, and ends in order when told to."""
    await made.until(lambda: len(made.members(strike.service)) == 2, TAKEN_SECONDS_MAX, victim)
    assert victim.is_running, victim.output[-3000:]
    code = await asyncio.to_thread(victim.stop)
    assert code == 0, victim.output[-3000:]


async def test_services_struck_in_the_middle_of_steps(three_proxied: KafkaCluster, tmp_path: Path) -> None:
    """Whatever dies or freezes at whichever await, the world becomes what the oracle says, and events are
    told once and in order; a restart then writes nothing."""
    async with deployment(three_proxied, tmp_path) as (made, steady):
        stop = asyncio.Event()
        load = asyncio.create_task(made.fleet.work(stop))
        topic_partitions = []
        try:
            for planned in strikes(FAULTS):
                topic_partitions += await asyncio.gather(*(struck(made, strike) for strike in planned))
        finally:
            stop.set()
            await load
        assert await made.fleet.lost_writes() == []
        await made.converged()
        records = await made.promises_kept(steady)
        await made.restarts_quietly(steady)
        print(f"{FAULTS} killed and {FAULTS} frozen: {', '.join(topic_partitions)}")
        print(f"{made.fleet.ledger.answered} changes, {records.total()} records: {dict(records)}")
