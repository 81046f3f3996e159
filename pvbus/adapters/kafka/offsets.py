"""A group's offsets, as they are once nothing that was answered can be missing from them.

The library asks by an old version of OffsetFetch, which is answered from what the coordinator knows to be
replicated. Behind a failover that is, for some moments, older than what the coordinator before it had
answered: a step would be told to have failed whose records are there, and would be made again. From version
7 on, one may ask for stable offsets: the broker then waits until all that it has is replicated, and refuses
while a transaction's offsets are undecided.

Source: KIP-447; Kafka's OffsetFetchRequest.json and ...Response.json (api key 9, version 7).
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from aiokafka import TopicPartition as KafkaPartition
from aiokafka import errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from pvbus.adapters.kafka.answers import UnstableOffsetsError, answered


class _Response(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 9
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString("utf-8")),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class _Struct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 9
    API_VERSION = 7
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _Response
    SCHEMA = Schema(
        ("group", CompactString("utf-8")),
        (
            "topics",
            CompactArray(
                ("topic", CompactString("utf-8")),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


_StructAlias: TypeAlias = _Struct


class _Request(Request[_StructAlias]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 9

    def __init__(self, group: str, topics: dict[str, list[int]], *, is_stable: bool) -> None:
        self._fields: tuple[Any, ...] = (group, [(*each, {}) for each in topics.items()], is_stable, {})

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class(*self._fields)


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
        answer = await client.send(node, _Request(group, asked, is_stable=is_stable))
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
