"""A fleet on Kafka whose users make mistakes, and what its API server reports of that.

The services are a process each. Inject is not among them, so this one takes the finalizer off each
PackageVariant whose DELETE was accepted, as inject does once the package revisions are gone.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pvbus.cli.confirm import Held, read_held
from pvbus.cli.reading import read_rows
from pvbus.core.kernel.keys import CONFIRM_DELETION, Key
from pvbus.core.kernel.records import SETRESULTS, SetResult
from pvbus.ports.bus import Bus
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.settings import ServiceConfig
from tests.bench.children import eventually
from tests.bench.deployment import Deployment, fresh_bus
from tests.bench.fleet import CHAIN, FIVE_EXPRESSIONS, SETS, TARGETS, VARIANTS, Fleet, target, variant_set
from tests.tools.kafka import KafkaCluster
from tests.tools.pace import patience

CREATE_SECONDS_MAX = patience(60.0)


class Accident:
    """What users do to a fleet, and what came of it. Times are of the event loop.

    deleted: when the API server accepted the DELETE of a PackageVariant, by name. tokens: those that the
    condition DeletionHeld of each set showed, in order, with the time of the first sight.
    """

    def __init__(self, fleet: Fleet, services: Deployment, bus: Bus) -> None:
        self.deleted: dict[str, float] = {}
        self.tokens: dict[str, dict[str, float]] = {}
        self._held: dict[str, bool] = {}
        self._fleet = fleet
        self._services = services
        self._bus = bus
        self._targets = 0
        self._finishing: set[asyncio.Task[Any]] = set()

    # ------------------------------------------------------------ what users do

    async def add_targets(self, group: str, count: int) -> list[str]:
        """Create objects with the label group; return their names."""
        numbers = range(self._targets, self._targets + count)
        self._targets += count
        bodies = [target(n, {"group": group, "region": f"r{n % 7}", "tier": "gold"}) for n in numbers]
        await self._fleet.post_all(TARGETS, bodies)
        return [body["metadata"]["name"] for body in bodies]

    async def add_set(self, name: str, groups: Collection[str], count: int) -> dict[str, str]:
        """Create a set that selects groups; wait for its variants and return them as `variants` does."""
        body = variant_set(name, {}, FIVE_EXPRESSIONS)
        body["spec"]["targets"] = _targets(groups)
        await self._fleet.post(SETS, body)

        async def are_made() -> bool:
            return len(await self.variants(name)) >= count

        seconds = CREATE_SECONDS_MAX + count / 20
        await eventually(are_made, f"{count} variants of {name}", seconds=seconds, every=0.5)
        await self._services.settled()
        made = await self.variants(name)
        assert len(made) == count
        return made

    async def select(self, name: str, groups: Collection[str]) -> None:
        """Edit the selectors of a set."""
        await self._fleet.patch(f"{SETS}/{name}", {"spec": {"targets": _targets(groups)}})

    async def relabel(self, name: str, group: str) -> None:
        await self._fleet.patch(f"{TARGETS}/{name}", {"metadata": {"labels": {"group": group}}})

    async def relabel_all(self, names: Collection[str], group: str, *, per_second: float) -> None:
        """Mistype the label of one object after the other, at a steady rate."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for number, name in enumerate(names):
                await asyncio.sleep(began + number / per_second - loop.time())
                tasks.create_task(self.relabel(name, group))

    async def confirm(self, name: str, token: str) -> None:
        """Annotate a set as the message of its condition says."""
        await self._fleet.patch(f"{SETS}/{name}", {"metadata": {"annotations": {CONFIRM_DELETION: token}}})

    # ------------------------------------------------------------ what came of it

    async def variants(self, name: str) -> dict[str, str]:
        """Return the PackageVariants of a set that the API server has, and the target of each."""
        found = (await self._fleet.get(VARIANTS))["items"]
        return {
            one["metadata"]["name"]: one["spec"]["downstream"]["package"].removeprefix("app-")
            for one in found
            if one["metadata"]["ownerReferences"][0]["name"] == name
        }

    async def held(self, name: str) -> Held:
        """Return what the bus says is held of a set. Raises NothingHeldError."""
        return await read_held(self._bus, Key("default", name))

    async def result(self, name: str) -> SetResult:
        """Return the roll-up of a set on the bus."""
        rows = await read_rows(self._bus, SETRESULTS, key=f"default/{name}")
        return msgspec.json.decode(rows[f"default/{name}"], type=SetResult)

    def shows_hold(self, name: str) -> bool:
        """Whether the set has the condition DeletionHeld."""
        return self._held.get(name, False)

    async def until(
        self, condition: Callable[[], bool], what: str, *, may_go: Collection[str], seconds: float
    ) -> None:
        """Wait until a condition holds. No other PackageVariant than these may be deleted meanwhile."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.assert_deleted_among(may_go)
            assert time.monotonic() < deadline, f"still not so after {seconds:.0f} s: {what}"
            await asyncio.sleep(0.02)
        self.assert_deleted_among(may_go)

    def assert_deleted_among(self, may_go: Collection[str]) -> None:
        wrong = set(self.deleted).difference(may_go)
        assert not wrong, f"{len(wrong)} PackageVariants were deleted by mistake: {sorted(wrong)[:5]}"

    # ------------------------------------------------------------ watching

    def _see_set(self, event: dict[str, Any], now: float) -> None:
        obj = event["object"]
        name = obj["metadata"]["name"]
        conditions = {one["type"]: one for one in obj.get("status", {}).get("conditions", ())}
        shown = conditions.get("DeletionHeld")
        self._held[name] = shown is not None
        found = re.search(rf"{re.escape(CONFIRM_DELETION)}=(\w+)", shown["message"]) if shown else None
        if found is not None:
            self.tokens.setdefault(name, {}).setdefault(found[1], now)

    def _see_variant(self, event: dict[str, Any], now: float) -> None:
        metadata = event["object"]["metadata"]
        if event["type"] != "DELETED" and "deletionTimestamp" not in metadata:
            return
        self.deleted.setdefault(metadata["name"], now)
        if event["type"] != "DELETED" and metadata.get("finalizers"):
            path = f"{VARIANTS}/{metadata['name']}"
            task = asyncio.create_task(self._fleet.patch(path, {"metadata": {"finalizers": None}}))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)

    async def _watch(self, path: str, see: Callable[[dict[str, Any], float], None]) -> None:
        loop = asyncio.get_running_loop()
        version = (await self._fleet.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
        url = f"{path}?watch=1&resourceVersion={version}"
        async with self._fleet.http.get(url, timeout=aiohttp.ClientTimeout(total=None)) as events:
            async for line in events.content:
                see(msgspec.json.decode(line), loop.time())

    def watches(self) -> list["asyncio.Task[None]"]:
        """Begin to follow the API server."""
        return [
            asyncio.create_task(self._watch(SETS, self._see_set)),
            asyncio.create_task(self._watch(VARIANTS, self._see_variant)),
        ]


def _targets(groups: Collection[str]) -> list[dict[str, Any]]:
    """One selector per group."""
    return [
        {
            "objectSelector": {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": {"group": group}},
            "template": FIVE_EXPRESSIONS,
        }
        for group in groups
    ]


@asynccontextmanager
async def accidents(kafka: KafkaCluster) -> AsyncIterator[Accident]:
    """A fleet without targets yet, over topics of its own."""
    url = fresh_bus(kafka)
    async with (
        Fleet.started() as fleet,
        Deployment(fleet.kubeconfig, url, [(name,) for name in CHAIN]) as services,
    ):
        bus = await open_bus(ServiceConfig(bus=url), create=False)
        found = Accident(fleet, services, bus)
        tasks = found.watches()
        try:
            yield found
            assert not any(task.done() for task in tasks), "a watch ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await bus.close()
