"""What a variant takes: bytes of each topic on the bus and in tables, and memory and CPU of each service.

A fleet is made twice, of few variants and of many, by a process for each service, which is then restarted:
memory per variant is the slope between the two, so what a process takes without variants is not in it. Most
processes of an installation have restarted, and read rows and lists of all objects at once. Then the rows of
each topic are loaded into the controllers that read it, and what these take is counted, with the rows
themselves.
"""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.kernel.effects import Controller
from pvbus.core.kernel.topics import broadcast_of, inputs_of, memory_of
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import UnrollController
from pvbus.ports.bus import Record
from pvbus.runtime.process.assembly import partition_count
from tests.bench.deployment import Deployment
from tests.bench.fleet import CHAIN, FIVE_EXPRESSIONS, SETS, TARGETS, VARIANTS, Fleet, variant_set
from tests.bench.report import Row
from tests.bench.scenarios import QUIET_SECONDS, fleet_target

NAME = "tables"
KILOBYTES_GOAL = 20
"""Of all services together, a process each."""
KILOBYTES_TOGETHER_GOAL = 10
"""Of all services in one process."""


class Cost(NamedTuple):
    """What a fleet took.

    cpu_seconds, private_bytes, restarted_bytes: by service
    private_bytes: memory without pages of files, as of the bus's file, which all processes share
    restarted_bytes: the same after a restart over what they left
    together_bytes: the same of all services in one process
    empty_bytes: the memory of a process before it had any table
    records: the last row of each key, by topic
    """

    cpu_seconds: Mapping[str, float]
    private_bytes: Mapping[str, float]
    restarted_bytes: Mapping[str, float]
    together_bytes: float
    empty_bytes: float
    records: Mapping[str, Sequence[Record]]


async def tables(*, small: bool) -> list[Row]:
    """Return bytes per row of each topic, and memory and CPU per variant of each service."""
    few, many = (50, 150) if small else (2_000, 10_000)
    before, after = await fleet_cost(few), await fleet_cost(many)
    rows = [Row(NAME, "a process without variants: memory", after.empty_bytes / 1e6, "MB")]
    for name in CHAIN:
        rows.append(Row(NAME, f"{name}: CPU per variant", 1000 * after.cpu_seconds[name] / many, "ms"))
    rows += memory_rows("memory per variant", before.private_bytes, after.private_bytes, many - few)
    what = "memory per variant after a restart"
    rows += memory_rows(what, before.restarted_bytes, after.restarted_bytes, many - few)
    slope = (after.together_bytes - before.together_bytes) / (many - few) / 1000
    rows.append(Row(NAME, f"one process: {what}", slope, "kB", KILOBYTES_TOGETHER_GOAL, "less"))
    on_bus = {topic: sum(map(record_bytes, records)) for topic, records in after.records.items()}
    rows.append(Row(NAME, "all topics: bytes per variant on the bus", sum(on_bus.values()) / many, "B"))
    for topic, records in after.records.items():
        rows.append(Row(NAME, f"{topic}: bytes per row on the bus", on_bus[topic] / len(records), "B"))
        for service, make in CONTROLLERS.items():
            if topic in (*inputs_of(service), *memory_of(service), *broadcast_of(service)):
                taken = loaded_bytes(make(), records) / len(records)
                rows.append(Row(NAME, f"{topic}: bytes per row in {service}", taken, "B"))
    return rows


def memory_rows(
    what: str, before: Mapping[str, float], after: Mapping[str, float], variants: int
) -> Iterator[Row]:
    """Yield the memory of each service and of all for one of these variants."""
    slopes = {name: (after[name] - before[name]) / variants / 1000 for name in CHAIN}
    for name, slope in slopes.items():
        yield Row(NAME, f"{name}: {what}", slope, "kB")
    yield Row(NAME, f"all services: {what}", sum(slopes.values()), "kB", KILOBYTES_GOAL, "less")


async def fleet_cost(count: int) -> Cost:
    """Make a set of so many targets; return what it took when nothing was left to do."""
    async with Fleet.started() as fleet:
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        async with Deployment(fleet.kubeconfig, fleet.bus, [(name,) for name in CHAIN]) as services:
            await services.settled()
            before = await services.works()
            await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS))
            await fleet.wait_count(VARIANTS, count)
            await asyncio.sleep(QUIET_SECONDS)
            await services.settled()
            work = [after.since(start) for start, after in zip(before, await services.works(), strict=True)]
            empty = max(child.hello["emptyBytes"] for child in services.children)
        async with Deployment(fleet.kubeconfig, fleet.bus, [(name,) for name in CHAIN]) as services:
            await services.settled()
            again = await services.works()
        async with Deployment(fleet.kubeconfig, fleet.bus, [CHAIN]) as services:
            await services.settled()
            (together,) = await services.works()
        records = await last_records(fleet.folder / "bus.db")
    by_name = dict(zip(CHAIN, work, strict=True))
    return Cost(
        {name: each.cpu_seconds for name, each in by_name.items()},
        {name: each.private_bytes for name, each in by_name.items()},
        {name: each.private_bytes for name, each in zip(CHAIN, again, strict=True)},
        together.private_bytes,
        empty,
        records,
    )


async def last_records(path: Path) -> dict[str, list[Record]]:
    """Return the rows of each compacted topic that has any."""
    bus = await SqliteBus.open(path)
    try:
        topics = {name: spec for name, spec in (await bus.topics()).items() if spec.cleanup == "compact"}
        positions = {(name, n): 0 for name, spec in topics.items() for n in range(spec.partitions)}
        ends = await bus.end_offsets(list(positions))
        reader = bus.reader(positions)
        found: dict[str, list[Record]] = {}
        while any(reader.position(tp) < end for tp, end in ends.items()):
            for record in await reader.poll(timeout_seconds=1.0, max_records=10_000):
                if record.value is not None:
                    found.setdefault(record.topic, []).append(record)
        return found
    finally:
        await bus.close()


def record_bytes(record: Record) -> int:
    return len(record.key) + len(record.value or b"") + sum(len(k) + len(v) for k, v in record.headers)


CONTROLLERS: Mapping[str, Callable[[], Controller]] = {
    "unroll": lambda: UnrollController(partitions=partition_count(), elapsed=lambda: 0.0, nonce=lambda: ""),
    "render": RenderController,
    "conditions": lambda: ConditionsController(source="/bench", partitions=partition_count()),
}


def loaded_bytes(controller: Controller, records: Sequence[Record]) -> int:
    """Return the bytes that rows take in the tables of a controller, with those of the rows that it keeps."""
    for number in range(partition_count()):
        controller.open(number)
    gc.collect()
    tracemalloc.start()
    try:
        for record in records:
            value = bytes(bytearray(record.value or b""))  # a copy: what a table keeps of it counts
            controller.load(record.topic, record.partition, record.key.decode(), value)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
