"""Topics as they are made, and what is said about those that are not as declared."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import client_options
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import TopicSpec
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

TABLE = TopicSpec(name="table", partitions=2, cleanup="compact")


@pytest.fixture
async def harness(kafka: KafkaCluster) -> AsyncIterator[KafkaHarness]:
    harness = KafkaHarness(kafka.bootstrap)
    yield harness
    await harness.close()


@pytest.fixture
async def bus(harness: KafkaHarness) -> KafkaBus:
    return await harness.open()


@pytest.fixture
async def admin(kafka: KafkaCluster, harness: KafkaHarness) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**client_options(harness.settings))
    await admin.start()
    yield admin
    await admin.close()


async def config_of(admin: AIOKafkaAdminClient, topic: str) -> Mapping[str, str]:
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    ((_, _, _, _, entries),) = answer.resources
    return {entry[0]: entry[1] for entry in entries}


async def test_declared_topics_are_made(
    bus: KafkaBus, harness: KafkaHarness, admin: AIOKafkaAdminClient, kafka: KafkaCluster
) -> None:
    """All topics of the schema are made as declared, with as many copies as there are brokers for."""
    declared = topic_specs(3)
    await bus.create_topics(declared)
    assert dict(await bus.topics()) == {spec.name: spec for spec in declared}
    copies = len(kafka.brokers) or 1
    for spec in declared:
        (described,) = await admin.describe_topics([harness.settings.named(spec.name)])
        assert {len(each["replicas"]) for each in described["partitions"]} == {copies}
        config = await config_of(admin, harness.settings.named(spec.name))
        assert config["cleanup.policy"] == spec.cleanup
        assert config["delete.retention.ms"] == str(spec.tombstone_seconds * 1000)
        assert config["min.insync.replicas"] == str(max(1, copies - 1))
        if spec.retention_seconds is not None:
            assert config["retention.ms"] == str(spec.retention_seconds * 1000)


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ({"partitions": 4}, "2 partitions instead of 4"),
        ({"tombstone_seconds": 60}, "--add-config delete.retention.ms=60000"),
        (
            {"cleanup": "delete", "retention_seconds": 60},
            "--add-config cleanup.policy=delete,retention.ms=60000",
        ),
    ],
    ids=["partitions", "tombstones", "cleanup"],
)
async def test_differences_are_refused_with_advice(
    bus: KafkaBus, change: dict[str, object], advice: str
) -> None:
    """A topic that is not as declared is left alone, and the text says what to do."""
    await bus.create_topics([TABLE])
    with pytest.raises(PermanentError) as caught:
        await bus.create_topics([msgspec.structs.replace(TABLE, **change)])
    assert caught.value.reason == "TopicDiffers"
    assert advice in str(caught.value)
    assert (await bus.topics())["table"] == TABLE


async def test_too_few_copies_are_refused(kafka_three: KafkaCluster) -> None:
    """Where there are three brokers, a topic with one copy would be lost with its broker."""
    harness = KafkaHarness(kafka_three.bootstrap)
    bus = await harness.open()
    await bus._admin.create_topics(
        [NewTopic(harness.settings.named("table"), 2, 1, topic_configs={"cleanup.policy": "compact"})]
    )
    await bus._catalogue._wait_until_known([harness.settings.named("table")])
    with pytest.raises(PermanentError, match="1 replicas instead of 3"):
        await bus.create_topics([TABLE])
    await harness.close()


async def test_too_few_in_sync_are_refused(kafka_three: KafkaCluster) -> None:
    """Of three copies, two must have a write, or it could be lost with one broker; more are no less safe."""
    harness = KafkaHarness(kafka_three.bootstrap)
    bus = await harness.open()
    for name, in_sync in (("one", "1"), ("two", "2"), ("three", "3")):
        config = {"cleanup.policy": "compact", "min.insync.replicas": in_sync}
        await bus._admin.create_topics([NewTopic(harness.settings.named(name), 2, 3, topic_configs=config)])
        await bus._catalogue._wait_until_known([harness.settings.named(name)])
    wanted = [msgspec.structs.replace(TABLE, name=name) for name in ("one", "two", "three", "four")]
    states = await bus.check_topics(wanted)
    assert [(state.is_there, len(state.problems)) for state in states] == [
        (True, 1),
        (True, 0),
        (True, 0),
        (False, 0),
    ]
    reported = states[0].problems[0]
    assert "min.insync.replicas is 1: kafka-configs.sh --bootstrap-server" in reported
    assert reported.endswith(
        f"--entity-name {harness.settings.named('one')} --add-config min.insync.replicas=2"
    )
    await harness.close()


async def test_workers_that_start_together(harness: KafkaHarness) -> None:
    """Several workers may create the topics at the same moment."""
    buses = [await harness.open() for _ in range(4)]
    await asyncio.gather(*(bus.create_topics(topic_specs(3)) for bus in buses))
    assert len(await buses[0].topics()) == len(topic_specs(3))
