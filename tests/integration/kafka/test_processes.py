"""Real processes that copy a topic, killed and frozen, and with brokers killed under them: exactly once.

How many faults of each kind there are is `PVBUS_TEST_FAULTS`, a few by default.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.integration.kafka.copyfleet import copying
from tests.integration.kafka.copying import SESSION_SECONDS
from tests.tools.kafka import FAULTS, KafkaCluster, KafkaUnavailableError, running

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def three_to_break() -> Iterator[KafkaCluster]:
    """Three brokers for one test only."""
    if os.environ.get("PVBUS_TEST_KAFKA"):
        pytest.skip("brokers that are not ours are not killed")
    try:
        with running(3) as cluster:
            yield cluster
    except KafkaUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


async def test_killed_workers(kafka_one: KafkaCluster) -> None:
    """Workers that are killed while they step lose, double and reorder nothing."""
    rng = random.Random(1)
    async with copying(kafka_one, 3) as fleet:
        await asyncio.sleep(5)
        for _ in range(FAULTS):
            fleet.kill(rng.choice(fleet.workers))
            fleet.add()
            await asyncio.sleep(rng.uniform(2, SESSION_SECONDS + 3))
            await fleet.judge.visible_together()
        print(f"{FAULTS} workers killed")


async def test_frozen_workers(kafka_one: KafkaCluster) -> None:
    """Workers that stop for longer than their session, and go on, lose, double and reorder nothing."""
    rng = random.Random(2)
    async with copying(kafka_one, 3) as fleet:
        await asyncio.sleep(5)
        for _ in range(FAULTS):
            worker = rng.choice(fleet.workers)
            worker.send_signal(signal.SIGSTOP)
            await asyncio.sleep(SESSION_SECONDS + rng.uniform(1, 4))
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(rng.uniform(0, 3))
            await fleet.judge.visible_together()
        print(f"{FAULTS} workers frozen and thawed")


def cycle(kafka: KafkaCluster) -> Iterator[Callable[[], None]]:
    """Kill each broker in turn, and start it again: yields the two actions, one after the other."""
    for fault in range(FAULTS):
        broker = kafka.brokers[fault % len(kafka.brokers)]
        yield broker.kill
        yield broker.restart


async def test_killed_brokers(three_to_break: KafkaCluster) -> None:
    """With each of three brokers killed and started again in turn, every partition is worked on soon after,
    and nothing is lost, doubled or reordered."""
    async with copying(three_to_break, 2) as fleet:
        await fleet.judge.going_on()
        seconds = []
        for action in cycle(three_to_break):
            await asyncio.to_thread(action)
            seconds.append(round(await fleet.judge.going_on(), 1))
            await asyncio.sleep(2)
        print(f"{FAULTS} brokers killed, felt for {seconds[::2]} s, and started again, for {seconds[1::2]} s")
