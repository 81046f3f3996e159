"""Rollouts with all other services, under faults and kills: nothing is approved twice, early or too much."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from pvbus.adapters.memory.virtual_time import run_simulated
from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.content import content_digest
from pvbus.core.keys import AUTO_LIFECYCLE
from pvbus.core.records import ROLLOUTS
from pvbus.core.rollout.protocol.observing import IN_FLIGHT, OPEN
from pvbus.core.rollout.protocol.rows import Rollout, Target
from pvbus.core.rollout.protocol.states import TargetState
from pvbus.core.topics import ALL_SERVICES, PROMOTION
from pvbus.ports.cluster import Object, Resource
from tests.simulation.cluster import POLICY
from tests.simulation.world import REPOSITORY, RESOURCES, REVISION, SITE, World

SITES = 5
STEPS = 25
IN_FLIGHT_MAX = 2
PAUSE = "promotion.pvbus.dev/pause"
ABORT = "promotion.pvbus.dev/abort"
KEY = "default/web"
SPEC = {
    "approval": "Always",
    "settle": "5s",
    "waves": [{"count": 1, "hold": "3s"}, {"percent": 50}, {"percent": 100}],
    "budgets": {"maxInFlight": IN_FLIGHT_MAX},
}
SELECTOR = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}


CONTEXT = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: kptfile.kpt.dev
data:
  name: example
"""


def targets(version: int) -> list[Object]:
    """Return the targets of the set, which give each package a content of this version."""
    template = {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "annotations": {AUTO_LIFECYCLE: "true"},
        "packageContext": {"data": {"version": f"version-{version}."}},
    }
    return [{"objectSelector": SELECTOR, "template": template}]


class Rolling(World):
    """Judges each approval by the rows on the bus. approved: (revision, attempt) of each."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, watched=False)
        self.approved: list[tuple[str, int]] = []
        self.version = 0
        self.cluster.serve(Resource(PROMOTION_GROUP, "v1alpha1", "RolloutPolicy", "rolloutpolicies", True))

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        super().wrote(verb, obj, subresource)
        if verb != "update" or subresource != "approval":
            return
        name, spec = obj["metadata"]["name"], obj["spec"]
        before = self.find(REVISION, name)
        assert before is not None
        assert before["spec"]["lifecycle"] == "Proposed", f"{name} was approved as {before['spec']}"
        rollout, rows = self.rollout()
        row = next((each for each in rows.values() if each.revision == name), None)
        assert row is not None, f"{name} was approved without a plan"
        assert row.attempt == rollout.attempt
        assert row.state in (TargetState.ORDERED, TargetState.CANCELLING), f"{name} was approved as {row}"
        assert row.digest == self.content(name), f"{name} was approved with other content"
        assert (name, row.attempt) not in self.approved, f"{name} was approved twice in one attempt"
        mine = [each for each in rows.values() if each.attempt == row.attempt]
        early = [each.target for each in mine if each.wave < row.wave and each.state in OPEN]
        assert not early, f"{name} of wave {row.wave} was approved before {early}"
        assert sum(each.state in IN_FLIGHT for each in mine) <= IN_FLIGHT_MAX, "too many are in flight"
        self.approved.append((name, row.attempt))
        numbers = [each["spec"].get("revision", 0) for each in self.revisions(spec["packageName"])]
        spec["revision"] = max(0, *numbers) + 1  # as the server numbers it

    def rollout(self) -> tuple[Rollout, Mapping[str, Target]]:
        rows = self.table(ROLLOUTS)
        found = {
            key.partition("|")[2]: msgspec.json.decode(value, type=Target)
            for key, value in rows.items()
            if "|" in key
        }
        return msgspec.json.decode(rows.get(KEY, b"{}"), type=Rollout), found

    def content(self, name: str) -> str:
        files = self.find(RESOURCES, name)
        assert files is not None
        return content_digest(files["spec"]["resources"])

    def revisions(self, package: str = "") -> list[Object]:
        return [
            obj
            for obj in self.objects(REVISION)
            if obj["spec"]["repository"] == "r1" and package in ("", obj["spec"]["packageName"])
        ]

    def move(self) -> None:
        """Change the content of all packages."""
        self.version += 1
        self.set("web", targets(self.version))

    def annotate(self, **annotations: str | None) -> None:
        found = self.find(POLICY, "web")
        assert found is not None
        both = {**(found["metadata"].get("annotations") or {}), **annotations}
        self.put(POLICY, "web", metadata={"annotations": {k: v for k, v in both.items() if v is not None}})


async def fleet(seed: int = 0) -> Rolling:
    world = Rolling(seed)
    world.upstream()
    upstream = world.find(RESOURCES, "up.base.v1")
    assert upstream is not None
    files = {**upstream["spec"]["resources"], "package-context.yaml": CONTEXT}
    world.put(RESOURCES, "up.base.v1", spec={**upstream["spec"], "resources": files})
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={})
    world.put(POLICY, "web", spec=SPEC)
    for number in range(SITES):
        world.put(SITE, f"s{number}", metadata={"labels": {"env": "prod"}})
    world.move()
    await world.start(ALL_SERVICES)
    return world


def act(world: Rolling) -> None:
    """Do one thing that people do in the middle of a rollout."""
    match world.random.choice(
        ["nothing", "nothing", "change", "reject", "pause", "go on", "approve by hand"]
    ):
        case "change":
            world.move()
        case "reject" if proposed := proposals(world):
            obj = world.random.choice(proposed)
            world.put(REVISION, obj["metadata"]["name"], spec={**obj["spec"], "lifecycle": "Draft"})
        case "pause":
            world.annotate(**{PAUSE: "true"})
        case "go on":
            world.annotate(**{PAUSE: None})
        case "approve by hand" if proposed := proposals(world):
            obj = world.random.choice(proposed)
            numbers = [
                each["spec"].get("revision", 0) for each in world.revisions(obj["spec"]["packageName"])
            ]
            spec = {**obj["spec"], "lifecycle": "Published", "revision": max(0, *numbers) + 1}
            world.put(REVISION, obj["metadata"]["name"], spec=spec)


def proposals(world: Rolling) -> list[Object]:
    return [obj for obj in world.revisions() if obj["spec"].get("lifecycle") == "Proposed"]


@pytest.mark.parametrize("seed", range(1, 7))
def test_under_faults_and_kills_each_approval_is_planned_in_time_and_done_once(seed: int) -> None:
    async def main() -> None:
        world = await fleet(seed)
        world.storm()
        for _ in range(STEPS):
            act(world)
            await asyncio.sleep(world.random.choice([0.01, 0.5, 4.0, 20.0]))
            if world.random.random() < 0.4:
                service = world.random.choice(PROMOTION)
                await world.kill(next(each for each in world.running if each.startswith(service)))
                world.add_worker(service)
        await world.calm()
        world.annotate(**{PAUSE: None})
        world.move()
        await world.converge(quiet=130.0)
        while world.rollout()[0].state in ("Rolling", "Stopped"):
            # A newer revision hides the proof, or a target was not ready for a moment: a person gives it up.
            world.annotate(**{ABORT: str(world.rollout()[0].attempt)})
            await world.converge(quiet=130.0)
        assert world.approved, "nothing was approved at all"
        for number in range(SITES):
            last = max(world.revisions(f"s{number}"), key=lambda obj: int(obj["spec"].get("revision", 0)))
            files = world.find(RESOURCES, last["metadata"]["name"])
            assert last["spec"]["lifecycle"] == "Published"
            assert f"version-{world.version}." in str(files), f"s{number} is not up to date: {files}"
        await settled_is_silent(world)

    run_simulated(main())


async def settled_is_silent(world: Rolling) -> None:
    writes, rows = len(world.cluster.writes), sum((await world.ends()).values())
    await world.stop()
    await world.start(ALL_SERVICES)
    await world.converge()
    assert len(world.cluster.writes) == writes, "a restart of a settled fleet writes nothing"
    assert sum((await world.ends()).values()) == rows, "and no row"
    await world.close()


def test_a_killed_rollout_goes_on_where_it_was_at_each_of_its_steps() -> None:
    """The service is killed after each of its steps on the bus, before it has heard of the outcome."""

    async def main() -> None:
        world = await fleet()
        for _ in range(200):
            name = next(each for each in world.running if each.startswith("rollout"))
            stepped = asyncio.Event()
            world.running[name].bus.on_step = partial(note, stepped)
            with suppress(TimeoutError):
                await asyncio.wait_for(stepped.wait(), 60)
            if is_over(world):
                break
            await world.kill(name)
            world.add_worker("rollout")
        assert is_over(world)
        await world.converge()
        assert sorted(name for name, _ in world.approved) == sorted(
            obj["metadata"]["name"] for obj in world.revisions()
        )
        assert {attempt for _, attempt in world.approved} == {1}
        await settled_is_silent(world)

    run_simulated(main())


def note(stepped: asyncio.Event, *_: object) -> None:
    stepped.set()


def is_over(world: Rolling) -> bool:
    return world.rollout()[0].state == "Completed"
