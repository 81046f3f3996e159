"""Those who wait for a change are woken some at a time, and those of each user in turn."""

import asyncio

from pvbus.controlplane.apiserver.waiters import WOKEN_MAX, Waiters


async def test_others_go_on_while_many_are_woken() -> None:
    """No turn of the event loop wakes more than a few, and all are woken."""
    waiters = Waiters()
    woken: list[bool] = []

    async def wait() -> None:
        woken.append(await waiters.wait(60.0))

    async with asyncio.TaskGroup() as group:
        for _ in range(10 * WOKEN_MAX):
            group.create_task(wait())
        await asyncio.sleep(0)
        waiters.notify()
        before = 0
        while len(woken) < 10 * WOKEN_MAX:
            await asyncio.sleep(0)
            assert len(woken) - before <= 2 * WOKEN_MAX
            before = len(woken)
    assert all(woken)


async def test_a_user_with_many_makes_nobody_wait() -> None:
    """One who waits last is woken in the first turn, whatever another user has."""
    waiters = Waiters()
    order: list[str] = []

    async def wait(user: str) -> None:
        assert await waiters.wait(60.0, user)
        order.append(user)

    async with asyncio.TaskGroup() as group:
        for user in (*["ann"] * 500, "service"):
            group.create_task(wait(user))
        await asyncio.sleep(0)
        waiters.notify()
    assert order.index("service") <= WOKEN_MAX


async def test_who_waits_later_or_too_long_is_not_woken() -> None:
    """A notify is for those who wait; a wait has an end, and a cancelled one is left out."""
    waiters = Waiters()
    waiters.notify()
    assert await waiters.wait(0.01) is False
    task = asyncio.create_task(waiters.wait(60.0))
    other = asyncio.create_task(waiters.wait(60.0))
    await asyncio.sleep(0)
    task.cancel()
    waiters.notify()
    assert await other is True
    assert task.cancelled()
