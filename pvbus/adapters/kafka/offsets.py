"""A group's offsets, as they are once nothing that was answered can be missing from them.

The library asks by an old version of OffsetFetch, which is answered from what the coordinator knows to be
replicated. Behind a failover that is, for some moments, older than what the coordinator before it had
answered: a step would be told to have failed whose records are there, and would be made again. From version
7 on, one may ask for stable offsets: the broker then waits until all that it has is replicated, and refuses
while a transaction's offsets are undecided.

Source: KIP-447; Kafka's OffsetFetchRequest.json and ...Response.json (api key 9, version 7).
"""

from collections.abc import Iterable

from aiokafka import TopicPartition as KafkaPartition
from aiokafka import errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    Int16,
    Int32,
    Int64,
    Schema,
)

from pvbus.adapters.kafka.answers import UnstableOffsetsError, answered
from pvbus.adapters.kafka.requests import STRING, TAGS, request_of

_Request = request_of(
    9,
    7,
    asked=Schema(
        ("group", STRING),
        (
            "topics",
            CompactArray(
                ("topic", STRING),
                ("partitions", CompactArray(Int32)),
                TAGS,
            ),
        ),
        ("require_stable", Boolean),
        TAGS,
    ),
    reported=Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", STRING),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", STRING),
                        ("error_code", Int16),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        ("error_code", Int16),
        TAGS,
    ),
)


async def fetch_offsets(
    client: AIOKafkaClient, group: str, partitions: Iterable[KafkaPartition], *, is_stable: bool
) -> dict[KafkaPartition, int]:
    """Return a group's next offsets, 0 where none was ever committed. Raises KafkaError.

    is_stable: wait for offsets that are being committed. Else the answer may be some moments old, and a
    transaction that nobody ends is not waited for.
    """
    asked: dict[str, list[int]] = {}
    for topic, number in partitions:
        asked.setdefault(topic, []).append(number)

    async def ask() -> dict[KafkaPartition, int]:
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        answer = await client.send(node, _Request(group, [(*each, {}) for each in asked.items()], is_stable))
        found: dict[KafkaPartition, int] = {}
        codes = [answer.error_code]
        for topic, parts, _ in answer.topics:
            for number, offset, _, _, code, _ in parts:
                found[KafkaPartition(topic, number)] = max(0, offset)
                codes.append(code)
        for code in filter(None, codes):
            if code == UnstableOffsetsError.errno:
                raise UnstableOffsetsError(f"the offsets of {group}")
            raise errors.for_code(code)(f"the offsets of {group}")
        return found

    return await answered(client, ask)
