"""Topics in the cluster: made from their declarations, and compared with them.

A compacted topic is cut into segments that are short beside the time its tombstones are kept, as Kafka
compacts (and so drops tombstones from) closed segments only.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.metadata import MetadataRequest

from pvbus.adapters.kafka.settings import BROKER_MESSAGE_BYTES, OVERHEAD_BYTES, KafkaSettings
from pvbus.core.errors import PermanentError
from pvbus.ports.bus import TopicSpec, TopicState

REPLICATION = 3
SEGMENTS_PER_TOMBSTONE = 24
KNOWN_SECONDS_MAX = 10.0
_TOPIC_EXISTS = errors.TopicAlreadyExistsError.errno
_NOT_OURS = (errors.TopicAuthorizationFailedError.errno, errors.UnknownTopicOrPartitionError.errno)
"""Others may have topics in the same cluster, look after them, and delete them while we look."""


class _Found(NamedTuple):
    """A topic as it is in the cluster."""

    spec: TopicSpec
    replication: int
    config: Mapping[str, str]


class Catalogue:
    """The topics of this installation. Raises KafkaError, which the bus translates."""

    def __init__(self, admin: AIOKafkaAdminClient, settings: KafkaSettings) -> None:
        self._admin = admin
        self._settings = settings
        self._partitions: dict[str, int] = {}

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing, and wait until every broker knows it."""
        states = await self.check(specs)
        _refuse_differences(states)
        is_there = {state.name for state in states if state.is_there}
        missing = [spec for spec in specs if spec.name not in is_there]
        if not missing:
            return
        copies = await self._replication()
        answer = await self._admin.create_topics([self._new(spec, copies) for spec in missing])
        for name, code, *text in answer.topic_errors:
            if code == _TOPIC_EXISTS:
                continue  # another worker was faster, and is compared with below
            if code:
                raise errors.for_code(code)(f"{name}: {text}")
        await self._wait_until_known([self._settings.named(spec.name) for spec in missing])
        _refuse_differences(await self.check(missing))

    async def check(self, specs: Sequence[TopicSpec]) -> list[TopicState]:
        """Compare topics with what is there."""
        present = await self._find({spec.name for spec in specs})
        copies = await self._replication()
        return [
            TopicState(
                name=spec.name,
                is_there=spec.name in present,
                problems=self._compare(spec, present[spec.name], copies) if spec.name in present else (),
            )
            for spec in specs
        ]

    async def all(self) -> Mapping[str, TopicSpec]:
        return {name: found.spec for name, found in (await self._find()).items()}

    async def partitions(self, name: str) -> int:
        """Return a topic's partition count. Whoever asks for an unknown one made a mistake."""
        if name not in self._partitions:
            await self._find({name})
        if name not in self._partitions:
            raise PermanentError(f"no topic {name}", reason="UnknownTopic")
        return self._partitions[name]

    async def check_partition(self, name: str, partition: int) -> None:
        count = self._partitions.get(name) or await self.partitions(name)
        if not 0 <= partition < count:
            raise PermanentError(
                f"topic {name} has no partition {partition}, only {count}", reason="UnknownPartition"
            )

    async def _find(self, names: Collection[str] | None = None) -> dict[str, _Found]:
        """Return these topics, those that are there; without names, all whose settings we may know."""
        listed = {
            name: topic
            for topic in await self._admin.describe_topics()
            if (name := self._settings.unnamed(topic["topic"])) is not None
            and (names is None or name in names)
        }
        if not listed:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, self._settings.named(name)) for name in listed]
        configs: dict[str, dict[str, str]] = {}
        for answer in await self._admin.describe_configs(resources):
            for code, text, _, topic, entries in answer.resources:
                if code in _NOT_OURS and names is None:
                    continue
                if code:
                    raise errors.for_code(code)(f"{topic}: {text}")
                configs[topic] = {entry[0]: entry[1] for entry in entries}
        found = {
            name: _found(name, topic["partitions"], configs[self._settings.named(name)])
            for name, topic in listed.items()
            if self._settings.named(name) in configs
        }
        self._partitions |= {name: each.spec.partitions for name, each in found.items()}
        return found

    async def _replication(self) -> int:
        if self._settings.replication:
            return self._settings.replication
        cluster = await self._admin.describe_cluster()
        return min(REPLICATION, len(cluster["brokers"]))

    def _new(self, spec: TopicSpec, copies: int) -> NewTopic:
        return NewTopic(
            self._settings.named(spec.name),
            spec.partitions,
            copies,
            topic_configs=topic_config(spec, copies, self._settings.record_bytes_max),
        )

    def _compare(self, spec: TopicSpec, found: _Found, copies: int) -> tuple[str, ...]:
        """Return what is not as declared, and how to make it so."""
        name = self._settings.named(spec.name)
        problems = []
        if found.spec.partitions != spec.partitions:
            problems.append(
                f"it has {found.spec.partitions} partitions instead of {spec.partitions}, and keys would be "
                "looked for in the wrong one: use the release of pvbus it was made with, or stop all "
                f"services and {how_to_empty(self._settings)}"
            )
        wanted = topic_config(spec, copies, self._settings.record_bytes_max)
        # Retention does not matter to what is compacted. A topic of fewer copies cannot have as many in
        # sync: then the copies are what is wrong.
        compared = ["cleanup.policy", "delete.retention.ms"]
        if spec.retention_seconds is not None:
            compared.insert(1, "retention.ms")
        if found.replication >= copies:
            compared.append(_IN_SYNC)
        changes = [each for each in compared if _differs(each, found.config.get(each), wanted[each])]
        if changes:
            reported = ", ".join(f"{each} is {found.config.get(each)}" for each in changes)
            settings = ",".join(f"{each}={wanted[each]}" for each in changes)
            problems.append(
                f"its settings differ, {reported}: kafka-configs.sh --bootstrap-server "
                f"{','.join(self._settings.bootstrap)} --alter --entity-type topics --entity-name {name} "
                f"--add-config {settings}"
            )
        if found.replication < copies:
            problems.append(
                f"it has {found.replication} replicas instead of {copies}: kafka-reassign-partitions.sh adds "
                f"some, or set PVBUS_KAFKA_REPLICATION={found.replication} for all workers"
            )
        return tuple(problems)

    async def _wait_until_known(self, names: list[str]) -> None:
        """Wait until all brokers know the topics and their leaders; each learns by itself."""
        client = self._admin._client
        async with asyncio.timeout(KNOWN_SECONDS_MAX):
            await client.force_metadata_update()
            for broker in client.cluster.brokers():
                while True:
                    if _has_leaders(await client.send(broker.nodeId, MetadataRequest(names))):
                        break
                    await asyncio.sleep(0.05)


_IN_SYNC = "min.insync.replicas"


def _differs(name: str, found: str | None, wanted: str) -> bool:
    """More replicas in sync than wanted are no less safe."""
    return int(found or 0) < int(wanted) if name == _IN_SYNC else found != wanted


def _refuse_differences(states: Sequence[TopicState]) -> None:
    differing = [
        f"topic {state.name} differs: {'; '.join(state.problems)}" for state in states if state.problems
    ]
    if differing:
        raise PermanentError("\n".join(differing), reason="TopicDiffers")


def how_to_empty(settings: KafkaSettings) -> str:
    """Return what a person does to start anew: the topics of this installation are deleted, and no others."""
    pattern = settings.named("pvbus.").replace(".", r"\.") + ".*"
    command = (
        f"kafka-topics.sh --bootstrap-server {','.join(settings.bootstrap)} --delete --topic '{pattern}'"
    )
    return f"use another prefix, or delete the topics ({command})"


def topic_config(spec: TopicSpec, copies: int, record_bytes_max: int) -> dict[str, str]:
    """Return what a topic is created with."""
    config = {
        "cleanup.policy": spec.cleanup,
        "retention.ms": "-1" if spec.retention_seconds is None else str(spec.retention_seconds * 1000),
        "delete.retention.ms": str(spec.tombstone_seconds * 1000),
        "min.insync.replicas": str(in_sync(copies)),
        "max.message.bytes": str(max(BROKER_MESSAGE_BYTES, record_bytes_max + OVERHEAD_BYTES)),
        "unclean.leader.election.enable": "false",
    }
    if spec.cleanup == "compact":
        segment_ms = str(max(1, spec.tombstone_seconds * 1000 // SEGMENTS_PER_TOMBSTONE))
        config |= {"segment.ms": segment_ms, "max.compaction.lag.ms": segment_ms}
    return config


def in_sync(copies: int) -> int:
    """One replica may be away, where there are several."""
    return max(1, copies - 1)


def _found(name: str, partitions: list[dict[str, Any]], config: Mapping[str, str]) -> _Found:
    cleanup = config["cleanup.policy"]
    retention_ms = int(config["retention.ms"])
    keeps_for_ever = cleanup == "compact" or retention_ms < 0
    spec = TopicSpec(
        name=name,
        partitions=len(partitions),
        cleanup=cleanup,
        retention_seconds=None if keeps_for_ever else retention_ms // 1000,
        tombstone_seconds=int(config["delete.retention.ms"]) // 1000,
    )
    return _Found(spec, min((len(each["replicas"]) for each in partitions), default=0), config)


def _has_leaders(answer: Any) -> bool:
    topics = answer.to_object()["topics"]
    return all(
        not topic["error_code"]
        and topic["partitions"]
        and all(each["leader"] >= 0 for each in topic["partitions"])
        for topic in topics
    )
