"""Groups on Kafka beyond the contract: strays, heartbeats, brokers that restart, Kafka's own tools."""

import asyncio
import subprocess

import pytest
from aiokafka import AIOKafkaProducer

from pvbus.adapters.kafka.settings import producer_options
from pvbus.core.errors import FencedError
from pvbus.ports.bus import Lease, Output
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import (
    GROUP,
    PARTITIONS,
    TOPICS,
    expect,
    fold,
    holder,
    ignore,
    read_all,
    settled,
)
from tests.tools.kafka import KafkaCluster, tool

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

RECOVERY_SECONDS = 60.0


async def test_a_stray_producer_costs_one_lease(kafka_one: KafkaCluster) -> None:
    """Whoever fences a lease by accident (a worker that woke up late) only makes its holder take it again."""
    harness = KafkaHarness(kafka_one.bootstrap)
    bus = await harness.open()
    await bus.create_topics(TOPICS)
    revoked: list[Lease] = []

    async def note(lease: Lease) -> None:
        revoked.append(lease)

    membership = await bus.join(GROUP, ["table"], assigned=ignore, revoked=note)
    await settled(lambda: len(membership.leases()) == PARTITIONS, harness.handover_seconds, "it holds all")
    before = membership.leases()
    await bus.step(before[1], [Output("out", 1, b"k", b"before")], {"table": 1})

    options = producer_options(harness.settings, harness.settings.transactional_id(GROUP, 1))
    stray = AIOKafkaProducer(**options)
    await stray.start()
    await stray.stop()

    await expect(FencedError, bus.step(before[1], [Output("out", 1, b"k", b"fenced")], {"table": 2}))
    await settled(
        lambda: membership.leases().get(1, before[1]).epoch > before[1].epoch,
        2 * harness.handover_seconds,
        "the lease is taken again",
    )
    after = membership.leases()
    assert revoked == [before[1]]
    assert {number: after[number] for number in (0, 2, 3)} == {number: before[number] for number in (0, 2, 3)}
    assert await bus.committed(after[1], ["table"]) == {"table": 1}
    await bus.step(after[1], [Output("out", 1, b"k", b"after")], {"table": 2})
    assert fold(await read_all(bus, "out")) == {b"k": b"after"}
    await harness.close()


async def test_a_lease_found_lost_while_its_member_ends_is_nothing_to_give_back(
    kafka_one: KafkaCluster,
) -> None:
    """A producer's replacement may learn so at any time, also when no task may begin any more."""
    harness = KafkaHarness(kafka_one.bootstrap)
    bus = await harness.open()
    await bus.create_topics(TOPICS)
    membership = await bus.join(GROUP, ["table"], assigned=ignore, revoked=ignore)
    await settled(lambda: len(membership.leases()) == PARTITIONS, harness.handover_seconds, "it holds all")
    writers = [membership.writer(lease) for lease in membership.leases().values()]
    ending = asyncio.create_task(membership.abandon())
    while membership.leases():  # noqa: ASYNC110 - nothing tells, and the moment is short
        await asyncio.sleep(0)
    assert not ending.done()
    for writer in writers:
        assert writer is not None
        writer.lose()
    await ending
    await harness.close()


async def test_heartbeats_tell_their_age(kafka_to_break: KafkaCluster) -> None:
    """The last heartbeat is one that was answered: it grows old while the broker does not answer."""
    (broker,) = kafka_to_break.brokers
    harness = KafkaHarness(kafka_to_break.bootstrap)
    loop = asyncio.get_running_loop()
    async with holder(harness) as (bus, _):
        (membership,) = bus._memberships  # type: ignore[attr-defined]
        await settled(lambda: loop.time() - membership.last_heartbeat() < 1.5, 10, "heartbeats are answered")
        await asyncio.sleep(5)
        assert loop.time() - membership.last_heartbeat() < 2.5
        broker.freeze()
        try:
            await asyncio.sleep(4)
            assert loop.time() - membership.last_heartbeat() > 3
        finally:
            broker.thaw()
        await settled(lambda: loop.time() - membership.last_heartbeat() < 1.5, 10, "they are answered again")
    await harness.close()


async def test_the_only_broker_restarts(kafka_to_break: KafkaCluster) -> None:
    """When the broker was away for a while, the worker holds its leases again by itself, and steps."""
    (broker,) = kafka_to_break.brokers
    harness = KafkaHarness(kafka_to_break.bootstrap)
    bus = await harness.open()
    await bus.create_topics(TOPICS)
    membership = await bus.join(GROUP, ["table"], assigned=ignore, revoked=ignore)
    await settled(lambda: len(membership.leases()) == PARTITIONS, harness.handover_seconds, "it holds all")
    await bus.step(membership.leases()[0], [Output("out", 0, b"k", b"before")], {"table": 1})
    broker.kill()
    await asyncio.sleep(5)
    await asyncio.to_thread(broker.restart)

    async def steps() -> bool:
        try:
            for number, lease in membership.leases().items():
                await bus.committed(lease, ["table"])
                await bus.step(lease, [Output("out", number, b"%d" % number, b"after")])
        except Exception:
            return False
        return len(membership.leases()) == PARTITIONS

    await settled(steps, RECOVERY_SECONDS, "all leases step again")
    assert await bus.committed(membership.leases()[0], ["table"]) == {"table": 1}
    table = fold(await read_all(bus, "out"))
    assert table == {b"k": b"before"} | {b"%d" % number: b"after" for number in range(PARTITIONS)}
    await harness.close()


async def test_kafkas_own_tool_shows_the_group(kafka_one: KafkaCluster) -> None:
    """An operator sees the group, its leases and its lag with Kafka's console tool."""
    harness = KafkaHarness(kafka_one.bootstrap)
    async with holder(harness, ("table", "events")) as (bus, leases):
        await bus.step(leases[2], [Output("table", 2, b"k", b"v")], {"table": 0})
        command = tool(
            "consumer.group.ConsumerGroupCommand", "--bootstrap-server", kafka_one.bootstrap, "--describe",
            "--group", harness.settings.named(GROUP),
        )  # fmt: skip
        answer = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120, check=False
        )
    await harness.close()
    rows = [
        line.split() for line in answer.stdout.splitlines() if line.startswith(harness.settings.named(GROUP))
    ]
    shown = {(row[1], int(row[2])): row for row in rows}
    topics = {harness.settings.named(topic) for topic in ("table", "events")}
    assert set(shown) == {(topic, number) for topic in topics for number in range(PARTITIONS)}, answer.stderr
    assert len({row[6] for row in rows}) == 1, "all belong to the one member"
    committed, end = shown[harness.settings.named("table"), 2][3:5]
    assert (committed, int(end) > 0) == ("0", True)
