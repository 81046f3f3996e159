"""A fleet whose drafts are proposed, while the services of promotion are killed and contents change.

It runs on any API server and any bus: its caller starts the services.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

from pvbus.adapters.manifests import Manifest
from pvbus.cli.apply import apply
from pvbus.cli.progress import VARIANT
from pvbus.core.kernel.keys import ACKNOWLEDGED_PREFIX, AUTO_LIFECYCLE, PROPOSED_CONTENT
from pvbus.core.kernel.topics import PROMOTION
from pvbus.examples import fleet
from pvbus.ports.cluster import Kind
from tests.e2e.cli.small_fleet import REVISION, Client
from tests.e2e.cli.test_promote import GATE, SPECIALIZER
from tests.kit.cluster import resource_of

CLUSTER = Kind("fleet.example.dev", "Cluster")
CLUSTERS_PER_REGION = 5
COUNT = CLUSTERS_PER_REGION * len(fleet.REGIONS)
BEFORE, WITHOUT = 7, 15
"""The first 7 drafts are acknowledged before the kill, those up to the 15th while the killed services are
away. The barrier holds the rest."""
SECONDS_MAX = 180


class Service(Protocol):
    """A running service. output: what it printed."""

    @property
    def output(self) -> str: ...

    def kill(self) -> None: ...


async def apply_fleet(client: Client, folder: Path) -> None:
    """Apply a small example fleet whose set opts in all drafts, and a program that must acknowledge them."""
    made = fleet.make(folder, CLUSTERS_PER_REGION)
    for each in made:
        if each.object["kind"] == "PackageVariantSet":
            each.object["spec"]["targets"][0]["template"]["annotations"] = {AUTO_LIFECYCLE: "true"}
    await apply(client.cluster, [*made, Manifest(folder, 1, SPECIALIZER)])


async def proposed_through_kills(
    client: Client, services: Mapping[str, Service], start: Callable[[], None]
) -> Counter[str]:
    """Have all drafts but one proposed. Return how often each has to have become a proposal.

    services: all of them, by name. start: starts the services of promotion again.
    """
    world = _ProposingWorld(client, services)
    drafts = await world.rendered()
    before, without, held = drafts[:BEFORE], drafts[BEFORE:WITHOUT], drafts[WITHOUT:-1]
    await world.acknowledge(drafts[-1], {AUTO_LIFECYCLE: "false"})
    for name in before:
        await world.acknowledge(name)
    await world.until(lambda proposals: bool(proposals), before)
    for name in PROMOTION:
        services[name].kill()
    for name in without:
        await world.acknowledge(name)
    start()
    await world.until_proposed([*before, *without])
    lost = before[0]
    await world.change_injected(lost, [*before, *without])
    for name in held:
        await world.acknowledge(name)
    await world.until_proposed(drafts[:-1])
    return Counter([*drafts[:-1], lost])


class _ProposingWorld:
    def __init__(self, client: Client, services: Mapping[str, Service]) -> None:
        self._client = client
        self._services = services

    async def rendered(self) -> list[str]:
        """Wait until all variants are ready; return the names of their drafts, each in the state Draft."""
        for _ in range(SECONDS_MAX * 2):
            variants = await self._client.items(VARIANT)
            ready = [each for each in variants if _conditions(each).get("Ready") == "True"]
            if len(ready) == COUNT:
                assert await self._proposals() == {}
                return sorted(each["status"]["downstreamTargets"][0]["name"] for each in ready)
            await asyncio.sleep(0.5)
        raise AssertionError(f"{len(ready)} variants are ready: {self._problem()}")

    async def acknowledge(self, name: str, annotations: Mapping[str, str] | None = None) -> None:
        """Do what the program does: acknowledge, and add a gate and its condition, in one write."""

        def edit(revision: Any) -> None:
            noted = revision["metadata"].setdefault("annotations", {})
            noted.update({f"{ACKNOWLEDGED_PREFIX}ipam": name, **(annotations or {})})
            gates = revision["spec"].get("readinessGates") or []  # of injected content: inject wants them
            revision["spec"]["readinessGates"] = [*gates, {"conditionType": GATE}]
            present = revision["status"].get("conditions") or ()
            revision["status"]["conditions"] = [*present, {"type": GATE, "status": "True"}]

        await self._client.edit(REVISION, name, edit)

    async def change_injected(self, name: str, allowed: Collection[str]) -> None:
        """Change what a proposal injects, which it cannot have as one: wait until it is a draft, sign its new
        content, as the program does, and wait until it is a proposal again."""
        content = (await self._proposals())[name][PROPOSED_CONTENT]
        cluster = name.split(".")[1].removesuffix("-web")
        await self._client.edit(CLUSTER, cluster, lambda found: found["spec"].update(nodes=99))

        def changed(proposals: Mapping[str, Any]) -> bool:
            return bool(proposals.get(name, {}).get(PROPOSED_CONTENT, content) != content)

        await self._sign_anew(name)
        await self.until(changed, allowed)
        await self.until_proposed(allowed)

    async def _sign_anew(self, name: str) -> None:
        """Set the condition once it is Unknown, as the content that it was set for has changed."""

        def edit(revision: Any) -> None:
            conditions = revision["status"]["conditions"]
            others = [each for each in conditions if each["type"] != GATE]
            revision["status"]["conditions"] = [*others, {"type": GATE, "status": "True"}]

        for _ in range(SECONDS_MAX * 5):
            if _conditions(await self._client.get(REVISION, name)).get(GATE) == "Unknown":
                return await self._client.edit(REVISION, name, edit)
            await asyncio.sleep(0.2)
        raise AssertionError(f"{GATE} of {name} outlives its content: {self._problem()}")

    async def until_proposed(self, wanted: Collection[str]) -> None:
        await self.until(lambda proposals: proposals.keys() == set(wanted), wanted)

    async def until(self, condition: Callable[[Mapping[str, Any]], bool], allowed: Collection[str]) -> None:
        """Wait for a state of the proposals; at no time may another draft be one. Each has its digest."""
        for _ in range(SECONDS_MAX * 5):
            proposals = await self._proposals()
            assert proposals.keys() <= set(allowed)
            assert all(PROPOSED_CONTENT in noted for noted in proposals.values())
            if condition(proposals):
                return
            await asyncio.sleep(0.2)
        raise AssertionError(f"{sorted(proposals)} are proposed: {self._problem()}")

    def _problem(self) -> str:
        return "\n".join(service.output[-3000:] for service in self._services.values())

    async def _proposals(self) -> dict[str, Any]:
        """Return the annotations of the proposals, by name."""
        found = [each for each in await self._client.items(REVISION) if _lifecycle(each) == "Proposed"]
        return {each["metadata"]["name"]: each["metadata"].get("annotations") or {} for each in found}


class Turns:
    """Counts how often each PackageRevision becomes a proposal, by a watch."""

    def __init__(self, client: Client) -> None:
        self.count: Counter[str] = Counter()
        self._client = client
        self._lifecycles: dict[str, str] = {}
        self._counted = asyncio.Event()

    async def reach(self, total: int) -> None:
        """Wait until the watch has shown so many. Raises TimeoutError."""
        async with asyncio.timeout(SECONDS_MAX):
            while self.count.total() < total:
                self._counted.clear()
                await self._counted.wait()

    async def run(self) -> None:
        """Count until cancelled."""
        resource = await resource_of(self._client.cluster, REVISION)
        listed = await self._client.cluster.list(resource, "default")
        position = listed.resource_version
        while True:
            async for event in self._client.cluster.watch(resource, position, namespace="default"):
                position = event.position or position
                if event.type in ("ADDED", "MODIFIED"):
                    name, now = event.object["metadata"]["name"], _lifecycle(event.object)
                    self.count[name] += now == "Proposed" != self._lifecycles.get(name)
                    self._lifecycles[name] = now
                    self._counted.set()


def _lifecycle(revision: Any) -> str:
    return str(revision["spec"]["lifecycle"])


def _conditions(obj: Any) -> dict[str, str]:
    return {each["type"]: each["status"] for each in (obj.get("status") or {}).get("conditions") or ()}
