"""The transactional producer of one lease, replaced after every failure.

A producer is never used again after an error, a deadline or a cancellation: its transaction may be half
written, and the library raises `OutOfOrderSequenceNumber` from then on. A new producer starts at once, in the
background. Its start commits or aborts the old transaction at the broker, so that readers do not wait long
behind an open transaction. The outcome is known when the new producer has started.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.structs import OffsetAndMetadata

from pvbus.adapters.kafka.errors import with_deadline
from pvbus.adapters.kafka.library import retrieve_error, stop_producer
from pvbus.adapters.kafka.producers import Producers
from pvbus.adapters.kafka.requests import epoch_of
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import FencedError, PermanentError, TransientError
from pvbus.core.kernel.backoff import spread
from pvbus.ports.bus import Output

RETRY_SECONDS = 0.5

Confirm = Callable[[], Awaitable[bool]]
"""Asks the group whether this worker is still a member. A new producer fences the holder: only members
may start one. Raises TransientError when the group does not answer."""


class Writer:
    """Writes the steps of one lease, one after the other.

    A step whose call failed is not necessarily undone. `write` then drops the producer at once, and
    `_replace` starts a new one with the same transactional id, which makes the broker end the old transaction
    one way or the other. Until then the outcome is unknown, and `ready` lets nothing read or write for the
    lease. A start fences every other producer of the id, so it asks the group first (`confirm`): a worker
    that is no longer a member would fence the rightful holder. It asks again after the start (`verify`): one
    that was frozen in between has fenced the rightful holder, and must not write in its place.

    offsets: the offsets known to be committed, by topic; cleared when an outcome is unknown
    is_fenced: whether the lease is lost
    is_closed: whether `close` was called
    """

    def __init__(
        self,
        settings: KafkaSettings,
        producers: Producers,
        group: str,
        partition: int,
        *,
        confirm: Confirm,
        verify: Confirm,
        on_fence: Callable[[], None],
    ) -> None:
        """Write nothing until `start`.

        confirm: asks the group whether this worker is still a member
        verify: the same, after a start; a proof that is younger than the session will do
        on_fence: called once, when the lease turns out to be lost
        """
        self.transactional_id = settings.transactional_id(group, partition)
        self._settings = settings
        self._producers = producers
        self._group = settings.named(group)
        self._partition = partition
        self._confirm = confirm
        self._verify = verify
        self._on_fence = on_fence
        self._producer: AIOKafkaProducer | None = None
        self._replacing: asyncio.Task[None] | None = None
        self._discarding: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()
        self.is_fenced = False
        self.is_closed = False
        self.offsets: dict[str, int] = {}
        """The offsets known to be committed, by topic. Cleared when an outcome is unknown."""

    @property
    def epoch(self) -> int | None:
        """The current epoch; it rises when the producer is replaced. None while there is no producer."""
        if self._producer is None:
            return None
        manager = self._producer._txn_manager
        return epoch_of(manager.producer_id, manager.producer_epoch)

    async def start(self) -> int:
        """Fence every older epoch, and return ours. Raises TransientError, and FencedError if it was lost."""
        producer = await self._start()
        try:
            is_member = await self._verify()
        except BaseException:
            self._discard(producer)
            raise
        self._producer = producer
        if not is_member:
            self.lose()
            raise FencedError(f"{self.transactional_id}: the group has given the lease to another worker")
        epoch = self.epoch
        assert epoch is not None
        return epoch

    async def _start(self) -> AIOKafkaProducer:
        producer = self._producers.producer(self.transactional_id)
        try:
            async with with_deadline(f"starting to write as {self.transactional_id}"):
                await producer.start()
        except BaseException:
            self._discard(producer)
            raise
        return producer

    async def ready(self) -> None:
        """Wait until the outcome of all steps is known. Raises FencedError if the lease is not ours."""
        while self._replacing is not None and not self.is_closed:
            await asyncio.wait({self._replacing})
        if self.is_fenced or self.is_closed or self._producer is None:
            raise FencedError(f"{self.transactional_id}: the lease is lost")

    async def write(self, outputs: Sequence[Output], offsets: Mapping[str, int]) -> None:
        """Write one transaction. After an error it awaits nothing: the caller may be cancelled."""
        async with self._turn:
            await self.ready()
            producer = self._producer
            assert producer is not None
            try:
                async with with_deadline(f"step of {self.transactional_id}"):
                    await self._transact(producer, outputs, offsets)
            except BaseException as exc:
                if isinstance(exc, FencedError):
                    self.lose()
                self._drop()
                raise
            self.offsets.update(offsets)

    async def _transact(
        self, producer: AIOKafkaProducer, outputs: Sequence[Output], offsets: Mapping[str, int]
    ) -> None:
        await producer.begin_transaction()
        batches, manager = self._batches(producer, outputs), producer._txn_manager
        for partition in batches:  # before anything is awaited: one request then adds them all
            manager.maybe_add_partition_to_txn(KafkaPartition(*partition))
        sent: list[asyncio.Future[object]] = []
        if offsets:  # the library sends them while the batches are under way
            sent.append(manager.add_offsets_to_txn(self._named_offsets(offsets), self._group))
            sent[0].add_done_callback(retrieve_error)
        for (topic, number), closed in batches.items():
            for batch in closed:
                future = await producer.send_batch(batch, topic, partition=number)
                future.add_done_callback(retrieve_error)
                sent.append(future)
        done, _ = await asyncio.wait(sent, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:  # the library would commit even if a batch failed
            future.result()
        await producer.commit_transaction()

    def _named_offsets(self, offsets: Mapping[str, int]) -> dict[KafkaPartition, OffsetAndMetadata]:
        named, number = self._settings.named, self._partition
        return {
            KafkaPartition(named(topic), number): OffsetAndMetadata(offset, "")
            for topic, offset in offsets.items()
        }

    def _batches(
        self, producer: AIOKafkaProducer, outputs: Sequence[Output]
    ) -> dict[tuple[str, int], list[BatchBuilder]]:
        """Return the records in batches, by topic and partition, in the order of the outputs.

        A closed batch is sent at once. Single records are delayed by the library, and take twice the CPU.
        """
        found: dict[tuple[str, int], list[BatchBuilder]] = {}
        for topic, partition, key, value, headers in outputs:
            batches = found.setdefault((self._settings.named(topic), partition), [])
            while not batches or not batches[-1].append(
                timestamp=None, key=key, value=value, headers=list(headers)
            ):  # there is no batch yet, or the last one is full; a new one takes any record
                batches.append(producer.create_batch())
        for batches in found.values():
            batches[-1].close()
        return found

    def lose(self) -> None:
        """Stop writing: another worker has a newer epoch, or may get one."""
        if not self.is_fenced:
            self.is_fenced = True
            self._on_fence()

    # Replacing

    def _drop(self) -> None:
        """Give up the producer and, unless the lease is lost, start another one in the background."""
        producer, self._producer = self._producer, None
        self.offsets.clear()
        if not self.is_fenced and not self.is_closed:
            self._replacing = asyncio.create_task(self._replace(), name=f"producer {self.transactional_id}")
        if producer is not None:
            self._discard(producer)

    async def _replace(self) -> None:
        try:
            while not self.is_closed:
                # A producer fenced at its start met another one of this id; only members retry.
                with contextlib.suppress(TransientError, FencedError):
                    if await self._confirm():
                        await self.start()
                    else:
                        self.lose()
                    return
                await asyncio.sleep(spread(RETRY_SECONDS, random.uniform))
        except PermanentError:  # the next start of a producer for this lease raises it again
            self.lose()
        finally:
            self._replacing = None

    def _discard(self, producer: AIOKafkaProducer) -> None:
        task = asyncio.create_task(stop_producer(producer), name=f"end of producer {self.transactional_id}")
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self) -> None:
        """Stop permanently. The next holder of the lease, or the timeout, ends an open transaction."""
        self.is_closed = True
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.wait({self._replacing})
        if self._producer is not None:
            self._discard(self._producer)
            self._producer = None
        if self._discarding:
            await asyncio.wait(self._discarding)
