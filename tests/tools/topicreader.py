"""The topics of a Kafka read by librdkafka, as somebody who trusts none of pvbus's own readers.

`TopicReader.all` reads every partition from its beginning to its end, committed records only. `snapshot`
puts what it read into the form that the judge of the bus's file takes (`tests.tools.busfile`). Everything
here blocks: an event loop runs it in a thread.
"""

import json
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.tools.busfile import Row, Snapshot
from tests.tools.pace import patience

SECONDS_MAX = patience(60.0)
REQUEST_SECONDS = 20.0
UNDECIDED_SECONDS_MAX = patience(60.0)
"""A transaction that nobody ends is ended by the broker: after its timeout, 20 s for ours, at the next of the
looks that it takes each 10 s; more on a busy machine."""

UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


class ReadRecord(NamedTuple):
    """One committed record. topic: without the prefix. key, value: None where the record has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int


class Reading(NamedTuple):
    """Everything that was there. ends: next offset to come, by (topic, partition), markers counted."""

    records: tuple[ReadRecord, ...]
    ends: Mapping[tuple[str, int], int]

    def of(self, topic: str) -> list[ReadRecord]:
        """Return a topic's records; those of one partition in their order."""
        return [record for record in self.records if record.topic == topic]

    def table(self, topic: str) -> dict[bytes, bytes]:
        """Fold a topic: the last value of each key, without tombstones."""
        found: dict[bytes, bytes] = {}
        for record in self.of(topic):
            found.pop(record.key or b"", None)
            if record.value is not None:
                found[record.key or b""] = record.value
        return found


class TopicReader:
    """A context manager. prefix: of the installation, as in `kafka://host:port/prefix`."""

    def __init__(
        self, bootstrap: str, prefix: str = "", *, is_quiet: bool = False, **options: str | int | float
    ) -> None:
        """is_quiet: brokers that are away are no news. options: of librdkafka, in its own names with `_` for
        `.`, for TLS and SASL."""
        common: dict[str, str | int | float] = {
            "bootstrap.servers": bootstrap,
            "log_level": 2 if is_quiet else 4,  # warnings: short-lived clients chatter when they end
            **{name.replace("_", "."): value for name, value in options.items()},
        }
        self._prefix = f"{prefix}." if prefix else ""
        self._admin = AdminClient(dict(common))
        self._consumer = Consumer(
            {
                **common,
                "group.id": f"{self._prefix}independent-reader",  # asked for by the library, never used
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                "check.crcs": True,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close both clients: one that the garbage collector finds ends the process, as it may run in the
        client's own thread, where librdkafka aborts."""
        self._consumer.close()
        self._admin.__exit__(kind, error, trace)

    def topics(self) -> dict[str, int]:
        """Return the partition counts of the installation's topics."""
        listed = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
        return {
            name.removeprefix(self._prefix): len(topic.partitions)
            for name, topic in listed.items()
            if name.startswith(self._prefix) and not name.startswith("__")
        }

    def all(
        self,
        topics: Iterable[str] | None = None,
        *,
        since: Mapping[tuple[str, int], int] | None = None,
        seconds_max: float = SECONDS_MAX,
    ) -> Reading:
        """Read these topics, or all, to where committed records end now. Raises TimeoutError.

        since: where to begin, the `ends` of a former reading; the beginning where it has none.
        """
        counts = self.topics()
        names = sorted(counts if topics is None else topics)
        left = {(self._prefix + name, number) for name in names for number in range(counts[name])}
        begins = {(self._prefix + name, number): end for (name, number), end in (since or {}).items()}
        self._consumer.assign([TopicPartition(*tp, begins.get(tp, OFFSET_BEGINNING)) for tp in left])
        records: list[ReadRecord] = []
        ends: dict[tuple[str, int], int] = {}
        deadline = time.monotonic() + seconds_max
        while left:
            for message in self._consumer.consume(num_messages=500, timeout=0.2):
                tp = (str(message.topic()), message.partition() or 0)
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    if tp in left:  # a later end belongs to records that are not of this reading
                        ends[tp[0].removeprefix(self._prefix), tp[1]] = message.offset() or 0
                        left.discard(tp)
                elif tp in left:  # what comes after the end that was seen is not of this reading
                    records.append(self._record(message))
            if left and time.monotonic() > deadline:
                raise TimeoutError(f"not at the end after {seconds_max:.0f} s: {sorted(left)[:5]}")
        self._consumer.unassign()
        return Reading(tuple(records), ends)

    def wait_for_more(self, topics: Iterable[str], *, seconds_max: float) -> float:
        """Wait until each partition of these topics has a new committed record; returns the seconds it took.

        Brokers may be away meanwhile. Raises TimeoutError.
        """
        counts = self.topics()
        left = {(self._prefix + name, number) for name in topics for number in range(counts[name])}
        self._consumer.assign([TopicPartition(*tp, OFFSET_END) for tp in left])
        began = time.monotonic()
        while left:
            for message in self._consumer.consume(num_messages=500, timeout=0.2):
                if message.error() is None:
                    left.discard((str(message.topic()), message.partition() or 0))
            if left and time.monotonic() - began > seconds_max:
                raise TimeoutError(f"nothing new after {seconds_max:.0f} s: {sorted(left)}")
        self._consumer.unassign()
        return time.monotonic() - began

    def _record(self, message: Any) -> ReadRecord:
        return ReadRecord(
            message.topic().removeprefix(self._prefix),
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
            message.timestamp()[1],
        )

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return a group's committed offsets by (topic, partition), once none is being committed."""
        deadline = time.monotonic() + UNDECIDED_SECONDS_MAX
        asked = [ConsumerGroupTopicPartitions(self._prefix + group)]
        while True:
            (answer,) = self._admin.list_consumer_group_offsets(
                asked, require_stable=True, request_timeout=REQUEST_SECONDS
            ).values()
            found = answer.result().topic_partitions
            errors = [each.error for each in found if each.error is not None]
            if not errors:
                break
            if time.monotonic() > deadline:
                raise KafkaException(errors[0])
            time.sleep(0.01)
        return {
            (each.topic.removeprefix(self._prefix), each.partition): each.offset
            for each in found
            if each.offset >= 0
        }

    def members(self, group: str) -> dict[str, set[int]]:
        """Return the partitions that each member of a group has, by member id."""
        (answer,) = self._admin.describe_consumer_groups(
            [self._prefix + group], request_timeout=REQUEST_SECONDS
        ).values()
        return {
            member.member_id: {each.partition for each in member.assignment.topic_partitions}
            for member in answer.result().members
        }

    def snapshot(self, groups: Iterable[str] = ()) -> Snapshot:
        """Read everything, for the judge. The offsets are read first: what they promise must be there."""
        offsets = {
            (group, partition, topic): offset
            for group in groups
            for (topic, partition), offset in self.committed(group).items()
        }
        found = self.all()
        return Snapshot(tuple(map(row_of, found.records)), found.ends, offsets, {}, "ok")


def row_of(record: ReadRecord) -> Row:
    """Decode a record; what cannot be is a row of which only the place tells."""
    tp = (record.topic, record.partition, record.offset)
    try:
        key = (record.key or b"").decode()
        value = None if record.value is None else json.loads(record.value)
    except ValueError:
        return Row(*tp, f"!{UNDECODABLE}", None)
    return Row(*tp, key, value if value is None or isinstance(value, dict) else None)
