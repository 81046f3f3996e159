"""10,000 drafts of one repository become ready at once, and are proposed, each exactly once.

API server and package store are one process, ingest another, promote and release a third. A
PackageSpecializer that nobody answers for keeps all drafts closed; its deletion makes all of them ready in
one write. Who counts is a watch of the API server by a plain client, and git.

The ceiling is the same change of lifecycle by a plain client that has all objects in memory and reads
nothing, on some of the same drafts and the same server, before any service runs.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.core.api.promotion import PROMOTION_API, PROMOTION_GROUP
from pvbus.core.api.variants import VARIANT_API
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, PROPOSED_CONTENT
from tests.bench import gitfleet
from tests.bench.children import eventually
from tests.bench.fleet import REPOSITORIES, REVISIONS, VARIANTS, Fleet, repository
from tests.bench.report import Row
from tests.bench.revisions import Process

NAME = "proposals"
SECONDS_MAX = 600.0
SECONDS_GOAL = 30.0
IN_FLIGHT = 64
"""As many as the services have."""
SPECIALIZERS = f"/apis/{PROMOTION_GROUP}/v1alpha1/namespaces/default/packagespecializers"
SPECIALIZER: dict[str, Any] = {
    "apiVersion": PROMOTION_API,
    "kind": "PackageSpecializer",
    "metadata": {"name": "addresses", "namespace": "default"},
    "spec": {"deadlineSeconds": 600, "afterDeadline": "Closed"},
}


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


class Changes:
    """The changes of lifecycle of all package revisions, as a watch shows them."""

    def __init__(self) -> None:
        self.reached = Counter[tuple[str, str]]()
        self.last = time.perf_counter()
        self._known: dict[str, str] = {}

    def see(self, event: dict[str, Any]) -> None:
        obj = event["object"]
        name, lifecycle = obj["metadata"]["name"], obj["spec"]["lifecycle"]
        if event["type"] == "MODIFIED" and self._known.get(name, lifecycle) != lifecycle:
            self.reached[name, lifecycle] += 1
            self.last = time.perf_counter()
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

    task = asyncio.create_task(follow())
    try:
        yield changes
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Used(NamedTuple):
    """What a number of changes took: seconds, and CPU seconds of the store and of its git processes."""

    changes: int
    seconds: float
    own: float
    git: float

    def per_change(self, seconds: float) -> float:
        """Return milliseconds."""
        return 1000 * seconds / self.changes


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
    """Write the lifecycle of package revisions, with their digest as release does."""
    remaining = iter(objects)

    async def send() -> None:
        for obj in remaining:
            name, before = obj["metadata"]["name"], obj["metadata"].get("annotations") or {}
            noted = {PROPOSED_CONTENT: "0" * 32} if lifecycle == "Proposed" else {}
            retained = {key: text for key, text in before.items() if key != PROPOSED_CONTENT}
            body = {
                **obj,
                "metadata": {**obj["metadata"], "annotations": {**retained, **noted}},
                "spec": {**obj["spec"], "lifecycle": lifecycle},
            }
            async with fleet.http.put(f"{REVISIONS}/{name}", data=msgspec.json.encode(body)) as reply:
                if reply.status != 200:
                    raise RuntimeError(f"PUT {name}: {reply.status} {await reply.text()}")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(send())


async def bare(fleet: Fleet, store: Process, lifecycle: str, count: int, clients: int) -> Used:
    """Move so many drafts, or proposals, by a plain client."""
    items = (await fleet.get(REVISIONS))["items"]
    objects = [obj for obj in items if obj["spec"]["lifecycle"] != lifecycle][:count]
    meter = Meter(store)
    await put_all(fleet, objects, lifecycle, clients)
    return meter.used(len(objects))


class Found(NamedTuple):
    """alone: of the plain client, one request at a time; together: with IN_FLIGHT. proposed: of the services.
    services: their CPU seconds. git: refs of proposals and of drafts at the end. most: see `Changes`."""

    alone: Used
    together: Used
    proposed: Used
    ingest: float
    services: float
    most: int
    proposals: int
    drafts: int
    load: tuple[float, ...]


async def _proposed(fleet: Fleet, store: Process, count: int) -> tuple[Used, float, float, int]:
    async with (
        fleet.services("ingest") as ingest,
        fleet.services("promote", "release") as services,
        observing(fleet) as changes,
    ):
        for child in (ingest, services):
            await child.ask("settled")
        assert not changes.reached  # the barrier holds
        before = [await child.ask("usage") for child in (ingest, services)]
        meter = Meter(store)
        async with fleet.http.delete(f"{SPECIALIZERS}/addresses") as reply:
            assert reply.status == 200, await reply.text()
        await changes.wait("Proposed", count)
        used = meter.used(count, changes.last)
        after = [await child.ask("usage") for child in (ingest, services)]
        for child in (ingest, services):  # nothing comes late
            await child.ask("settled")
        cpu = [late["cpuSeconds"] - early["cpuSeconds"] for early, late in zip(before, after, strict=True)]
        return used, cpu[0], cpu[1], changes.most()


async def measure(folder: Path, count: int, alone: int, together: int) -> Found:
    """alone, together: how many of the drafts the plain client moves, one at a time and IN_FLIGHT at once."""
    remote = folder / "deploy.git"
    gitfleet.make_drafts(remote, count)
    async with ControlPlaneProcess(folder / "data", 0) as process:
        store, fleet = Process(process.pid), Fleet(folder, process.address.kubeconfig)
        async with fleet.http:
            await fleet.post(REPOSITORIES, repository("deploy", str(remote)))
            await fleet.wait_count(REVISIONS, count)
            remaining = iter(range(count))

            async def make() -> None:
                for number in remaining:
                    await make_variant(fleet, number)

            async with asyncio.TaskGroup() as tasks:
                for _ in range(IN_FLIGHT):
                    tasks.create_task(make())
            by_one = await bare(fleet, store, "Proposed", alone, 1)
            by_many = await bare(fleet, store, "Proposed", together, IN_FLIGHT)
            await bare(fleet, store, "Draft", alone + together, IN_FLIGHT)
            await fleet.post(SPECIALIZERS, SPECIALIZER)
            load = os.getloadavg()
            proposed, ingest, services, most = await _proposed(fleet, store, count)
    refs = gitfleet.git(remote, "for-each-ref", "--format=%(refname)").splitlines()
    kinds = Counter(ref.split("/")[2] for ref in refs)
    return Found(by_one, by_many, proposed, ingest, services, most, kinds["proposed"], kinds["drafts"], load)


async def proposals(*, small: bool) -> list[Row]:
    """Time until all are proposed, exactness, and CPU, against a plain client."""
    count, alone, together = (60, 5, 20) if small else (10_000, 300, 2_000)
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        found = await measure(Path(name), count, alone, together)
    return rows_of(found, count)


def rows_of(measured: Found, count: int) -> list[Row]:
    what = f"{count:,} drafts become ready at once"
    by_one, together, proposed = measured.alone, measured.together, measured.proposed
    ceiling = together.changes / together.seconds
    return [
        Row(
            *(NAME, f"{what}: until all are proposed", proposed.seconds, "s", SECONDS_GOAL, "less"),
            *(proposed.seconds * ceiling / count, f"a plain client's, {IN_FLIGHT} in flight"),
        ),
        Row(NAME, "revisions that became Proposed, by git", measured.proposals, "proposals", count, "equal"),
        Row(NAME, "drafts left, by git", measured.drafts, "drafts", 0, "equal"),
        Row(NAME, "most times that one became Proposed, by a watch", measured.most, "moves", 1, "equal"),
        Row(NAME, "promote and release: CPU per proposal", proposed.per_change(measured.services), "ms"),
        Row(NAME, "ingest: CPU per proposal", proposed.per_change(measured.ingest), "ms"),
        Row(
            *(
                NAME,
                "API server and store: CPU per proposal",
                proposed.per_change(proposed.own),
                "ms",
                None,
                "less",
            ),
            *(proposed.own / proposed.changes / (together.own / together.changes), "a plain client's"),
        ),
        Row(NAME, "git processes: CPU per proposal", proposed.per_change(proposed.git), "ms"),
        Row(NAME, f"plain client, {IN_FLIGHT} in flight: changes/s", ceiling, "1/s"),
        Row(NAME, "plain client: store's CPU per change", together.per_change(together.own), "ms"),
        Row(NAME, "plain client: git's CPU per change", together.per_change(together.git), "ms"),
        Row(NAME, "plain client, one at a time: changes/s", by_one.changes / by_one.seconds, "1/s"),
        Row(NAME, "load average before", measured.load[0], ""),
    ]
