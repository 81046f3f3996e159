"""A group as its coordinator shows it: its members, what they tell of themselves, and who has what."""

import asyncio
import contextlib
from typing import Any, NamedTuple

import msgspec
from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from pvbus.adapters.kafka.assignor import decode_user_data

_AT_REST = ("Stable", "Empty", "Dead")
"""Between these a group is being rebalanced, and the coordinator tells neither labels nor shares."""

_COORDINATOR_MOVES = (
    errors.GroupLoadInProgressError,
    errors.GroupCoordinatorNotAvailableError,
    errors.NotCoordinatorForGroupError,
)
"""A group finds its coordinator again in a moment; in a new cluster it has none before somebody asks."""

REBALANCE_SECONDS_MAX = 8.0
"""How long the end of a rebalance, or a coordinator, is waited for. A rebalance takes a heartbeat or two, and
the one after it as long; a member that lives but does not answer holds one up for longer than one looks."""

LOOK_SECONDS = 0.2


class Member(NamedTuple):
    id: str
    label: str
    partitions: frozenset[int]


async def describe_members(admin: AIOKafkaAdminClient, group: str) -> list[Member]:
    """Return the members of a group, by its name in the cluster. Raises KafkaError and TimeoutError."""
    async with asyncio.timeout(REBALANCE_SECONDS_MAX):
        while True:
            with contextlib.suppress(*_COORDINATOR_MOVES):
                # One group at a time: the library reads an answer about several wrongly from version 3 on.
                (answer,) = await admin.describe_consumer_groups([group])
                code, _, state, _, _, members = answer.groups[0][:6]
                if code:
                    raise errors.for_code(code)(f"group {group}")
                if state in _AT_REST:
                    return [_member(*each) for each in members]
            await asyncio.sleep(LOOK_SECONDS)


def _member(member_id: str, client: str, host: str, metadata: bytes, assignment: bytes) -> Member:
    share: Any = ConsumerProtocolMemberAssignment.decode(assignment) if assignment else None
    return Member(
        member_id,
        _label(metadata),
        frozenset(tp.partition for tp in share.partitions()) if share is not None else frozenset(),
    )


def _label(metadata: bytes) -> str:
    try:
        return decode_user_data(ConsumerProtocolMemberMetadata.decode(metadata).user_data).label
    except (msgspec.MsgspecError, TypeError, ValueError):  # somebody else's client in our group
        return ""
