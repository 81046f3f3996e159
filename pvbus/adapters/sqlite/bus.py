"""The bus in a SQLite file, or in memory: the embedded default.

`SqliteBus.open` returns a started bus. Several processes may open one file; `peer` returns another worker's
view of a bus in this process, so that several workers can share a memory bus. `schema` has the tables,
`store` transactions, `reader` reading, `membership` groups and leases.
"""

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Self

from pvbus.adapters.checks import check_sizes, common_count
from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sqlite.membership import (
    SqliteMembership,
    Timing,
    describe_group,
    groups_of,
)
from pvbus.adapters.sqlite.reader import SqliteReader
from pvbus.adapters.sqlite.schema import how_to_empty
from pvbus.adapters.sqlite.store import EXPIRE_ROWS_MAX, Store
from pvbus.core.errors import FencedError, TransientError
from pvbus.ports.bus import (
    Assigned,
    GroupOffsets,
    GroupState,
    Lease,
    Output,
    Revoked,
    Snapshot,
    TopicPartition,
    TopicSpec,
    TopicState,
)
from pvbus.ports.clock import Clock

EXPIRE_SECONDS = 10.0
"""How often expired records are deleted: one index query each time; it bounds how late they are deleted."""


class SqliteBus:
    """Implements `pvbus.ports.bus.Bus`.

    A step locks the whole file and blocks the event loop: it must end within some tens of milliseconds.
    """

    step_records_max = 2_000
    step_bytes_max = 2_000_000

    def __init__(self, store: Store, clock: Clock, timing: Timing, record_bytes_max: int) -> None:
        """Call `open` instead: the constructor does not start the task that expires records."""
        self.label = ""
        self._store = store
        self._clock = clock
        self._timing = timing
        self.record_bytes_max = record_bytes_max
        self._memberships: list[SqliteMembership] = []
        self._peers: list[SqliteBus] = []
        self._expiry: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        session_seconds: float = 10,
        heartbeat_seconds: float = 1,
        drain_seconds: float = 2,
        record_bytes_max: int = 1_000_000,
        poll_seconds: float = 0.05,
    ) -> Self:
        """Open a file, which is created if it is missing, or ":memory:".

        clock: None is the system clock; pass a simulated one for virtual time
        session_seconds: as in `Timing`
        heartbeat_seconds: as in `Timing`
        drain_seconds: as in `Timing`
        record_bytes_max: the limit of key, value and headers of a record together; Kafka's default is 1 MiB
            per batch
        poll_seconds: the interval at which records of other processes are read
        Raises PermanentError if the file is not a bus of this version.
        """
        timing = Timing(
            session_seconds=session_seconds, heartbeat_seconds=heartbeat_seconds, drain_seconds=drain_seconds
        )
        store = Store(os.fspath(path), poll_seconds=poll_seconds)
        bus = cls(store, clock or SystemClock(), timing, record_bytes_max)
        bus._expiry = asyncio.create_task(bus._expire(), name=f"expiry of {path}")
        return bus

    @property
    def session_seconds(self) -> float:
        return self._timing.session_seconds

    def peer(self, *, clock: Clock | None = None) -> Self:
        """Return another worker's view of the same bus; it is closed with this one."""
        peer = type(self)(self._store, clock or self._clock, self._timing, self.record_bytes_max)
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        """Leave all groups, and close the bus (a peer only leaves)."""
        await asyncio.gather(
            *(peer.close() for peer in self._peers),
            *(membership.leave() for membership in self._memberships),
        )
        await self._close_store()

    async def abandon(self) -> None:
        """Stop without leaving the groups, as a killed process would: for tests of the other members."""
        for peer in self._peers:
            await peer.abandon()
        for membership in self._memberships:
            await membership.abandon()
        await self._close_store()

    async def _close_store(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.wait({self._expiry})
            self._store.close()

    # Topics

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        await self._store.write(lambda: self._store.create_topics(topics))
        self._store.load_topics()

    async def check_topics(self, topics: Sequence[TopicSpec]) -> list[TopicState]:
        present = await self.topics()
        return [compared(spec, present.get(spec.name), self.how_to_empty()) for spec in topics]

    async def topics(self) -> Mapping[str, TopicSpec]:
        self._store.refresh()
        return {name: topic.spec for name, topic in self._store.topics.items()}

    def how_to_empty(self) -> str:
        return how_to_empty(self._store.path)

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._store.refresh()
        return {partition: self._store.ends[self._store.lane(*partition)] for partition in partitions}

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        self._store.refresh()
        return {partition: self._store.begin(self._store.lane(*partition)) for partition in partitions}

    async def snapshots(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Snapshot]:
        """Return none: the bus itself is a file of this machine."""
        return {}

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> SqliteReader:
        reader = SqliteReader(self._store)
        reader.assign(positions or {})
        return reader

    async def _expire(self) -> None:
        while True:
            await self._clock.sleep(EXPIRE_SECONDS)
            with contextlib.suppress(TransientError):  # it is retried, and steps report the error
                await self._expire_all()

    async def _expire_all(self) -> None:
        """Delete expired records in small transactions, so that steps do not wait long."""
        gone = EXPIRE_ROWS_MAX
        while gone == EXPIRE_ROWS_MAX:
            gone = await self._store.write(lambda: self._store.expire(self._now_ms()))
            await asyncio.sleep(0)

    def _now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    # Leases

    async def join(
        self, group: str, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> SqliteMembership:
        partitions = self._count_partitions(group, topics)
        membership = SqliteMembership(
            self._store, self._clock, self._timing, group, assigned, revoked, label=self.label
        )
        await membership.start(partitions)
        self._memberships.append(membership)
        return membership

    def _count_partitions(self, group: str, topics: Sequence[str]) -> int:
        return common_count(group, {self._store.topic(name).spec.partitions for name in topics})

    async def describe(self, group: str, topics: Sequence[str]) -> GroupState:
        return describe_group(self._store, group, topics, self._count_partitions(group, topics))

    async def readers_of(self, topics: Sequence[str]) -> Mapping[str, GroupOffsets]:
        for topic in topics:
            self._store.topic(topic)
        return groups_of(self._store, topics)

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        epoch, offsets = self._store.committed(lease.group, lease.partition)
        _check_epoch(lease, epoch)
        return {topic: offsets.get(topic, 0) for topic in topics}

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        await asyncio.sleep(0)  # a busy worker must not block the event loop
        self._check(outputs)

        def work() -> None:
            _check_epoch(lease, self._store.epoch(lease.group, lease.partition))
            if outputs:
                self._store.append(outputs, self._now_ms())
            if offsets:
                self._store.commit_offsets(lease.group, lease.partition, offsets)

        await self._store.write(work)

    def _check(self, outputs: Sequence[Output]) -> None:
        """Check outputs before anything is written."""
        for topic, partition in {(output.topic, output.partition) for output in outputs}:
            self._store.lane(topic, partition)
        check_sizes(outputs, self.record_bytes_max)


def _check_epoch(lease: Lease, epoch: int | None) -> None:
    if epoch != lease.epoch:
        raise FencedError(f"{lease.group}/{lease.partition}: epoch {lease.epoch} is old, now {epoch}")


def compared(spec: TopicSpec, present: TopicSpec | None, advice: str) -> TopicState:
    """Compare a topic with its declaration. A file's topics are never altered, only created again."""
    if present is None or present == spec:
        return TopicState(name=spec.name, is_there=present is not None)
    fields = [field for field in spec.__struct_fields__ if getattr(spec, field) != getattr(present, field)]
    differences = ", ".join(f"{f} is {getattr(present, f)} instead of {getattr(spec, f)}" for f in fields)
    problem = f"{differences}: use the release of pvbus it was made with, or {advice}"
    return TopicState(name=spec.name, is_there=True, problems=(problem,))
