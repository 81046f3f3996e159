"""Records that cannot be written, and records that cannot be read: one worker over a real Kafka."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import Producer

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import DLQ
from pvbus.ports.bus import TopicSpec
from pvbus.runtime.reconcile.worker import Worker
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import settled
from tests.tools.kafka import FAULTS, KafkaCluster
from tests.tools.topicreader import TopicReader
from tests.unit.runtime.fakes import IN, OUT, PARTITIONS, SEEN, Fake, FakeCluster, Row

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

TOPICS = [
    *(TopicSpec(name=name, partitions=PARTITIONS, cleanup="compact") for name in (IN, OUT, SEEN)),
    TopicSpec(name=DLQ, partitions=PARTITIONS, cleanup="delete", retention_seconds=3600),
]
KEYS = [f"default/k{number}" for number in range(8)]
SECONDS_MAX = 30.0


class FakeOnKafka:
    """A worker that copies `toy.in` to `toy.out`, and somebody else's client that writes what it likes."""

    def __init__(self, bootstrap: str, harness: KafkaHarness, worker: Worker) -> None:
        self._harness = harness
        self._bootstrap = bootstrap
        self.worker = worker
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 4})

    def send(self, key: bytes, value: bytes, number: int, topic: str = IN) -> None:
        """Write one record as any Kafka client could."""
        name = self._harness.settings.named(topic)
        failures: list[Any] = []
        self._producer.produce(
            name, key=key, value=value, partition=number, on_delivery=lambda error, _: failures.append(error)
        )
        self._producer.flush(20)
        assert failures == [None]

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """The keys whose outcome the bus refused, and why."""
        return cast(Fake, self.worker.controller).refusals

    def has_refused_more_than(self, least: int) -> bool:
        return len(self.refusals) > least

    def order(self, key: str, text: str | dict[str, Any]) -> None:
        row = Row(json.dumps(text) if isinstance(text, dict) else text)
        self.send(key.encode(), msgspec.json.encode(row), partition(key, PARTITIONS))

    def table(self, topic: str) -> dict[str, str]:
        with self._reader() as reader:
            found = reader.all((topic,)).table(topic)
        return {key.decode(): json.loads(value)["text"] for key, value in found.items()}

    def letters(self) -> list[dict[str, Any]]:
        with self._reader() as reader:
            return [json.loads(record.value or b"") for record in reader.all((DLQ,)).records]

    def committed(self) -> dict[tuple[str, int], int]:
        with self._reader() as reader:
            return reader.committed("pvbus-toy")

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the offset after the last record of each partition of the input."""
        with self._reader() as reader:
            return {(r.topic, r.partition): r.offset + 1 for r in reader.all((IN,)).records}

    def _reader(self) -> TopicReader:
        return TopicReader(self._bootstrap, self._harness.settings.prefix)

    async def copied(self, expected: dict[str, str]) -> None:
        async def is_copied() -> bool:
            return await asyncio.to_thread(self.table, OUT) == expected

        await settled(is_copied, SECONDS_MAX, "all that can be copied is copied")


@asynccontextmanager
async def fake(kafka: KafkaCluster) -> AsyncIterator[FakeOnKafka]:
    harness = KafkaHarness(kafka.bootstrap)
    bus: KafkaBus = await harness.open()
    await bus.create_topics(TOPICS)
    worker = Worker(Fake, bus, FakeCluster(), SystemClock(), partitions=PARTITIONS)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    try:
        await settled(lambda: worker.ready and len(worker.leases()) == PARTITIONS, SECONDS_MAX, "it is ready")
        yield FakeOnKafka(kafka.bootstrap, harness, worker)
        assert not running.done(), "the worker goes on"
    finally:
        worker.stop()
        with contextlib.suppress(Exception):
            await running
        await harness.close()


async def test_an_outcome_above_the_limit(
    three_proxied: KafkaCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outcome that is too large is not written, and is told with its key; all others are written."""
    async with fake(three_proxied) as world:
        expected: dict[str, str] = {}
        for number in range(FAULTS):
            for key in KEYS:
                too_large = {"size": KafkaHarness.record_bytes_max + 1}
                world.order(key, too_large if key == KEYS[3] else f"small {number}")
            expected |= {key: f"small {number}" for key in KEYS if key != KEYS[3]}
            await world.copied(expected)
            await settled(partial(world.has_refused_more_than, number), 10, "it is refused")
            expected[KEYS[3]] = f"smaller {number}"
            world.order(KEYS[3], expected[KEYS[3]])
            await world.copied(expected)
        assert {key for key, _ in world.refusals} == {KEYS[3]}
        reported = "".join(capsys.readouterr())  # the same failure is not logged each time
        assert f"{OUT}: {KEYS[3]}" in reported
        assert "the limit is" in reported


BAD = [
    (b"default/k1", b"{"),
    (b"default/k2", b'{"text": 5}'),
    (b"default/k3", b"\xff\xfe\x00"),
    (b"\xff\xfe", b'{"text": "a key that is no text"}'),
    (b"", b'{"text": "an empty key"}'),
    (next(key for key in KEYS if partition(key, PARTITIONS) == 1).encode(), b'{"text": "elsewhere"}'),
]


async def test_records_that_cannot_be_decoded(three_proxied: KafkaCluster) -> None:
    """Each goes to the dead letters with its place and the reason; what comes after it is copied, and its
    offset is committed."""
    async with fake(three_proxied) as world:
        for key in KEYS:
            world.order(key, "before")
        await world.copied(dict.fromkeys(KEYS, "before"))
        for bad_key, value in BAD:
            world.send(bad_key, value, 0)
        for key in KEYS:
            world.order(key, "after")
        await world.copied(dict.fromkeys(KEYS, "after"))
        await settled(lambda: len(world.letters()) == len(BAD), 10, "every one has a letter")
        letters = sorted(world.letters(), key=lambda letter: letter["offset"])
        assert [(letter["topic"], letter["partition"]) for letter in letters] == [(IN, 0)] * len(BAD)
        assert len({letter["offset"] for letter in letters}) == len(BAD)
        assert all(letter["error"] for letter in letters)
        await settled(lambda: world.committed() == world.ends(), 10, "all input is done")
