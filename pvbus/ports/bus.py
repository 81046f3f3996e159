"""The bus port: partitioned, compacted tables that any worker reads and fenced leases write.

A *topic* is N partitions of records in offset order. A *group* is the workers of one service; a
*lease* is partition i of all topics the group owns: one holder, one epoch. Everything a service
writes goes through `step`: outputs and consumed offsets become visible together or not at all.

Membership and reading are separate on purpose: `join` assigns leases to this worker, `reader` reads
any partition: a lease's, a broadcast table's or one of a topic to print.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from pvbus.core.kernel.topicspecs import TopicSpec as TopicSpec

TopicPartition = tuple[str, int]
"""(topic, partition)."""


class Record(NamedTuple):
    """A record read from the bus. Offsets rise within a partition, with gaps.

    topic: its topic
    partition: its partition
    offset: its offset
    key: its key
    value: its value, None for a tombstone
    headers: name and value of each header
    timestamp_ms: when it was written, in milliseconds of the epoch
    """

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class Output(NamedTuple):
    """One record to write.

    topic: its topic
    partition: its partition, which the caller chooses; the bus never does
    key: its key
    value: its value, None for a tombstone
    headers: name and value of each header
    """

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class Snapshot(NamedTuple):
    """The rows of a partition before a position, known without reading it.

    position: where to read on
    records: the last record of each key before it, in the order of offsets, without tombstones
    """

    position: int
    records: Sequence[Record]


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A declared topic, compared with the bus.

    name: its name
    is_there: whether the bus has it
    problems: each difference, and what to do about it
    """

    name: str
    is_there: bool
    problems: tuple[str, ...] = ()


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to step for one partition of a group's topics, until a higher epoch exists.

    If the epochs of two leases of a partition differ by one, no worker held it between them.

    group: the group
    partition: the partition
    epoch: the epoch
    """

    group: str
    partition: int
    epoch: int


class PartitionState(NamedTuple):
    """One partition of a group.

    owner: the id of the member that holds its lease, "" for none
    committed: topic -> next offset
    """

    owner: str
    committed: Mapping[str, int]


class GroupState(NamedTuple):
    """The public state of a group.

    members: id of a member -> `label` of its bus
    partitions: the state of each partition
    """

    members: Mapping[str, str]
    partitions: Mapping[int, PartitionState]


class GroupOffsets(NamedTuple):
    """The progress of a group, which need not be ours.

    state: a word of the bus, such as Stable or Empty
    committed: the next offset of each partition for which one was ever committed
    """

    state: str
    committed: Mapping[TopicPartition, int]


Assigned = Callable[[Lease], Awaitable[None]]
"""Called with a lease this worker now holds, already fenced: older epochs cannot step any more.

It is cancelled if the lease is lost while it runs; `revoked` follows then, too. For each partition of a
group the two never run at once, nor for a newer lease before the older one's `revoked` has ended.
"""

Revoked = Callable[[Lease], Awaitable[None]]
"""Called before a lease moves to another worker, which gets it only after this returned (or after the
drain deadline). Also called for a lost lease: then a step raises FencedError."""


class Membership(Protocol):
    """This worker's membership in a group."""

    @property
    def member_id(self) -> str: ...

    def leases(self) -> Mapping[int, Lease]:
        """Return the leases held now, by partition."""
        ...

    def last_heartbeat(self) -> float:
        """Return the monotonic time in seconds of the last heartbeat that is known to have succeeded."""
        ...

    async def leave(self) -> None:
        """Revoke all leases (the callbacks run) and leave, so that other workers need not wait."""
        ...

    async def wait_left(self) -> None:
        """Return once this worker has left. Raises an ExceptionGroup of the callbacks' errors.

        A callback that raises anything but FencedError ends the membership: its leases move to others.
        """
        ...


class Reader(Protocol):
    """Reads partitions from given positions on. Not safe for two concurrent polls."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions, or move those already read, to these offsets (next to be read)."""
        ...

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Keep the position but return no records of these until `resume`."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset that will be read."""
        ...

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        """Return committed records as soon as there are any, at most `max_records`; [] after the timeout.

        Records of one partition come in offset order; no partition starves another. May return []
        earlier if positions moved over offsets that compaction removed.
        """
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    """A started bus. All methods raise TransientError if the bus cannot be reached.

    label: description of this bus's members, which `describe` returns; set it before `join`.
    """

    label: str

    @property
    def step_records_max(self) -> int:
        """Recommended maximum of records per step. A larger step is only slower."""
        ...

    @property
    def step_bytes_max(self) -> int:
        """Recommended maximum of bytes (keys, values, headers) per step. A larger step is only slower."""
        ...

    @property
    def record_bytes_max(self) -> int:
        """Maximum of bytes (key, value, headers) per record; `step` refuses a larger one."""
        ...

    @property
    def session_seconds(self) -> float:
        """Time without a heartbeat after which a member's leases move to others."""
        ...

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create the missing topics. Raises PermanentError if an existing topic differs."""
        ...

    async def check_topics(self, topics: Sequence[TopicSpec]) -> list[TopicState]:
        """Compare topics with those on the bus, in their order. Changes nothing."""
        ...

    async def topics(self) -> Mapping[str, TopicSpec]: ...

    def how_to_empty(self) -> str:
        """Return the instruction for a user to empty the bus while all services are stopped."""
        ...

    async def join(
        self, group: str, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> Membership:
        """Become a member. `topics` share one partition count; partition i of all is one lease.

        Raises PermanentError if they do not, or if the group was created for another count.
        """
        ...

    async def describe(self, group: str, topics: Sequence[str]) -> GroupState:
        """Return the owners and committed offsets of a group that owns these topics. Changes nothing.

        The result has every partition of the topics, even if no worker ever joined; offsets are 0 if none
        was committed. A killed member counts until its session ends. Raises TransientError while leases
        move, if that takes more than some seconds.
        """
        ...

    async def readers_of(self, topics: Sequence[str]) -> Mapping[str, GroupOffsets]:
        """Return the groups that have committed offsets of these topics, whoever they belong to.

        Keys are the names of the groups on the bus, a prefix included. Groups that we may not see are left
        out. Changes nothing.
        """
        ...

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the next offset per topic, 0 if none was ever committed.

        Offsets are read after the fence, so no older step can follow. Raises FencedError for an old epoch.
        """
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after the last committed record of each partition, or a later one.

        A reader that reaches it has read every step that had returned before the call; for a step in
        progress at that moment the reader waits.
        """
        ...

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return an offset of each partition before which all records are deleted, by retention for example.

        It is the highest that the bus knows of, and at most the end offset: so all records between a position
        and a higher begin offset are gone.
        """
        ...

    async def snapshots(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Snapshot]:
        """Return what is known of partitions, without those of which nothing is.

        Its records, and those of the bus from its position on, make the same table as all from 0 on.
        """
        ...

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> Reader: ...

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        """Make outputs and the lease's next offsets (topic -> offset) visible, all or nothing.

        Other workers may see the parts some milliseconds apart, but never a part whose rest does not follow.
        Raises FencedError (an epoch is newer: nothing is visible), TooLargeError (nothing is
        visible, the bus stays usable), TransientError (outcome unknown: restore the lease). For bugs of
        the caller, with nothing visible: InvariantError if an offset would go back, PermanentError for a
        topic or partition that does not exist.
        """
        ...

    def peer(self) -> "Bus":
        """Return a bus for another worker of this process; it closes with this one."""
        ...

    async def close(self) -> None: ...
