"""Each broker killed with -9 and started again, in turn: the five services go on, and questions are answered.

`PVBUS_TEST_FAULTS` is how many kills there are in each test, one of each broker by default.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pvbus.core.errors import TransientError
from pvbus.ports.bus import Bus, Lease
from pvbus.testing.bus_contract import holder
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.integration.kafka.faults.conftest import FAULTS
from tests.integration.kafka.faults.deployment import Deployment, deployment
from tests.tools.kafka import START_SECONDS_MAX, Broker, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(7200)]

WORK_SECONDS_MAX = 9.0
"""How long the fleet goes on changing at most after a broker has gone or come back: until the others have
taken over what it led, which they do when its session of 6 s has ended, or somewhat longer."""

AWAY_SECONDS = 12.0
QUESTION_SECONDS = 0.05


@asynccontextmanager
async def changing(made: Deployment) -> AsyncIterator[None]:
    """Change the fleet while the block runs."""
    stop = asyncio.Event()
    load = asyncio.create_task(made.fleet.work(stop))
    try:
        yield
    finally:
        stop.set()
        await load


async def settled(made: Deployment) -> float:
    """Wait until the world is what the oracle says; returns the seconds that this took."""
    began = time.monotonic()
    await made.converged()
    return time.monotonic() - began


async def restart(broker: Broker) -> None:
    """Start a broker from here, not from a thread of this test's loop: it would end with that thread."""
    broker.start()
    deadline = time.monotonic() + START_SECONDS_MAX
    assert await asyncio.to_thread(broker.wait_until_ready, deadline), broker.tail()


async def struck(made: Deployment, broker: Broker, rng: random.Random) -> tuple[float, float]:
    """Kill a broker while everything works, and start it again; returns how long each was felt."""
    try:
        async with changing(made):
            await asyncio.sleep(rng.uniform(1.0, 3.0))
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(rng.uniform(0.0, WORK_SECONDS_MAX))
        without = await settled(made)
        async with changing(made):
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await restart(broker)
            await asyncio.sleep(rng.uniform(0.0, WORK_SECONDS_MAX))
        return without, await settled(made)
    finally:
        if broker.process is None:  # other tests want it, too
            await restart(broker)


async def test_killed_brokers(three_proxied: KafkaCluster, tmp_path: Path) -> None:
    """While a broker is away, and when it is back, the world becomes what the oracle says, and events are
    told once and in order; neither of two processes with all services ends, and a restart writes nothing."""
    rng = random.Random(4)
    async with deployment(three_proxied, tmp_path) as (made, steady):
        other = made.run_all()
        await made.ready(other)
        records: Counter[str] = Counter()
        for number in range(FAULTS):
            broker = three_proxied.brokers[number % len(three_proxied.brokers)]
            without, back = await struck(made, broker, rng)
            assert await made.fleet.lost_writes() == []
            for process in (steady, other):
                records = await made.promises_kept(process)
            print(
                f"broker {broker.number}: settled {without:.1f} s after its end, {back:.1f} s after its start"
            )
        assert [process.output[-3000:] for process in (steady, other) if not process.is_running] == []
        assert await asyncio.to_thread(other.stop) == 0, other.output[-3000:]
        await made.converged()
        await made.restarts_quietly(steady)
        print(f"{FAULTS} brokers killed and started again: {made.fleet.ledger.answered} changes")
        print(f"{records.total()} records: {dict(records)}")


async def ask(bus: Bus, lease: Lease, reported: Counter[str]) -> None:
    """Ask for a lease's offset, again and again, and count the answers."""
    while True:
        try:
            answer = str(await bus.committed(lease, ["table"]))
        except TransientError as exc:
            answer = type(exc).__name__
        reported[answer] += 1
        await asyncio.sleep(QUESTION_SECONDS)


async def test_offsets_are_told_while_brokers_go(three_proxied: KafkaCluster) -> None:
    """Whoever asks for a lease's offset hears the right one, or at worst that nobody can tell it now."""
    harness = KafkaHarness(three_proxied.bootstrap)
    reported: Counter[str] = Counter()
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [], {"table": 5})
        asking = asyncio.create_task(ask(bus, leases[0], reported))
        for number in range(FAULTS):
            broker = three_proxied.brokers[number % len(three_proxied.brokers)]
            await asyncio.to_thread(broker.kill)
            try:
                await asyncio.sleep(AWAY_SECONDS)
            finally:
                await restart(broker)
        before = reported["{'table': 5}"]
        await asyncio.wait({asking}, timeout=AWAY_SECONDS)
        assert not asking.done(), asking.exception()
        asking.cancel()
    await harness.close()
    print(f"{FAULTS} brokers killed; {dict(reported)}")
    assert reported["{'table': 5}"] > before
    assert reported.keys() <= {"{'table': 5}", "TransientError"}
