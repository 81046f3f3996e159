"""Who holds which lease, as the group's leader computes it.

Partition i of every topic goes to one member, and a lease that somebody holds is first taken from its
holder, and given to the next one in the rebalance after that (as in KIP-429): members say what they hold
when they join, and nobody stops working while the group rebalances.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from pvbus.adapters.assignment import assign

NAME = "pvbus"


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    """What a member tells the leader, and whoever describes the group."""

    held: tuple[int, ...] = ()
    label: str = ""


_encode = msgspec.json.Encoder().encode
decode_user_data = msgspec.json.Decoder(UserData).decode


def share_out(partitions: int, holders: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return what each member is to have after this rebalance. `holders`: what each holds now.

    A partition that goes from one member to another is in nobody's share this time.
    """
    owners = {number: member for member, held in holders.items() for number in held}
    shares: dict[str, list[int]] = {member: [] for member in holders}
    for number, member in sorted(assign(partitions, sorted(holders), owners).items()):
        if owners.get(number, member) == member:
            shares[member].append(number)
    return shares


class CoPartitioningAssignor(AbstractPartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """One member's assignor. The library takes an instance as well as a class.

    held: what to tell the leader. given: called with the share of this member, before anything else.
    """

    name = NAME

    def __init__(
        self,
        topics: Sequence[str],
        partitions: int,
        *,
        held: Callable[[], Iterable[int]],
        given: Callable[[list[int]], None],
        label: str = "",
    ) -> None:
        self._topics = sorted(topics)
        self._partitions = partitions
        self._held = held
        self._given = given
        self._label = label

    def metadata(self, topics: Iterable[str]) -> Any:
        data = _encode(UserData(held=tuple(sorted(self._held())), label=self._label))
        return ConsumerProtocolMemberMetadata(0, sorted(topics), data)

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        holders = {member: decode_user_data(metadata.user_data).held for member, metadata in members.items()}
        return {
            member: ConsumerProtocolMemberAssignment(0, [(topic, share) for topic in self._topics], b"")
            for member, share in share_out(self._partitions, holders).items()
        }

    def on_assignment(self, assignment: Any) -> None:
        self._given(sorted({each.partition for each in assignment.partitions()}))
