"""The bus port: compacted tables in partitions, read by anybody, written by fenced leases.

A *topic* is N partitions of records in offset order. A *group* is the workers of one service; a
*lease* is partition i of all topics the group owns: one holder, one epoch. Everything a service
writes goes through `step`: outputs and consumed offsets become visible together or not at all.

Membership and reading are apart on purpose: `join` says which leases this worker holds, `reader`
reads whatever it is told to, whether a lease's partitions, a broadcast table or a topic to print.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from pvbus.core.topics import TopicSpec as TopicSpec

TopicPartition = tuple[str, int]
"""(topic, partition)."""


class Record(NamedTuple):
    """What a reader sees. `value` None is a tombstone. Offsets rise within a partition, with gaps."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class Output(NamedTuple):
    """One record to write. The partition is the caller's: the bus never chooses one."""

    topic: str
    partition: int
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A declared topic beside what is there. problems: what differs, and for each what to do."""

    name: str
    is_there: bool
    problems: tuple[str, ...] = ()


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to step for partition `partition` of a group's topics, until a higher epoch exists.

    A lease whose epoch is just one above that of an earlier one of this partition came directly after it:
    nobody held the partition between the two.
    """

    group: str
    partition: int
    epoch: int


class PartitionState(NamedTuple):
    """One partition of a group. owner: a member's id, "" for nobody. committed: next offset by topic."""

    owner: str
    committed: Mapping[str, int]


class GroupState(NamedTuple):
    """A group as anybody sees it. members: what each, by its id, tells of itself (its bus's `label`)."""

    members: Mapping[str, str]
    partitions: Mapping[int, PartitionState]


Assigned = Callable[[Lease], Awaitable[None]]
"""Called with a lease this worker now holds, already fenced: older epochs cannot step any more.

Cancelled if the lease goes while it runs; `revoked` follows then, too. For each partition of a group
the two never run at once, nor for a newer lease before the older one's `revoked` has ended.
"""

Revoked = Callable[[Lease], Awaitable[None]]
"""Called before a lease goes to somebody else, who gets it only after this returned (or after the
drain deadline). Also called when it was lost: then a step raises FencedError."""


class Membership(Protocol):
    """This worker's place in a group."""

    @property
    def member_id(self) -> str: ...

    def leases(self) -> Mapping[int, Lease]:
        """Return the leases held now, by partition."""
        ...

    def last_heartbeat(self) -> float:
        """Return the monotonic time in seconds of the last heartbeat known to have succeeded."""
        ...

    async def leave(self) -> None:
        """Revoke everything (the callbacks run) and leave, so that others need not wait."""
        ...

    async def wait_left(self) -> None:
        """Return when this worker has left. Raises an ExceptionGroup of what a callback raised.

        A callback that raises (FencedError apart) ends the membership: its leases go to others.
        """
        ...


class Reader(Protocol):
    """Reads partitions from given positions on. Not safe for two concurrent polls."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add partitions, or move those already read, to these offsets (next to be read)."""
        ...

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Keep the position but return no records of these until `resume`."""
        ...

    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...

    def position(self, partition: TopicPartition) -> int:
        """Return the next offset that will be read."""
        ...

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        """Return committed records as soon as there are any, at most `max_records`, else [] in time.

        Records of one partition come in offset order; no partition starves another. May return []
        before its time when positions moved over what compaction left empty.
        """
        ...

    async def close(self) -> None: ...


class Bus(Protocol):
    """A started bus. All methods raise TransientError when the bus cannot be reached.

    label: what members that join from here tell of themselves to whoever asks `describe`; set it before.
    """

    label: str

    @property
    def step_records_max(self) -> int:
        """How many records a step should have at most, where they can be told apart. More is slower only."""
        ...

    @property
    def step_bytes_max(self) -> int:
        """How many bytes (keys, values, headers) a step should have at most. More is slower only."""
        ...

    @property
    def record_bytes_max(self) -> int:
        """How many bytes (key, value, headers) a record may have; `step` refuses a larger one."""
        ...

    @property
    def session_seconds(self) -> float:
        """How long a member may be silent before its leases go to others."""
        ...

    async def create_topics(self, topics: Sequence[TopicSpec]) -> None:
        """Create what is missing. Raises PermanentError when an existing topic differs."""
        ...

    async def check_topics(self, topics: Sequence[TopicSpec]) -> list[TopicState]:
        """Compare topics with what is there, in their order. Changes nothing."""
        ...

    async def topics(self) -> Mapping[str, TopicSpec]: ...

    def how_to_empty(self) -> str:
        """Return what a person does, with all services stopped, to start with an empty bus."""
        ...

    async def join(
        self, group: str, topics: Sequence[str], *, assigned: Assigned, revoked: Revoked
    ) -> Membership:
        """Become a member. `topics` share one partition count; partition i of all is one lease.

        Raises PermanentError when they do not, or when the group was made for another count.
        """
        ...

    async def describe(self, group: str, topics: Sequence[str]) -> GroupState:
        """Return who holds what in a group that owns these topics, and what is committed. Changes nothing.

        Every partition of the topics is there, also of a group that nobody ever joined; offsets are 0
        where none was committed. Who was killed counts until the others notice. Raises TransientError
        while leases change hands, if that takes more than some seconds.
        """
        ...

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        """Return the next offset per topic, 0 where none was ever committed.

        Raises FencedError for an old epoch: read after the fence, so no older step can follow.
        """
        ...

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the offset after the last committed record of each partition, or a later one.

        Whoever reads up to there has read every step that had returned before the call; for what was
        being committed at that moment the reader waits.
        """
        ...

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> Reader: ...

    async def step(
        self, lease: Lease, outputs: Sequence[Output], offsets: Mapping[str, int] | None = None
    ) -> None:
        """Make outputs and the lease's next offsets (topic -> offset) visible, all or nothing.

        Other workers may see the parts some milliseconds apart, but never one without the others to come.
        Raises FencedError (an epoch is newer: nothing is visible), TooLargeError (nothing is
        visible, the bus stays usable), TransientError (outcome unknown: restore the lease). As
        bugs of the caller, with nothing visible: InvariantError where an offset would go back,
        PermanentError for a topic or partition that does not exist.
        """
        ...

    def peer(self) -> "Bus":
        """Return what another worker of this process is to use; it ends with this one."""
        ...

    async def close(self) -> None: ...
