"""Requests that aiokafka lacks or sends in a version that is too old, and their retries.

Retries cover broker failover and coordinator moves. The library picks a broker at random among those it
knows. A dead broker stays among them until its session at the controller ends; until then no other broker
takes over its groups and transactions.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

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

from pvbus.core.kernel.backoff import spread

STRING = CompactString("utf-8")
EPOCH_BITS = 16


class UnstableOffsetsError(errors.KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """A transaction's offsets are undecided; the library has no class for it."""

    errno = 88
    message = "UNSTABLE_OFFSET_COMMIT"


COORDINATOR_MOVES: tuple[type[Exception], ...] = (
    errors.GroupLoadInProgressError,
    errors.GroupCoordinatorNotAvailableError,
    errors.NotCoordinatorForGroupError,
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
)
"""A new coordinator is available soon; a new cluster has none before the first request. The library has two
classes for each of these errors, and raises either of them."""

AWAY = (errors.NodeNotReadyError, errors.KafkaConnectionError, *COORDINATOR_MOVES, UnstableOffsetsError)

ANSWER_SECONDS_MAX = 13.0
"""Below the deadline of a bus call, so that the call can raise the last error. Another broker takes over when
a session ends, after 9 s by default, and some seconds later if the broker was the controller."""

RETRY_SECONDS = 0.1

Answer = TypeVar("Answer")


async def ask_until_answered(client: AIOKafkaClient, ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Retry `ask` until it succeeds. Raises KafkaError: a permanent one, or the last one at the deadline."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_SECONDS_MAX
    while True:
        try:
            return await ask()
        except AWAY:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(spread(RETRY_SECONDS, random.uniform))
        await client.force_metadata_update()


def check_code(code: int, about: str) -> None:
    """Raise the error for a response's error code; 0 is none."""
    if code == UnstableOffsetsError.errno:
        raise UnstableOffsetsError(about)
    if code:
        raise errors.for_code(code)(about)


# Layouts

Layout = Mapping[str, Any]
"""The type of each field by its name, in order; a list holds the type or the layout of its elements."""


def _fields(layout: Layout) -> list[tuple[str, Any]]:
    """Return the fields of a flexible version: arrays are compact, tags come last. Source: KIP-482."""
    return [*((name, _type(field)) for name, field in layout.items()), ("tags", TaggedFields)]


def _type(field: Any) -> Any:
    match field:
        case [dict() as layout]:
            return CompactArray(*_fields(layout))
        case [element]:
            return CompactArray(element)
    return field


def request_of(api_key: int, version: int, asked: Layout, reported: Layout) -> Callable[..., Any]:
    """Return a request class; its constructor takes the field values in order, without the last tags."""

    class Reported(Response):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key
        API_VERSION = version
        SCHEMA = Schema(*_fields(reported))

    class Struct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key
        API_VERSION = version
        FLEXIBLE_VERSION = True
        RESPONSE_TYPE = Reported
        SCHEMA = Schema(*_fields(asked))

    class Asked(Request[Struct]):  # type: ignore[misc]  # aiokafka has no types
        API_KEY = api_key

        def __init__(self, *fields: Any) -> None:
            self._fields = fields

        def build(self, request_struct_class: Any) -> Any:
            return request_struct_class(*self._fields, {})

    return Asked


# Stable offsets. The library's old OffsetFetch returns the offsets that the coordinator knows are replicated.
# After a failover they can be older than those that the previous coordinator returned: a step whose records
# are visible would count as failed, and be written twice. From version 7 on, the broker can wait until all
# offsets are replicated; it returns an error while a transaction's offsets are undecided. Source: KIP-447.

_OFFSETS = {
    "partition": Int32, "offset": Int64, "leader_epoch": Int32, "metadata": STRING, "error_code": Int16
}  # fmt: skip
_OffsetFetch = request_of(
    9,
    7,
    {"group": STRING, "topics": [{"topic": STRING, "partitions": [Int32]}], "require_stable": Boolean},
    {
        "throttle_time_ms": Int32,
        "topics": [{"topic": STRING, "partitions": [_OFFSETS]}],
        "error_code": Int16,
    },
)


async def fetch_offsets(
    client: AIOKafkaClient, group: str, partitions: Iterable[KafkaPartition], *, is_stable: bool
) -> dict[KafkaPartition, int]:
    """Return a group's next offsets, 0 where none was ever committed. Raises KafkaError.

    is_stable: wait for offsets that are being committed. Otherwise the result can be slightly stale, and does
    not wait for an open transaction.
    """
    found = await fetch_committed(client, group, partitions, is_stable=is_stable)
    return {partition: max(0, offset) for partition, offset in found.items()}


async def fetch_committed(
    client: AIOKafkaClient, group: str, partitions: Iterable[KafkaPartition], *, is_stable: bool
) -> dict[KafkaPartition, int]:
    """Return what `fetch_offsets` does, with -1 where none was ever committed. Raises KafkaError."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)

    async def ask() -> dict[KafkaPartition, int]:
        node = await client.coordinator_lookup(CoordinationType.GROUP, group)
        request = _OffsetFetch(group, [(*each, {}) for each in topics.items()], is_stable)
        answer = await client.send(node, request)
        check_code(answer.error_code, f"the offsets of {group}")
        found: dict[KafkaPartition, int] = {}
        for topic, parts, _ in answer.topics:
            for number, offset, _, _, code, _ in parts:
                check_code(code, f"the offsets of {group}")
                found[KafkaPartition(topic, number)] = offset
        return found

    return await ask_until_answered(client, ask)


# The groups of a cluster. The library asks in a version that does not report their states. Source: KIP-518.

_ListGroups = request_of(
    16,
    4,
    {"states": [STRING]},
    {
        "throttle_time_ms": Int32,
        "error_code": Int16,
        "groups": [{"group": STRING, "protocol_type": STRING, "state": STRING}],
    },
)


async def list_groups(client: AIOKafkaClient) -> dict[str, str]:
    """Return the states of the groups that we may describe, by name. Raises KafkaError.

    Each broker knows those that it coordinates, so one that is down is an error: its groups are missing.
    """

    async def ask() -> dict[str, str]:
        found: dict[str, str] = {}
        for broker in client.cluster.brokers():
            answer = await client.send(broker.nodeId, _ListGroups([]))
            check_code(answer.error_code, "the groups of the cluster")
            found |= {group: state for group, _, state, _ in answer.groups}
        return found

    return await ask_until_answered(client, ask)


# The current epoch of a lease. Source: KIP-664.

_TRANSACTION = {
    "error_code": Int16,
    "transactional_id": STRING,
    "transaction_state": STRING,
    "transaction_timeout_ms": Int32,
    "transaction_start_time_ms": Int64,
    "producer_id": Int64,
    "producer_epoch": Int16,
    "topics": [{"topic": STRING, "partitions": [Int32]}],
}
_DescribeTransactions = request_of(
    65,
    0,
    {"transactional_ids": [STRING]},
    {"throttle_time_ms": Int32, "transaction_states": [_TRANSACTION]},
)
_NOT_FOUND = 105
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class TransactionState(NamedTuple):
    """The state of a lease's last transaction.

    epoch: the epoch of the lease
    is_ending: whether the outcome is decided, but not yet visible to readers
    """

    epoch: int
    is_ending: bool


def epoch_of(producer_id: int, producer_epoch: int) -> int:
    """Return a lease's epoch: a newer producer of one transactional id has the higher one.

    Producer epochs wrap to a new producer id after 32,767 leases; ids are handed out in rising blocks.
    """
    return producer_id << EPOCH_BITS | producer_epoch


async def describe_transaction(client: AIOKafkaClient, transactional_id: str) -> TransactionState | None:
    """Return the current epoch of an id and its state, None if there never was one. Raises KafkaError."""

    async def ask() -> TransactionState | None:
        node = await client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
        answer = await client.send(node, _DescribeTransactions([transactional_id]))
        code, _, state, _, _, producer_id, producer_epoch, *_ = answer.transaction_states[0]
        if code == _NOT_FOUND:
            return None
        check_code(code, transactional_id)
        return TransactionState(epoch_of(producer_id, producer_epoch), state in _ENDING)

    return await ask_until_answered(client, ask)


# Topic ids, which distinguish a topic from one that is created later under the same name. Source: KIP-516.

_BROKER = {"node_id": Int32, "host": STRING, "port": Int32, "rack": STRING}
_PARTITION = {
    "error_code": Int16,
    "partition": Int32,
    "leader": Int32,
    "leader_epoch": Int32,
    "replicas": [Int32],
    "isr": [Int32],
    "offline": [Int32],
}
_TOPIC = {
    "error_code": Int16,
    "name": STRING,
    "id_high": Int64,
    "id_low": Int64,
    "is_internal": Boolean,
    "partitions": [_PARTITION],
    "authorized_operations": Int32,
}
_Metadata = request_of(
    3,
    10,
    {
        "topics": [{"id_high": Int64, "id_low": Int64, "name": STRING}],
        "allow_auto_topic_creation": Boolean,
        "include_cluster_authorized_operations": Boolean,
        "include_topic_authorized_operations": Boolean,
    },
    {
        "throttle_time_ms": Int32,
        "brokers": [_BROKER],
        "cluster_id": STRING,
        "controller_id": Int32,
        "topics": [_TOPIC],
        "cluster_authorized_operations": Int32,
    },
)
_UNSIGNED = 2**64 - 1
_UNKNOWN_TOPIC = errors.UnknownTopicOrPartitionError.errno


class TopicIdentity(NamedTuple):
    """The properties of a topic that must not change.

    partitions: the partition count, 0 if the topic does not exist
    id: the topic id, a UUID as two integers
    """

    partitions: int
    id: tuple[int, int]


class TopicLogs(NamedTuple):
    """What metadata says of the logs of a topic.

    id: the topic id, a UUID as hex digits
    epochs: the leader's epoch of each partition
    """

    id: str
    epochs: Mapping[int, int]


async def describe_logs(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, TopicLogs]:
    """Return the logs of topics by name, without topics that are not there or that we may not see.

    Raises KafkaError.
    """
    return {
        name: TopicLogs(f"{high & _UNSIGNED:016x}{low & _UNSIGNED:016x}", {p[1]: p[3] for p in partitions})
        for code, name, high, low, _, partitions, *_ in await _metadata(client, names)
        if code == 0
    }


async def identify_topics(client: AIOKafkaClient, names: Iterable[str]) -> dict[str, TopicIdentity]:
    """Return the identities of topics by name, without topics that we may not see or that have no leader yet.

    Raises KafkaError.
    """
    return {
        name: TopicIdentity(len(partitions), (high, low))
        for code, name, high, low, _, partitions, *_ in await _metadata(client, names)
        if code in (0, _UNKNOWN_TOPIC)
    }


async def _metadata(client: AIOKafkaClient, names: Iterable[str]) -> Any:
    request = _Metadata([(0, 0, name, {}) for name in names], False, False, False)
    return (await client.send(client.get_random_node(), request)).topics
