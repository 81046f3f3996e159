"""The checks of a rollout against the real Prometheus, which scrapes a value that the test sets."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus.adapters.prometheus.client import Prometheus
from pvbus.core.api.rollouts import Check, QueryCheck
from pvbus.core.kernel.effects import Get, Query
from pvbus.core.kernel.rolloutrows import Ask
from pvbus.core.promotion.rollout.checking import ask_checks
from tests.kit.deciding import drive_live
from tests.tools.prometheus import found_or_skipped, running
from tests.unit.adapters.http_servers import serving

SECONDS_MAX = 60.0


class Errors:
    """The metrics of an application. rate: None for an application that is away."""

    def __init__(self) -> None:
        self.rate: float | None = 0.0

    async def __call__(self, request: web.Request) -> web.Response:
        if self.rate is None:
            return web.Response(status=503)
        lines = [f'errors{{zone="{zone}"}} {self.rate / 2}\n' for zone in "ab"]
        return web.Response(text="".join(lines))


class ScrapedWorld:
    """An application, the Prometheus that scrapes it, and a client of it."""

    def __init__(self, errors: Errors, client: Prometheus) -> None:
        self.errors = errors
        self.client = client

    async def look(self, expression: str = "sum(errors)", window: str = "3s") -> tuple[bool | None, str]:
        query = QueryCheck(expression=expression, window=window, min=0, max=0.5)
        ask = Ask(1, 1, 1, (Check(name="errors", query=query),))
        steps = ask_checks(ask, time.time(), namespace="default")
        answers = await drive_live(steps, self._query)
        return answers.verdicts[0], answers.words[0]

    async def _query(self, effect: Any) -> Any:
        assert isinstance(effect, Query), Get
        return await self.client.query(
            effect.expression, start=effect.start, end=effect.end, step_seconds=effect.step_seconds
        )

    async def until(self, verdict: bool | None, words: str, expression: str = "sum(errors)") -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while (found := await self.look(expression))[0] is not verdict or words not in found[1]:
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.2)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ScrapedWorld]:
    program, errors = found_or_skipped(), Errors()
    async with serving(errors) as url:
        target = url.removeprefix("http://")
        starting = running(program, tmp_path, target)
        address = await asyncio.to_thread(starting.__enter__)
        client = Prometheus(address)
        try:
            yield ScrapedWorld(errors, client)
        finally:
            await client.close()
            starting.__exit__(None, None, None)


async def test_a_query_follows_what_prometheus_has_seen(world: ScrapedWorld) -> None:
    """It passes after a whole window within the limits, fails at once outside of them, and then waits."""
    await world.until(True, "")
    verdict, words = await world.look(window="1h")
    assert (verdict, words.partition(":")[0]) == (None, "there is no value for a part of the last 1h")
    world.errors.rate = 1.0
    await world.until(False, "1 is above max 0.5")
    world.errors.rate = None
    await world.until(None, "the query gives no value")


async def test_what_is_no_single_number_waits_in_the_words_of_prometheus(world: ScrapedWorld) -> None:
    await world.until(True, "")
    for expression, words in (
        ("errors", "several values at one time (2 series)"),
        ("sum(errors", "Prometheus refuses the query: "),
        ("'text'", "Prometheus refuses the query: "),
        ("errors[5m]", "Prometheus refuses the query: "),
        ("nothing", "the query gives no value"),
        ("sum(errors) / 0 * 0", "not a number (NaN)"),
    ):
        await world.until(None, words, expression)
    assert await world.look("0.3") == (True, "")
