"""The requests in flight adapt to what the API server accepts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes import transport
from pvbus.adapters.kubernetes.limit import PATIENCE_MAX, InflightLimit
from pvbus.core.errors import TransientError
from tests.unit.adapters.http_servers import SITES, connected, no_sites, serving, status, write_kubeconfig


class Seats:
    """An API server with a number of seats, and none for those who wait."""

    def __init__(self, seats: int, *, retry_after: str = "1") -> None:
        """opened_by: number of the refusal after which there is one seat more."""
        self.seats = seats
        self.retry_after = retry_after
        self.opened_by = 0
        self.busy = self.busiest = self.served = self.refused = 0

    async def __call__(self, _: web.Request) -> web.Response:
        if self.busy >= self.seats:
            self.refused += 1
            self.seats += self.refused == self.opened_by
            return status(429, "TooManyRequests", **{"Retry-After": self.retry_after})
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(0.001)
        finally:
            self.busy -= 1
        self.served += 1
        return no_sites()


@pytest.mark.slow
@pytest.mark.parametrize("seats", [1, 5])
async def test_few_requests_are_refused_however_few_seats_there_are(tmp_path: Path, seats: int) -> None:
    """64 at once, as a worker sends them: each one succeeds, and the seats are busy with those served.

    A sequential client has none refused; half of its rate is left with up to as many refused as served. The
    first 64 show how many seats there are, and after that hardly any is refused.
    """
    server = Seats(seats)
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:

        async def work(left: Iterator[int]) -> None:
            for _ in left:
                await cluster.list(SITES)

        async def send(count: int) -> tuple[int, int]:
            server.served = server.refused = 0
            left = iter(range(count))
            await asyncio.gather(*(work(left) for _ in range(64)))
            return server.served, server.refused

        served, refused = await send(400)
        assert served == 400
        assert refused < served / 2
        served, refused = await send(800)
        assert served == 800
        assert refused < served / 20
    assert server.busiest == seats


async def test_all_requests_are_in_flight_while_none_is_refused(tmp_path: Path) -> None:
    server = Seats(64)
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        await asyncio.gather(*(cluster.list(SITES) for _ in range(64)))
    assert server.refused == 0


@pytest.mark.parametrize(("retry_after", "requests"), [("6", 1), ("soon", 1), ("0", 2)])
async def test_a_long_wait_is_the_callers(tmp_path: Path, retry_after: str, requests: int) -> None:
    """A write must not be sent long after its lease was checked; without a time, the caller has a backoff."""
    server = Seats(0, retry_after=retry_after)
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        listing = asyncio.create_task(cluster.list(SITES))
        if requests == 1:
            with pytest.raises(TransientError, match="429 TooManyRequests") as caught:
                await listing
            assert caught.value.retry_after_seconds == (6 if retry_after == "6" else None)
        else:
            server.opened_by = requests
            await listing
    assert server.refused == requests


async def test_a_request_that_gets_no_slot_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says why, and what to look at."""
    monkeypatch.setattr(transport, "WAIT_SECONDS_MAX", 0.2)
    blocked, seen = asyncio.Event(), []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request)
        if len(seen) == 1:
            return status(429, "TooManyRequests")
        await blocked.wait()
        return no_sites()

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        with pytest.raises(TransientError, match="429"):
            await cluster.list(SITES)
        first = asyncio.create_task(cluster.list(SITES))
        await asyncio.sleep(0)
        with pytest.raises(TransientError, match=r"^GET .*/sites: not sent within 0.2 s: .* only 1 are"):
            await cluster.list(SITES)
        blocked.set()
        await first
        await cluster.list(SITES)
    assert len(seen) == 3


# ---------------------------------------------------------------- the limit alone


async def rounds(limit: InflightLimit, seats: int, count: int) -> tuple[int, int]:
    """Send as many requests at once as the limit admits, `count` times; return those served and refused."""
    served = refused = 0
    for _ in range(count):
        numbers = [await limit.enter(0) for _ in range(min(limit.limit, 100))]
        for i, number in enumerate(numbers):
            if i < len(numbers) - seats:
                limit.note_refusal(number)
                refused += 1
            else:
                limit.note_response()
                served += 1
            limit.leave()
    return served, refused


@pytest.mark.parametrize("seats", [1, 2, 5, 21, 64])
async def test_the_seats_are_used_and_seldom_overrun(seats: int) -> None:
    limit = InflightLimit(100)
    await rounds(limit, seats, 20)
    served, refused = await rounds(limit, seats, 1_000)
    assert served >= 1_000 * seats / 2
    assert refused <= served / 20


async def test_new_seats_are_found() -> None:
    """Also after a long time with one seat, when the limit has become patient."""
    limit = InflightLimit(100)
    await rounds(limit, 1, 2_000)
    assert (await rounds(limit, 1, PATIENCE_MAX))[1] <= 1
    await rounds(limit, 100, 600)
    assert limit.limit == 100


async def test_a_slot_is_not_lost_when_its_request_is_cancelled() -> None:
    """Before it is admitted, and at the moment when it is."""
    limit = InflightLimit(2)

    async def request(held: asyncio.Event) -> None:
        await limit.enter(10)
        try:
            await held.wait()
        finally:
            limit.leave()

    limit.note_refusal(await limit.enter(0))
    limit.leave()
    for _ in range(3):
        held = asyncio.Event()
        tasks = [asyncio.create_task(request(held)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.sleep(0)
        held.set()
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert limit._in_flight == 0
    await limit.enter(0)
    with pytest.raises(TimeoutError):
        await limit.enter(0.01)
