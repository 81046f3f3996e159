"""The scenarios of one set at an API server: ceiling and fan-out, no-op."""

import asyncio
import statistics
import tempfile
import time
from typing import Any

from pvbus.core.kernel.topics import SERVICES
from tests.bench import apiserver
from tests.bench.children import Child, eventually
from tests.bench.fleet import (
    FIVE_EXPRESSIONS,
    SETS,
    TARGETS,
    VARIANTS,
    Fleet,
    bus_ends,
    records_since,
    target,
    variant_set,
)
from tests.bench.report import Row

EXAMPLE_VARIANTS = 200
STORE_QUIET_SECONDS = 12.0
SET_CONDITIONS = 3  # of one that is not on hold: Stalled, Ready, TargetsApplied
QUIET_SECONDS = 1.5  # longer than a set's roll-up and the poll of the bus by another process
TIERS = ("gold", "silver", "bronze")


def fleet_target(number: int) -> dict[str, Any]:
    return target(number, {"env": "prod", "region": f"r{number % 7}", "tier": TIERS[number % 3]})


async def fan_out(fleet: Fleet, services: Child, count: int) -> dict[str, float]:
    """Make one set over `count` targets; return seconds until all variants are there, and what it took."""
    before, served = await services.ask("usage"), await fleet.server_cpu_seconds()
    await services.ask("lateness")
    await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS))
    seconds = await fleet.wait_count(VARIANTS, count)
    late = await services.ask("lateness")
    served = await fleet.server_cpu_seconds() - served
    await services.ask("settled")
    after = await services.ask("usage")
    return {
        "seconds": seconds,
        "cpuSeconds": after["cpuSeconds"] - before["cpuSeconds"],
        "serverCpuSeconds": served,
        "residentBytes": after["residentBytes"],
        "compilations": (await services.ask("counts"))["compilations"],
        "latenessSeconds": late["p999"],
        "longestSeconds": late["longest"],
    }


async def bare_creates(runs: int, creates: int) -> list[dict[str, float]]:
    """Let the bare load generator run against a fresh API server, several times."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as data:
            found.append(await apiserver.measure(data, creates, 32))
    return found


async def ceiling(*, small: bool) -> list[Row]:
    """Creates per second of the API server alone, and a fan-out in between against that."""
    count, creates, runs = (300, 300, 1) if small else (10_000, 5_000, 2)
    bare = await bare_creates(runs, creates)
    async with Fleet.started() as fleet:
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        async with fleet.services() as services:
            await services.ask("settled")
            result = await fan_out(fleet, services, count)
    bare += await bare_creates(runs, creates)
    return [*_bare_rows(bare), *_fan_out_rows(result, bare, count)]


def _bare_rows(bare: list[dict[str, float]]) -> list[Row]:
    best = max(bare, key=lambda one: one["creates_per_second"])
    return [
        Row(
            *("ceiling", f"creates/s, validated, durable, with a watcher: best of {len(bare)}"),
            *(best["creates_per_second"], "1/s"),
            goal=900,
            better="more",
            porch="938 creates/s (kube-apiserver)",
        ),
        Row("ceiling", "server CPU per create", best["server_cpu_ms_per_create"], "ms"),
    ]


def _fan_out_rows(result: dict[str, float], bare: list[dict[str, float]], count: int) -> list[Row]:
    """The share is of the median: what the machine gave on both sides of the fan-out."""
    speed = count / result["seconds"]
    median = statistics.median(one["creates_per_second"] for one in bare)
    cpu = 1000 * result["cpuSeconds"] / count
    busy = 100 * result["cpuSeconds"] / result["seconds"]
    return [
        Row(
            *("ceiling", f"fan-out: variants/s, one set, {count:,} targets", speed, "1/s", None, "more"),
            *(speed / median, f"the median ceiling of {median:,.0f}", "304 variants/s"),
        ),
        Row(
            "ceiling",
            "fan-out, share of the median ceiling",
            100 * speed / median,
            "%",
            60,
            "more",
            porch="32 %",
        ),
        Row(
            *("ceiling", "services' CPU per variant", cpu, "ms", 1.4, "less"),
            *(cpu / 2.8, "Porch's", "2.8 ms"),
        ),
        Row("ceiling", "server CPU per variant", 1000 * result["serverCpuSeconds"] / count, "ms"),
        Row("ceiling", "services' loop late, p99.9", 1000 * result["latenessSeconds"], "ms", 50, "less"),
        Row("ceiling", "services' loop late, the longest", 1000 * result["longestSeconds"], "ms"),
        Row("ceiling", "services' CPU of the time the fan-out took", busy, "% of a core"),
        Row("ceiling", "compilations, of five expressions", result["compilations"], "", 5, "equal"),
        Row("ceiling", "services' memory", result["residentBytes"] / 1e6, "MB"),
    ]


class Quiet:
    """What the API server and the bus count while something happens that should change nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = 0
        self._ends: dict[tuple[str, int], int] = {}

    async def wait(self) -> None:
        """Wait until the package store has read back its last commits, too: that changes a Repository."""
        version, since = -1, time.monotonic()
        while time.monotonic() - since < STORE_QUIET_SECONDS:
            await asyncio.sleep(1.0)
            if (now := await self._fleet.version()) != version:
                version, since = now, time.monotonic()

    async def begin(self) -> None:
        await asyncio.sleep(QUIET_SECONDS)
        self._version = await self._fleet.version()
        self._ends = await bus_ends(self._fleet.folder / "bus.db")

    async def writes(self, *, own: int = 0) -> int:
        """Return the API server's writes since `begin`, less our own."""
        return await self._fleet.version() - self._version - own

    async def records(self) -> dict[str, int]:
        """Return the bus's records since `begin`, by topic."""
        return records_since(self._ends, await bus_ends(self._fleet.folder / "bus.db"))


async def no_op(*, small: bool) -> list[Row]:
    """Variants up to date: touch the set, edit it to mean the same, restart every service."""
    count = 300 if small else 10_000
    rows = []
    async with Fleet.started() as fleet:
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        quiet = Quiet(fleet)
        async with fleet.services() as services:
            await services.ask("settled")
            await fan_out(fleet, services, count)
            await quiet.begin()
            annotation = {"metadata": {"annotations": {"example.org/touched": "1"}}}
            await fleet.patch(f"{SETS}/fleet", annotation)
            rows += await _no_op_rows(
                f"set of {count:,} touched", services, quiet, reported=0, porch="10,001"
            )
            await quiet.begin()
            selector = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "matchLabels": {"env": "prod"},
                "matchExpressions": [{"key": "env", "operator": "Exists"}],
            }
            same = [{"objectSelector": selector, "template": FIVE_EXPRESSIONS}]
            await fleet.patch(f"{SETS}/fleet", {"spec": {"targets": same}})
            # A new generation is told, as Kubernetes has it: one write of the set's status. Its spec is kept.
            rows += await _no_op_rows(
                f"set of {count:,} edited to mean the same", services, quiet, reported=1, specs=1
            )
        rows += await _restart_rows(fleet, quiet, f"{count:,} variants")
    return rows if small else [*rows, *await _example_rows()]


async def _restart_rows(fleet: Fleet, quiet: Quiet, what: str, *names: str) -> list[Row]:
    """Start every service again over what it left."""
    await quiet.begin()
    async with fleet.services(*names) as services:
        ready, began = services.started_seconds, time.perf_counter()
        await services.ask("settled")
        settled = ready + time.perf_counter() - began
        await asyncio.sleep(QUIET_SECONDS)
        used = (await services.ask("usage"))["cpuSeconds"]
    writes, records = await quiet.writes(), await quiet.records()
    what = f"{what}, services restarted"
    return [
        Row("noop", f"{what}: API writes", writes, "writes", 0, "equal", porch="20,002 of 10,000"),
        Row(
            "noop",
            f"{what}: bus records {records or ''}".rstrip(),
            sum(records.values()),
            "records",
            0,
            "equal",
        ),
        Row("noop", f"{what}: until ready, from the process's start", ready, "s", 3, "less"),
        Row("noop", f"{what}: until nothing is left to do", settled, "s"),
        Row("noop", f"{what}: CPU", used, "s"),
    ]


async def _example_rows() -> list[Row]:
    """All five services and the package store: drafts in git stay as they are."""
    async with Fleet.of_example() as fleet:
        quiet = Quiet(fleet)
        async with fleet.services(*SERVICES) as services:

            async def all_ready() -> bool:
                return await fleet.count_ready() >= EXAMPLE_VARIANTS

            await eventually(all_ready, "the example fleet is Ready", seconds=300, every=1.0)
            await services.ask("settled")
            await quiet.wait()
            await quiet.begin()
            await fleet.patch(f"{SETS}/web", {"metadata": {"annotations": {"example.org/touched": "1"}}})
            rows = await _no_op_rows(
                "example's set touched, with inject and git", services, quiet, reported=0
            )
        return [*rows, *await _restart_rows(fleet, quiet, f"{EXAMPLE_VARIANTS} drafts in git", *SERVICES)]


async def _no_op_rows(
    what: str, services: Child, quiet: Quiet, *, reported: int, specs: int = 0, porch: str = ""
) -> list[Row]:
    """reported: writes of the set's own status, and records of its roll-up, that there must be; each comes
    with an event of each condition, and that event as the last one. specs: writes of its history."""
    await asyncio.sleep(QUIET_SECONDS)
    await services.ask("settled")
    await asyncio.sleep(QUIET_SECONDS)
    writes, records = await quiet.writes(own=1), await quiet.records()
    own = records.pop("pvbus.sets", 0)
    return [
        Row(
            "noop", f"{what}: API writes besides it", writes, "writes", reported + specs, "equal", porch=porch
        ),
        Row(
            *("noop", f"{what}: bus records besides the set's own ({own}) {records or ''}".rstrip()),
            *(sum(records.values()), "records"),
            goal=reported * (1 + 2 * SET_CONDITIONS),
            better="equal",
        ),
    ]
