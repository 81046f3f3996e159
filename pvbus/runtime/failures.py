"""Errors of concurrent tasks, and of an ended membership."""

import asyncio
from collections.abc import Iterator

from pvbus.core.errors import TransientError
from pvbus.ports.bus import Membership


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside groups of errors, in order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from causes(each)
    else:
        yield error


class StoppedError(Exception):
    """Ends the tasks of a worker that has left its group, even those that would wait forever."""


async def watch_membership(membership: Membership, stopping: asyncio.Event) -> None:
    """Raise TransientError if a worker is no longer a member of its group, unless it is stopping."""
    await membership.wait_left()
    if not stopping.is_set():
        raise TransientError("the membership in the group ended")
