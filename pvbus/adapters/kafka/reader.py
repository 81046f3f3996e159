"""Reads partitions from positions that the caller sets: committed records only.

The library's consumer is started at the first poll. Fetched records go through buffers of our own, one per
partition, and are taken from them in turn: the library would first empty the partition that it fetched first.
The consumer's positions are ahead of ours by the buffered records.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition

from pvbus.adapters.kafka.errors import translated
from pvbus.adapters.kafka.fetching import Fetches
from pvbus.adapters.kafka.library import stop_consumer
from pvbus.adapters.kafka.settings import KafkaSettings, reader_options
from pvbus.core.errors import PvbusError, TransientError
from pvbus.ports.bus import Record, TopicPartition


class KafkaReader:
    """Implements `pvbus.ports.bus.Reader`.

    A partition's position is that of its first buffered record, or that of the consumer if none is buffered.
    The consumer loses its positions with each new assignment, so `_save` copies them into `_positions`
    before, and `_apply` seeks to them after. Buffered records stay, as the consumer is behind them already.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        positions: Mapping[TopicPartition, int],
        *,
        on_close: Callable[["KafkaReader"], None],
    ) -> None:
        """Connect at the first poll.

        positions: the partitions to read, and the next offset of each
        on_close: called when this reader is closed, at the latest by the bus's own `close`
        """
        self._settings = settings
        self._on_close = on_close
        self._positions = dict(positions)
        self._paused: set[TopicPartition] = set()
        self._buffers: dict[TopicPartition, deque[Record]] = {}
        self._names: dict[TopicPartition, KafkaPartition] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._fetches: Fetches | None = None
        self._starting: asyncio.Task[AIOKafkaConsumer] | None = None
        self._is_closed = False

    # Positions

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._save()
        for partition, offset in positions.items():
            self._positions[partition] = offset
            self._buffers.pop(partition, None)
        self._apply()

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        self._save()
        for partition in partitions:
            self._positions.pop(partition, None)
            self._buffers.pop(partition, None)
            self._paused.discard(partition)
        self._apply()

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(partitions)
        if self._consumer is not None:
            self._consumer.pause(*map(self._foreign, partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.difference_update(partitions)
        if self._consumer is not None:
            self._consumer.resume(*map(self._foreign, partitions))

    def position(self, partition: TopicPartition) -> int:
        buffer = self._buffers.get(partition)
        return buffer[0].offset if buffer else self._next_offset(partition)

    def _next_offset(self, partition: TopicPartition) -> int:
        """Return the offset that the consumer fetches next."""
        if self._consumer is not None:
            subscription = self._consumer._subscription.subscription
            state = subscription.assignment.state_value(self._foreign(partition)) if subscription else None
            if state is not None and state.has_valid_position:
                return int(state.position)
        return self._positions[partition]

    def _save(self) -> None:
        """Save the consumer's positions: it loses them when its assignment changes."""
        for partition in self._positions:
            self._positions[partition] = self._next_offset(partition)

    def _apply(self) -> None:
        """Assign our positions to the consumer. It drops fetched records that we have not taken."""
        if self._consumer is None:
            return
        self._consumer.assign([self._foreign(partition) for partition in self._positions])
        for partition, offset in self._positions.items():
            self._consumer.seek(self._foreign(partition), offset)
        self._consumer.pause(*map(self._foreign, self._paused & self._positions.keys()))

    def _foreign(self, partition: TopicPartition) -> KafkaPartition:
        """Return the library's object for a partition; cached, as each poll needs it several times."""
        found = self._names.get(partition)
        if found is None:
            topic, number = partition
            found = self._names[partition] = KafkaPartition(self._settings.named(topic), number)
        return found

    def reads(self, partition: TopicPartition) -> bool:
        return partition in self._positions

    # Records

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        consumer = await self._start_once()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_seconds
        begin = self._progress()
        while True:
            await asyncio.sleep(0)  # a busy reader must not block the event loop
            wait = 0.0 if self._has_buffered() else max(0.0, deadline - loop.time())
            await self._fetch(consumer, wait, max_records)
            records = self._take(max_records)
            if records or loop.time() >= deadline or self._progress() != begin:
                return records

    async def _fetch(self, consumer: AIOKafkaConsumer, wait_seconds: float, enough: int) -> None:
        """Move fetched records into the buffers; wait until something arrives if there are none yet.

        What arrives may be markers only, which move positions.

        enough: a buffer with so many records gets no more, as memory would grow with the backlog.
        """
        short = [tp for tp in self._positions if len(self._buffers.get(tp, ())) < enough]
        if not short:
            await asyncio.sleep(wait_seconds)
            return
        assert self._fetches is not None
        self._fetches.expect()
        fetched = await self._take_arrived(consumer, short)
        if not fetched and wait_seconds:
            await self._fetches.arrival(wait_seconds)
            fetched = await self._take_arrived(consumer, short)
        for (topic, partition), messages in fetched.items():
            name = self._settings.unnamed(topic)
            assert name is not None
            self._buffers.setdefault((name, partition), deque()).extend(
                [
                    Record(name, partition, m.offset, m.key or b"", m.value, m.headers, m.timestamp)
                    for m in messages
                ]
            )

    async def _take_arrived(
        self, consumer: AIOKafkaConsumer, short: Sequence[TopicPartition]
    ) -> Mapping[KafkaPartition, Sequence[Any]]:
        """Return the records that have arrived; raise the errors that have."""
        with translated("reading"):
            fetched: Mapping[KafkaPartition, Sequence[Any]]
            fetched = await consumer.getmany(*map(self._foreign, short), timeout_ms=0)
        return fetched

    def _has_buffered(self) -> bool:
        """Return whether a partition that is not paused has buffered records."""
        return any(partition not in self._paused for partition in self._buffers)

    def _progress(self) -> int:
        """Return the sum of the positions, which rises whenever any of them does."""
        return sum(map(self._next_offset, self._positions))

    def _take(self, limit: int) -> list[Record]:
        """Take up to `limit` records: equal shares of all partitions with records, then the rest in turn."""
        records: list[Record] = []
        ready = [partition for partition in self._buffers if partition not in self._paused]
        while ready and len(records) < limit:
            share = max(1, (limit - len(records)) // len(ready))
            for partition in ready:
                buffer = self._buffers.pop(partition)
                count = min(share, limit - len(records))
                if len(buffer) <= count:
                    records += buffer
                else:
                    records += [buffer.popleft() for _ in range(count)]
                    self._buffers[partition] = buffer  # behind the others
            ready = [partition for partition in ready if partition in self._buffers]
        return records

    # Life

    async def _start_once(self) -> AIOKafkaConsumer:
        """Start the consumer once, even if polls are cancelled during its start."""
        if self._consumer is not None:
            return self._consumer
        if self._is_closed:
            raise TransientError("the reader is closed")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="start of a reader")
        try:
            with translated("starting to read"):
                return await asyncio.shield(self._starting)
        except PvbusError:
            self._starting = None
            raise

    async def _start(self) -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**reader_options(self._settings))
        self._fetches = Fetches(consumer._client)
        try:
            await consumer.start()
        except BaseException:
            await stop_consumer(consumer)
            raise
        self._consumer = consumer
        self._apply()
        return consumer

    async def close(self) -> None:
        self._is_closed = True
        self._on_close(self)
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer)
