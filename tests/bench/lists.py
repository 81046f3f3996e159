"""What `pvbus get` of 100,000 targets takes: to count, to show one page, to watch, and to go on with a watch.

Each is a process of its own, which reads the bus from its beginning. A tenth of the fleet goes before: what
grows with the number of targets shows in the ratios.
"""

import asyncio
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.children import Used, use_of
from tests.bench.report import Row
from tests.bench.revisions import Process
from tests.e2e.cli.command import Running, running
from tests.tools.bustables import write_tables
from tests.tools.fleetrows import VARIANT, event, fleet

NAME = "lists"
COUNT = ("get", "targets", "-A", "--count-by", "region,state", "-o", "json")
PAGE = ("get", "targets", "-A", "--sort-by", "state", "--limit", "500", "-o", "json")
WATCH = ("get", "variants", "-A", "-o", "json", "--watch")
SUBJECT = "web-edge-africa-africa-00000"
MEMORY_GOAL_MB = 500.0
"""Of any list. What a person looks at from a laptop: 5 kB for each target."""


class Watched(NamedTuple):
    """What a watch took.

    seconds: until it shows a change: from the change, or from its start for one that goes on
    used: what the process used until then
    changes: how many changes it has shown
    token: goes on from there
    """

    seconds: float
    used: Used
    changes: int
    token: str


class Cost(NamedTuple):
    """What the lists of one fleet took. counted: the targets in all counts."""

    counted: int
    counting: Used
    page: Used
    watch: Watched
    resumed: Watched


def measure(folder: Path, variants: int) -> Cost:
    path, output = folder / f"bus-{variants}.db", folder / "output"
    _write_apart(path, variants)
    bus = ("--bus", f"sqlite:{path}")
    page = use_of(*PAGE, *bus, output=output)
    counting = use_of(*COUNT, *bus, output=output)
    counted = json.loads(output.read_text())["total"]
    with running(*WATCH, "--limit", "1", *bus, cwd=folder) as process:
        process.wait_for('"resume": ')
        watch = _shown(process, path, "True")
    _write_change(path, "False")
    resume = ("--resume", watch.token)
    began = time.perf_counter()
    with running(*WATCH, *resume, *bus, cwd=folder) as process:
        resumed = _measured(process, began)
    return Cost(counted, counting, page, watch, resumed)


def _write_apart(path: Path, variants: int) -> None:
    """Write a fleet in another process: Linux counts the memory of a parent as that of its children."""
    writing = multiprocessing.get_context("spawn").Process(target=_write_fleet, args=(path, variants))
    writing.start()
    writing.join()
    assert writing.exitcode == 0


def _write_fleet(path: Path, variants: int) -> None:
    write_tables(path, fleet(variants))


def _write_change(bus: Path, stalled: str) -> None:
    write_tables(bus, [event(VARIANT, f"default/{SUBJECT}", "Stalled", stalled, "NoMatch")])


def _shown(process: Running, bus: Path, stalled: str) -> Watched:
    _write_change(bus, stalled)
    return _measured(process, time.perf_counter())


def _measured(process: Running, began: float) -> Watched:
    """Wait for a change in the output of a watch, and end it. began: of the seconds that are counted"""
    process.wait_for('{"type": ')
    seconds = time.perf_counter() - began
    watching = Process(process.process.pid)
    used = Used(seconds, watching.cpu_seconds(), watching.peak_bytes())
    process.end()
    changes = list(_changes(process.output))
    return Watched(seconds, used, len(changes), changes[-1]["resume"])


def _changes(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith('{"type": '):
            change = json.loads(line)
            assert change["object"]["name"] == SUBJECT, line
            yield change


def _rows(what: str, used: Used, fewer: Used, ratio: str) -> Iterator[Row]:
    yield Row(NAME, f"{what}: seconds", used.seconds, "s")
    cpu = used.cpu_seconds / fewer.cpu_seconds
    yield Row(NAME, f"{what}: CPU", used.cpu_seconds, "s", None, "less", cpu, ratio)
    memory = used.peak_bytes / fewer.peak_bytes
    yield Row(
        NAME, f"{what}: peak memory", used.peak_bytes / 1e6, "MB", MEMORY_GOAL_MB, "less", memory, ratio
    )


async def lists(*, small: bool) -> list[Row]:
    few, many = (60, 120) if small else (10_000, 100_000)
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        first, second = [await asyncio.to_thread(measure, Path(name), count) for count in (few, many)]
    ratio = "that of half" if small else "that of a tenth"
    measured = {
        "count by region and state": (second.counting, first.counting),
        "a page of 500": (second.page, first.page),
        "watch": (second.watch.used, first.watch.used),
        "watch from a token": (second.resumed.used, first.resumed.used),
    }
    shown = second.watch.changes + second.resumed.changes
    return [
        Row(NAME, f"{many:,} targets: counted", second.counted, "targets", many, "equal"),
        Row(NAME, "changes shown, one of them missed before", shown, "records", 2, "equal"),
        *(row for what, pair in measured.items() for row in _rows(what, *pair, ratio)),
    ]
