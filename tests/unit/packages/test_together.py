"""Members that wait for each other keep no room from those that they wait for."""

import asyncio
import random
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import together
from pvbus.controlplane.packages.operations import Build, Staging
from pvbus.controlplane.packages.together import Groups

UNITS = 300
REQUESTS = 64
"""As many as a worker of release has in progress."""


def pushed(build: Build) -> "asyncio.Future[Any]":
    """Make a change at once."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(build(Staging({})))
    return future


async def test_units_of_one_worker_do_not_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 sites with two members each, in any order: without a wait that runs out."""
    monkeypatch.setattr(together, "WAIT_SECONDS", 60.0)
    seats: dict[object, int] = {}
    room = asyncio.Semaphore(REQUESTS)
    repositories = [Groups(pushed, seats) for _ in range(UNITS)]
    orders = [(groups, member) for groups in repositories for member in ("db", "web")]
    random.Random(7).shuffle(orders)

    async def approve(groups: Groups, member: str) -> str:
        while True:
            async with room:
                try:
                    return str(await groups.join(frozenset(("db", "web")), member, lambda _: member))
                except StatusError as exc:
                    if exc.code != together.CONFLICT:
                        raise
            await asyncio.sleep(0.01)

    async with asyncio.timeout(30):
        done = await asyncio.gather(*(approve(*order) for order in orders))
    assert done == [member for _, member in orders]
    assert seats == {}
