"""Package revisions of many variants in one repository: made as drafts, moved from one lifecycle to the next,
and counted.

API server and package store are one process. Who counts is a watch of the API server by a plain client, and
git. A plain client that has all objects in memory and reads nothing moves them as fast as the store can.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.core.api.variants import VARIANT_API
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, PROPOSED_CONTENT
from tests.bench import gitfleet
from tests.bench.children import Child, cpu_of, eventually, running_beside
from tests.bench.fleet import REPOSITORIES, REVISIONS, VARIANTS, Fleet, repository
from tests.bench.report import Row
from tests.bench.revisions import Process

SECONDS_MAX = 600.0
IN_FLIGHT = 64
"""As many as the services have."""


def draft_name(number: int) -> str:
    return f"deploy.{gitfleet.package_name(number)}.packagevariant-1"


def variant(number: int) -> dict[str, Any]:
    return {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "metadata": {
            "name": gitfleet.package_name(number),
            "namespace": "default",
            "annotations": {AUTO_LIFECYCLE: "true"},
        },
        "spec": {
            "upstream": {"repo": "blueprints", "package": "app", "revision": 1},
            "downstream": {"repo": "deploy", "package": gitfleet.package_name(number)},
        },
    }


STATUS = {"type": "Ready", "status": "True", "reason": "NoErrors", "message": "", "observedGeneration": 1}
"""What inject and conditions would report, which do not run here."""


async def make_variant(fleet: Fleet, number: int) -> None:
    """Make a PackageVariant that is ready, and the owner of its draft."""
    made = await fleet.post(VARIANTS, variant(number))
    condition = {**STATUS, "lastTransitionTime": made["metadata"]["creationTimestamp"]}
    status = {"conditions": [condition], "downstreamTargets": [{"name": draft_name(number)}]}
    await fleet.patch(f"{VARIANTS}/{made['metadata']['name']}/status", {"status": status})
    owner = {
        "apiVersion": VARIANT_API,
        "kind": "PackageVariant",
        "name": made["metadata"]["name"],
        "uid": made["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    await fleet.patch(f"{REVISIONS}/{draft_name(number)}", {"metadata": {"ownerReferences": [owner]}})


@asynccontextmanager
async def store_of_drafts(folder: Path, count: int) -> AsyncIterator[tuple[Fleet, Process]]:
    """Start API server and package store over `deploy.git` in a folder, which is made with so many drafts."""
    remote = folder / "deploy.git"
    gitfleet.make_drafts(remote, count)
    async with ControlPlaneProcess(folder / "data", 0) as process:
        fleet = Fleet(folder, process.address.kubeconfig)
        async with fleet.http:
            await fleet.post(REPOSITORIES, repository("deploy", str(remote)))
            await fleet.wait_count(REVISIONS, count)
            yield fleet, Process(process.pid)


async def make_variants(fleet: Fleet, numbers: Iterable[int]) -> None:
    """Make PackageVariants that are ready, the owners of their drafts."""
    remaining = iter(numbers)

    async def make() -> None:
        for number in remaining:
            await make_variant(fleet, number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(make())


class Changes:
    """The changes of lifecycle of all package revisions, as a watch shows them.

    reached: how often a revision got to a lifecycle, by their names
    seconds: when it last did, on the clock of `time.perf_counter`
    last: when the last revision got to one
    """

    def __init__(self) -> None:
        self.reached = Counter[tuple[str, str]]()
        self.seconds: dict[tuple[str, str], float] = {}
        self.last = time.perf_counter()
        self._known: dict[str, str] = {}

    def see(self, event: dict[str, Any]) -> None:
        obj = event["object"]
        name, lifecycle = obj["metadata"]["name"], obj["spec"]["lifecycle"]
        if event["type"] == "MODIFIED" and self._known.get(name, lifecycle) != lifecycle:
            self.reached[name, lifecycle] += 1
            self.last = self.seconds[name, lifecycle] = time.perf_counter()
        self._known[name] = lifecycle

    def count(self, lifecycle: str) -> int:
        """Return how many revisions have got to a lifecycle."""
        return sum(each == lifecycle for _, each in self.reached)

    def most(self) -> int:
        """Return how often one revision got to one lifecycle, of all the highest number."""
        return max(self.reached.values(), default=0)

    async def wait(self, lifecycle: str, count: int) -> None:
        async def reached() -> bool:
            return self.count(lifecycle) >= count

        await eventually(reached, f"{count} are {lifecycle}", seconds=SECONDS_MAX)


@asynccontextmanager
async def observing(fleet: Fleet) -> AsyncIterator[Changes]:
    """Watch all package revisions from their present state on."""
    changes = Changes()
    listed = await fleet.get(REVISIONS)
    for obj in listed["items"]:
        changes.see({"type": "ADDED", "object": obj})

    async def follow() -> None:
        url = f"{REVISIONS}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with fleet.http.get(url, timeout=timeout) as events:
            async for line in events.content:
                changes.see(msgspec.json.decode(line))

    async with running_beside(follow()):
        yield changes


class Used(NamedTuple):
    """What a number of changes took: seconds, and CPU seconds of the store and of its git processes."""

    changes: int
    seconds: float
    own: float
    git: float

    def per_change(self, seconds: float) -> float:
        """Return milliseconds."""
        return 1000 * seconds / self.changes

    @property
    def per_second(self) -> float:
        """Return how many changes there were in a second."""
        return self.changes / self.seconds


def sum_of(*used: Used) -> Used:
    """Return what changes took that were measured apart from each other."""
    return Used(
        sum(each.changes for each in used),
        sum(each.seconds for each in used),
        sum(each.own for each in used),
        sum(each.git for each in used),
    )


class Meter:
    """Measures the store from its making on."""

    def __init__(self, store: Process) -> None:
        self._store = store
        self._began = time.perf_counter()
        self._own, self._git = store.own_seconds(), store.git_seconds()

    def used(self, changes: int, until: float | None = None) -> Used:
        seconds = (until or time.perf_counter()) - self._began
        return Used(
            changes, seconds, self._store.own_seconds() - self._own, self._store.git_seconds() - self._git
        )


async def put_all(fleet: Fleet, objects: Iterable[dict[str, Any]], lifecycle: str, clients: int) -> None:
    """Write the lifecycle of package revisions. A proposal gets a digest, as from release, but of nothing."""
    remaining = iter(objects)
    part = "/approval" if lifecycle == "Published" else ""

    async def send() -> None:
        for obj in remaining:
            name, notes = obj["metadata"]["name"], obj["metadata"].get("annotations") or {}
            if lifecycle == "Proposed":
                notes = {**notes, PROPOSED_CONTENT: "0" * 32}
            elif lifecycle == "Draft":
                notes = {key: text for key, text in notes.items() if key != PROPOSED_CONTENT}
            body = {
                **obj,
                "metadata": {**obj["metadata"], "annotations": notes},
                "spec": {**obj["spec"], "lifecycle": lifecycle},
            }
            async with fleet.http.put(f"{REVISIONS}/{name}{part}", data=msgspec.json.encode(body)) as reply:
                if reply.status != 200:
                    raise RuntimeError(f"PUT {name}{part}: {reply.status} {await reply.text()}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(send())


async def move_bare(
    fleet: Fleet, store: Process, numbers: Iterable[int], lifecycle: str, *, clients: int = IN_FLIGHT
) -> Used:
    """Move the revisions of these packages by a plain client. clients: how many requests it has in flight."""
    names = {draft_name(number) for number in numbers}
    objects = [obj for obj in (await fleet.get(REVISIONS))["items"] if obj["metadata"]["name"] in names]
    meter = Meter(store)
    await put_all(fleet, objects, lifecycle, clients)
    return meter.used(len(objects))


class Moved(NamedTuple):
    """What the services took to move revisions.

    used: until a watch has shown the last one
    ingest, services: their CPU seconds
    """

    used: Used
    ingest: float
    services: float


async def move_by_services(
    store: Process,
    children: tuple[Child, Child],
    changes: Changes,
    begin: Callable[[], Awaitable[object]],
    lifecycle: str,
    count: int,
) -> Moved:
    """Measure how the services move so many revisions to a lifecycle.

    children: ingest, and the others; nothing is left for them to do before and after
    begin: gives them the work
    """
    for child in children:
        await child.ask("settled")
    assert not changes.count(lifecycle)
    before = await cpu_of(children)
    meter = Meter(store)
    await begin()
    await changes.wait(lifecycle, count)
    used = meter.used(count, changes.last)
    after = await cpu_of(children)
    for child in children:  # nothing comes late
        await child.ask("settled")
    return Moved(used, after[0] - before[0], after[1] - before[1])


def refs_of(folder: Path) -> dict[str, list[str]]:
    """Return the packages of all `drafts`, `proposed` and `tags`, one for each ref in `deploy.git`."""
    names: dict[str, list[str]] = {"drafts": [], "proposed": [], "tags": []}
    for ref in gitfleet.git(folder / "deploy.git", "for-each-ref", "--format=%(refname)").splitlines():
        parts = ref.removeprefix("refs/").removeprefix("heads/").split("/")
        if parts[0] in names:
            names[parts[0]].append(parts[1])
    return names


def cost_rows(scenario: str, change: str, services: str, moved: Moved, bare: Used) -> list[Row]:
    """Return the CPU of each process, and what a plain client takes. change: one of them, as a noun."""
    used = moved.used
    per = f"CPU per {change}"
    return [
        Row(scenario, f"{services}: {per}", used.per_change(moved.services), "ms"),
        Row(scenario, f"ingest: {per}", used.per_change(moved.ingest), "ms"),
        Row(
            *(scenario, f"API server and store: {per}", used.per_change(used.own), "ms", None, "less"),
            *(used.per_change(used.own) / bare.per_change(bare.own), "a plain client's"),
        ),
        Row(scenario, f"git processes: {per}", used.per_change(used.git), "ms"),
        Row(scenario, f"plain client, {IN_FLIGHT} in flight: {change}s/s", bare.per_second, "1/s"),
        Row(scenario, f"plain client: store's {per}", bare.per_change(bare.own), "ms"),
        Row(scenario, f"plain client: git's {per}", bare.per_change(bare.git), "ms"),
    ]
