"""A broker that does not answer: nothing hangs, nothing is half done, and afterwards all goes on."""

import asyncio
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from pvbus.adapters.kafka import bus as kafka_bus
from pvbus.adapters.kafka import requests, topics, writer
from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.errors import with_deadline
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Lease, Output
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import GROUP, TOPICS, expect, fold, holder, ignore, read_all
from tests.tools.kafka import Broker, KafkaCluster
from tests.tools.ports import free_ports

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_SECONDS = 3.0
CLOSE_SECONDS = 20.0


@pytest.fixture
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kafka_bus, topics, writer):
        monkeypatch.setattr(module, "with_deadline", partial(with_deadline, seconds=DEADLINE_SECONDS))
    monkeypatch.setattr(requests, "ANSWER_SECONDS_MAX", DEADLINE_SECONDS)


async def step_against_frozen(kafka: KafkaCluster, within_seconds: float) -> None:
    """Step while the broker is stopped; then let it go on, and look at what is there."""
    (broker,) = kafka.brokers
    harness = KafkaHarness(kafka.bootstrap)
    try:
        await _step_against_frozen(harness, broker, within_seconds)
    finally:
        await harness.close()


async def _step_against_frozen(harness: KafkaHarness, broker: Broker, within_seconds: float) -> None:
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [Output("out", 0, b"k", b"before")], {"table": 1})
        broker.freeze()
        try:
            async with asyncio.timeout(within_seconds):
                await expect(
                    TransientError, bus.step(leases[0], [Output("out", 0, b"k", b"lost")], {"table": 2})
                )
        finally:
            broker.thaw()
        committed = (await bus.committed(leases[0], ["table"]))["table"]
        table = fold(await read_all(bus, "out"))
        assert (committed, table) in ((1, {b"k": b"before"}), (2, {b"k": b"lost"}))
        await bus.step(leases[0], [Output("out", 0, b"k", b"after")], {"table": 3})
        assert fold(await read_all(bus, "out")) == {b"k": b"after"}


@pytest.mark.usefixtures("short_deadline")
async def test_a_step_has_a_deadline(kafka_to_break: KafkaCluster) -> None:
    """A step against a broker that does not answer ends in time, whole or not at all; the lease goes on."""
    await step_against_frozen(kafka_to_break, DEADLINE_SECONDS + 1)


async def test_without_a_deadline_a_step_hangs(
    kafka_to_break: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the deadline taken out, the same step does not end."""
    monkeypatch.setattr(writer, "with_deadline", partial(with_deadline, seconds=3600.0))
    with pytest.raises(TimeoutError):
        await step_against_frozen(kafka_to_break, DEADLINE_SECONDS + 1)


def questions(bus: KafkaBus, lease: Lease) -> list[Coroutine[Any, Any, object]]:
    """Return one of each call that asks the broker. The topic of the steps was never looked up."""
    del bus._catalogue._partitions["events"]  # as if another worker had made the topic
    return [
        bus.step(lease, [Output("events", 0, b"k", b"v")]),
        bus.step(lease, [], {"events": 1}),
        bus.committed(lease, ["table"]),
        bus.end_offsets([("events", 0)]),
        bus.begin_offsets([("events", 0)]),
        bus.create_topics(TOPICS),
        bus.check_topics(TOPICS),
        bus.topics(),
        bus.describe(GROUP, ["table"]),
        bus.readers_of(["table"]),
        bus.join("other", ["table"], assigned=ignore, revoked=ignore),
    ]


@pytest.mark.usefixtures("short_deadline")
async def test_closing_does_not_need_the_broker(kafka_to_break: KafkaCluster) -> None:
    """With the broker dead, each call says in our words that it has no answer, a step ends in time, and a bus
    closes in time and leaves no task behind."""
    harness = KafkaHarness(kafka_to_break.bootstrap)
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [Output("out", 0, b"k", b"v")], {"table": 1})
        reader = bus.reader({("out", 0): 0})
        await reader.poll(timeout_seconds=1)
        kafka_to_break.brokers[0].kill()
        assert isinstance(bus, KafkaBus)
        asked = await asyncio.gather(*questions(bus, leases[0]), return_exceptions=True)
        assert {type(answer) for answer in asked} == {TransientError}, asked
        steps = [
            asyncio.create_task(bus.step(lease, [Output("out", 1, b"k", b"v")], {"table": 2}))
            for lease in leases
        ]
        done, _ = await asyncio.wait(steps, timeout=DEADLINE_SECONDS + 2)
        assert len(done) == len(steps)
        assert {type(task.exception()) for task in steps} == {TransientError}
        began = time.monotonic()
        await harness.close()
        assert time.monotonic() - began < CLOSE_SECONDS
    await asyncio.sleep(1)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert left == set()


async def test_opening_without_a_broker() -> None:
    """A bus that cannot be reached is a transient failure that names the address."""
    (port,) = free_ports(1)
    with pytest.raises(TransientError, match=f"127.0.0.1:{port}"):
        await KafkaBus.open(KafkaSettings(bootstrap=(f"127.0.0.1:{port}",)))
