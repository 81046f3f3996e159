"""A group's offsets while they are being committed: never older than what somebody was told of."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import CoordinationType
from aiokafka.protocol.commit import OffsetCommitRequest

from pvbus.adapters.kafka.answers import answered
from pvbus.adapters.kafka.offsets import fetch_offsets
from pvbus.adapters.kafka.settings import KafkaSettings, client_options, producer_options
from pvbus.testing.bus_contract import TOPICS
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.tools.kafka import Broker, KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

ON_ITS_WAY_SECONDS = 1.0
"""After it a request has been taken by its broker, which has a session of 6 s to answer others."""


class Group:
    """A group without members, asked of its coordinator alone.

    It commits by a connection of its own: a broker takes the next request of a connection when the one before
    is answered.
    """

    def __init__(self, settings: KafkaSettings, admin: AIOKafkaAdminClient) -> None:
        self.place = TopicPartition(settings.named("table"), 0)
        self.name = ""
        self.node = 0
        self._admin = admin
        self._settings = settings

    async def choose(self, *, avoiding: int = 0) -> None:
        """Take a name whose coordinator is not this broker."""

        async def ask() -> int:
            return await client.coordinator_lookup(CoordinationType.GROUP, self.name)

        client = self._admin._client
        while self.node in (0, avoiding):
            self.name = self._settings.named(f"group-{secrets.token_hex(4)}")
            self.node = await answered(client, ask)

    async def coordinator_lookup(self, kind: int, name: str) -> int:
        return self.node

    async def force_metadata_update(self) -> bool:
        return True

    async def send(self, node: int, request: Any) -> Any:
        return await self._admin._client.send(node, request)

    async def offset(self, *, is_stable: bool) -> int:
        return (await fetch_offsets(self, self.name, [self.place], is_stable=is_stable))[self.place]

    async def commit(self, offset: int) -> None:
        parts = [(self.place.topic, [(self.place.partition, offset, "")])]

        async def ask() -> None:
            answer = await admin._client.send(self.node, OffsetCommitRequest(self.name, -1, "", -1, parts))
            ((_, ((_, code),)),) = answer.topics
            if code:
                raise errors.for_code(code)

        async with connected(self._settings) as admin:
            await answered(admin._client, ask)


@asynccontextmanager
async def connected(settings: KafkaSettings) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**client_options(settings))
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


@asynccontextmanager
async def grouped(kafka: KafkaCluster, *, avoiding: int = 0) -> AsyncIterator[tuple[Group, KafkaSettings]]:
    harness = KafkaHarness(kafka.bootstrap)
    await (await harness.open()).create_topics(TOPICS)
    try:
        async with connected(harness.settings) as admin:
            group = Group(harness.settings, admin)
            await group.choose(avoiding=avoiding)
            yield group, harness.settings
    finally:
        await harness.close()


@pytest.mark.parametrize(("is_committed", "after"), [(True, 7), (False, 5)])
async def test_offsets_of_an_open_transaction_are_waited_for(
    kafka_one: KafkaCluster, *, is_committed: bool, after: int
) -> None:
    """Unless whoever asks only wants to look."""
    async with grouped(kafka_one) as (group, settings):
        await group.commit(5)
        options = producer_options(settings, f"test-{secrets.token_hex(4)}")
        async with AIOKafkaProducer(**options) as producer:
            await producer.begin_transaction()
            await producer.send_offsets_to_transaction({group.place: 7}, group.name)
            assert await group.offset(is_stable=False) == 5
            asking = asyncio.create_task(group.offset(is_stable=True))
            await asyncio.sleep(ON_ITS_WAY_SECONDS)
            assert not asking.done()
            await (producer.commit_transaction() if is_committed else producer.abort_transaction())
            assert await asking == after


@pytest.fixture
def other_broker(kafka_three: KafkaCluster) -> Broker:
    """A broker for a test to freeze."""
    if not kafka_three.brokers:
        pytest.skip("brokers that are not ours are not frozen")
    return kafka_three.brokers[0]


async def test_offsets_are_told_when_they_are_replicated(
    kafka_three: KafkaCluster, other_broker: Broker
) -> None:
    """A coordinator that has just taken over knows of the last offsets only that it has them, not yet that
    all have; by the library's own request it tells those before them, as here."""
    async with grouped(kafka_three, avoiding=other_broker.number) as (group, _):
        await group.commit(5)
        other_broker.freeze()
        try:
            committing = asyncio.create_task(group.commit(7))
            await asyncio.sleep(ON_ITS_WAY_SECONDS)
            assert await group.offset(is_stable=False) == 5
            asking = asyncio.create_task(group.offset(is_stable=True))
            await asyncio.sleep(ON_ITS_WAY_SECONDS)
            assert not asking.done()
        finally:
            other_broker.thaw()
        await committing
        assert await asking == 7
