"""A controller's tables: filled from the bus, kept up to date, and emptied when they may be wrong.

The tables of a lease are read from 0 to the ends fetched after the fence, then on until nothing is left to
read, and only then trusted. Those of a lease that returns, and that no other worker held in between, still
equal the bus: only newer records of the inputs are read.

A record is checked before it is put into a table. Controllers decode most rows when they load them, and a few
only when they need them; those would fail later, in a decision that no longer knows the record. A key in
another partition than its own (another program may choose partitions differently) would be a second row of
its name.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from sys import intern

import msgspec

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import Controller, Put
from pvbus.core.kernel.keys import partition as partition_of
from pvbus.core.kernel.keys import reconciled_partition
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import DLQ, DeadLetter
from pvbus.core.kernel.topics import rows_of
from pvbus.ports.bus import Bus, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.leases import Finished, OpenLease, finished
from pvbus.runtime.reconcile.reader import StaleError, TableReader
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

LETTER_BYTES_MAX = 600_000
"""Bytes of a value that a dead letter keeps. As JSON they take a third more, and the letter must fit into a
record of a million bytes; other programs may write larger values."""


def checked_key(record: Record, partitions: int) -> str:
    """Return a record's key. Raises ValueError or MsgspecError if the record is not valid in its topic."""
    key = intern(record.key.decode())  # all services of this process that have the row share it
    if not key:
        raise ValueError("it has no key")
    if is_marker(key):
        return key
    rows = rows_of(record.topic, key)
    if rows is None:
        raise ValueError(f"a key of {record.topic} does not look like {key!r}")
    own = partition_of(rows.partition_key(key), partitions)
    if own != record.partition and not rows.is_everywhere:
        raise ValueError(f"key {key!r} belongs to partition {own}")
    if rows.check is not None and record.value is not None:
        rows.check(record.value)
    return key


def dead_letter(record: Record, error: Exception) -> DeadLetter:
    """Return the dead letter of a record that cannot be decoded."""
    value, text = record.value or b"", str(error)
    if len(value) > LETTER_BYTES_MAX:
        text = f"{text} (of its {len(value)} bytes, these are the first {LETTER_BYTES_MAX})"
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        error=text,
        value=value[:LETTER_BYTES_MAX],
    )


AGAIN_SECONDS = 1.0


class Tables:
    """The controller of a worker, and the reader of its tables.

    controller: the controller with its tables; a new one after `empty`
    table_reader: the reader of the inputs and the broadcast topics
    partitions: the partition count of the topics
    leases: the leases held, by partition
    """

    def __init__(
        self,
        make: Callable[[], Controller],
        bus: Bus,
        clock: Clock,
        *,
        partitions: int,
        leases: Mapping[int, OpenLease],
        stale: Callable[[], None],
    ) -> None:
        """Begin with empty tables.

        make: returns a controller with empty tables
        leases: the leases held, by partition; their holder changes it
        stale: called when everything must be read again
        """
        self.controller = make()
        self.table_reader = TableReader(bus, clock, pausable=self.controller.pausable)
        self._make = make
        self._bus = bus
        self._clock = clock
        self.partitions = partitions
        self._leases = leases
        self._stale = stale
        self._log = get_logger(self.controller.name)
        self._broadcast_ready = asyncio.Event()
        self._broadcast_restore = (0, 0)
        self._emptied = asyncio.Event()
        self._written_topics = frozenset((*self.controller.inputs, *self.controller.memory))

    def empty(self) -> None:
        """Drop all tables, to be read again; the restore of a lease opens its own."""
        self._broadcast_ready.clear()
        self.controller = self._make()
        self._emptied.set()

    def _own(self, topics: Iterable[str], number: int) -> list[TopicPartition]:
        return [(topic, number) for topic in topics]

    def _whole(self, topics: Iterable[str]) -> list[TopicPartition]:
        return [(topic, number) for topic in topics for number in range(self.partitions)]

    # ------------------------------------------------------------ restoring

    async def restore(self, opened: OpenLease) -> None:
        """Make a lease's tables equal to the bus, then mark every key dirty once.

        Raises FencedError, TransientError and StaleError.
        """
        dirty = sorted(opened.dirty)
        opened.clear()
        if opened.positions is None:
            self.controller.open(opened.lease.partition)
            await self._read_own(opened)
        else:
            await self._take_up(opened, opened.positions)
        for key in (*self.controller.keys(opened.lease.partition), *dirty):
            opened.mark(key)

    async def _read_own(self, opened: OpenLease) -> None:
        number, controller = opened.lease.partition, self.controller
        committed = await self._bus.committed(opened.lease, controller.inputs)
        own = self._own((*controller.inputs, *controller.memory), number)
        reached = await self.table_reader.replay(
            await self._bus.end_offsets(own),
            lambda record: self._load(record, committed),
            lambda read, total: self._note_restore(opened, (read, total)),
        )
        await self._broadcast_ready.wait()
        await self.table_reader.catch_up(self._whole(controller.broadcast))
        for topic in controller.inputs:
            opened.start_at(topic, reached[topic, number], committed.get(topic, 0))
        self.table_reader.assign({tp: reached[tp] for tp in self._own(controller.inputs, number)})

    async def _take_up(self, opened: OpenLease, positions: Mapping[TopicPartition, int]) -> None:
        """Continue with retained tables: no other worker has written the changelogs of the lease since."""
        number, controller = opened.lease.partition, self.controller
        committed = await self._bus.committed(opened.lease, controller.inputs)
        for topic in controller.inputs:
            opened.start_at(topic, positions[topic, number], committed.get(topic, 0))
        self.table_reader.assign(positions)
        await self._broadcast_ready.wait()
        await self.table_reader.catch_up([*positions, *self._whole(controller.broadcast)])
        self._log.info("lease regained; its tables are still current", partition=number)

    async def keep_broadcast(self) -> None:
        """Read the broadcast tables at the start, and whenever they were emptied."""
        while True:
            self._emptied.clear()
            try:
                ends = await self._bus.end_offsets(self._whole(self.controller.broadcast))
                reached = await self.table_reader.replay(ends, self._load, self._note_broadcast)
            except TransientError as exc:
                self._log.warning("tables cannot be read yet", error=str(exc))
                await self._clock.sleep(AGAIN_SECONDS)
                continue
            except StaleError:
                self._stale()
                continue
            if not self._emptied.is_set():
                self.table_reader.assign(reached)
                self._broadcast_ready.set()
                await self._emptied.wait()

    def _note_broadcast(self, read: int, total: int) -> None:
        self._broadcast_restore = (read, total)
        for opened in self._leases.values():
            self._note_restore(opened, opened.replayed)

    def _note_restore(self, opened: OpenLease, own: tuple[int, int]) -> None:
        """Add the broadcast tables to the progress of each lease, which needs them."""
        opened.replayed = own
        if not opened.restored:
            read, total = self._broadcast_restore
            opened.restoring(own[0] + read, own[1] + total)

    # ------------------------------------------------------------ records

    def _load(self, record: Record, committed: Mapping[str, int] | None = None) -> list[str]:
        """Apply a record to the tables; return the keys that it makes dirty.

        committed: during a restore, the committed offsets of the inputs. Only an undecodable record from
            these on gets a dead letter: an earlier one already has it.
        """
        try:
            key = checked_key(record, self.partitions)
            return list(self.controller.load(record.topic, record.partition, key, record.value))
        except (msgspec.MsgspecError, ValueError) as exc:
            if committed is None or record.offset >= committed.get(record.topic, record.offset + 1):
                self._dead_letter(record, exc)
            return []

    def _dead_letter(self, record: Record, error: Exception) -> None:
        """Write a record that cannot be decoded to the dead-letter topic, for a person to inspect.

        Many workers read the same record of a broadcast topic: the one that holds the lease of its
        partition writes the letter.
        """
        opened = self._leases.get(record.partition)
        if opened is not None:
            metrics.DEAD_LETTERS.labels(record.topic).inc()
            key = record.key.decode(errors="replace")
            tp = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            self._log.error("record cannot be decoded", key=key, error=str(error), **tp)
            opened.add(finished("", (Put(DLQ, key, dead_letter(record, error)),), self.partitions))

    def consume(self, record: Record) -> None:
        """Apply a record, and mark the keys that it makes dirty.

        A record of an input dirties keys of its own partition, one of a broadcast topic any.
        """
        keys = self._load(record)
        if record.topic not in self.controller.inputs:
            for key in keys:
                self.mark(reconciled_partition(key, self.partitions), key)
        elif (opened := self._leases.get(record.partition)) is not None:
            for key in keys:
                opened.mark(key)
            opened.note_consumed(record.topic, record.offset, keys)

    def mark(self, number: int, key: str) -> None:
        opened = self._leases.get(number)
        if opened is not None:
            opened.mark(key)

    def store(self, opened: OpenLease, puts: Iterable[Put]) -> None:
        """Store rows that were written."""
        for put in puts:
            if put.topic in self._written_topics:
                for key in self.controller.store(opened.lease.partition, put):
                    opened.mark(key)

    def note_refusal(self, opened: OpenLease, outcome: Finished, error: PermanentError) -> bool:
        """Tell the controller that the bus refused an outcome; return whether an object will report it."""
        keys = list(self.controller.note_refusal(opened.lease.partition, outcome.puts, error))
        for key in keys:
            opened.mark(key)
        return bool(keys)

    async def catch_up(self, opened: OpenLease, topics: Iterable[str]) -> None:
        """Wait until everything that these topics hold now is applied."""
        topic_partitions: list[TopicPartition] = []
        for topic in topics:
            if topic in self.controller.broadcast:
                topic_partitions += self._whole((topic,))
            else:
                topic_partitions += self._own((topic,), opened.lease.partition)
        await self.table_reader.catch_up(topic_partitions)
