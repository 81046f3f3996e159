"""One label of one target changes in a fleet on Kafka: how long until its variant does, hop by hop.

Seen from a process of its own: the API server's watch events as they arrive here, the times that producers
put on records, and when a reader of committed records gets those. All clocks are this machine's.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
import msgspec

from pvbus.core.kernel.records import OBJECTS
from pvbus.core.kernel.records import TARGETS as TARGETS_TOPIC
from pvbus.ports.bus import Bus
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.settings import ServiceConfig
from tests.bench.children import share
from tests.bench.deployment import Deployment
from tests.bench.fleet import TARGETS, VARIANTS, Fleet
from tests.bench.report import Row

CHANGE_SECONDS = 30.0
PAUSE_SECONDS = 0.3
"""Up to so long between two changes: they must not keep step with offsets that are committed each second."""

HOPS = (
    "the API server's write, to its watch event",
    "ingest: to its record being sent",
    "that step: to its record being readable",
    "unroll: to its record being sent",
    "that step: to its record being readable",
    "render and the API server: to the variant's watch event",
)


class Moment(NamedTuple):
    """What was seen of an object: when, and when its producer says it was."""

    seen: float
    sent: float


class Witness:
    """Waits for what is told of one object at a time: by the API server's watches and by the bus."""

    def __init__(self) -> None:
        self._needle = ""
        self._wanted: dict[str, asyncio.Future[Moment]] = {}

    def expect(self, needle: str, *topic_partitions: str) -> dict[str, "asyncio.Future[Moment]"]:
        """Return a future per place: the first thing there from now on whose key has the needle in it."""
        loop = asyncio.get_running_loop()
        self._needle = needle
        self._wanted = {tp: loop.create_future() for tp in topic_partitions}
        return self._wanted

    def notice(self, tp: str, key: str, sent: float) -> None:
        future = self._wanted.get(tp)
        if future is not None and not future.done() and self._needle in key:
            future.set_result(Moment(time.time(), sent))

    async def read(self, bus: Bus, topics: tuple[str, ...]) -> None:
        """Follow topics of the bus from their ends on, until cancelled."""
        specs = await bus.topics()
        topic_partitions = [(topic, number) for topic in topics for number in range(specs[topic].partitions)]
        reader = bus.reader(await bus.end_offsets(topic_partitions))
        try:
            while True:
                for record in await reader.poll(timeout_seconds=1.0):
                    # Producers cut their times to milliseconds.
                    self.notice(record.topic, record.key.decode(), (record.timestamp_ms + 0.5) / 1000)
        finally:
            await reader.close()

    async def watch(self, fleet: Fleet, path: str) -> None:
        """Follow changes at the API server from now on, until cancelled."""
        version = (await fleet.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
        url = f"{path}?watch=1&resourceVersion={version}"
        async with fleet.http.get(url, timeout=aiohttp.ClientTimeout(total=None)) as events:
            async for line in events.content:
                event = msgspec.json.decode(line)
                self.notice(path, event["object"]["metadata"]["name"], 0.0)


@asynccontextmanager
async def witnessing(
    fleet: Fleet, bus_url: str, topics: tuple[str, ...], paths: tuple[str, ...]
) -> AsyncIterator[Witness]:
    """Follow these topics, and what these paths of the API server list."""
    bus = await open_bus(ServiceConfig(bus=bus_url), create=False)
    witness = Witness()
    tasks = [
        asyncio.create_task(witness.read(bus, topics)),
        *(asyncio.create_task(witness.watch(fleet, path)) for path in paths),
    ]
    try:
        await asyncio.sleep(1.0)  # all follow by then
        yield witness
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await bus.close()


async def label_changes(
    scenario: str,
    fleet: Fleet,
    services: Deployment,
    bus_url: str,
    count: int,
    changes: int,
    *,
    goal_ms: float,
    hops: bool = True,
) -> list[Row]:
    """Relabel targets one after the other; the region is a label of the variant, so each makes one write.

    hops: whether to report each; with SQLite, readers of another process poll, and see records later.
    """
    dice = random.Random(5)
    before, version = await services.work(), await fleet.version()
    runs: list[tuple[float, ...]] = []
    async with witnessing(fleet, bus_url, (OBJECTS, TARGETS_TOPIC), (TARGETS, VARIANTS)) as witness:
        for number in dice.sample(range(count), changes):
            await asyncio.sleep(dice.uniform(0.0, PAUSE_SECONDS))
            runs.append(await _one_change(fleet, witness, f"cluster-{number:06}"))
        await services.settled()
    work, writes = (await services.work()).since(before), await fleet.version() - version - changes
    delays = [1000 * (moments[-1] - moments[0]) for moments in runs]
    what = f"label change among {count:,} variants"
    rows = [
        Row(scenario, f"{what}, {changes} of them: event to write, p50", share(delays, 0.5), "ms"),
        Row(scenario, f"{what}: event to write, p99", share(delays, 0.99), "ms", goal_ms, "less"),
    ]
    whole = sum(delays)
    for number, name in enumerate(HOPS if hops else ()):
        took = [1000 * (moments[number + 1] - moments[number]) for moments in runs]
        rows.append(
            Row(
                *(scenario, f"{what}, hop {number + 1}, {name}: p50 (p99 {share(took, 0.99):.0f})"),
                *(share(took, 0.5), "ms"),
                ratio=sum(took) / whole,
                ratio_of="all of event to write",
            )
        )
    return [
        *rows,
        Row(
            scenario,
            f"{what}: API writes each besides it, the set's roll-up among them",
            writes / changes,
            "times",
        ),
        Row(scenario, f"{what}: records each", work.records / changes, "records a change"),
        Row(scenario, f"{what}: steps each, those of offsets among them", work.steps / changes, "steps"),
        Row(scenario, f"{what}: CPU of the services each", 1000 * work.cpu_seconds / changes, "ms"),
    ]


async def _one_change(fleet: Fleet, witness: Witness, name: str) -> tuple[float, ...]:
    """Return the moments between the hops, the first of which is just before the write was asked for."""
    wanted = witness.expect(name, TARGETS, OBJECTS, TARGETS_TOPIC, VARIANTS)
    began = time.time()
    labels = {"region": f"r{time.time_ns()}"}
    async with asyncio.timeout(CHANGE_SECONDS):
        await fleet.patch(f"{TARGETS}/{name}", {"metadata": {"labels": labels}})
        observed, target = await wanted[OBJECTS], await wanted[TARGETS_TOPIC]
        event, written = await wanted[TARGETS], await wanted[VARIANTS]
    # Ingest may be told before we are, but it was told before it sent anything.
    reported = min(event.seen, observed.sent)
    return (began, reported, observed.sent, observed.seen, target.sent, target.seen, written.seen)
