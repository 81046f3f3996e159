"""One fleet on Kafka and on SQLite, in one run: how fast it is made, what that takes, what a restart does.

The services are the chain without inject, whose work is git. The broker, the API server, the services and
this process share the machine, so CPU per variant says more than seconds.
"""

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.bench.deployment import Deployment, Work, broker_cpu_seconds, fresh_bus
from tests.bench.fleet import CHAIN, FIVE_EXPRESSIONS, SETS, TARGETS, VARIANTS, Fleet, variant_set
from tests.bench.kafka_hops import label_changes
from tests.bench.kafka_restart import restarted
from tests.bench.report import Row
from tests.bench.scenarios import bare_creates, fleet_target
from tests.tools.kafka import KafkaCluster, running

NAME = "kafka"
APART = tuple((name,) for name in CHAIN)
TOGETHER = (CHAIN,)
SECONDS_MAX = 1_800.0
LABEL_GOAL_MS = 250


class FanOut(NamedTuple):
    """One set over a fleet. seconds: until all variants are there; settled: until all is told of."""

    seconds: float
    settled_seconds: float
    work: Work
    server_cpu_seconds: float
    broker_cpu_seconds: float


async def fan_out(fleet: Fleet, services: Deployment, count: int, kafka: KafkaCluster | None) -> FanOut:
    """Make one set over all targets, and wait until there is nothing left to do."""
    before, served = await services.work(), await fleet.server_cpu_seconds()
    brokers, began = broker_cpu_seconds(kafka), time.perf_counter()
    await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS))
    seconds = await fleet.wait_count(VARIANTS, count, seconds=SECONDS_MAX)
    await services.settled()
    return FanOut(
        seconds,
        time.perf_counter() - began,
        (await services.work()).since(before),
        await fleet.server_cpu_seconds() - served,
        broker_cpu_seconds(kafka) - brokers,
    )


async def kafka_fleet(*, small: bool) -> list[Row]:
    """Fan-out on both buses; on Kafka then label changes and a restart of that fleet."""
    count, creates, runs = (300, 300, 1) if small else (10_000, 5_000, 2)
    bare = await bare_creates(runs, creates)
    rows: list[Row] = []
    found: dict[str, FanOut] = {}
    with running(1) as kafka:
        bus = fresh_bus(kafka)
        async with Fleet.started() as fleet:
            await fleet.post_all(TARGETS, map(fleet_target, range(count)))
            async with Deployment(fleet.kubeconfig, bus, APART) as services:
                await services.settled()
                found["Kafka, a process each"] = await fan_out(fleet, services, count, kafka)
                rows += await label_changes(
                    NAME, fleet, services, bus, count, 10 if small else 400, goal_ms=LABEL_GOAL_MS
                )
            rows += await restarted(NAME, fleet, bus, APART, count, goal=3)
    for name, processes in (("SQLite, a process each", APART), ("SQLite, one process", TOGETHER)):
        async with Fleet.started() as fleet:
            await fleet.post_all(TARGETS, map(fleet_target, range(count)))
            async with Deployment(fleet.kubeconfig, fleet.bus, processes) as services:
                await services.settled()
                found[name] = await fan_out(fleet, services, count, None)
    bare += await bare_creates(runs, creates)
    return [*_fan_out_rows(found, [one["creates_per_second"] for one in bare], count), *rows]


def _fan_out_rows(found: dict[str, FanOut], bare: Sequence[float], count: int) -> Iterable[Row]:
    """The share is of the median: what the machine gave before and after."""
    ceiling = statistics.median(bare)
    yield Row(NAME, f"creates/s of the API server alone, median of {len(bare)}", ceiling, "1/s")
    for name, one in found.items():
        what = f"{count:,} targets, {name}"
        speed, work = count / one.seconds, one.work
        yield Row(
            *(NAME, f"{what}: variants/s", speed, "1/s", None, "more"),
            *(speed / ceiling, f"the median ceiling of {ceiling:,.0f}"),
        )
        yield Row(NAME, f"{what}: until all is told of", one.settled_seconds, "s")
        yield _per_variant(what, "services", work.cpu_seconds, count, found)
        if one.broker_cpu_seconds:
            yield _per_variant(what, "broker", one.broker_cpu_seconds, count, found)
        yield _per_variant(what, "API server", one.server_cpu_seconds, count, found)
        yield Row(NAME, f"{what}: steps/s", work.steps / one.settled_seconds, "1/s")
        yield Row(NAME, f"{what}: records per step", work.records / max(work.steps, 1), "records")
        yield Row(NAME, f"{what}: records per variant", work.records / count, "records")
        yield Row(NAME, f"{what}: services' memory", work.resident_bytes / 1e6, "MB")


def _per_variant(what: str, who: str, cpu: float, count: int, found: dict[str, FanOut]) -> Row:
    other = found["SQLite, a process each"].work.cpu_seconds
    return Row(
        *(NAME, f"{what}: CPU of the {who} per variant", 1000 * cpu / count, "ms", None, "less"),
        *(cpu / other, "the services' on SQLite, a process each"),
    )
