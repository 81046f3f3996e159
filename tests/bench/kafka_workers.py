"""Several workers of one service on Kafka: what limits them is this machine, or an API server elsewhere.

unroll has no cluster to write to: sets come, one row per target goes. What was observed is written
beforehand; then all sets are handed over at once. The broker and all workers share this machine's cores, so
no more workers than cores minus the broker's share can make it faster.

render writes to an API server that takes no CPU here: one that is not there, and answers a create after
`ANSWER_SECONDS`. A worker has 64 creates under way at most, which then limit it, and not its cores.
"""

import os
import time
from collections import Counter
from typing import NamedTuple

from pvbus.core.kernel.objectrows import SET, rows_of
from pvbus.core.kernel.records import DESIRED, SETS, TARGETS
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.settings import ServiceConfig
from tests.bench.children import eventually
from tests.bench.deployment import Deployment, Work, broker_cpu_seconds, fresh_bus, total
from tests.bench.echo import BusWriter
from tests.bench.fleet import FIVE_EXPRESSIONS, variant_set
from tests.bench.large import observed, write_world
from tests.bench.report import Row
from tests.bench.scenarios import fleet_target
from tests.tools.kafka import KafkaCluster, running

NAME = "kafka-workers"
REGIONS = 7
"""Each set selects the objects of one region."""
SECONDS_MAX = 600.0
ANSWER_SECONDS = 0.25
RENDER_GOAL = 1.8
"""How many times as fast two workers of render are as one."""


class StoreActivity(NamedTuple):
    objects: int
    sets: int

    def targets(self, numbers: range) -> int:
        """Return how many targets these sets have."""
        regions = Counter(
            fleet_target(number)["metadata"]["labels"]["region"] for number in range(self.objects)
        )
        return sum(regions[region_of(number)] for number in numbers)


def region_of(number: int) -> str:
    """Return the region that a set selects."""
    return f"r{number % REGIONS}"


class Run(NamedTuple):
    """What one number of workers did. seconds: until the last target is written. records: of each worker."""

    seconds: float
    targets: int
    broker_cpu_seconds: float
    work: Work
    records: list[float]


async def kafka_workers(*, small: bool) -> list[Row]:
    """Targets per second of one, two and four workers of unroll, and variants per second of one and two of
    render, each number of workers on topics of its own."""
    load = StoreActivity(210, 24) if small else StoreActivity(4_200, 150)
    runs: dict[int, Run] = {}
    with running(1) as kafka:
        for count in (1, 2) if small else (1, 2, 4):
            runs[count] = await _run(kafka, count, load)
        writes = StoreActivity(210, 12) if small else StoreActivity(2_100, 12)
        rendered = {count: await _render(kafka, count, writes) for count in (1, 2)}
    return [*_rows(runs, load), *_render_rows(rendered, writes)]


async def _run(kafka: KafkaCluster, workers: int, load: StoreActivity) -> Run:
    url = fresh_bus(kafka)
    bus = await open_bus(ServiceConfig(bus=url))
    try:
        await ensure_installation(bus, partitions=partition_count())
        async with BusWriter(bus, "bench-ingest") as writer:
            await write_world(writer, load.objects)
            async with Deployment("-", url, [["unroll"]] * workers) as services:
                await _all_share(services, workers)
                return await _hand_over(kafka, writer, services, TARGETS, load)
    finally:
        await bus.close()


async def _render(kafka: KafkaCluster, workers: int, load: StoreActivity) -> Run:
    """Let one process of unroll hand targets to so many of render."""
    url = fresh_bus(kafka)
    bus = await open_bus(ServiceConfig(bus=url))
    try:
        await ensure_installation(bus, partitions=partition_count())
        async with BusWriter(bus, "bench-ingest") as writer:
            await write_world(writer, load.objects)
            renders = Deployment(f"after:{ANSWER_SECONDS}", url, [["render"]] * workers)
            async with Deployment("-", url, [["unroll"]]), renders:
                await _all_share(renders, workers)
                return await _hand_over(kafka, writer, renders, DESIRED, load)
    finally:
        await bus.close()


async def _all_share(services: Deployment, workers: int) -> None:
    """Wait until the leases are spread evenly: the first worker had them all."""
    partitions = partition_count()

    async def is_even() -> bool:
        held: list[int] = [reported["leases"] for reported in await services.ask("metrics")]
        return sum(held) == partitions and max(held) <= -(-partitions // workers)

    await eventually(is_even, f"{workers} workers share {partitions} leases", seconds=SECONDS_MAX)
    await services.settled()


async def _hand_over(
    kafka: KafkaCluster, writer: BusWriter, services: Deployment, topic: str, load: StoreActivity
) -> Run:
    """Hand over some sets first, as the first write to a partition waits for its leader; then the rest.

    topic: where the services write one row for each target
    """
    some = range(load.sets // 10)
    await _write_sets(writer, services, topic, load, some)
    others = range(len(some), load.sets)
    before, brokers = await services.works(), broker_cpu_seconds(kafka)
    began = time.perf_counter()
    await _write_sets(writer, services, topic, load, others)
    seconds = time.perf_counter() - began
    brokers = broker_cpu_seconds(kafka) - brokers
    works = [now.since(then) for now, then in zip(await services.works(), before, strict=True)]
    return Run(seconds, load.targets(others), brokers, total(works), [one.records for one in works])


async def _write_sets(
    writer: BusWriter, services: Deployment, topic: str, load: StoreActivity, numbers: range
) -> None:
    """Write sets, and wait until a row of each of their targets is written, and of the sets before them."""
    outputs = []
    for number in numbers:
        downstream = {"repo": "deploy", "packageExpr": f"'s{number}-' + target.name"}
        spec = variant_set(
            f"set-{number:04}", {"region": region_of(number)}, {**FIVE_EXPRESSIONS, "downstream": downstream}
        )
        outputs += [
            writer.output(row.topic, row.key, row.value)
            for row in rows_of(SET, observed(SET, spec, load.objects + number), (SETS,))
        ]

    async def all_written() -> bool:
        reported = await services.ask("metrics")
        return bool(sum(one["recordsByTopic"].get(topic, 0) for one in reported) >= wanted)

    wanted = load.targets(range(numbers.stop))
    await writer.write(outputs)
    await eventually(all_written, f"{wanted} targets", seconds=SECONDS_MAX)


def _rows(runs: dict[int, Run], load: StoreActivity) -> list[Row]:
    rows = []
    alone, cores = runs[1], os.cpu_count()
    for workers, run in runs.items():
        what = f"{workers} of unroll, {run.targets:,} targets of {load.sets} sets"
        work, busy = run.work, 100 / run.seconds
        rows += [
            Row(
                *(NAME, f"{what}, {cores} cores: targets/s", run.targets / run.seconds, "1/s", None, "more"),
                *(alone.seconds / run.seconds, "1 worker"),
            ),
            Row(NAME, f"{what}: records/s", work.records / run.seconds, "1/s"),
            Row(NAME, f"{what}: records per step", work.records / work.steps, "records"),
            Row(NAME, f"{what}: CPU of the workers per target", 1000 * work.cpu_seconds / run.targets, "ms"),
            Row(NAME, f"{what}: CPU of the workers, of that time", busy * work.cpu_seconds, "% of a core"),
            Row(
                NAME, f"{what}: CPU of the broker, of that time", busy * run.broker_cpu_seconds, "% of a core"
            ),
            Row(
                NAME,
                f"{what}: share of the busiest worker",
                max(run.records) / work.records,
                "of all records",
            ),
        ]
    return rows


def _render_rows(runs: dict[int, Run], load: StoreActivity) -> list[Row]:
    served = f"an API server that answers after {1000 * ANSWER_SECONDS:.0f} ms"
    what = f"render, {runs[1].targets:,} variants, {served}"
    rows = []
    for workers, run in runs.items():
        name, cpu = f"{workers} of {what}", run.work.cpu_seconds
        rows.append(Row(NAME, f"{name}: variants/s", run.targets / run.seconds, "1/s"))
        rows.append(
            Row(NAME, f"{name}: CPU of the workers, of that time", 100 * cpu / run.seconds, "% of a core")
        )
    faster = runs[1].seconds / runs[2].seconds
    return [*rows, Row(NAME, f"{what}: two workers instead of one", faster, "x", RENDER_GOAL, "more")]
