"""Local copies of partitions, over a real Kafka: what a start takes from them, and when it reads instead."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from structlog.testing import capture_logs

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import producer_options
from pvbus.ports.bus import Lease, Output, Record, TopicPartition
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import TOPICS, everything, fold, holder, read_all, settled
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

WRITTEN_SECONDS_MAX = 30.0


@asynccontextmanager
async def harness_of(kafka: KafkaCluster, folder: Path) -> AsyncIterator[KafkaHarness]:
    harness = KafkaHarness(kafka.bootstrap, snapshots=str(folder), snapshot_seconds=1.0)
    try:
        yield harness
    finally:
        await harness.close()


async def write(bus: KafkaBus, lease: Lease, rows: Mapping[str, str | None]) -> None:
    number = lease.partition
    outputs = [
        Output("table", number, key.encode(), None if value is None else value.encode())
        for key, value in rows.items()
    ]
    await bus.step(lease, outputs)


async def asked(bus: KafkaBus) -> dict[TopicPartition, Sequence[Record]]:
    """Return the rows that a bus knows without reading."""
    known = await bus.snapshots(list(everything("table")))
    return {tp: each.records for tp, each in known.items()}


async def restored(bus: KafkaBus) -> dict[bytes, bytes]:
    """Return the table of a start with what the bus knows."""
    ends = await bus.end_offsets(list(everything("table")))
    known = await bus.snapshots(list(everything("table")))
    records = [record for each in known.values() for record in each.records]
    reader = bus.reader({tp: known[tp].position if tp in known else 0 for tp in ends})
    while any(reader.position(tp) < end for tp, end in ends.items()):
        records += await reader.poll(timeout_seconds=1)
    await reader.close()
    return fold(records)


async def files(folder: Path, count: int) -> list[Path]:
    """Wait until so many files are there."""
    await settled(lambda: len(found(folder)) >= count, WRITTEN_SECONDS_MAX, f"{count} files")
    return found(folder)


def found(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.snapshot"))


async def test_a_start_reads_only_what_came_since(kafka: KafkaCluster, tmp_path: Path) -> None:
    """Rows that were written again, deleted or new since then are as the log says."""
    async with harness_of(kafka, tmp_path) as harness, holder(harness) as (bus, leases):
        assert isinstance(bus, KafkaBus)
        for lease in leases:
            await write(bus, lease, {f"{lease.partition}-{n}": "first" for n in range(50)})
        assert await asked(bus) == {}
        assert [file.stat().st_mode & 0o777 for file in await files(tmp_path, 4)] == [0o600] * 4
        assert {tp: len(records) for tp, records in (await asked(bus)).items()} == dict.fromkeys(
            everything("table"), 50
        )
        await write(bus, leases[0], {"0-0": "second", "0-1": None, "0-new": "third"})
        other = await harness.open()
        table = await restored(other)
        assert table == fold(await read_all(other, "table"))
        assert (len(table), table[b"0-0"], table[b"0-new"]) == (200, b"second", b"third")


async def test_records_of_an_aborted_transaction_are_in_no_file(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    async with harness_of(kafka_one, tmp_path) as harness, holder(harness) as (bus, leases):
        assert isinstance(bus, KafkaBus)
        await write(bus, leases[1], {"key": "committed"})
        options = producer_options(harness.settings, f"test-{secrets.token_hex(4)}")
        async with AIOKafkaProducer(**options) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(harness.settings.named("table"), b"aborted", b"key", partition=1)
            await producer.abort_transaction()
        await asked(bus)
        await files(tmp_path, 4)
        (record,) = (await asked(bus))["table", 1]
        assert record.value == b"committed"
        assert await restored(await harness.open()) == {b"key": b"committed"}


async def test_a_topic_that_is_made_again_is_read_from_its_beginning(
    kafka_one: KafkaCluster, tmp_path: Path
) -> None:
    """Its new log may have more records than the old one had."""
    async with harness_of(kafka_one, tmp_path) as harness:
        async with holder(harness) as (bus, leases):
            assert isinstance(bus, KafkaBus)
            await write(bus, leases[2], {f"{n}": "old" for n in range(5)})
            await asked(bus)
            await files(tmp_path, 1)
        again = await harness.open()
        named = [harness.settings.named(spec.name) for spec in TOPICS]
        await again._admin.delete_topics(named)

        async def are_gone() -> bool:
            return not await again.topics()

        await settled(are_gone, WRITTEN_SECONDS_MAX, "the topics are gone")
        async with holder(harness) as (bus, leases):
            assert isinstance(bus, KafkaBus)
            await write(bus, leases[2], {f"{n}": "new" for n in range(5, 25)})
            with capture_logs() as lines:
                assert await asked(bus) == {}
            assert {line["why"] for line in lines} == {"the topic was deleted and made again"}
            assert await restored(bus) == {f"{n}".encode(): b"new" for n in range(5, 25)}
