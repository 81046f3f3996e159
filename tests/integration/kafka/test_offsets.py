"""A group's offsets while they are being committed: never older than what somebody was told of."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ForeignPartition

from pvbus.adapters.kafka.requests import ask_until_answered, fetch_offsets
from pvbus.adapters.kafka.settings import KafkaSettings, client_options, producer_options
from pvbus.ports.bus import GroupOffsets
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import TOPICS
from tests.tools.kafka import Broker, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

AT_ONCE_SECONDS = 1.0
"""What is answered at all is answered within this."""

FROZEN_SECONDS_MAX = 4.5
"""Less than a broker's session: then the others go on without it."""


class Connection:
    """One to the coordinator of a group without members, and to nobody else.

    There are several, as a broker takes the next request of a connection when the one before is answered.
    """

    def __init__(self, admin: AIOKafkaAdminClient, node: int, name: str, tp: TopicPartition) -> None:
        self.name = name
        self.tp = tp
        self._admin = admin
        self._node = node

    async def coordinator_lookup(self, kind: int, name: str) -> int:
        return self._node

    async def force_metadata_update(self) -> bool:
        return True

    async def send(self, node: int, request: Any) -> Any:
        return await self._admin._client.send(node, request)

    async def offset(self, *, is_stable: bool) -> int:
        return (await fetch_offsets(self, self.name, [self.tp], is_stable=is_stable))[self.tp]

    async def commit(self, offset: int) -> None:
        parts = [(self.tp.topic, [(self.tp.partition, offset, "")])]

        async def ask() -> None:
            answer = await self.send(self._node, OffsetCommitRequest(self.name, -1, "", -1, parts))
            ((_, ((_, code),)),) = answer.topics
            if code:
                raise errors.for_code(code)

        await ask_until_answered(self, ask)


async def coordinated(admin: AIOKafkaAdminClient, settings: KafkaSettings, avoiding: int) -> tuple[int, str]:
    """Return a group whose coordinator is not this broker, and before it the one that is."""

    async def ask() -> int:
        found: int = await admin._client.coordinator_lookup(CoordinationType.GROUP, name)
        return found

    while True:
        name = settings.named(f"group-{secrets.token_hex(4)}")
        if (node := await ask_until_answered(admin._client, ask)) != avoiding:
            return node, name


@asynccontextmanager
async def connections(
    kafka: KafkaCluster, count: int, *, avoiding: int = 0
) -> AsyncIterator[tuple[KafkaSettings, list[Connection]]]:
    """Connect to a new group's coordinator so many times; the group's offset is 5."""
    harness = KafkaHarness(kafka.bootstrap)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(harness.close)
        await (await harness.open()).create_topics(TOPICS)
        admins = [AIOKafkaAdminClient(**client_options(harness.settings)) for _ in range(count)]
        for admin in admins:
            stack.push_async_callback(admin.close)
            await admin.start()
        node, name = await coordinated(admins[0], harness.settings, avoiding)
        tp = TopicPartition(harness.settings.named("table"), 0)
        found = [Connection(admin, node, name, tp) for admin in admins]
        await found[0].commit(5)
        assert [await each.offset(is_stable=True) for each in found] == [5] * count
        yield harness.settings, found


@pytest.mark.parametrize(("is_committed", "after"), [(True, 7), (False, 5)])
async def test_offsets_of_an_open_transaction_are_waited_for(
    kafka_one: KafkaCluster, *, is_committed: bool, after: int
) -> None:
    """Unless whoever asks only wants to look."""
    async with connections(kafka_one, 2) as (settings, (looking, waiting)):
        options = producer_options(settings, f"test-{secrets.token_hex(4)}")
        async with AIOKafkaProducer(**options) as producer:
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({looking.tp: 7}, looking.name)
            asking = asyncio.create_task(waiting.offset(is_stable=True))
            await asyncio.sleep(AT_ONCE_SECONDS)
            assert not asking.done()
            assert await looking.offset(is_stable=False) == 5
            await (producer.commit_transaction() if is_committed else producer.abort_transaction())
            assert await asking == after


@pytest.fixture
def other_broker(kafka_three: KafkaCluster) -> Broker:
    """A broker for a test to freeze."""
    if not kafka_three.brokers:
        pytest.skip("brokers that are not ours are not frozen")
    return kafka_three.brokers[0]


async def unanswered(waiting: Connection) -> asyncio.Task[int]:
    """Ask until there is no answer: what is being committed is on its way, and then it is written."""
    while True:
        asking = asyncio.create_task(waiting.offset(is_stable=True))
        if asking not in (await asyncio.wait({asking}, timeout=AT_ONCE_SECONDS))[0]:
            return asking
        assert asking.result() == 5


async def test_offsets_are_told_when_they_are_replicated(
    kafka_three: KafkaCluster, other_broker: Broker
) -> None:
    """A coordinator that has just taken over knows of the last offsets only that it has them, not yet that
    all have; by the library's own request it tells those before them, as here."""
    async with connections(kafka_three, 3, avoiding=other_broker.number) as (_, found):
        committing, looking, waiting = found
        other_broker.freeze()
        try:
            async with asyncio.timeout(FROZEN_SECONDS_MAX):
                commit = asyncio.create_task(committing.commit(7))
                asking = await unanswered(waiting)
                assert await looking.offset(is_stable=False) == 5
                assert not asking.done()
        finally:
            other_broker.thaw()
        await commit
        assert await asking == 7


async def test_the_groups_of_all_brokers_are_listed(kafka_three: KafkaCluster) -> None:
    """Each broker knows only the groups that it coordinates; those of a topic are found wherever they are."""
    harness = KafkaHarness(kafka_three.bootstrap)
    bus = await harness.open()
    await bus.create_topics(TOPICS)
    names = {harness.settings.named(f"somebody-{number}") for number in range(12)}
    topic = harness.settings.named("table")
    await asyncio.gather(*(asyncio.to_thread(commit_as_somebody, kafka_three, name, topic) for name in names))
    admin = AIOKafkaAdminClient(**client_options(harness.settings))
    await admin.start()
    coordinators = {await admin._client.coordinator_lookup(CoordinationType.GROUP, name) for name in names}
    await admin.close()
    assert len(coordinators) > 1 or not kafka_three.brokers
    found = await bus.readers_of(["table"])
    assert found == {name: GroupOffsets("Empty", {("table", 1): 7}) for name in names}
    assert await bus.readers_of(["out"]) == {}
    await harness.close()


def commit_as_somebody(kafka: KafkaCluster, group: str, topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group, "log_level": 2})
    consumer.commit(offsets=[ForeignPartition(topic, 1, 7)], asynchronous=False)
    consumer.close()
