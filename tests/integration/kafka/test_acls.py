"""The ACLs that `pvbus topics --acls` prints are enough for each service, and none of them is too much."""

import asyncio
import secrets

import pytest
import structlog
from confluent_kafka import Consumer, TopicPartition

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.core.errors import PvbusError
from pvbus.core.kernel.records import CONDITIONS
from pvbus.core.kernel.topics import ALL_SERVICES, SINK
from pvbus.ports.bus import TopicSpec
from pvbus.runtime.process.kafka_access import CONSUMER, OPERATOR, WEB
from tests.integration.kafka.access import Acl, Guarded, acls_of, prepare, use

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

USE_SECONDS_MAX = 60.0
REFUSED_SECONDS = 8.0
"""A use that is allowed takes 2 s. One that is not fails, or tries again until somebody gives the right."""


@pytest.fixture
def prefix() -> str:
    """Return another installation for each test."""
    return f"acl-{secrets.token_hex(4)}"


@pytest.mark.parametrize("service", [*ALL_SERVICES, SINK, WEB, CONSUMER])
async def test_a_service_needs_its_list_and_all_of_it(guarded: Guarded, prefix: str, service: str) -> None:
    """With its ACLs a service, the page or a consumer does its work, is refused nothing, and needs each."""
    settings = guarded.settings(prefix, service)
    await prepare(guarded.settings(prefix, None))
    await guarded.give(service, acls_of(service, settings))
    async with asyncio.timeout(USE_SECONDS_MAX):
        await use(service, settings)
    assert guarded.denied(prefix, service) == []
    assert guarded.used(prefix, service) == set(acls_of(service, settings))


async def test_the_operator_needs_its_list_and_all_of_it(guarded: Guarded, prefix: str) -> None:
    """Who makes the topics and looks at the bus is refused nothing either, and can write nothing.

    Of the groups of others it sees those whose names begin as docs/events.md says.
    """
    settings = guarded.settings(prefix, OPERATOR)
    await guarded.give(OPERATOR, acls_of(OPERATOR, settings))
    async with asyncio.timeout(USE_SECONDS_MAX):
        await use(OPERATOR, settings)
        for group in ("pvbus-consumer-team-a", "somebody"):
            await asyncio.to_thread(commit, guarded, settings.named(group), settings.named(CONDITIONS))
        bus = await KafkaBus.open(settings)
        assert {name for name in await bus.readers_of((CONDITIONS,)) if name.startswith(prefix)} == {
            settings.named("pvbus-consumer-team-a")
        }
        await bus.close()
    assert guarded.denied(prefix, OPERATOR) == []
    assert guarded.used(prefix, OPERATOR) == set(acls_of(OPERATOR, settings))
    assert "Write" not in {acl.operation for acl in acls_of(OPERATOR, settings)}


def commit(guarded: Guarded, group: str, topic: str) -> None:
    """Commit an offset, as somebody who may do everything."""
    consumer = Consumer({"bootstrap.servers": guarded.cluster.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()


TAKEN = [
    ("topic", "Read", "pvbus.meta"),
    ("topic", "Read", "pvbus.objects"),
    ("topic", "Read", "pvbus.variants"),
    ("topic", "Read", "pvbus.results"),
    ("topic", "Write", "pvbus.meta"),
    ("topic", "Write", "pvbus.results"),
    ("topic", "Write", "pvbus.dlq"),
    ("topic", "Describe", "pvbus.targets"),
    ("topic", "DescribeConfigs", "pvbus.conditions"),
    ("group", "Read", "pvbus-inject"),
    ("group", "Read", "pvbus-installation"),
    ("transactional-id", "Write", "pvbus-inject-"),
    ("transactional-id", "Write", "pvbus-installation-"),
]
"""Of each kind of ACL some; inject has all kinds."""


@pytest.mark.parametrize(("resource", "operation", "name"), TAKEN)
async def test_without_one_it_does_not_work(
    guarded: Guarded, prefix: str, resource: str, operation: str, name: str
) -> None:
    """When one ACL is taken away, the service's use of the bus does not come to its end."""
    settings = guarded.settings(prefix, "inject")
    (taken,) = [
        acl
        for acl in acls_of("inject", settings)
        if (acl.resource, acl.operation, acl.name) == (resource, operation, settings.named(name))
    ]
    await prepare(guarded.settings(prefix, None))
    await guarded.give("inject", acls_of("inject", settings))
    await guarded.take("inject", taken)
    with pytest.raises((PvbusError, ExceptionGroup, TimeoutError)):
        async with asyncio.timeout(REFUSED_SECONDS):
            await use("inject", settings)
    assert any(decision.name.startswith(taken.name) for decision in guarded.denied(prefix, "inject"))


async def test_topics_of_others_need_no_rights(guarded: Guarded, prefix: str) -> None:
    """A topic of another program, which a service sees but may not look into, does not concern it."""
    settings = guarded.settings(prefix, "inject")
    everything = await KafkaBus.open(guarded.settings(prefix, None))
    await everything.create_topics([TopicSpec(name="others", partitions=3, cleanup="delete")])
    await everything.close()
    await prepare(guarded.settings(prefix, None))
    await guarded.give("inject", acls_of("inject", settings))
    await guarded.give("inject", [Acl("topic", "literal", settings.named("others"), "Describe")])
    async with asyncio.timeout(USE_SECONDS_MAX):
        await use("inject", settings)


@pytest.mark.parametrize("resource", ["group", "transactional-id"])
async def test_waiting_for_a_right_is_told(guarded: Guarded, prefix: str, resource: str) -> None:
    """A worker that may not join or not write says so once, names the remedy, and goes on when it may."""
    settings = guarded.settings(prefix, "render")
    (late,) = [
        acl
        for acl in acls_of("render", settings)
        if acl.resource == resource and "installation" not in acl.name
    ]
    await prepare(guarded.settings(prefix, None))
    await guarded.give("render", [acl for acl in acls_of("render", settings) if acl != late])
    with structlog.testing.capture_logs() as logs:
        using = asyncio.create_task(use("render", settings))
        async with asyncio.timeout(USE_SECONDS_MAX):
            while not any("--acls" in line.get("error", "") for line in logs):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        assert len({line["error"] for line in logs}) == len(logs), logs
        await guarded.give("render", [late])
        async with asyncio.timeout(USE_SECONDS_MAX):
            await using
