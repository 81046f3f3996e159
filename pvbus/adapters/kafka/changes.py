"""Topics that are taken away, made anew or given partitions while workers run.

Kafka tells nobody: writers and readers of a topic that is gone try for ever, and keys of a topic with
more partitions are looked for in the wrong one. So each worker looks, and ends with what it found.

A topic made anew under its name is told by its id, which the library's own request is too old for.
Source: KIP-516; Kafka's MetadataRequest.json and MetadataResponse.json (api key 3, version 10).
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    Int16,
    Int32,
    Int64,
    Schema,
)

from pvbus.adapters.kafka.failures import FOREIGN
from pvbus.adapters.kafka.requests import STRING, TAGS, request_of
from pvbus.adapters.kafka.settings import TRANSACTION_SECONDS, KafkaSettings
from pvbus.core.errors import PermanentError

LOOK_SECONDS = 2.0
"""How often topics are looked at: one small request. A change counts when two looks in a row see it, as a
broker that has just started may not know everything yet."""

_UNKNOWN_TOPIC = errors.UnknownTopicOrPartitionError.errno


_Request = request_of(
    3,
    10,
    asked=Schema(
        (
            "topics",
            CompactArray(("id_high", Int64), ("id_low", Int64), ("name", STRING), TAGS),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        TAGS,
    ),
    reported=Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", STRING),
                ("port", Int32),
                ("rack", STRING),
                TAGS,
            ),
        ),
        ("cluster_id", STRING),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", STRING),
                ("id_high", Int64),
                ("id_low", Int64),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                TAGS,
            ),
        ),
        ("cluster_authorized_operations", Int32),
        TAGS,
    ),
)


class _Observed(NamedTuple):
    """What a topic is, as far as nobody may change it. No partitions: it is not there."""

    partitions: int
    id: tuple[int, int]


class TopicWatch:
    """Looks whether the topics that workers rely on are still the same."""

    def __init__(self, admin: AIOKafkaAdminClient, settings: KafkaSettings, how_to_empty: str) -> None:
        self._admin = admin
        self._settings = settings
        self._how_to_empty = how_to_empty
        self._known: dict[str, _Observed | None] = {}  # None: it has not been seen yet
        self._suspects: dict[str, _Observed] = {}
        self._looked_at = float("-inf")
        self._failure: PermanentError | None = None

    async def rely_on(self, topics: Iterable[str]) -> None:
        """Take topics as they are now for what they have to stay. Raises KafkaError."""
        for name in topics:
            self._known.setdefault(name, None)
        if None in self._known.values():
            await self._look()

    async def watch(self) -> None:
        """Look until something is wrong. Raises PermanentError that says what, and what to do."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._failure is None and loop.time() - self._looked_at >= LOOK_SECONDS:
                self._looked_at = loop.time()  # workers that share a bus take turns
                try:
                    async with asyncio.timeout(TRANSACTION_SECONDS):
                        await self._look()
                except FOREIGN:
                    continue  # nothing was learnt
            if self._failure is not None:
                raise self._failure

    async def _look(self) -> None:
        names = {self._settings.named(name): name for name in self._known}
        client = self._admin._client
        answer = await client.send(
            client.get_random_node(), _Request([(0, 0, name, {}) for name in names], False, False, False)
        )
        suspects: dict[str, _Observed] = {}
        for code, name, high, low, _, partitions, *_ in answer.topics:
            if code not in (0, _UNKNOWN_TOPIC):
                continue  # no right to see it, or no leader yet
            topic = names[name]
            seen = _Observed(len(partitions), (high, low))
            if (known := self._known[topic]) is None:
                self._known[topic] = seen if seen.partitions else None
            elif seen != known:
                suspects[topic] = seen
        certain = sorted(topic for topic, seen in suspects.items() if self._suspects.get(topic) == seen)
        self._suspects = suspects
        if certain:
            self._failure = self._describe(certain, suspects)

    def _describe(self, topics: list[str], seen: Mapping[str, _Observed]) -> PermanentError:
        problems = []
        for topic in topics:
            known, now = self._known[topic], seen[topic]
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
            f"all are made from the API server: stop all services, {self._how_to_empty}, and start again "
            "(`pvbus topics --create` makes the topics beforehand)",
            reason="TopicsChanged",
        )
