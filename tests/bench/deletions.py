"""Thousands of sets that are deleted together, in virtual time: what each costs as they become more."""

import asyncio
import json
import sys

from tests.bench.report import Row

NAME = "deletions"
MODULE = "tests.simulation.mass_deletion"
COUNT_GROWTH_MAX = 1.1
"""Of the writes and records per set, which differ by a few in a hundred with the moment of each report."""
CPU_GROWTH_MAX = 2.0
"""Of the CPU per set, for ten times as many: a cost that is quadratic is ten times as high."""


async def deletions(*, small: bool) -> list[Row]:
    """Writes, records, CPU and memory per set, for some sets and for many."""
    few, many = (20, 60) if small else (1_000, 10_000)
    costs = {count: await _cost_of(count) for count in (few, many)}
    rows = []
    for unit in ("writes", "records"):
        each = {count: cost[unit] / count for count, cost in costs.items()}
        goal = each[few] * COUNT_GROWTH_MAX
        rows.append(Row(NAME, f"{unit} per set, of {many:,}", each[many], unit, goal, "less"))
    seconds = {count: cost["cpuSeconds"] / count * 1000 for count, cost in costs.items()}
    growth = seconds[many] / seconds[few]
    goal = seconds[few] * CPU_GROWTH_MAX
    name = f"CPU per set, of {many:,}"
    rows.append(Row(NAME, name, seconds[many], "ms", goal, "less", growth, f"that of {few:,}"))
    memory = {count: cost["residentBytes"] / count / 1000 for count, cost in costs.items()}
    return [*rows, Row(NAME, f"memory per set, of {many:,}", memory[many], "kB", memory[few], "less")]


async def _cost_of(count: int) -> dict[str, float]:
    """Play the story in a process of its own, and return what the deletion took."""
    command = (sys.executable, "-m", MODULE, str(count))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}"
    return dict(json.loads(output))
