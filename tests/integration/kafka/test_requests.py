"""How many requests work costs: they, and not the work, are what Kafka costs both sides."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pvbus.ports.bus import Bus, Lease, Output, Reader
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import PARTITIONS, everything, holder
from tests.tools.kafka import KafkaCluster
from tests.tools.kafkarequests import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END_TRANSACTION,
    FETCH,
    PRODUCE,
    counted_requests,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 30
"""Of each lease."""

OTHERS = 4
"""Connections that a bus has beside those of its leases."""


@asynccontextmanager
async def holding(kafka: KafkaCluster) -> AsyncIterator[tuple[Bus, list[Lease]]]:
    harness = KafkaHarness(kafka.bootstrap)
    try:
        async with holder(harness) as (bus, leases):
            yield bus, leases
    finally:
        await harness.close()


async def test_a_step_adds_its_partitions_with_one_request(kafka_one: KafkaCluster) -> None:
    """However many partitions a step writes, each kind of request of its transaction is sent once."""
    async with holding(kafka_one) as (bus, leases):
        outputs = [Output("out", number, b"k", b"v") for number in range(PARTITIONS)]
        await bus.step(leases[0], outputs)  # the coordinators are known, and the offsets
        await bus.committed(leases[0], ["table"])  # and this transaction has ended
        with counted_requests() as requests:
            await bus.step(leases[0], outputs, {"table": 1})
        kinds = (ADD_PARTITIONS, ADD_OFFSETS, PRODUCE, END_TRANSACTION)
        assert [requests.sent[kind] for kind in kinds] == [1, 1, 1, 1]


async def test_leases_share_what_they_know_of_the_cluster(kafka_one: KafkaCluster) -> None:
    """A lease takes one connection: for metadata there is one of all, and its steps need no other."""
    with counted_requests() as requests:
        async with holding(kafka_one) as (bus, leases):
            for lease in leases:
                await bus.step(lease, [Output("out", lease.partition, b"k", b"v")], {"table": 1})
            assert sum(connection.connected() for connection in requests.connections) <= OTHERS + PARTITIONS


async def test_a_stream_is_read_with_few_small_fetches(kafka_one: KafkaCluster) -> None:
    """A reader of a stream fetches less than once a step, and names the partitions that moved, not all.

    A machine that is busy with more makes pauses, and records after a pause are fetched at once. So a stream
    may be sent three times. Without a pace each costs nine fetches for ten steps.
    """
    async with holding(kafka_one) as (bus, leases):
        reader = bus.reader(everything("out") | everything("table"))
        assert await reader.poll(timeout_seconds=0.5) == []
        fetches: list[int] = []
        while len(fetches) < 3 and min(fetches, default=PARTITIONS * STEPS) > PARTITIONS * STEPS / 2:
            with counted_requests() as requests:
                await stream(bus, leases, reader)
            assert sum(requests.partitions) <= PARTITIONS * requests.sent[FETCH]
            fetches.append(requests.sent[FETCH])
        assert min(fetches) <= PARTITIONS * STEPS / 2


async def stream(bus: Bus, leases: list[Lease], reader: Reader) -> None:
    """Let each lease write its steps, one record each, and read all of them meanwhile."""
    keys: list[bytes] = []

    async def write(number: int) -> None:
        for step in range(STEPS):
            await bus.step(leases[number], [Output("out", number, b"%d-%d" % (number, step), b"v")])

    async def read() -> None:
        while len(keys) < PARTITIONS * STEPS:
            keys.extend([record.key for record in await reader.poll(timeout_seconds=5.0)])

    await asyncio.gather(read(), *map(write, range(PARTITIONS)))
    assert sorted(keys) == sorted(b"%d-%d" % (n, step) for n in range(PARTITIONS) for step in range(STEPS))
