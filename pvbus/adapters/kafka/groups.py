"""The group protocol: the data that members report, the assignment of leases to members, and the description
of a group from outside.

Partition i of every topic goes to one member. Members report the leases they hold when they join. The leader
moves a held lease in two rebalances, as in KIP-429: in the first its holder loses it, in the second the next
member gets it. All members keep working during a rebalance.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from pvbus.adapters.assignment import assign
from pvbus.adapters.kafka.requests import COORDINATOR_MOVES, check_code

_AT_REST = ("Stable", "Empty", "Dead")
"""In every other state the group is rebalancing, and the coordinator returns neither labels nor shares."""

REBALANCE_SECONDS_MAX = 8.0
"""How long to wait for the end of a rebalance, or for a coordinator. A rebalance takes one or two heartbeats,
and so does the next; with a member that is alive but does not answer, it takes longer than this limit."""

LOOK_SECONDS = 0.2


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a member reports to the leader and in descriptions of the group."""

    held: tuple[int, ...] = ()
    label: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UserData).decode


def share_out(partitions: int, holders: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return the partitions of each member after this rebalance.

    A partition that moves from one member to another is in no share in this rebalance.

    holders: the partitions that each member holds now
    """
    owners = {number: member for member, held in holders.items() for number in held}
    shares: dict[str, list[int]] = {member: [] for member in holders}
    for number, member in sorted(assign(partitions, sorted(holders), owners).items()):
        if owners.get(number, member) == member:
            shares[member].append(number)
    return shares


class CoPartitioningAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """One member's assignor. The library accepts an instance as well as a class.

    topics: the topics of the group, by their names in the cluster
    partitions: the partition count of each of them
    held: returns the partitions to report to the leader
    on_share: called with this member's share, before anything else
    label: the description of this member, which it reports, too
    """

    name = "pvbus"

    def __init__(
        self,
        topics: Sequence[str],
        partitions: int,
        *,
        held: Callable[[], Iterable[int]],
        on_share: Callable[[list[int]], None],
        label: str = "",
    ) -> None:
        self._topics = sorted(topics)
        self._partitions = partitions
        self._held = held
        self._on_share = on_share
        self._label = label

    def metadata(self, topics: Iterable[str]) -> Any:
        data = _encode(UserData(held=tuple(sorted(self._held())), label=self._label))
        return ConsumerProtocolMemberMetadata(0, sorted(topics), data)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        holders = {member: _decode(metadata.user_data).held for member, metadata in members.items()}
        return {
            member: ConsumerProtocolMemberAssignment(0, [(topic, share) for topic in self._topics], b"")
            for member, share in share_out(self._partitions, holders).items()
        }

    def on_assignment(self, assignment: Any) -> None:
        self._on_share(sorted({each.partition for each in assignment.partitions()}))


class Member(NamedTuple):
    """A member of a group.

    id: its id
    label: its description
    partitions: the partitions that it holds
    """

    id: str
    label: str
    partitions: frozenset[int]


async def describe_members(admin: AIOKafkaAdminClient, group: str) -> list[Member]:
    """Return the members of a group, by its name in the cluster. Raises KafkaError and TimeoutError."""
    async with asyncio.timeout(REBALANCE_SECONDS_MAX):
        while True:
            with contextlib.suppress(*COORDINATOR_MOVES):
                # One group at a time: the library misreads responses for several groups from version 3 on.
                (answer,) = await admin.describe_consumer_groups([group])
                code, _, state, _, _, members = answer.groups[0][:6]
                check_code(code, f"group {group}")
                if state in _AT_REST:
                    return [_member(*each) for each in members]
            await asyncio.sleep(LOOK_SECONDS)


def _member(member_id: str, client: str, host: str, metadata: bytes, assignment: bytes) -> Member:
    share: Any = ConsumerProtocolMemberAssignment.decode(assignment) if assignment else None
    partitions = share.partitions() if share is not None else ()
    return Member(member_id, _label(metadata), frozenset(each.partition for each in partitions))


def _label(metadata: bytes) -> str:
    try:
        return _decode(ConsumerProtocolMemberMetadata.decode(metadata).user_data).label
    except (msgspec.MsgspecError, TypeError, ValueError):  # a foreign client in our group
        return ""
