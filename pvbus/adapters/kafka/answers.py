"""Retries requests across broker failover and coordinator moves.

The library chooses whom it asks by chance among the brokers that it knows. One that has just died is among
them until its session at the controller has ended, and until then nobody takes over what it coordinated.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient


class UnstableOffsetsError(errors.KafkaError):  # type: ignore[misc]  # aiokafka has no types
    """A transaction's offsets are undecided; the library has no class for it."""

    errno = 88
    message = "UNSTABLE_OFFSET_COMMIT"


AWAY: tuple[type[Exception], ...] = (
    errors.NodeNotReadyError,
    errors.KafkaConnectionError,
    errors.GroupLoadInProgressError,
    errors.GroupCoordinatorNotAvailableError,
    errors.NotCoordinatorForGroupError,
    errors.CoordinatorLoadInProgressError,
    errors.CoordinatorNotAvailableError,
    errors.NotCoordinatorError,
    UnstableOffsetsError,
)
"""The library has two classes for each error of a coordinator, and raises either."""

ANSWER_SECONDS_MAX = 13.0
"""Below what the bus gives to a call, so that what was in the way can be told. Others take over from a broker
when its session has ended, 9 s by default, and some seconds later if it was the controller."""

RETRY_SECONDS = 0.1

Answer = TypeVar("Answer")


async def answered(client: AIOKafkaClient, ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask until there is an answer. Raises KafkaError: what was in the way last, or what will not pass."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + ANSWER_SECONDS_MAX
    while True:
        try:
            return await ask()
        except AWAY:
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)
        await client.force_metadata_update()
