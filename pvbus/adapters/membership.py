"""The common part of every bus's memberships: leases, the life of a member, and callbacks."""

import asyncio
import contextlib
from collections.abc import Mapping

from pvbus.core.errors import FencedError
from pvbus.ports.bus import Assigned, Lease, Revoked
from pvbus.ports.clock import Clock


class MembershipLife:
    """The base of a `pvbus.ports.bus.Membership`: one task, its life, ends when it has left the group.

    A subclass starts the task as `_life`, runs callbacks in `_tasks`, and stores their error in `_failure`.
    """

    def __init__(self, group: str, clock: Clock, assigned: Assigned, revoked: Revoked) -> None:
        self._group = group
        self._clock = clock
        self._assigned = assigned
        self._revoked = revoked
        self._leases: dict[int, Lease] = {}
        self._last_heartbeat = clock.monotonic()
        self._tasks = asyncio.TaskGroup()
        self._life: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._is_reported = False

    def leases(self) -> Mapping[int, Lease]:
        return dict(self._leases)

    def last_heartbeat(self) -> float:
        return self._last_heartbeat

    async def wait_left(self) -> None:
        await self._wait_for_life()
        if self._failure is not None:
            self._is_reported = True
            raise self._failure

    async def abandon(self) -> None:
        """Stop without leaving the group, as a killed process would: for tests of the other members."""
        if self._life is not None:
            self._life.cancel()
        await self._wait_ended()

    async def _wait_ended(self) -> None:
        """Wait for the end, and report a failure to the event loop if no `wait_left` raised it."""
        await self._wait_for_life()
        if self._failure is not None and not self._is_reported:
            self._is_reported = True
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"membership of {self._group} failed", "exception": self._failure}
            )

    async def _wait_for_life(self) -> None:
        if self._life is not None:
            await asyncio.wait({self._life})


async def call_back(callback: Assigned | Revoked, lease: Lease) -> None:
    """Run a callback. FencedError is not a failure: the lease is revoked next."""
    with contextlib.suppress(FencedError):
        await callback(lease)
