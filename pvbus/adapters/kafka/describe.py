"""A request the library has not: DescribeTransactions, which tells the present epoch of a lease.

Source: KIP-664; Kafka's DescribeTransactionsRequest.json and ...Response.json (api key 65, version 0).
"""

from typing import NamedTuple

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, CoordinationType
from aiokafka.protocol.types import (
    CompactArray,
    Int16,
    Int32,
    Int64,
    Schema,
)

from pvbus.adapters.kafka.requests import STRING, TAGS, request_of

NOT_FOUND = 105
_COORDINATOR_MOVED = (14, 15, 16)  # loading, not available, not coordinator
_ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
EPOCH_BITS = 16


class TransactionState(NamedTuple):
    """epoch: the lease's. is_ending: the outcome is decided, but not yet visible to readers."""

    epoch: int
    is_ending: bool


def epoch_of(producer_id: int, producer_epoch: int) -> int:
    """Return a lease's epoch: a newer producer of one transactional id has the higher one.

    Producer epochs wrap to a new producer id after 32,767 leases; ids are handed out in rising blocks.
    """
    return producer_id << EPOCH_BITS | producer_epoch


_Request = request_of(
    65,
    0,
    asked=Schema(("transactional_ids", CompactArray(STRING)), TAGS),
    reported=Schema(
        ("throttle_time_ms", Int32),
        (
            "transaction_states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", STRING),
                ("transaction_state", STRING),
                ("transaction_timeout_ms", Int32),
                ("transaction_start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
                (
                    "topics",
                    CompactArray(
                        ("topic", STRING),
                        ("partitions", CompactArray(Int32)),
                        TAGS,
                    ),
                ),
                TAGS,
            ),
        ),
        TAGS,
    ),
)


async def describe_transaction(client: AIOKafkaClient, transactional_id: str) -> TransactionState | None:
    """Return who may write under an id now, None where nobody ever did. Raises KafkaError."""
    node = await client.coordinator_lookup(CoordinationType.TRANSACTION, transactional_id)
    answer = await client.send(node, _Request([transactional_id]))
    code, _, state, _, _, producer_id, producer_epoch, *_ = answer.transaction_states[0]
    if code == NOT_FOUND:
        return None
    if code in _COORDINATOR_MOVED:
        raise errors.CoordinatorNotAvailableError(transactional_id)
    if code:
        raise errors.for_code(code)(transactional_id)
    return TransactionState(epoch_of(producer_id, producer_epoch), state in _ENDING)
