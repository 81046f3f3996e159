"""A program writes a condition of an object: how long until another program has its event from Kafka.

Between them are the API server, ingest and conditions, each a process of its own, and two transactions. The
subscriber is a plain client in its default settings but `read_committed`. After each change the same
subscriber gets a record with the event's key, headers and value that a plain producer sends: the bare hop, on
the same machine at the same time. All clocks are this machine's.
"""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from pvbus.adapters.kafka.settings import KafkaSettings, settings_of
from pvbus.core.kernel.records import CONDITIONS, OBJECTS
from pvbus.runtime.process.assembly import partition_count
from tests.bench.children import share
from tests.bench.deployment import Deployment, fresh_bus
from tests.bench.fleet import REPOSITORIES, Fleet, repository
from tests.bench.kafka_hops import Witness, witnessing
from tests.bench.report import Row
from tests.tools.kafka import KafkaCluster, running

NAME = "kafka-events"
GOAL_MS = 100
CHANGE_SECONDS = 30.0
PAUSE_SECONDS = 0.3
BARE = "bare"

HOPS = (
    "the API server's write, to its watch event",
    "ingest: to its record being sent",
    "that step: to its record being readable",
    "conditions: to the event being sent",
    "that step: to the event being received",
)


class Change(NamedTuple):
    """moments: between the hops, the first of which is just before the write. bare: of that hop, seconds."""

    moments: tuple[float, ...]
    bare: float
    bytes: int


class Subscriber:
    """Follows the public events and the bare topic, as a program of somebody else."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._wanted: dict[tuple[str, bytes], asyncio.Future[tuple[float, ConsumerRecord]]] = {}

    def expect(self, topic: str, needle: str) -> "asyncio.Future[tuple[float, ConsumerRecord]]":
        """Return when the first record with this in its value is received, and the record."""
        future = asyncio.get_running_loop().create_future()
        self._wanted[topic, needle.encode()] = future
        return future

    async def run(self) -> None:
        async for record in self._consumer:
            now = time.time()
            for (topic, needle), future in tuple(self._wanted.items()):
                if record.topic == topic and needle in record.value:
                    future.set_result((now, record))
                    del self._wanted[topic, needle]


@asynccontextmanager
async def subscribed(kafka: KafkaCluster, settings: KafkaSettings) -> AsyncIterator[Subscriber]:
    topics = (settings.named(CONDITIONS), settings.named(BARE))
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topics[1], partition_count(), 1)])
    await admin.close()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, n) for topic in topics for n in range(partition_count())])
    await consumer.seek_to_end()
    subscriber = Subscriber(consumer)
    following = asyncio.create_task(subscriber.run())
    try:
        yield subscriber
    finally:
        following.cancel()
        await asyncio.wait({following})
        await consumer.stop()


async def kafka_events(*, small: bool) -> list[Row]:
    """Change Ready of Repositories one after the other, as a package store does."""
    objects, changes = (10, 10) if small else (200, 400)
    with running(1) as kafka:
        bus = fresh_bus(kafka)
        settings = settings_of(bus)
        async with Fleet.started() as fleet:
            await fleet.post_all(REPOSITORIES, (repository(f"repo-{n:04}") for n in range(objects)))
            async with Deployment(fleet.kubeconfig, bus, (("ingest",), ("conditions",))) as services:
                await services.settled()
                async with (
                    AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, acks="all") as producer,
                    subscribed(kafka, settings) as subscriber,
                    witnessing(fleet, bus, (OBJECTS,), (REPOSITORIES,)) as witness,
                ):
                    dice = random.Random(5)
                    run = _Run(fleet, witness, subscriber, producer, settings)
                    for _ in range(3):  # connections and caches
                        await run.change(f"repo-{dice.randrange(objects):04}")
                    found = []
                    for _ in range(changes):
                        await asyncio.sleep(dice.uniform(0.0, PAUSE_SECONDS))
                        found.append(await run.change(f"repo-{dice.randrange(objects):04}"))
    return _rows(found)


class _Run(NamedTuple):
    fleet: Fleet
    witness: Witness
    subscriber: Subscriber
    producer: AIOKafkaProducer
    settings: KafkaSettings

    async def change(self, name: str) -> Change:
        """Write a condition, wait for its event, and send that once more as it is."""
        token = f"R{secrets.token_hex(8)}"
        arriving = self.subscriber.expect(self.settings.named(CONDITIONS), token)
        wanted = self.witness.expect(name, REPOSITORIES, OBJECTS)
        began = time.time()
        async with asyncio.timeout(CHANGE_SECONDS):
            await self.fleet.patch(f"{REPOSITORIES}/{name}/status", _status(token))
            received, event = await arriving
            watched, observed = await wanted[REPOSITORIES], await wanted[OBJECTS]
            bare = await self._bare(event, token)
        sent = (event.timestamp + 0.5) / 1000  # producers cut their times to milliseconds
        reported = min(watched.seen, observed.sent)
        moments = (began, reported, observed.sent, observed.seen, sent, received)
        return Change(moments, bare, len(event.key) + len(event.value))

    async def _bare(self, event: ConsumerRecord, token: str) -> float:
        arriving = self.subscriber.expect(self.settings.named(BARE), token)
        began = time.time()
        await self.producer.send(
            self.settings.named(BARE),
            event.value,
            key=event.key,
            partition=event.partition,
            headers=list(event.headers),
        )
        received, _ = await arriving
        return received - began


def _status(reason: str) -> dict[str, Any]:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": reason,
        "message": "The repository is in sync.",
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return {"status": {"conditions": [condition]}}


def _rows(found: Sequence[Change]) -> list[Row]:
    delays = [1000 * (each.moments[-1] - each.moments[0]) for each in found]
    bare = [1000 * each.bare for each in found]
    size = sum(each.bytes for each in found) / len(found)
    what = "condition written to event received"
    rows = [
        Row(NAME, f"bare produce to consume, records of {size:.0f} bytes: p50", share(bare, 0.5), "ms"),
        Row(NAME, "bare produce to consume: p99", share(bare, 0.99), "ms"),
        Row(
            *(NAME, f"{what}, {len(found)} of them: p50", share(delays, 0.5), "ms"),
            ratio=share(delays, 0.5) / share(bare, 0.5),
            ratio_of="the bare hop's p50",
        ),
        Row(
            *(NAME, f"{what}: p99", share(delays, 0.99), "ms", GOAL_MS, "less"),
            *(share(delays, 0.99) / share(bare, 0.99), "the bare hop's p99"),
        ),
    ]
    for number, name in enumerate(HOPS):
        took = [1000 * (each.moments[number + 1] - each.moments[number]) for each in found]
        rows.append(
            Row(
                *(NAME, f"{what}, hop {number + 1}, {name}: p50 (p99 {share(took, 0.99):.0f})"),
                *(share(took, 0.5), "ms"),
                ratio=sum(took) / sum(delays),
                ratio_of="all of it",
            )
        )
    return rows
