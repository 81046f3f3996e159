"""A service's use of a Kafka that has ACLs: what it does, what it is given, and what the broker decided."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings, Scram, Tls, client_options
from pvbus.cli.explain import bus_document
from pvbus.core.kernel.keys import Key
from pvbus.core.kernel.records import (
    CONDITIONS,
    DLQ,
    LATEST,
    META,
    OBJECTS,
    PROMOTIONS,
    SETRESULTS,
    SETS,
    TARGETS,
)
from pvbus.core.kernel.topics import ALL_SERVICES, SINK, TOPICS, owned_topics, topic_specs
from pvbus.ports.bus import Bus, Lease, Output
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.kafka_access import (
    CONSUMER,
    PRINCIPAL,
    access_of,
    principal_of,
)
from pvbus.runtime.web.feed import Feed
from tests.tools.installation import CHECKOUT
from tests.tools.kafka import Broker, KafkaCluster

PASSWORD = "not-a-secret"
PARTITIONS = 1
SET, VARIANT = Key("default", "fleet"), Key("default", "web")
ROWS = {
    OBJECTS: ("porch.kpt.dev/PackageRevision|default|web", "ObjectRow"),
    PROMOTIONS: (str(VARIANT), "PromotionRow"),
    SETRESULTS: (str(SET), "SetResult"),
    SETS: (str(SET), "PackageVariantSet"),
    TARGETS: (f"{VARIANT}|{SET.name}", "TargetRow"),
}
"""The golden rows of a set with failing targets, and of a variant that promote has an order for: to explain
these, the page reads all that it ever reads."""

_RESOURCES = {"topic": 2, "group": 3, "transactional-id": 5}
_PATTERNS = {"literal": 3, "prefixed": 4}
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10}
_ANY_HOST, _ALLOW = "*", 3


class Acl(NamedTuple):
    """One ACL, without whom it is for."""

    resource: str
    pattern: str
    name: str
    operation: str


def acls_of(role: str, settings: KafkaSettings) -> list[Acl]:
    """Return the list under test, one by one."""
    return [
        Acl(each.resource, each.pattern, name, each.operation)
        for each in access_of(role, settings)
        for name in each.names
    ]


class Guarded:
    """A Kafka whose users, one for each role, may do what they are given."""

    def __init__(self, cluster: KafkaCluster, authority: Path, admin: AIOKafkaAdminClient) -> None:
        self.cluster = cluster
        self._authority = authority
        self._admin = admin

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[0]

    def settings(self, prefix: str, role: str | None) -> KafkaSettings:
        """role: None is somebody who may do everything."""
        if role is None:
            return KafkaSettings(bootstrap=(self.cluster.bootstrap,), prefix=prefix)
        return KafkaSettings(
            bootstrap=(f"127.0.0.1:{self.broker.secure_port}",),
            prefix=prefix,
            tls=Tls(ca_file=str(self._authority)),
            sasl=Scram(username=f"pvbus-{role}", password=PASSWORD),
        )

    async def give(self, role: str, acls: Sequence[Acl]) -> None:
        for acl in acls:
            answer = await self._send(CreateAclsRequest, role, acl)
            assert [code for code, _ in answer.creation_responses] == [0], answer

    async def take(self, role: str, acl: Acl) -> None:
        answer = await self._send(DeleteAclsRequest, role, acl)
        ((code, _, matching),) = answer.filter_responses
        assert (code, len(matching)) == (0, 1), answer

    async def _send(self, request: type, role: str, acl: Acl) -> Any:
        return await self._admin._send_to_controller(
            request(
                _RESOURCES[acl.resource],
                acl.name,
                _PATTERNS[acl.pattern],
                principal_of(role, PRINCIPAL),
                _ANY_HOST,
                _OPERATIONS[acl.operation],
                _ALLOW,
            )
        )

    def decisions(self, prefix: str, role: str) -> list["Decision"]:
        """Return what the broker decided about a role's requests, by its log."""
        log = (self.broker.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        return [
            Decision(found["answer"] == "Allowed", found["operation"], found["name"], found["rule"])
            for found in _DECISION.finditer(log)
            if found["role"] == role and found["name"].startswith(f"{prefix}.")
        ]

    def used(self, prefix: str, role: str) -> set[Acl]:
        """Return the ACLs that a request was allowed for."""
        found = set()
        for decision in self.decisions(prefix, role):
            if decision.is_allowed:
                rule = _RULE.search(decision.rule)
                assert rule is not None, decision
                resource = rule["resource"].lower().replace("_", "-")
                operation = rule["operation"].title().replace("_", "")
                found.add(Acl(resource, rule["pattern"].lower(), rule["name"], operation))
        return found

    def denied(self, prefix: str, role: str) -> list["Decision"]:
        return [decision for decision in self.decisions(prefix, role) if not decision.is_allowed]


class Decision(NamedTuple):
    is_allowed: bool
    operation: str
    name: str
    rule: str


_DECISION = re.compile(
    r"Principal = User:pvbus-(?P<role>\w+) is (?P<answer>Allowed|Denied) operation = (?P<operation>\w+) "
    r"from host = \S+ on resource = \w+:LITERAL:(?P<name>\S+) for request = .* "
    r"based on rule (?P<rule>.*)"
)
_RULE = re.compile(
    r"resourceType=(?P<resource>\w+), resourceName=(?P<name>[^,]+), patternType=(?P<pattern>\w+), .*"
    r"operation=(?P<operation>\w+)"
)


async def prepare(settings: KafkaSettings) -> None:
    """Make the topics, with a record in each but the installation's, as somebody who may do everything."""
    bus = await KafkaBus.open(settings)
    try:
        await bus.create_topics(topic_specs(PARTITIONS))
        names = [spec.name for spec in topic_specs(PARTITIONS) if spec.name != META]
        async with leased(bus, "seed", names) as lease:
            await bus.step(lease, [_seed(name) for name in names])
    finally:
        await bus.close()


def _seed(topic: str) -> Output:
    key, example = ROWS.get(topic, ("seed", ""))
    value = (CHECKOUT / f"schemas/examples/v1/{example}.json").read_bytes() if example else b"{}"
    return Output(topic, 0, key.encode(), value)


async def use(role: str, settings: KafkaSettings) -> None:
    """Do all that a role does on the bus, once."""
    if role == CONSUMER:
        await consume(settings)
        return
    bus = await KafkaBus.open(settings)
    try:
        match role:
            case "operator":
                await operate(bus)
            case "web":
                await look(bus)
            case "sink":
                await send(bus)
            case _:
                await serve(bus, role)
    finally:
        await bus.close()


async def serve(bus: KafkaBus, service: str) -> None:
    """Be a worker of a service: start, take a lease, restore, read what others write, step."""
    await ensure_installation(bus, partitions=PARTITIONS)
    contracts = TOPICS
    owned = owned_topics(service)
    read = [c.spec.name for c in contracts if service in c.owners or service in c.readers]
    async with leased(bus, f"pvbus-{service}", owned) as lease:
        await bus.committed(lease, owned)
        await bus.describe(f"pvbus-{service}", owned)
        await read_some(bus, read)
        written = [c.spec.name for c in contracts if service in c.producers]
        ends = await bus.end_offsets([(name, 0) for name in owned])
        outputs = [Output(name, 0, b"key", b"{}") for name in written]
        await bus.step(lease, outputs, {name: ends[name, 0] for name in owned})


async def send(bus: KafkaBus) -> None:
    """Be a sink: take a lease, read where the topic begins and ends, both public topics, and step."""
    assert CONDITIONS in await bus.topics()
    async with leased(bus, f"pvbus-{SINK}", (CONDITIONS,)) as lease:
        await bus.committed(lease, (CONDITIONS,))
        await bus.begin_offsets([(CONDITIONS, 0)])
        ends = await bus.end_offsets([(CONDITIONS, 0)])
        await read_some(bus, (CONDITIONS, LATEST))
        await bus.step(lease, [Output(DLQ, 0, b"key", b"{}")], {CONDITIONS: ends[CONDITIONS, 0]})


async def operate(bus: KafkaBus) -> None:
    """Do what the commands do: make and compare the topics, read them, look at the groups."""
    await bus.create_topics(topic_specs(PARTITIONS))
    await bus.check_topics(topic_specs(PARTITIONS))
    await bus.readers_of((CONDITIONS, LATEST))
    for service in (*ALL_SERVICES, SINK):
        await bus.describe(f"pvbus-{service}", owned_topics(service) or (CONDITIONS,))
    reader = bus.reader({(name, 0): 0 for name in await bus.topics()})
    await reader.poll(timeout_seconds=2.0)
    await reader.close()


async def look(bus: KafkaBus) -> None:
    """Be the page: follow the bus until all is read, and explain a set and a variant."""
    feed = Feed(bus, PARTITIONS)
    feed.start()
    following = asyncio.create_task(feed.run())
    while not feed.restored:
        await feed.wait_for_change(1.0)
    following.cancel()
    await asyncio.wait({following})
    for key, is_set in ((SET, True), (VARIANT, False)):
        assert (await bus_document(bus, key, is_set=is_set))["known"]


async def consume(settings: KafkaSettings) -> None:
    """Be a program of somebody else: read the public topics as a group, and commit."""
    missing = {settings.named(name) for name in (CONDITIONS, LATEST)}
    consumer = AIOKafkaConsumer(
        *missing,
        **client_options(settings),
        group_id=settings.named("pvbus-consumer-team-a"),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        while missing:
            missing -= {each.topic for each in await consumer.getmany(timeout_ms=1000)}
        await consumer.commit()
    finally:
        await consumer.stop()


async def read_some(bus: Bus, names: Sequence[str]) -> None:
    """Read until there was a record of each."""
    reader = bus.reader({(name, 0): 0 for name in names})
    missing = set(names)
    while missing:
        missing -= {record.topic for record in await reader.poll(timeout_seconds=1.0)}
    await reader.close()


@asynccontextmanager
async def leased(bus: Bus, group: str, names: Sequence[str]) -> AsyncIterator[Lease]:
    """Be the only member of a group, with its only lease. Waits until the right to be that is there."""
    given: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    async def assigned(lease: Lease) -> None:
        if not given.done():
            given.set_result(lease)

    async def revoked(lease: Lease) -> None:
        """Nothing is kept."""

    membership = await bus.join(group, names, assigned=assigned, revoked=revoked)
    try:
        yield await given
    finally:
        await membership.leave()
