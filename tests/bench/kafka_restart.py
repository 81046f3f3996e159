"""Every service of a fleet that is as it should be, started again over what it left in Kafka."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pvbus.ports.bus import TopicPartition
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.settings import ServiceConfig
from tests.bench.deployment import Deployment, ends_of, moved, total
from tests.bench.fleet import Fleet
from tests.bench.report import Row

IDLE_SECONDS = 5.0
WRITTEN_SECONDS = 4.0  # longer than from one file to the next
QUIET_SECONDS = 2.0  # longer than a set's roll-up, and than the commit of offsets that follows it


async def restarted(
    scenario: str,
    fleet: Fleet,
    bus: str,
    processes: Sequence[Sequence[str]],
    count: int,
    *,
    goal: float,
    snapshots: Path | None = None,
) -> list[Row]:
    """Start the services; count what they read and, as nothing has changed, what they should not write.

    goal: seconds until ready. Ready is what /readyz says: all leases held, all tables restored. A process's
    start with its imports is a part of that, and all start at once on this machine's cores.
    snapshots: the folder of their snapshots, None for none
    """
    await asyncio.sleep(QUIET_SECONDS)
    version, ends = await fleet.version(), await ends_of(bus)
    async with Deployment(fleet.kubeconfig, bus, processes, snapshots=snapshots) as services:
        began = time.perf_counter()
        await services.settled()
        settled = services.observed_seconds + time.perf_counter() - began
        works = await services.works()
        await asyncio.sleep(IDLE_SECONDS)
        later = await services.works()
    writes, grown = await fleet.version() - version, moved(ends, await ends_of(bus))
    work, idle = total(works), total(later).since(total(works))
    what = f"{count:,} variants, services restarted{' with snapshots' if snapshots else ''}"
    reading = work.read * await _reading_seconds(bus, ends)
    each = ", ".join(
        f"{name} {1000 * one.cpu_seconds:,.0f}" for name, one in zip(services.names, works, strict=True)
    )
    return [
        Row(scenario, f"{what}: until all are ready", services.ready_seconds, "s", goal, "less"),
        Row(scenario, f"{what}: until the API server was listed", services.observed_seconds, "s"),
        Row(scenario, f"{what}: until nothing is left to do", settled, "s"),
        Row(scenario, f"{what}: records read", work.read, "read"),
        Row(scenario, f"{what}: records of their steps", total(later).records, "records", 0, "equal"),
        Row(
            *(scenario, f"{what}: offsets of all topics {dict(grown) or ''}".rstrip(), grown.total()),
            *("records", 0, "equal"),
        ),
        Row(scenario, f"{what}: API writes", writes, "writes", 0, "equal"),
        Row(scenario, f"{what}: CPU ({each} ms)", work.cpu_seconds, "s"),
        Row(
            *(scenario, f"{what}: CPU of reading its records, decoding none", reading, "s", None, "less"),
            *(reading / work.cpu_seconds, "the CPU of all: what a snapshot of the tables could save at most"),
        ),
        Row(scenario, f"{what}: memory", work.resident_bytes / 1e6, "MB"),
        Row(
            scenario,
            f"{what}: CPU when nothing happens",
            100 * idle.cpu_seconds / IDLE_SECONDS,
            "% of a core",
        ),
    ]


async def restarted_with_snapshots(
    scenario: str, fleet: Fleet, bus: str, processes: Sequence[Sequence[str]], count: int, *, goal: float
) -> list[Row]:
    """Let the services write snapshots, and start them again."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        async with Deployment(fleet.kubeconfig, bus, processes, snapshots=folder) as services:
            await services.settled()
            size, grown = 0, True
            while grown:
                await asyncio.sleep(WRITTEN_SECONDS)
                before, size = size, sum(file.stat().st_size for file in folder.iterdir())
                grown = size > before
        rows = await restarted(scenario, fleet, bus, processes, count, goal=goal, snapshots=folder)
    return [*rows, Row(scenario, f"{count:,} variants: snapshots of all processes", size / 1e6, "MB")]


async def _reading_seconds(url: str, ends: Mapping[TopicPartition, int]) -> float:
    """Return the CPU seconds of this process for one record of the bus."""
    left = {tp: end for tp, end in ends.items() if end}
    bus = await open_bus(ServiceConfig(bus=url), create=False)
    try:
        reader, read, began = bus.reader(dict.fromkeys(left, 0)), 0, time.process_time()
        while left:
            read += len(await reader.poll(timeout_seconds=1.0))
            left = {tp: end for tp, end in left.items() if reader.position(tp) < end}
        await reader.close()
        return (time.process_time() - began) / read
    finally:
        await bus.close()
