"""One fleet at a real kube-apiserver, on SQLite and on Kafka: the figures beside Porch's controller.

The API server, etcd, the broker, the services and this process share the machine, so that shares of the bare
load generator's speed and CPU per variant say more than seconds. PackageRevisions are plain objects here.
"""

import asyncio
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack

from tests.bench.deployment import Deployment, ends_of, fresh_bus, moved
from tests.bench.fleet import REVISIONS, SETS, TARGETS, Fleet, package_revision
from tests.bench.kafka import APART, TOGETHER, FanOut, fan_out
from tests.bench.kafka_hops import label_changes
from tests.bench.kafka_restart import restarted, restarted_with_snapshots
from tests.bench.porchfleet import Peer, peer
from tests.bench.realfleet import RealFleet, bare_creates
from tests.bench.report import Row
from tests.bench.scenarios import QUIET_SECONDS, fleet_target
from tests.tools.kafka import KafkaUnavailableError, running

NAME = "cluster"
CLIENTS = 32
LABEL_GOAL_MS = 100
RESTART_GOAL_SECONDS = 2.5
QUIET_GOAL = 1.5
SHARE_GOAL = 65
BROKER_GOAL_MS = 0.8
PORCH_GOAL = 1.6
"""Variants/s of a process for each service on Kafka, as a multiple of Porch's in the same run."""


class Bus:
    """A kind of bus. cpu_goal_ms: CPU of all services per variant."""

    def __init__(self, name: str, processes: Sequence[Sequence[str]], cpu_goal_ms: float) -> None:
        self.name = name
        self.processes = processes
        self.cpu_goal_ms = cpu_goal_ms

    @property
    def is_kafka(self) -> bool:
        return self.name.startswith("Kafka")


BUSES = (
    Bus("SQLite, one process", TOGETHER, 0.8),
    Bus("Kafka, one process", TOGETHER, 1.5),
    Bus("Kafka, a process each", APART, 1.5),
)


async def cluster(*, small: bool) -> list[Row]:
    """Fan-out, label changes, changes that mean nothing, and a restart, on each bus."""
    count, creates, changes = (300, 300, 10) if small else (10_000, 5_000, 400)
    bare = [await bare_creates(creates, CLIENTS)]
    porch = await peer(count)
    found: list[tuple[Bus, FanOut, int]] = []
    rows: list[Row] = []
    for bus in BUSES[:2] if small else BUSES:
        try:
            made, writes, others = await _on(bus, count, changes, porch)
        except KafkaUnavailableError as exc:
            rows.append(Row(NAME, f"{bus.name} is left out: {exc}", 0, ""))
            continue
        found.append((bus, made, writes))
        rows += others
    bare.append(await bare_creates(creates, CLIENTS))
    ceiling = statistics.median(one["creates_per_second"] for one in bare)
    when = f"at another time, of {porch.ceiling:.0f}" if porch.ceiling else "in this run"
    top = [
        Row(NAME, f"creates/s of kube-apiserver alone, median of {len(bare)}", ceiling, "1/s", porch=when),
        Row(NAME, "CPU of kube-apiserver and etcd per create", bare[0]["server_cpu_ms_per_create"], "ms"),
    ]
    if not porch.ceiling:
        what = f"{count:,} variants, Porch's controller restarted"
        top += [
            Row(NAME, f"{what}: API writes", porch.restart_writes, "writes"),
            Row(NAME, f"{what}: until nothing is left to do", porch.restart_seconds, "s"),
        ]
    return [*top, *(row for each in found for row in _fan_out_rows(*each, count, ceiling, porch)), *rows]


async def _on(bus: Bus, count: int, changes: int, porch: Peer) -> tuple[FanOut, int, list[Row]]:
    """Return the fan-out, the writes it took, and the rows of what follows."""
    scenario = f"{NAME}, {bus.name}"
    async with AsyncExitStack() as stack:
        kafka = stack.enter_context(running(1)) if bus.is_kafka else None
        fleet = await stack.enter_async_context(RealFleet.started())
        url = fresh_bus(kafka) if kafka else fleet.bus
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        async with Deployment(fleet.kubeconfig, url, bus.processes) as services:
            await services.settled()
            before = await fleet.version()
            made = await fan_out(fleet, services, count, kafka)
            await asyncio.sleep(QUIET_SECONDS)
            writes = await fleet.version() - before - 1
            rows = await _unchanged(scenario, fleet, services, url, count, porch)
            rows += await label_changes(
                *(scenario, fleet, services, url, count, changes),
                goal_ms=LABEL_GOAL_MS,
                hops=bus.is_kafka,
            )
        rows += await restarted(scenario, fleet, url, bus.processes, count, goal=RESTART_GOAL_SECONDS)
        if bus.is_kafka:
            rows += await restarted_with_snapshots(
                scenario, fleet, url, bus.processes, count, goal=RESTART_GOAL_SECONDS
            )
    return made, writes, rows


async def _unchanged(
    scenario: str, fleet: Fleet, services: Deployment, url: str, count: int, porch: Peer
) -> list[Row]:
    """Change what no variant depends on, and count what is written."""
    rows: list[Row] = []
    touch = {"metadata": {"annotations": {"example.org/touched": "1"}}}
    other = package_revision("blueprints.other.v1", "other")
    for what, change, porchs in (
        (f"set of {count:,} touched", fleet.patch(f"{SETS}/fleet", touch), f"{porch.touch_writes:,}"),
        ("PackageRevision of another package created", fleet.post(REVISIONS, other), ""),
    ):
        version, ends = await fleet.version(), await ends_of(url)
        await change
        await asyncio.sleep(QUIET_SECONDS)
        await services.settled()
        await asyncio.sleep(QUIET_SECONDS)
        writes = await fleet.version() - version - 1
        records = moved(ends, await ends_of(url)).total()
        rows += [
            Row(scenario, f"{what}: API writes besides it", writes, "writes", 0, "equal", porch=porchs),
            Row(scenario, f"{what}: offsets of all topics", records, "records"),
        ]
    return rows


def _fan_out_rows(bus: Bus, made: FanOut, writes: int, count: int, ceiling: float, porch: Peer) -> list[Row]:
    scenario, speed = f"{NAME}, {bus.name}", count / made.seconds
    work = made.work
    quiet = made.settled_seconds / made.seconds
    share = 100 * speed / ceiling
    cpu = 1000 * work.cpu_seconds / count
    rows = [
        Row(
            *(scenario, f"fan-out of {count:,}: variants/s", speed, "1/s", _speed_goal(bus, porch), "more"),
            ratio=speed / porch.variants_per_second,
            ratio_of="Porch's",
            porch=f"{porch.variants_per_second:.0f}",
        ),
        Row(
            *(scenario, "fan-out: share of the ceiling", share, "%", SHARE_GOAL, "more"),
            porch=f"{porch.share_percent(ceiling):.0f} %",
        ),
        Row(
            *(scenario, "until quiet, of the fan-out's time", quiet, "times", QUIET_GOAL, "less"),
            porch=f"{porch.quiet_times:.2g}, {porch.quiet_seconds:.1f} s",
        ),
        Row(scenario, "fan-out: API writes", writes, "", porch=f"{porch.writes:,}"),
        Row(
            *(scenario, "CPU of the services per variant", cpu, "ms", bus.cpu_goal_ms, "less"),
            *(cpu / porch.cpu_ms, "Porch's", f"{porch.cpu_ms:.2g} ms"),
        ),
        Row(
            *(scenario, "CPU of kube-apiserver and etcd per variant"),
            *(1000 * made.server_cpu_seconds / count, "ms"),
        ),
        Row(scenario, "services' memory per variant", work.resident_bytes / count / 1000, "kB"),
    ]
    if made.broker_cpu_seconds:
        broker = 1000 * made.broker_cpu_seconds / count
        goal = BROKER_GOAL_MS if bus.processes is APART else None
        rows.append(Row(scenario, "CPU of the broker per variant", broker, "ms", goal, "less"))
    return rows


def _speed_goal(bus: Bus, porch: Peer) -> float | None:
    """Return the goal of the design, None if Porch's speed is that of another time."""
    is_same_run = porch.ceiling is None
    return PORCH_GOAL * porch.variants_per_second if bus.processes is APART and is_same_run else None
