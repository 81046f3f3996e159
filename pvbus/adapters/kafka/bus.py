"""The bus on Kafka: `KafkaBus.open` returns a started bus.

A step is one transaction of the lease's own transactional id; the lease's epoch is that id's producer
epoch. `settings` has every option, `topics` the topics, `membership` this worker's leases, `groups` the
group protocol, `writer` transactions, `reader` reading, `requests` requests that the library lacks, `errors`
the translation of its errors, `library` its shutdown and its log.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.admin import AIOKafkaAdminClient

from pvbus.adapters.checks import check_sizes, common_count
from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kafka.errors import FOREIGN, unreachable, with_deadline
from pvbus.adapters.kafka.groups import describe_members
from pvbus.adapters.kafka.library import (
    check_library,
    collect_reasons,
    filter_logs,
    stop_consumer,
    wait_for_brokers,
)
from pvbus.adapters.kafka.membership import KafkaMembership
from pvbus.adapters.kafka.producers import Producers
from pvbus.adapters.kafka.reader import KafkaReader
from pvbus.adapters.kafka.requests import (
    describe_logs,
    describe_transaction,
    fetch_committed,
    fetch_offsets,
    list_groups,
)
from pvbus.adapters.kafka.settings import TRANSACTION_SECONDS, KafkaSettings, client_options, ends_options
from pvbus.adapters.kafka.snapshots import LogState, Snapshots
from pvbus.adapters.kafka.topics import Catalogue, TopicWatch, how_to_empty
from pvbus.adapters.kafka.writer import Writer
from pvbus.core.errors import FencedError, InvariantError
from pvbus.ports.bus import (
    Assigned,
    GroupOffsets,
    GroupState,
    Lease,
    Output,
    PartitionState,
    Revoked,
    Snapshot,
    TopicPartition,
    TopicSpec,
    TopicState,
)
from pvbus.ports.clock import Clock

ENDING_SECONDS = 0.01
"""How often to check whether a decided transaction is visible to readers, which takes about 20 ms."""


class KafkaBus:
    """Implements `pvbus.ports.bus.Bus`.

    A transaction takes 20 to 30 ms whether it holds one record or 200; a much larger one delays the readers
    of all its partitions.
    """

    step_records_max = 200
    step_bytes_max = 2_000_000

    def __init__(
        self, settings: KafkaSettings, clock: Clock, admin: AIOKafkaAdminClient, ends: AIOKafkaConsumer
    ) -> None:
        """Use `open`."""
        self.label = ""
        self._settings = settings
        self._clock = clock
        self._admin = admin
        self._ends = ends
        self._catalogue = Catalogue(admin, settings)
        self._topic_watch = TopicWatch(admin, settings)
        self._producers = Producers(settings)
        self._memberships: list[KafkaMembership] = []
        self._readers: set[KafkaReader] = set()
        self._specs: Mapping[str, TopicSpec] = {}
        self._snapshots: Snapshots | None = None
        self._keeping: asyncio.Task[None] | None = None
        if settings.snapshots:
            self._snapshots = Snapshots(
                Path(settings.snapshots),
                self._clock,
                named=settings.named,
                look=self._log_states,
                reader=self.reader,
            )

    @classmethod
    async def open(cls, settings: KafkaSettings, *, clock: Clock | None = None) -> "KafkaBus":
        """Connect. Raises TransientError if no broker answers, PermanentError if aiokafka is another one."""
        check_library()
        filter_logs()
        admin = AIOKafkaAdminClient(**client_options(settings))
        ends = AIOKafkaConsumer(**ends_options(settings))
        with collect_reasons() as reasons:
            try:
                async with asyncio.timeout(TRANSACTION_SECONDS):
                    await admin.start()
                    await ends.start()
                    for client in (admin._client, ends._client):
                        await wait_for_brokers(client)
            except BaseException as exc:
                await admin.close()
                await ends.stop()
                if isinstance(exc, FOREIGN):
                    raise unreachable(exc, reasons, settings) from exc
                raise
        return cls(settings, clock or SystemClock(), admin, ends)

    @property
    def record_bytes_max(self) -> int:
        return self._settings.record_bytes_max

    @property
    def session_seconds(self) -> float:
        return self._settings.session_seconds

    def peer(self) -> "KafkaBus":
        """Return this bus: its workers share its connections."""
        return self

    async def close(self) -> None:
        """Leave all groups, and close every connection."""
        await asyncio.gather(*(membership.leave() for membership in self._memberships))
        await self._disconnect()

    async def abandon(self) -> None:
        """Stop without leaving the groups, as a killed process would: for tests of the other members."""
        await asyncio.gather(*(membership.abandon() for membership in self._memberships))
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})
        await asyncio.gather(*(reader.close() for reader in tuple(self._readers)))
        await self._producers.close()
        await stop_consumer(self._ends)
        await self._admin.close()

    # Topics

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        async with with_deadline("creating topics"):
            await self._catalogue.create(topics)
            await self._topic_watch.rely_on(spec.name for spec in topics)

    async def check_topics(self, topics: Sequence[TopicSpec]) -> list[TopicState]:
        async with with_deadline("comparing topics"):
            return await self._catalogue.check(topics)

    async def topics(self) -> Mapping[str, TopicSpec]:
        async with with_deadline("listing topics"):
            return await self._catalogue.all()

    def how_to_empty(self) -> str:
        return how_to_empty(self._settings)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets of the partitions, uncommitted records included.

        A step returns when its outcome is decided, some milliseconds before its records are visible. A reader
        that reads up to these offsets waits until then, and so sees every step that returned before the call.
        """
        async with with_deadline("asking for end offsets"):
            return await self._offsets(partitions, self._ends.end_offsets)

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        async with with_deadline("asking for begin offsets"):
            return await self._offsets(partitions, self._ends.beginning_offsets)

    async def _offsets(
        self,
        partitions: Sequence[TopicPartition],
        ask: Callable[[list[KafkaPartition]], Awaitable[Mapping[KafkaPartition, int]]],
    ) -> dict[TopicPartition, int]:
        for partition in partitions:
            await self._catalogue.check_partition(*partition)
        names = {KafkaPartition(self._settings.named(topic), n): (topic, n) for topic, n in partitions}
        found = await ask(list(names)) if names else {}
        return {names[partition]: offset for partition, offset in found.items()}

    async def snapshots(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Snapshot]:
        if self._snapshots is None:
            return {}
        if self._keeping is None:
            keep = self._snapshots.keep(self._settings.snapshot_seconds, self._is_read)
            self._keeping = asyncio.create_task(keep, name="writing snapshots")
        return await self._snapshots.load(partitions)

    def _is_read(self, partition: TopicPartition) -> bool:
        """Return whether a partition belongs to a lease of this process, or is read by one."""
        held = {number for membership in self._memberships for number in membership.leases()}
        return partition[1] in held or any(reader.reads(partition) for reader in self._readers)

    async def _log_states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogState]:
        """Return the state of each of these partitions that exists and is compacted."""
        if not self._specs:
            self._specs = await self.topics()
        names = {topic: self._settings.named(topic) for topic, _ in partitions}
        begins, ends = await self.begin_offsets(partitions), await self.end_offsets(partitions)
        async with with_deadline("looking at the logs of partitions"):
            logs = await describe_logs(self._admin._client, names.values())
        found: dict[TopicPartition, LogState] = {}
        for topic, number in partitions:
            log, spec = logs.get(names[topic]), self._specs.get(topic)
            if log is not None and spec is not None and spec.cleanup == "compact" and number in log.epochs:
                tp = topic, number
                found[tp] = LogState(log.id, log.epochs[number], begins[tp], ends[tp], spec.tombstone_seconds)
        return found

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> KafkaReader:
        reader = KafkaReader(self._settings, positions or {}, on_close=self._readers.discard)
        self._readers.add(reader)
        return reader

    # Leases

    async def join(
        self, group: str, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> KafkaMembership:
        partitions = await self._count_partitions(group, topics)
        async with with_deadline(f"looking at the topics of {group}"):
            await self._topic_watch.rely_on(topics)
        membership = KafkaMembership(
            self._settings,
            self._clock,
            group,
            topics,
            partitions,
            assigned,
            revoked,
            topic_watch=self._topic_watch,
            producers=self._producers,
            label=self.label,
        )
        await membership.start()
        self._memberships.append(membership)
        return membership

    async def _count_partitions(self, group: str, topics: Sequence[str]) -> int:
        return common_count(group, {await self._catalogue.partitions(topic) for topic in topics})

    async def describe(self, group: str, topics: Sequence[str]) -> GroupState:
        partitions = await self._count_partitions(group, topics)
        name = self._settings.named(group)
        names = {self._settings.named(topic): topic for topic in topics}
        async with with_deadline(f"describing {group}"):
            members = await describe_members(self._admin, name)
            topic_partitions = [KafkaPartition(topic, n) for topic in names for n in range(partitions)]
            offsets = await fetch_offsets(self._admin._client, name, topic_partitions, is_stable=False)
        owners = {number: member.id for member in members for number in member.partitions}
        committed: dict[int, dict[str, int]] = {number: {} for number in range(partitions)}
        for (topic, number), offset in offsets.items():
            committed[number][names[topic]] = offset
        return GroupState(
            {member.id: member.label for member in members},
            {number: PartitionState(owners.get(number, ""), each) for number, each in committed.items()},
        )

    async def readers_of(self, topics: Sequence[str]) -> Mapping[str, GroupOffsets]:
        async with with_deadline("looking for the readers of topics"):
            names = {
                KafkaPartition(self._settings.named(topic), number): (topic, number)
                for topic in topics
                for number in range(await self._catalogue.partitions(topic))
            }
            found: dict[str, GroupOffsets] = {}
            for group, state in sorted((await list_groups(self._admin._client)).items()):
                offsets = await fetch_committed(self._admin._client, group, names, is_stable=False)
                committed = {names[tp]: offset for tp, offset in offsets.items() if offset >= 0}
                if committed:
                    found[group] = GroupOffsets(state, committed)
        return found

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the committed next offsets of a lease that this bus or another one holds."""
        writer = self._find(lease)
        if writer is not None:
            await writer.ready()
        async with with_deadline(f"reading the offsets of {lease.group}/{lease.partition}"):
            await self._check_epoch(lease, writer)
            offsets = await self._fetch_offsets(lease, topics)
        if writer is not None:
            writer.offsets.update(offsets)
        return offsets

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        writer = self._find(lease)
        if writer is None:
            raise FencedError(f"{lease.group}/{lease.partition}: epoch {lease.epoch} is not held here")
        await self._check_outputs(outputs)
        if offsets:
            await self._check_offsets(lease, writer, offsets)
        if outputs or offsets:
            await writer.write(outputs, offsets or {})

    def _find(self, lease: Lease) -> Writer | None:
        for membership in self._memberships:
            if (writer := membership.writer(lease)) is not None:
                return writer
        return None

    async def _check_outputs(self, outputs: Sequence[Output]) -> None:
        """Check outputs before anything is sent: after a broker error the producer must be replaced."""
        for topic, partition in {(output.topic, output.partition) for output in outputs}:
            await self._catalogue.check_partition(topic, partition)
        check_sizes(outputs, self._settings.record_bytes_max)

    async def _check_offsets(self, lease: Lease, writer: Writer, offsets: Mapping[str, int]) -> None:
        """Raise InvariantError if an offset moves backwards: the broker would accept it."""
        unknown = [topic for topic in offsets if topic not in writer.offsets]
        if unknown:
            for topic in unknown:
                await self._catalogue.check_partition(topic, lease.partition)
            await self.committed(lease, unknown)
        for topic, offset in offsets.items():
            if offset < writer.offsets[topic]:
                raise InvariantError(
                    f"step would move {lease.group}/{lease.partition} back to {topic}@{offset}"
                )

    async def _check_epoch(self, lease: Lease, writer: Writer | None) -> None:
        """Wait until the lease's last step is visible. Raises FencedError if the lease is not the newest."""
        name = self._settings.transactional_id(lease.group, lease.partition)
        while True:
            ours = lease.epoch if writer is None else writer.epoch
            state = await describe_transaction(self._admin._client, name)
            if writer is not None and writer.epoch != ours:
                await writer.ready()  # its producer was replaced during the request
                continue
            if state is None or state.epoch != ours:
                if writer is not None:
                    writer.lose()
                raise FencedError(f"{lease.group}/{lease.partition}: epoch {lease.epoch} is old, now {state}")
            if not state.is_ending:
                return
            await asyncio.sleep(ENDING_SECONDS)

    async def _fetch_offsets(self, lease: Lease, topics: Sequence[str]) -> dict[str, int]:
        names = {KafkaPartition(self._settings.named(topic), lease.partition): topic for topic in topics}
        group = self._settings.named(lease.group)
        found = await fetch_offsets(self._admin._client, group, names, is_stable=True)
        return {topic: found[partition] for partition, topic in names.items()}
