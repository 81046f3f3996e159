"""Counts what this process asks of Kafka, by kind of request, however it is sent."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection

PRODUCE, FETCH, INIT_PRODUCER, ADD_PARTITIONS, ADD_OFFSETS, END_TRANSACTION = 0, 1, 22, 24, 25, 26
COMMIT_OFFSETS = 28


class Requests(NamedTuple):
    """sent: requests by their API key. partitions: those that fetches named, all together. connections: those
    that asked for something."""

    sent: Counter[int]
    partitions: list[int]
    connections: set[Any]


@contextlib.contextmanager
def counted_requests() -> Iterator[Requests]:
    """Count from now on, until the block ends."""
    found = Requests(Counter(), [], set())
    send: Any = AIOKafkaConnection.send

    def counting(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        found.sent[request.API_KEY] += 1
        found.connections.add(self)
        if request.API_KEY == FETCH:
            found.partitions.append(sum(len(partitions) for _, partitions in request.topics))
        return send(self, request, *arguments, **options)

    AIOKafkaConnection.send = counting
    try:
        yield found
    finally:
        AIOKafkaConnection.send = send
