"""The page of the fleet with 10,000 variants: until it is drawn, bytes, memory, from an event to the page.

`pvbus run web` and a headless Chromium are processes of their own; this process writes the rows of services.
The page itself notes when it is drawn, and when what an event changes is in the document. A fleet of 100 goes
before: what grows with the number of variants shows in the ratios.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.bench.children import share
from tests.bench.report import Row
from tests.bench.revisions import Process
from tests.e2e.cli.command import Running, running
from tests.tools.browser import Browser, browser
from tests.tools.bustables import write_tables
from tests.tools.fleetrows import VARIANT, event, fleet

NAME = "page"
SECONDS_GOAL = 1.0
VARIANT_NAME = "default/web-edge-africa-africa-00000"
LOADED = """
const [navigation] = performance.getEntriesByType("navigation");
const resources = performance.getEntriesByType("resource");
const drawn = performance.getEntriesByName("fleet drawn");
const painted = performance.getEntriesByName("first-contentful-paint");
if (!drawn.length || !painted.length) return null;
const bytes = [navigation, ...resources].reduce((sum, each) => sum + each.transferSize, 0);
return [painted[0].startTime, drawn[0].startTime, bytes];
"""
NOTING = """
const legend = document.querySelector(".legend");
const stalled = () => [...legend.querySelectorAll("button")].map((each) => each.textContent)
  .filter((text) => text.startsWith("stalled")).join();
let before = stalled();
window.changedAt = [];
new MutationObserver(() => {
  const now = stalled();
  if (now !== before) window.changedAt.push(Date.now());
  before = now;
}).observe(legend, { subtree: true, childList: true, characterData: true });
"""
"""Has the page note the times at which the number of stalled variants changes in it."""


class Opened(NamedTuple):
    """One load of the page without a cache. Milliseconds after the navigation began."""

    painted: float
    drawn: float
    bytes: int


class Cost(NamedTuple):
    """loads: of the page. events: milliseconds from a record's write to the document, in order. memory: of
    the server, heap: of the page's script, in bytes."""

    loads: list[Opened]
    events: list[float]
    memory: int
    heap: float

    @property
    def drawn(self) -> float:
        return statistics.median(each.drawn for each in self.loads)

    @property
    def painted(self) -> float:
        return statistics.median(each.painted for each in self.loads)

    @property
    def shown(self) -> float:
        return statistics.median(self.events)


def _load(shown: Browser, url: str) -> Opened:
    shown.open("about:blank")
    shown.open(url)
    return Opened(*shown.until(lambda: shown.run(LOADED), "the fleet is drawn"))


def _events(shown: Browser, bus: Path, count: int) -> Iterator[float]:
    """Let one variant stall, and be ready again, in turn; yield how long the page takes to show it."""
    shown.run(NOTING)
    for number in range(count):
        status, reason = ("True", "NoMatch") if number % 2 == 0 else ("False", "Valid")
        began = time.time()
        write_tables(bus, [event(VARIANT, VARIANT_NAME, "Stalled", status, reason)])
        shown.until(lambda: shown.run("return changedAt.length") > number, "the page shows an event")  # noqa: B023
        yield float(shown.run("return changedAt.at(-1)")) - 1000 * began


def _sign_in(shown: Browser, server: Running) -> str:
    """Open the address with its token, for the cookie; return the address without it."""
    address = server.wait_for("web page: ").partition("web page: ")[2].strip()
    shown.open(address)
    url = address.partition("?")[0]
    shown.until(lambda: shown.run("return performance.getEntriesByName('fleet drawn').length"), "the fleet")
    return url


def measure(folder: Path, shown: Browser, variants: int, loads: int, events: int) -> Cost:
    bus = folder / f"bus-{variants}.db"
    write_tables(bus, fleet(variants))
    with running("run", "web", "--bus", f"sqlite:{bus}", cwd=folder) as server:
        url = _sign_in(shown, server)
        opened = [_load(shown, url) for _ in range(loads)]
        took = list(_events(shown, bus, events))
        shown.tool("Performance.enable")
        found = {each["name"]: each["value"] for each in shown.tool("Performance.getMetrics")["metrics"]}
        cost = Cost(opened, took, Process(server.process.pid).resident_bytes(), found["JSHeapUsedSize"])
        assert server.end() == 0, server.output
        return cost


def _measured(*, small: bool) -> tuple[Cost, Cost, int, float]:
    few, many, loads, events = (60, 120, 1, 2) if small else (100, 10_000, 7, 40)
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name, browser(Path(name)) as shown:
        shown.look()
        shown.tool("Network.enable")
        shown.tool("Network.setCacheDisabled", cacheDisabled=True)
        load = os.getloadavg()[0]
        costs = [measure(Path(name), shown, count, loads, events) for count in (few, many)]
        return costs[0], costs[1], many, load


async def page(*, small: bool) -> list[Row]:
    """Raises BrowserUnavailableError."""
    few, many, count, load = await asyncio.to_thread(_measured, small=small)
    what, ratio = f"page of {count:,} variants", "that of a hundredth" if not small else "that of half"
    shown = f"{what}: event to document"
    byte_counts = [each.bytes for each in many.loads]
    return [
        Row(
            *(NAME, f"{what}: first paint, median of {len(many.loads)}", many.painted / 1000, "s", None),
            *("less", many.painted / few.painted, ratio),
        ),
        Row(
            *(NAME, f"{what}: until all is drawn, median", many.drawn / 1000, "s", SECONDS_GOAL, "less"),
            *(many.drawn / few.drawn, ratio),
        ),
        Row(
            *(NAME, f"{what}: until all is drawn, worst", max(each.drawn for each in many.loads) / 1000),
            *("s", SECONDS_GOAL, "less"),
        ),
        Row(
            *(NAME, f"{what}: bytes over the wire", max(byte_counts) / 1000, "kB", None, "less"),
            *(max(byte_counts) / max(each.bytes for each in few.loads), ratio),
        ),
        Row(
            *(NAME, f"{shown}, median of {len(many.events)}", many.shown / 1000, "s", SECONDS_GOAL, "less"),
            *(many.shown / few.shown, ratio),
        ),
        Row(
            *(NAME, f"{shown}, 95 % below", share(many.events, 0.95) / 1000, "s", SECONDS_GOAL, "less"),
        ),
        Row(NAME, f"{what}: events shown", len(many.events), "records", len(few.events), "equal"),
        Row(
            *(NAME, f"{what}: memory of pvbus run web", many.memory / 1e6, "MB", None, "less"),
            *(many.memory / few.memory, ratio),
        ),
        Row(
            NAME,
            f"{what}: heap of its script",
            many.heap / 1e6,
            "MB",
            None,
            "less",
            many.heap / few.heap,
            ratio,
        ),
        Row(NAME, "load average before", load, ""),
    ]
