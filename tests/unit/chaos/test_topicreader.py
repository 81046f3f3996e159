"""A reading of topics that goes on where the last one ended skips nothing, and repeats nothing."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from tests.tools.topicreader import TopicReader


class Message:
    """A record, or with an error the end of a partition."""

    def __init__(self, offset: int, *, is_end: bool = False, partition: int = 0) -> None:
        self._offset = offset
        self._partition = partition
        self._error = KafkaError(KafkaError._PARTITION_EOF) if is_end else None

    def error(self) -> KafkaError | None:
        return self._error

    def offset(self) -> int:
        return self._offset

    def topic(self) -> str:
        return "blue.t"

    def partition(self) -> int:
        return self._partition

    def key(self) -> bytes:
        return b"key"

    value = key

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 1000


class Consumer:
    """Gives what was prepared. assigned: of each reading."""

    def __init__(self, batches: list[list[Message]]) -> None:
        self._batches = batches
        self.assigned: list[dict[int, int]] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned.append({each.partition: each.offset for each in partitions})

    def unassign(self) -> None:
        """Nothing to do."""

    def consume(self, **_: Any) -> list[Message]:
        return self._batches.pop(0)

    def close(self) -> None:
        """Nothing to do."""


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[TopicReader]:
    with TopicReader("127.0.0.1:1", "blue", is_quiet=True) as made:
        made._consumer.close()
        monkeypatch.setattr(made, "topics", lambda: {"t": 2})
        yield made


def test_both_clients_are_closed_with_the_reader() -> None:
    """One that is left to the garbage collector may be destroyed by its own thread: librdkafka aborts."""
    with TopicReader("127.0.0.1:1", is_quiet=True) as made:
        pass
    for client in (made._admin, made._consumer):
        with pytest.raises(RuntimeError, match="closed"):
            client.poll(0)


def test_what_comes_after_an_end_is_of_the_next_reading(reader: TopicReader) -> None:
    """While other partitions are still read, one whose end was seen grows, and has an end once more."""
    end = Message(5, is_end=True)
    grown, other = [Message(5), Message(6, is_end=True)], Message(0, is_end=True, partition=1)
    consumer = Consumer([[Message(4), end, *grown], [other], [*grown, other]])
    cast(Any, reader)._consumer = consumer
    first = reader.all()
    assert [record.offset for record in first.records] == [4]
    assert first.ends == {("t", 0): 5, ("t", 1): 0}
    second = reader.all(since=first.ends)
    assert [record.offset for record in second.records] == [5]
    assert second.ends[("t", 0)] == 6
    assert consumer.assigned == [{0: OFFSET_BEGINNING, 1: OFFSET_BEGINNING}, {0: 5, 1: 0}]
