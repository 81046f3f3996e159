"""Real processes that copy a topic, killed and frozen, and with brokers killed under them: exactly once.

How many faults of each kind there are is `PVBUS_TEST_FAULTS`, a few by default.
"""

import asyncio
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.errors import TransientError
from pvbus.ports.bus import Claim, Output
from tests.integration.kafka.copying import (
    BATCH,
    COPY,
    IN,
    PARTITIONS,
    SESSION_SECONDS,
    revoked,
    settings,
)
from tests.tools.kafka import KafkaCluster, KafkaUnavailableError, running

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1800)]

FAULTS = int(os.environ.get("PVBUS_TEST_FAULTS", "3"))
CATCH_UP_SECONDS = 90.0
ROOT = Path(__file__).resolve().parents[3]


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


class Fleet:
    """Worker processes of one group."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._command = [sys.executable, "-m", "tests.integration.kafka.copying", bootstrap, prefix]
        self.workers: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        self.workers.append(subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def close(self) -> None:
        for worker in tuple(self.workers):
            self.kill(worker)


class Feeder:
    """Writes numbered records into `in`, each batch once: its own offset counts the batches."""

    def __init__(self, bus: KafkaBus) -> None:
        self._bus = bus
        self._stopping = asyncio.Event()
        self.written = dict.fromkeys(range(PARTITIONS), 0)

    async def run(self) -> None:
        membership = await self._bus.join("feed", ["in"], assigned=self._assigned, revoked=revoked)
        await self._stopping.wait()
        await membership.leave()

    def stop(self) -> None:
        self._stopping.set()

    async def _assigned(self, claim: Claim) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TransientError):
                await self._feed(claim)
            await asyncio.sleep(0.2)

    async def _feed(self, claim: Claim) -> None:
        number = claim.partition
        while not self._stopping.is_set():
            batches = self.written[number] = (await self._bus.committed(claim, ["in"]))["in"]
            values = range(batches * BATCH, (batches + 1) * BATCH)
            outputs = [Output("in", number, b"key-%d" % (value % 7), b"%d" % value) for value in values]
            await self._bus.step(claim, outputs, {"in": batches + 1})
            await asyncio.sleep(0.1)

    async def count(self, partition: int) -> int:
        """Return how many records of a partition were written."""
        claim = Claim(group="feed", partition=partition, epoch=0)
        return (await self._bus._fetch_offsets(claim, ["in"]))["in"] * BATCH


@asynccontextmanager
async def copying(kafka: KafkaCluster, workers: int) -> AsyncIterator[Fleet]:
    """Feed and copy while the body does its worst; then everything must be there, once and in order."""
    prefix = f"copy-{secrets.token_hex(4)}"
    fleet = Fleet(kafka.bootstrap, prefix)
    bus = await KafkaBus.open(settings(kafka.bootstrap, prefix))
    try:
        await bus.create_topics([IN, COPY])
        for _ in range(workers):
            fleet.add()
        feeder = Feeder(bus)
        feeding = asyncio.create_task(feeder.run())
        yield fleet
        feeder.stop()
        await feeding
        await asyncio.sleep(2)  # until the offsets of the last step are visible
        expected = {number: await feeder.count(number) for number in range(PARTITIONS)}
        assert min(expected.values()) > 0
        found = await read_copies(kafka, prefix, expected)
        for number, values in found.items():
            assert values == list(range(expected[number])), describe(values, expected[number])
        print(f"copied {sum(expected.values())} records: none lost, doubled or out of order")
    finally:
        fleet.close()
        await bus.close()


async def read_copies(kafka: KafkaCluster, prefix: str, expected: dict[int, int]) -> dict[int, list[int]]:
    """Read all copies, as somebody who has no part in it, until they are complete or time is over."""
    bus = await KafkaBus.open(settings(kafka.bootstrap, prefix))
    found: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    reader = bus.reader({("copy", number): 0 for number in range(PARTITIONS)})
    deadline = asyncio.get_running_loop().time() + CATCH_UP_SECONDS
    quiet = 0
    while asyncio.get_running_loop().time() < deadline and quiet < 3:
        for record in await reader.poll(timeout_seconds=1):
            found[record.partition].append(int(record.value or b""))
        is_complete = all(len(found[number]) >= expected[number] for number in found)
        quiet = quiet + 1 if is_complete else 0  # what is doubled may still come
    await bus.close()
    return found


def describe(values: list[int], expected: int) -> str:
    lost = sorted(set(range(expected)) - set(values))
    return f"{len(lost)} lost {lost[:5]}, {len(values) - len(set(values))} doubled, of {expected}"


async def test_killed_workers(kafka_one: KafkaCluster) -> None:
    """Workers that are killed while they step lose, double and reorder nothing."""
    rng = random.Random(1)
    async with copying(kafka_one, 3) as fleet:
        await asyncio.sleep(5)
        for _ in range(FAULTS):
            fleet.kill(rng.choice(fleet.workers))
            fleet.add()
            await asyncio.sleep(rng.uniform(2, SESSION_SECONDS + 3))


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


def cycle(kafka: KafkaCluster) -> Iterator[Callable[[], None]]:
    """Kill each broker in turn, and start it again: yields the two actions, one after the other."""
    for fault in range(FAULTS):
        broker = kafka.brokers[fault % len(kafka.brokers)]
        yield broker.kill
        yield broker.restart


async def test_killed_brokers(three_to_break: KafkaCluster) -> None:
    """With each of three brokers killed and started again in turn, nothing is lost, doubled or reordered."""
    async with copying(three_to_break, 2):
        await asyncio.sleep(8)
        for action in cycle(three_to_break):
            await asyncio.to_thread(action)
            await asyncio.sleep(8)
