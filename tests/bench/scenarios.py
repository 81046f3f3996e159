"""The scenarios of one set at an API server: ceiling and fan-out, no-op."""

import asyncio
import tempfile
import time
from typing import Any

from tests.bench import apiserver
from tests.bench.children import Child
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

QUIET_SECONDS = 1.5  # longer than a set's roll-up and the poll of the bus by another process
TIERS = ("gold", "silver", "bronze")


def fleet_target(number: int) -> dict[str, Any]:
    return target(number, {"env": "prod", "region": f"r{number % 7}", "tier": TIERS[number % 3]})


async def fan_out(fleet: Fleet, services: Child, count: int) -> dict[str, float]:
    """Make one set over `count` targets; return seconds until all variants are there, and what it took."""
    before, served = await services.ask("usage"), await fleet.server_cpu_seconds()
    await fleet.post(SETS, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS))
    seconds = await fleet.wait_count(VARIANTS, count)
    served = await fleet.server_cpu_seconds() - served
    await services.ask("settled")
    after = await services.ask("usage")
    return {
        "seconds": seconds,
        "cpuSeconds": after["cpuSeconds"] - before["cpuSeconds"],
        "serverCpuSeconds": served,
        "residentBytes": after["residentBytes"],
        "compilations": (await services.ask("counts"))["compilations"],
    }


async def ceiling(*, small: bool) -> list[Row]:
    """Creates per second of the API server alone, then a fan-out against that."""
    count, creates, runs = (300, 300, 1) if small else (10_000, 5_000, 3)
    best = {"creates_per_second": 0.0}
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as data:
            measured = await apiserver.measure(data, creates, 32)
        best = max(best, measured, key=lambda one: one["creates_per_second"])
    name = "ceiling"
    rows = [
        Row(
            *(
                name,
                "creates/s, validation, durable, a watcher",
                best["creates_per_second"],
                "1/s",
                900,
                "more",
            ),
            porch="938 creates/s (kube-apiserver)",
        ),
        Row(name, "server CPU per create", best["server_cpu_ms_per_create"], "ms"),
    ]
    async with Fleet.started() as fleet:
        await fleet.post_all(TARGETS, map(fleet_target, range(count)))
        async with fleet.services() as services:
            await services.ask("settled")
            result = await fan_out(fleet, services, count)
    speed = count / result["seconds"]
    share_of_ceiling = speed / best["creates_per_second"]
    return [
        *rows,
        Row(
            *(name, f"fan-out: variants/s, one set, {count:,} targets", speed, "1/s", None, "more"),
            *(share_of_ceiling, "the ceiling", "304 variants/s"),
        ),
        Row(
            *(name, "fan-out, share of the ceiling", 100 * share_of_ceiling, "%", 60, "more"),
            porch="32 %",
        ),
        Row(
            *(name, "services' CPU per variant", 1000 * result["cpuSeconds"] / count, "ms", 1.4, "less"),
            *(1000 * result["cpuSeconds"] / count / 2.8, "Porch's", "2.8 ms"),
        ),
        Row(name, "compilations, of five expressions", result["compilations"], "", 5, "equal"),
        Row(name, "server CPU per variant", 1000 * result["serverCpuSeconds"] / count, "ms"),
        Row(name, "services' memory", result["residentBytes"] / 1e6, "MB"),
    ]


class Quiet:
    """What the API server and the bus count while something happens that should change nothing."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._version = 0
        self._ends: dict[tuple[str, int], int] = {}

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
            rows += await _no_op_rows(f"set of {count:,} touched", services, quiet, told=0, porch="10,001")
            await quiet.begin()
            selector = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "matchLabels": {"env": "prod"},
                "matchExpressions": [{"key": "env", "operator": "Exists"}],
            }
            same = [{"objectSelector": selector, "template": FIVE_EXPRESSIONS}]
            await fleet.patch(f"{SETS}/fleet", {"spec": {"targets": same}})
            # A new generation is told, as Kubernetes has it: one write of the set's status.
            rows += await _no_op_rows(f"set of {count:,} edited to mean the same", services, quiet, told=1)
        await quiet.begin()
        async with fleet.services() as services:
            ready = services.started_seconds
            settled = time.perf_counter()
            await services.ask("settled")
            settled = ready + time.perf_counter() - settled
            await asyncio.sleep(QUIET_SECONDS)
            used = (await services.ask("usage"))["cpuSeconds"]
        writes, records = await quiet.writes(), await quiet.records()
    return [
        *rows,
        Row("noop", "services restarted: API writes", writes, "writes", 0, "equal", porch="20,002"),
        Row(
            "noop",
            f"services restarted: bus records {records or ''}",
            sum(records.values()),
            "records",
            0,
            "equal",
        ),
        Row("noop", "services restarted: until ready, with the processes' start", ready, "s", 3, "less"),
        Row("noop", "services restarted: until nothing is left to do", settled, "s"),
        Row("noop", "services restarted: CPU", used, "s"),
    ]


async def _no_op_rows(what: str, services: Child, quiet: Quiet, *, told: int, porch: str = "") -> list[Row]:
    """told: writes of the set's own status, and records of its roll-up, that there must be."""
    await asyncio.sleep(QUIET_SECONDS)
    await services.ask("settled")
    await asyncio.sleep(QUIET_SECONDS)
    writes, records = await quiet.writes(own=1), await quiet.records()
    own = records.pop("pvbus.sets", 0)
    return [
        Row("noop", f"{what}: API writes besides it", writes, "writes", told, "equal", porch=porch),
        Row(
            *("noop", f"{what}: bus records besides the set's own ({own}) {records or ''}".rstrip()),
            *(sum(records.values()), "records"),
            goal=told,
            better="equal",
        ),
    ]
