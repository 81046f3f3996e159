"""Packages that depend on each other, on the embedded API server: ingest, resolve and establish.

Each service is a process of its own, the bus is a file, and the registry is in memory
(`tests.bench.packagecatalog`). Beside it the decision of resolve alone (`tests.bench.lockdecisions`), and the
order of Crossplane, counted from its rule.
"""

import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from pvbus.install.packagekinds import crossplane_crds, packaging_crds
from tests.bench import packagecatalog as catalog
from tests.bench.children import Child, eventually
from tests.bench.fleet import Fleet, bus_ends, records_since
from tests.bench.lockdecisions import Decided
from tests.bench.lockdecisions import measure as measure_decisions
from tests.bench.report import Row

NAME = "packages"
SERVICES = ("ingest", "resolve", "establish")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
INSTALLS = "/apis/pkg.crossplane.io/v1/configurations"
SECONDS_MAX = 1_200.0
CHANGES = 5

Counts = dict[str, float]


def is_healthy(obj: dict[str, Any]) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Healthy" and each["status"] == "True" for each in conditions)


class Installer:
    """A fleet with the three services."""

    def __init__(self, fleet: Fleet, count: int) -> None:
        self.fleet = fleet
        self.count = count
        self.children: dict[str, Child] = {}

    async def start(self, stack: AsyncExitStack, *names: str) -> None:
        for name in names:
            child = Child(
                *("tests.bench.services", str(self.fleet.kubeconfig), self.fleet.bus, name),
                *("--packages", str(self.count)),
            )
            self.children[name] = await stack.enter_async_context(child)

    async def settled(self) -> None:
        """Wait until all are, one after the other: no later one has given work to an earlier one."""
        before = None
        while before != (before := await self.writes()):
            for child in self.children.values():
                await child.ask("settled")

    async def cpu(self) -> Counts:
        return {name: (await child.ask("usage"))["cpuSeconds"] for name, child in self.children.items()}

    async def writes(self) -> Counter[str]:
        found = Counter[str]()
        for child in self.children.values():
            found.update(await child.ask("writes"))
        return found

    async def solves(self) -> int:
        return int((await self.children["resolve"].ask("counts"))["solves"])

    async def wait_healthy(self) -> None:
        async def all_are() -> bool:
            if await self.fleet.count(INSTALLS) < self.count:
                return False
            items = (await self.fleet.get(INSTALLS))["items"]
            return sum(map(is_healthy, items)) >= self.count

        await eventually(all_are, "all are healthy", seconds=SECONDS_MAX, every=0.5)


class Installed(NamedTuple):
    """cpu: seconds by service. solves: of components."""

    seconds: float
    cpu: Counts
    writes: Counter[str]
    solves: int


async def install_all(installer: Installer) -> Installed:
    """Install all packages: users make the roots, the rest follows."""
    await installer.settled()
    before, already = await installer.cpu(), await installer.writes()
    began = time.perf_counter()
    await installer.fleet.post_all(INSTALLS, map(catalog.install, catalog.roots(installer.count)))
    await installer.wait_healthy()
    seconds = time.perf_counter() - began
    await installer.settled()
    after = await installer.cpu()
    cpu = {name: after[name] - before[name] for name in SERVICES}
    return Installed(seconds, cpu, await installer.writes() - already, await installer.solves())


async def upgrade_one(installer: Installer) -> Installed:
    """Give one install another tag; wait until the revision of that content is active and established."""
    number = catalog.roots(installer.count)[0]
    digest = catalog.content(number, catalog.NEXT_TAG, installer.count).digest
    revision = f"p{number:05}-{digest.partition(':')[2][:12]}"
    path = f"{INSTALLS}/p{number:05}"
    before, already, solved = await installer.cpu(), await installer.writes(), await installer.solves()
    began = time.perf_counter()
    await installer.fleet.patch(path, {"spec": {"package": f"{catalog.source(number)}:{catalog.NEXT_TAG}"}})

    async def is_active() -> bool:
        obj = await installer.fleet.get(path)
        return is_healthy(obj) and obj["status"].get("currentRevision") == revision

    await eventually(is_active, f"{revision} is active", seconds=SECONDS_MAX, every=0.02)
    seconds = time.perf_counter() - began
    await installer.settled()
    after = await installer.cpu()
    cpu = {name: after[name] - before[name] for name in SERVICES}
    return Installed(seconds, cpu, await installer.writes() - already, await installer.solves() - solved)


async def restart_services(installer: Installer) -> Installed:
    """Start resolve and establish again; wait until nothing is left to do. writes: also those of records."""
    path = Path(installer.fleet.bus.partition(":")[2])
    for name in SERVICES[1:]:
        await installer.children.pop(name).__aexit__(None, None, None)
    already, records = await installer.writes(), await bus_ends(path)
    began = time.perf_counter()
    async with AsyncExitStack() as stack:
        await installer.start(stack, *SERVICES[1:])
        await installer.settled()
        seconds = time.perf_counter() - began
        writes = await installer.writes() - already
        for topic, count in records_since(records, await bus_ends(path)).items():
            if topic in ("pvbus.lock", "pvbus.established", "pvbus.sources"):
                writes[f"record {topic}"] += count
        return Installed(seconds, await installer.cpu(), writes, await installer.solves())


async def packages(*, small: bool) -> list[Row]:
    """Time, CPU and writes of installing, of one new version and of a restart, and decisions alone."""
    count = 40 if small else 1_000
    sizes = (40, 80) if small else (100, 1_000, 10_000)
    async with Fleet.started() as fleet, AsyncExitStack() as stack:
        for each in (*packaging_crds(), *crossplane_crds()):
            await fleet.post(CRDS, each)
        installer = Installer(fleet, count)
        await installer.start(stack, *SERVICES)
        rows = rows_of_install(await install_all(installer), count)
        rows += rows_of_upgrade(await upgrade_one(installer), count)
        rows += rows_of_restart(await restart_services(installer), count)
    for size in sizes:
        roots = catalog.roots(size)
        rows += rows_of_decision(measure_decisions(size, roots[:: max(1, len(roots) // CHANGES)][:CHANGES]))
    return rows


def rows_of_writes(what: str, writes: Counter[str]) -> list[Row]:
    """Return writes by verb and kind; a check is a dry run, which stores nothing."""
    return [
        Row(NAME, f"{what}: {name}", number, "dry runs" if name.startswith("check ") else "API writes")
        for name, number in sorted(writes.items())
    ]


def rows_of_install(measured: Installed, count: int) -> list[Row]:
    what, made = f"{count:,} packages installed together", len(catalog.roots(count))
    other = catalog.one_by_one(count)
    objects = count * catalog.OBJECTS
    once = objects + count + (count - made)
    creates = sum(number for name, number in measured.writes.items() if name.startswith("create "))
    creates -= measured.writes["create PackageLock"]
    written = sum(number for name, number in measured.writes.items() if not name.startswith("check "))
    rows = [
        Row(NAME, f"{what}: until all are healthy", measured.seconds, "s"),
        Row(NAME, f"{what}: objects created", creates, "writes", once, "equal", creates / once, "each once"),
        Row(
            NAME,
            f"{what}: all writes",
            written,
            "API writes",
            None,
            "less",
            written / once,
            "each object once",
        ),
        Row(NAME, f"{what}: components solved", measured.solves, "solves"),
    ]
    rows += rows_of_writes(what, measured.writes)
    rows += [
        Row(NAME, f"{what}: {name}, per package", 1000 * cpu / count, "ms CPU")
        for name, cpu in measured.cpu.items()
    ]
    rows.append(Row(NAME, f"{what} in Crossplane's order, by its rule: passes", other.passes, "passes"))
    rows.append(Row(NAME, f"{what} in Crossplane's order: packages looked at", other.looked_at, "packages"))
    return rows


def rows_of_upgrade(found: Installed, count: int) -> list[Row]:
    what = f"a new version of one of {count:,} packages"
    written = sum(number for name, number in found.writes.items() if not name.startswith("check "))
    rows = [
        Row(NAME, f"{what}: until it is active and established", found.seconds * 1000, "ms"),
        Row(NAME, f"{what}: components solved", found.solves, "solves"),
        Row(NAME, f"{what}: all writes", written, "API writes"),
    ]
    rows += [Row(NAME, f"{what}: {name}", 1000 * cpu, "ms CPU") for name, cpu in found.cpu.items()]
    rows += rows_of_writes(what, found.writes)
    return rows


def rows_of_restart(found: Installed, count: int) -> list[Row]:
    what = f"restart of resolve and establish at {count:,} packages"
    rows = [
        Row(NAME, f"{what}: until they are quiet", found.seconds, "s"),
        Row(NAME, f"{what}: writes", sum(found.writes.values()), "writes", 0, "equal"),
        Row(NAME, f"{what}: components solved", found.solves, "solves"),
    ]
    rows += [Row(NAME, f"{what}: {name}", found.cpu[name], "s CPU") for name in SERVICES[1:]]
    rows += rows_of_writes(what, found.writes)
    return rows


def rows_of_decision(found: Decided) -> list[Row]:
    what = f"resolve alone, {found.installs:,} installs"
    return [
        Row(NAME, f"{what}: until all are locked", found.first, "s CPU"),
        Row(NAME, f"{what}: a decision after one tag was moved", 1000 * found.change, "ms CPU"),
        Row(NAME, f"{what}: a decision that changes nothing", 1000 * found.unchanged, "ms CPU"),
        Row(NAME, f"{what}: changes of the lock", 1 / found.change, "changes per CPU second"),
        Row(NAME, f"{what}: rows that one tag changes", found.rows, "rows", 1, "equal"),
        Row(NAME, f"{what}: memory per install", found.bytes / 1000, "kB"),
    ]
