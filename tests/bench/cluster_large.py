"""100,000 variants at a real kube-apiserver, of one set and then of 1,000, with a process of each service.

The API server, etcd, the broker, the services and this process share the machine. Each quarter of a fan-out
is timed apart: with a cost that is linear in the fleet all take as long. A run that is not small draws the
memory of the processes over time into docs/sizing-memory.svg.
"""

import asyncio
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.children import REPOSITORY, running_beside
from tests.bench.deployment import Deployment, fresh_bus
from tests.bench.fleet import (
    ALL_VARIANTS,
    FIVE_EXPRESSIONS,
    REPOSITORIES,
    SETS,
    TARGETS,
    VARIANTS,
    Fleet,
    repository,
    target,
    variant_set,
)
from tests.bench.kafka import APART
from tests.bench.kafka_hops import label_changes
from tests.bench.kafka_restart import restarted, restarted_with_snapshots
from tests.bench.memorychart import Sample, draw
from tests.bench.realfleet import RealFleet
from tests.bench.report import Row
from tests.bench.scenarios import fleet_target
from tests.tools.kafka import running

NAME = "cluster-large"
QUARTERS = 4
SECONDS_MAX = 3_600.0
SAMPLE_SECONDS = 1.0
LABEL_GOAL_MS = 100
RESTART_GOAL_SECONDS = 15
MEMORY_GOAL_MB = 2_500
QUARTER_GOAL = 1.25
"""The last quarter may take so much longer than the first one."""
QUIET_SECONDS = 3.0
PICTURE = REPOSITORY / "docs" / "sizing-memory.svg"
OWN_TEMPLATE = {"downstream": {"repo": "deploy", "packageExpr": "target.labels.group + '-' + target.name"}}
GOLD = {"repositorySelector": {"matchLabels": {"tier": "gold"}}, "template": {}}
GOLD_EVERY = 100
"""One set in so many selects Repositories, too."""


class Size(NamedTuple):
    variants: int
    sets: int
    changes: int


async def cluster_large(*, small: bool) -> list[Row]:
    """Speed by quarters, label changes, restart and memory; then the evaluations of many sets."""
    size = Size(400, 10, 5) if small else Size(100_000, 1_000, 200)
    rows, samples = await _one_set(size)
    if not small:
        PICTURE.write_text(draw(samples, list(map("+".join, APART))), encoding="utf-8")
    return [*rows, *await _many_sets(size)]


async def _one_set(size: Size) -> tuple[list[Row], list[Sample]]:
    count, samples = size.variants, list[Sample]()
    with running(1) as kafka:
        bus = fresh_bus(kafka)
        async with RealFleet.started() as fleet:
            await fleet.post_all(TARGETS, map(fleet_target, range(count)))
            async with (
                Deployment(fleet.kubeconfig, bus, APART) as services,
                running_beside(_add_samples(services, samples)),
            ):
                await services.settled()
                before, began = await services.work(), time.perf_counter()
                await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS))
                rows = await _quarters(fleet, VARIANTS, count, f"{count:,} targets of one set")
                await services.settled()
                took, work = time.perf_counter() - began, (await services.work()).since(before)
                changed = await label_changes(
                    NAME, fleet, services, bus, count, size.changes, goal_ms=LABEL_GOAL_MS, hops=False
                )
            again = await restarted(NAME, fleet, bus, APART, count, goal=RESTART_GOAL_SECONDS)
            again += await restarted_with_snapshots(NAME, fleet, bus, APART, count, goal=RESTART_GOAL_SECONDS)
    what, highest = f"{count:,} targets of one set", max(sum(sample.bytes) for sample in samples)
    rows += [
        Row(NAME, f"{what}: until nothing is left to do", took, "s"),
        Row(NAME, f"{what}: CPU of the services per variant", 1000 * work.cpu_seconds / count, "ms"),
        Row(NAME, f"{what}: memory of all processes when made", work.private_bytes / 1e6, "MB"),
        Row(NAME, f"{what}: memory at its highest", highest / 1e6, "MB", MEMORY_GOAL_MB, "less"),
    ]
    return [*rows, *changed, *again], samples


async def _quarters(fleet: Fleet, path: str, count: int, what: str) -> list[Row]:
    """Wait until all variants are there; return the speed of all, and of each quarter."""
    began, ends = time.perf_counter(), [0.0]
    for number in range(1, QUARTERS + 1):
        await fleet.wait_count(path, count * number // QUARTERS, seconds=SECONDS_MAX)
        ends.append(time.perf_counter() - began)
    took = [end - start for start, end in pairwise(ends)]
    return [
        Row(NAME, f"{what}, a process each: variants/s", count / ends[-1], "1/s"),
        *(
            Row(NAME, f"{what}: quarter {number}: variants/s", count / QUARTERS / seconds, "1/s")
            for number, seconds in enumerate(took, start=1)
        ),
        Row(NAME, f"{what}: last quarter's time", took[-1] / took[0], "of the first", QUARTER_GOAL, "less"),
    ]


async def _many_sets(size: Size) -> list[Row]:
    """Sets of 100 targets each; then a label of one Repository, which a few of them select by labels."""
    count, each = size.variants, size.variants // size.sets
    gold = len(range(0, size.sets, GOLD_EVERY))
    with running(1) as kafka:
        bus = fresh_bus(kafka)
        async with RealFleet.started() as fleet:
            await fleet.post(REPOSITORIES, repository("other"))
            groups = [{"group": f"group-{number:04}"} for number in range(size.sets)]
            await fleet.post_all(TARGETS, (target(number, groups[number // each]) for number in range(count)))
            async with Deployment(fleet.kubeconfig, bus, APART) as services:
                await services.settled()
                await fleet.post_all(SETS, _sets(groups))
                what = f"{size.sets:,} sets of {each} targets"
                rows = await _quarters(fleet, ALL_VARIANTS, count, what)
                await services.settled()
                for change, label in (("gets", "gold"), ("loses", None)):
                    found = await _evaluations(fleet, services, {"tier": label})
                    name = f"{what}: a Repository {change} a label: evaluations"
                    rows.append(Row(NAME, name, found, "sets", gold, "equal"))
    return rows


def _sets(groups: Iterable[dict[str, str]]) -> Iterable[dict[str, Any]]:
    for number, labels in enumerate(groups):
        made = variant_set(f"set-{number:04}", labels, OWN_TEMPLATE)
        if number % GOLD_EVERY == 0:
            made["spec"]["targets"].append(GOLD)
        yield made


async def _evaluations(fleet: Fleet, services: Deployment, labels: dict[str, str | None]) -> int:
    """Return how many sets are evaluated after a change of the other Repository's labels."""
    await asyncio.sleep(QUIET_SECONDS)
    before = await _counted(services)
    await fleet.patch(f"{REPOSITORIES}/other", {"metadata": {"labels": labels}})
    await asyncio.sleep(QUIET_SECONDS)
    await services.settled()
    return await _counted(services) - before


async def _counted(services: Deployment) -> int:
    return sum(counts.get("setEvaluations", 0) for counts in await services.ask("counts"))


async def _add_samples(services: Deployment, samples: list[Sample]) -> None:
    """Add the private memory of each process, about each second, until cancelled."""
    began = time.perf_counter()
    while True:
        samples.append(Sample(time.perf_counter() - began, tuple(map(_private_bytes, services.pids))))
        await asyncio.sleep(SAMPLE_SECONDS)


def _private_bytes(pid: int) -> int:
    """Return the resident memory of another process without pages of files, by Linux's /proc."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
    return int(kilobytes) * 1024
