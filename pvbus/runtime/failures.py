"""Errors of several tasks at once."""

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
    """Ends the tasks of a worker that has left its group, those that would wait for ever included."""


async def watch_membership(membership: Membership, stopping: asyncio.Event) -> None:
    """Fail when a worker is no member of its group any more, and was not told to stop."""
    await membership.wait_left()
    if not stopping.is_set():
        raise TransientError("the membership in the group ended")
