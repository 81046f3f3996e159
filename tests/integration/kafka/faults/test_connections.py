"""Connections that break, stall and crawl between workers and brokers: exactly once all the same.

The workers reach each broker through a proxy; the feeder and the judge do not. How many faults of each kind
there are is `PVBUS_TEST_FAULTS`, a few by default.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.kafka.copyfleet import CopyFleet, copying
from tests.integration.kafka.copying import SESSION_SECONDS
from tests.tools.kafka import FAULTS, KafkaCluster
from tests.tools.proxy import BLACK_HOLE, FINE, HALF_OPEN, Proxy, Weather, proxies

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(1800)]

WORKERS = 2
SETTLE_SECONDS = 6.0
LONGEST_SECONDS = SESSION_SECONDS + 4.0
DELAY_SECONDS = 0.3


@asynccontextmanager
async def proxied(kafka: KafkaCluster) -> AsyncIterator[tuple[CopyFleet, list[Proxy]]]:
    """Copy by way of proxies, which are used: else nothing here could fail."""
    routes = [(broker.proxy_port, broker.proxied_port) for broker in kafka.brokers]
    async with proxies(routes) as made:
        bootstrap = ",".join(f"127.0.0.1:{proxy.port}" for proxy in made)
        async with copying(kafka, WORKERS, bootstrap=bootstrap) as fleet:
            await asyncio.sleep(SETTLE_SECONDS)
            assert all(proxy.connections >= WORKERS for proxy in made)
            yield fleet, made
            for proxy in made:
                proxy.set_weather(FINE)
            ended = [worker.poll() for worker in fleet.workers if worker.poll() is not None]
            assert not ended, "no worker gives up"


def some(rng: random.Random, made: list[Proxy]) -> list[Proxy]:
    """Choose one broker, or sometimes all of them."""
    return made if rng.random() < 0.25 else [rng.choice(made)]


async def cut(rng: random.Random, chosen: list[Proxy]) -> None:
    """Reset connections at any moment."""
    await asyncio.sleep(rng.uniform(0.2, 2.0))
    for proxy in chosen:
        proxy.cut()


async def black_hole(rng: random.Random, chosen: list[Proxy]) -> None:
    """Nothing passes for a while, and then all of it or nothing of it."""
    await stall(rng, chosen, BLACK_HOLE)


async def half_open(rng: random.Random, chosen: list[Proxy]) -> None:
    """The brokers hear everything, and their answers come late or never."""
    await stall(rng, chosen, HALF_OPEN)


async def stall(rng: random.Random, chosen: list[Proxy], weather: Weather) -> None:
    """Hold bytes, half of the time for longer than a session; then let them come, or lose them."""
    for proxy in chosen:
        proxy.set_weather(weather)
    longest = rng.uniform(SESSION_SECONDS, LONGEST_SECONDS)
    await asyncio.sleep(longest if rng.random() < 0.5 else rng.uniform(0.5, SESSION_SECONDS))
    is_lost = rng.random() < 0.5
    for proxy in chosen:
        if is_lost:
            proxy.cut()
        proxy.set_weather(FINE)


async def delay(rng: random.Random, chosen: list[Proxy]) -> None:
    """The way becomes slow for some seconds."""
    for proxy in chosen:
        proxy.set_weather(Weather(delay_seconds=rng.uniform(DELAY_SECONDS / 2, DELAY_SECONDS)))
    await asyncio.sleep(rng.uniform(2.0, 5.0))
    for proxy in chosen:
        proxy.set_weather(FINE)


async def test_connections(three_proxied: KafkaCluster) -> None:
    """Connections that are cut, swallowed, not answered or slow: nothing is lost, doubled or reordered."""
    rng = random.Random(3)
    faults = FAULTS * (cut, black_hole, half_open, delay)
    async with proxied(three_proxied) as (fleet, made):
        for number, fault in enumerate(faults):
            await fault(rng, some(rng, made))
            await asyncio.sleep(rng.uniform(0.2, 2.0))
            if number % 4 == 3:
                await fleet.judge.visible_together()
        reset = sum(proxy.reset for proxy in made)
        assert reset >= FAULTS
        print(
            f"{FAULTS} times each of a cut, a black hole, half-open and slow connections; {reset} were reset"
        )
