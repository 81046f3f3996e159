"""Creates topics from their declarations, compares them with those, and watches them for changes.

The segments of a compacted topic are short compared to the retention of its tombstones, as Kafka compacts
only closed segments, and drops tombstones there.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.metadata import MetadataRequest

from pvbus.adapters.checks import check_partition
from pvbus.adapters.kafka.errors import FOREIGN, with_deadline
from pvbus.adapters.kafka.requests import TopicIdentity, check_code, identify_topics
from pvbus.adapters.kafka.settings import (
    BROKER_MESSAGE_BYTES,
    OVERHEAD_BYTES,
    TRANSACTION_SECONDS,
    KafkaSettings,
)
from pvbus.core.errors import PermanentError
from pvbus.ports.bus import TopicSpec, TopicState

REPLICATION = 3
SEGMENTS_PER_TOMBSTONE = 24
KNOWN_SECONDS_MAX = 10.0
WATCH_SECONDS = 2.0
"""How often topics are checked, by one small request. A change counts if two requests in a row show it: a
broker that has just started may have incomplete metadata."""

_TOPIC_EXISTS = errors.TopicAlreadyExistsError.errno
_NOT_OURS = (errors.TopicAuthorizationFailedError.errno, errors.UnknownTopicOrPartitionError.errno)
"""Topics of others in the same cluster: we may have no right to them, and they may be deleted at any time."""

_IN_SYNC = "min.insync.replicas"
_COMPARED = ("cleanup.policy", "retention.ms", "delete.retention.ms", _IN_SYNC)
"""What is asked of a topic's settings: all of them would be ten times as much to read at each start."""


class _Found(NamedTuple):
    """The actual state of a topic in the cluster.

    spec: its properties in the form of a declaration
    replication: the replicas of a partition
    config: those of its settings that are compared, by Kafka's names
    """

    spec: TopicSpec
    replication: int
    config: Mapping[str, str]


class Catalogue:
    """The topics of this installation. Raises KafkaError, which the bus translates.

    `partitions` and `check_partition` translate it themselves, as steps need them, too.
    """

    def __init__(self, admin: AIOKafkaAdminClient, settings: KafkaSettings) -> None:
        self._admin = admin
        self._settings = settings
        self._partitions: dict[str, int] = {}

    async def create(self, specs: Sequence[TopicSpec]) -> None:
        """Create missing topics, and wait until every broker knows them."""
        states = await self.check(specs)
        _refuse_differences(states)
        is_there = {state.name for state in states if state.is_there}
        missing = [spec for spec in specs if spec.name not in is_there]
        if not missing:
            return
        copies = await self._replication()
        answer = await self._admin.create_topics([self._new(spec, copies) for spec in missing])
        for name, code, *text in answer.topic_errors:
            if code != _TOPIC_EXISTS:  # another worker created the topic, which is compared below
                check_code(code, f"{name}: {text}")
        await self._wait_until_known([self._settings.named(spec.name) for spec in missing])
        _refuse_differences(await self.check(missing))

    async def check(self, specs: Sequence[TopicSpec]) -> list[TopicState]:
        """Compare topics with their declarations."""
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
        """Return a topic's partition count. An unknown topic is a bug of the caller: PermanentError."""
        if name not in self._partitions:
            async with with_deadline(f"looking for topic {name}"):
                await self._find({name})
        if name not in self._partitions:
            raise PermanentError(f"no topic {name}", reason="UnknownTopic")
        return self._partitions[name]

    async def check_partition(self, name: str, partition: int) -> None:
        check_partition(name, partition, self._partitions.get(name) or await self.partitions(name))

    async def _find(self, names: Collection[str] | None = None) -> dict[str, _Found]:
        """Return the existing ones of these topics; without names, all topics whose settings we may read."""
        listed = {
            name: topic
            for topic in await self._admin.describe_topics()
            if (name := self._settings.unnamed(topic["topic"])) is not None
            and (names is None or name in names)
        }
        if not listed:
            return {}
        asked = dict.fromkeys(_COMPARED)
        resources = [
            ConfigResource(ConfigResourceType.TOPIC, self._settings.named(name), asked) for name in listed
        ]
        configs: dict[str, dict[str, str]] = {}
        for answer in await self._admin.describe_configs(resources):
            for code, text, _, topic, entries in answer.resources:
                if code in _NOT_OURS and names is None:
                    continue
                check_code(code, f"{topic}: {text}")
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
        brokers = (await self._admin.describe_cluster())["brokers"]
        if not brokers:
            raise errors.BrokerNotAvailableError("Kafka names no broker that is alive")
        return min(REPLICATION, len(brokers))

    def _new(self, spec: TopicSpec, copies: int) -> NewTopic:
        return NewTopic(
            self._settings.named(spec.name),
            spec.partitions,
            copies,
            topic_configs=topic_config(spec, copies, self._settings.record_bytes_max),
        )

    def _compare(self, spec: TopicSpec, found: _Found, copies: int) -> tuple[str, ...]:
        """Return the differences from the declaration, and how to correct them."""
        name = self._settings.named(spec.name)
        problems = []
        if found.spec.partitions != spec.partitions:
            problems.append(
                f"it has {found.spec.partitions} partitions instead of {spec.partitions}, and keys would be "
                "looked for in the wrong one: use the release of pvbus it was made with, or stop all "
                f"services and {how_to_empty(self._settings)}"
            )
        wanted = topic_config(spec, copies, self._settings.record_bytes_max)
        # Retention has no effect on a compacted topic. With fewer replicas, a lower min.insync.replicas is a
        # consequence: only the number of replicas is reported.
        ignored = {"retention.ms"} if spec.retention_seconds is None else set()
        if found.replication < copies:
            ignored.add(_IN_SYNC)
        changes = [
            each
            for each in _COMPARED
            if each not in ignored and _differs(each, found.config.get(each), wanted[each])
        ]
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
        """Wait until every broker knows the topics and their leaders; each broker learns them separately."""
        client = self._admin._client
        async with asyncio.timeout(KNOWN_SECONDS_MAX):
            await client.force_metadata_update()
            for broker in client.cluster.brokers():
                while True:
                    if _has_leaders(await client.send(broker.nodeId, MetadataRequest(names))):
                        break
                    await asyncio.sleep(0.05)


def _differs(name: str, found: str | None, wanted: str) -> bool:
    """Return whether a setting differs. A higher min.insync.replicas does not: it is at least as safe."""
    return int(found or 0) < int(wanted) if name == _IN_SYNC else found != wanted


def _refuse_differences(states: Sequence[TopicState]) -> None:
    differing = [
        f"topic {state.name} differs: {'; '.join(state.problems)}" for state in states if state.problems
    ]
    if differing:
        raise PermanentError("\n".join(differing), reason="TopicDiffers")


def how_to_empty(settings: KafkaSettings) -> str:
    """Return advice for starting with an empty bus: delete the topics of this installation only."""
    pattern = settings.named("pvbus.").replace(".", r"\.") + ".*"
    command = (
        f"kafka-topics.sh --bootstrap-server {','.join(settings.bootstrap)} --delete --topic '{pattern}'"
    )
    return f"use another prefix, or delete the topics ({command})"


def topic_config(spec: TopicSpec, copies: int, record_bytes_max: int) -> dict[str, str]:
    """Return the configuration of a new topic."""
    config = {
        "cleanup.policy": spec.cleanup,
        "retention.ms": "-1" if spec.retention_seconds is None else str(spec.retention_seconds * 1000),
        "delete.retention.ms": str(spec.tombstone_seconds * 1000),
        _IN_SYNC: str(max(1, copies - 1)),  # of several replicas, one may be down
        "max.message.bytes": str(max(BROKER_MESSAGE_BYTES, record_bytes_max + OVERHEAD_BYTES)),
        "unclean.leader.election.enable": "false",
    }
    if spec.cleanup == "compact":
        segment_ms = str(max(1, spec.tombstone_seconds * 1000 // SEGMENTS_PER_TOMBSTONE))
        config |= {"segment.ms": segment_ms, "max.compaction.lag.ms": segment_ms}
    return config


def _found(name: str, partitions: list[dict[str, Any]], config: Mapping[str, str]) -> _Found:
    cleanup = config["cleanup.policy"]
    retention_ms = int(config["retention.ms"])
    is_kept_forever = cleanup == "compact" or retention_ms < 0
    spec = TopicSpec(
        name=name,
        partitions=len(partitions),
        cleanup=cleanup,
        retention_seconds=None if is_kept_forever else retention_ms // 1000,
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


class TopicWatch:
    """Detects that a topic in use is deleted, created again, or gets more partitions.

    Kafka reports none of this: writers and readers of a deleted topic retry forever, and with more partitions
    a key maps to another one. So each worker checks, and ends with an error.
    """

    def __init__(self, admin: AIOKafkaAdminClient, settings: KafkaSettings) -> None:
        self._admin = admin
        self._settings = settings
        self._known: dict[str, TopicIdentity | None] = {}  # None: it has not been seen yet
        self._suspects: dict[str, TopicIdentity] = {}
        self._looked_at = float("-inf")
        self._failure: PermanentError | None = None

    async def rely_on(self, topics: Iterable[str]) -> None:
        """Expect topics to stay as they are now. Raises KafkaError."""
        for name in topics:
            self._known.setdefault(name, None)
        if None in self._known.values():
            await self._look()

    async def watch(self) -> None:
        """Check until a topic has changed. Raises PermanentError that says how, and what to do."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._failure is None and loop.time() - self._looked_at >= WATCH_SECONDS:
                self._looked_at = loop.time()  # workers that share a bus take turns
                try:
                    async with asyncio.timeout(TRANSACTION_SECONDS):
                        await self._look()
                except FOREIGN:
                    continue  # the next check may succeed
            if self._failure is not None:
                raise self._failure

    async def _look(self) -> None:
        names = {self._settings.named(name): name for name in self._known}
        suspects: dict[str, TopicIdentity] = {}
        for name, found in (await identify_topics(self._admin._client, names)).items():
            topic = names[name]
            if (known := self._known[topic]) is None:
                self._known[topic] = found if found.partitions else None
            elif found != known:
                suspects[topic] = found
        certain = {topic: found for topic, found in suspects.items() if self._suspects.get(topic) == found}
        self._suspects = suspects
        if certain:
            self._failure = self._describe(certain)

    def _describe(self, changed: Mapping[str, TopicIdentity]) -> PermanentError:
        problems = []
        for topic, now in sorted(changed.items()):
            known = self._known[topic]
            assert known is not None
            if not now.partitions:
                what = "was deleted"
            elif now.partitions != known.partitions:
                what = f"has {now.partitions} partitions now and had {known.partitions}"
            else:
                what = "was deleted and made again"
            problems.append(f"topic {self._settings.named(topic)} {what}")
        return PermanentError(
            f"under this worker, {'; '.join(problems)}. Other tables remember what was written there, and "
            f"all are made from the API server: stop all services, {how_to_empty(self._settings)}, and start "
            "again (`pvbus topics --create` makes the topics beforehand)",
            reason="TopicsChanged",
        )
