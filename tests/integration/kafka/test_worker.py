"""A worker on a real Kafka: how much its steps hold, and what it keeps when its session was over."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.core.kernel.keys import partition
from pvbus.ports.bus import Lease, Output, TopicPartition, TopicSpec
from pvbus.runtime.reconcile.worker import Worker
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import settled
from tests.tools.kafka import KafkaCluster
from tests.unit.runtime.fakes import DLQ, IN, OUT, PARTITIONS, SEEN, Fake, FakeCluster, Row

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

SECONDS_MAX = 30.0
TOPICS = [
    *(TopicSpec(name=name, partitions=PARTITIONS, cleanup="compact") for name in (IN, OUT, SEEN)),
    TopicSpec(name=DLQ, partitions=PARTITIONS, cleanup="delete", retention_seconds=3600),
]


class CountingBus(KafkaBus):
    """Notes the sizes of steps, and what was read of the changelog, which only restores read."""

    async def step(self, lease: Lease, outputs: Any, offsets: Mapping[str, int] | None = None) -> None:
        self.__dict__.setdefault("steps", []).append(len(outputs))
        await super().step(lease, outputs, offsets)

    def reader(self, positions: Any = None) -> Any:
        replays = self.__dict__.setdefault("replays", [])
        reader = super().reader(positions)
        assign = reader.assign

        def assign_and_note(more: Mapping[TopicPartition, int]) -> None:
            replays.extend(tp for tp in more if tp[0] == OUT)
            assign(more)

        reader.assign = assign_and_note  # type: ignore[method-assign, assignment]
        replays.extend(tp for tp in positions or () if tp[0] == OUT)
        return reader


class Source:
    """Writes rows for workers, with a lease of a group of its own."""

    def __init__(self, bus: KafkaBus) -> None:
        self.bus = bus
        self.leases: dict[int, Lease] = {}

    async def open(self) -> "Source":
        await self.bus.create_topics(TOPICS)

        async def assigned(lease: Lease) -> None:
            self.leases[lease.partition] = lease

        async def revoked(lease: Lease) -> None: ...

        await self.bus.join("writer", (SEEN,), assigned=assigned, revoked=revoked)
        await settled(lambda: len(self.leases) == PARTITIONS, SECONDS_MAX, "the source has its leases")
        return self

    async def send(self, rows: Mapping[str, str]) -> None:
        outputs = [
            Output(IN, partition(key, PARTITIONS), key.encode(), msgspec.json.encode(Row(text)))
            for key, text in rows.items()
        ]
        await self.bus.step(self.leases[0], outputs)


async def table(bus: KafkaBus, topic: str) -> dict[str, str]:
    """Return the last row of each key."""
    ends = await bus.end_offsets([(topic, number) for number in range(PARTITIONS)])
    reader = bus.reader(dict.fromkeys(ends, 0))
    rows: dict[str, str] = {}
    while any(reader.position(tp) < end for tp, end in ends.items()):
        for record in await reader.poll(timeout_seconds=0.5):
            rows[record.key.decode()] = msgspec.json.decode(record.value or b"", type=Row).text
    await reader.close()
    return rows


async def test_steps_tables_and_sessions_of_a_worker(kafka_one: KafkaCluster) -> None:
    """Steps hold 200 records at most. Tables are kept over a lost session, if nobody held the leases."""
    harness = KafkaHarness(kafka_one.bootstrap, CountingBus)
    source = await Source(await harness.open()).open()
    bus = await harness.open()
    worker = Worker(Fake, bus, FakeCluster(), SystemClock(), partitions=PARTITIONS)  # type: ignore[arg-type]
    fake = worker.controller
    assert isinstance(fake, Fake)
    running = asyncio.create_task(worker.run())
    expected = {f"default/n{n}": "a" for n in range(3000)}
    await source.send(expected)
    await settled(lambda: fake.written == expected, SECONDS_MAX, "all rows are copied")
    steps: list[int] = bus.__dict__["steps"]
    assert max(steps) == bus.step_records_max == 200

    replays: list[TopicPartition] = bus.__dict__["replays"]
    opened, before = list(fake.opened), {n: c.lease for n, c in worker.leases().items()}
    del replays[:]
    harness.freeze(bus)
    await asyncio.sleep(harness.session_seconds + 3)
    harness.thaw(bus)

    def is_back() -> bool:
        leases = worker.leases()
        return (
            len(leases) == PARTITIONS and worker.ready and all(leases[n].lease != before[n] for n in before)
        )

    await settled(is_back, SECONDS_MAX, "the leases are back")
    assert {n: c.lease.epoch - before[n].epoch for n, c in worker.leases().items()} == {0: 1, 1: 1}
    assert fake.opened == opened
    assert replays == []
    expected["default/n7"] = "b"
    await source.send({"default/n7": "b"})
    await settled(lambda: fake.written == expected, SECONDS_MAX, "the worker goes on")

    before = {n: c.lease for n, c in worker.leases().items()}
    harness.freeze(bus)
    other_bus = await harness.open()
    other = Worker(Fake, other_bus, FakeCluster(), SystemClock(), partitions=PARTITIONS)  # type: ignore[arg-type]
    other_running = asyncio.create_task(other.run())
    await settled(lambda: len(other.leases()) == PARTITIONS and other.ready, SECONDS_MAX, "another took over")
    expected["default/n8"] = "c"
    await source.send({"default/n8": "c"})
    await asyncio.sleep(2)
    other.stop()
    await other_running
    harness.thaw(bus)
    await settled(is_back, SECONDS_MAX, "the leases are back")
    assert sorted(fake.opened[len(opened) :]) == [0, 1]
    assert sorted(replays) == [(OUT, 0), (OUT, 1)]
    await settled(lambda: fake.written == expected, SECONDS_MAX, "nothing is lost")
    assert await table(source.bus, OUT) == expected

    worker.stop()
    await running
    await harness.close()
