"""Promote and release with all other services, under faults and kills: at most one proposal per attempt."""

import asyncio
from collections.abc import Mapping

import pytest

from pvbus.core.api.promotion import PROMOTION_GROUP
from pvbus.core.kernel.keys import ACKNOWLEDGED_PREFIX, AUTO_LIFECYCLE, PROPOSED_CONTENT
from pvbus.core.kernel.topics import ALL_SERVICES, PROMOTION, SERVICES
from pvbus.core.variants.revisions.content import content_digest
from pvbus.core.variants.revisions.signatures import INPUTS_CHANGED
from pvbus.ports.cluster import Object, Resource
from tests.kit.processes import run_simulated
from tests.simulation.cluster import SPECIALIZER
from tests.simulation.world import REPOSITORY, RESOURCES, REVISION, SITE, SimulatedWorld

SITES = 4
STEPS = 60
GATE = "ip"
ACKNOWLEDGED = f"{ACKNOWLEDGED_PREFIX}ipam"


class Promoting(SimulatedWorld):
    """Judges each write of a lifecycle. proposed: the contents of each revision that may not be proposed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, watched=False)
        self.proposed: dict[str, set[str]] = {}
        self.moves: list[tuple[str, str]] = []
        self.cluster.serve(
            Resource(PROMOTION_GROUP, "v1alpha1", "PackageSpecializer", "packagespecializers", True)
        )

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        super().wrote(verb, obj, subresource)
        before = self.find(REVISION, obj["metadata"]["name"]) if obj["kind"] == REVISION.kind else None
        if verb != "update" or before is None or lifecycle(before) == lifecycle(obj):
            return
        name = obj["metadata"]["name"]
        self.moves.append((name, lifecycle(obj)))
        contents = self.proposed.setdefault(name, set())
        if lifecycle(obj) == "Draft":
            contents.clear()
            return
        assert self.is_ready(before), f"{name} was proposed before it was ready"
        content = content_digest(self.files(name))
        assert content not in contents, f"{name} was proposed twice with the same content"
        contents.add(content)

    def is_ready(self, obj: Object) -> bool:
        annotations = obj["metadata"].get("annotations") or {}
        conditions = (obj.get("status") or {}).get("conditions") or ()
        is_met = any(each == {"type": GATE, "status": "True"} for each in conditions)
        return is_met and annotations.get(ACKNOWLEDGED) == obj["metadata"]["name"]

    def files(self, name: str) -> Mapping[str, str]:
        found = self.find(RESOURCES, name)
        assert found is not None
        files: Mapping[str, str] = found["spec"]["resources"]
        return files

    def drafts(self) -> list[Object]:
        return [obj for obj in self.objects(REVISION) if obj["spec"]["repository"] == "r1"]


def lifecycle(obj: Object) -> str:
    return str(obj["spec"].get("lifecycle") or "Draft")


async def fleet(seed: int = 0, services: tuple[str, ...] = ALL_SERVICES) -> Promoting:
    world = Promoting(seed)
    world.upstream()
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={})
    for number in range(SITES):
        world.put(SITE, f"s{number}", metadata={"labels": {"env": "prod"}})
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}
    template = {
        "downstream": {"repo": "r1", "packageExpr": "target.name"},
        "annotations": {AUTO_LIFECYCLE: "true"},
    }
    world.put(SPECIALIZER, "ipam", spec={"conditionTypes": [GATE]})
    world.set("web", [{"objectSelector": selector, "template": template}])
    await world.start(services)
    await world.converge()
    return world


def draft_by_hand(world: SimulatedWorld) -> None:
    """Make a draft as a person does, which no variant owns and which opts in itself."""
    spec = {"repository": "r1", "packageName": "hand", "workspaceName": "v1", "lifecycle": "Draft"}
    name = "r1.hand.v1"
    world.put(REVISION, name, spec=spec, metadata={"annotations": {AUTO_LIFECYCLE: "true"}})
    files = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: hand\n"}
    world.put(RESOURCES, name, spec={**spec, "resources": files})


def act(world: Promoting) -> None:
    """Do one thing that a person or a program does to a revision, in one write."""
    name = world.random.choice(world.drafts())["metadata"]["name"]
    obj = world.find(REVISION, name)
    assert obj is not None
    match world.random.choice(["acknowledge", "met", "met", "unmet", "reject", "edit"]):
        case "acknowledge":
            annotate(world, obj, {ACKNOWLEDGED: name})
        case "met" | "unmet" as what:
            report(world, obj, "True" if what == "met" else "False")
        case "reject" if lifecycle(obj) == "Proposed":
            world.put(REVISION, name, spec={**obj["spec"], "lifecycle": "Draft"})
        case "edit" if lifecycle(obj) == "Draft":
            text = str(world.random.random())
            resources = world.find(RESOURCES, name)
            assert resources is not None
            files = {**resources["spec"]["resources"], "extra.yaml": f"a: {text}\n"}
            world.put(RESOURCES, name, spec={**resources["spec"], "resources": files})
            status = {**(obj.get("status") or {}), "selfLock": {"git": {"commit": text}}}
            world.put(REVISION, name, status=status)


def report(world: SimulatedWorld, obj: Object, status: str) -> None:
    conditions = [{"type": GATE, "status": status}]
    world.put(
        REVISION, obj["metadata"]["name"], status={**(obj.get("status") or {}), "conditions": conditions}
    )


def sign_anew(world: Promoting) -> None:
    """Let the program report again of what has changed since it did."""
    for obj in world.drafts():
        conditions = (obj.get("status") or {}).get("conditions") or ()
        if any(each.get("reason") == INPUTS_CHANGED for each in conditions):
            report(world, obj, "True")


def annotate(world: SimulatedWorld, obj: Object, annotations: dict[str, str]) -> None:
    """Write annotations, and the gate that the program adds with its acknowledgement."""
    both = {**(obj["metadata"].get("annotations") or {}), **annotations}
    spec = {**obj["spec"], "readinessGates": [{"conditionType": GATE}]}
    world.put(REVISION, obj["metadata"]["name"], metadata={"annotations": both}, spec=spec)


@pytest.mark.parametrize("seed", range(1, 5))
def test_under_faults_and_kills_each_attempt_is_proposed_once_and_never_unready(seed: int) -> None:
    async def main() -> None:
        world = await fleet(seed)
        draft_by_hand(world)
        world.storm()
        for _ in range(STEPS):
            act(world)
            await asyncio.sleep(world.random.choice([0.01, 0.5, 4.0]))
            if world.random.random() < 0.3:
                service = world.random.choice(PROMOTION)
                name = next(each for each in world.running if each.startswith(service))
                await world.kill(name)
                world.add_worker(service)
        await world.calm()
        await world.converge(quiet=70.0)
        sign_anew(world)
        await world.converge(quiet=70.0)
        assert world.moves, "nothing was proposed at all"
        assert "r1.hand.v1" in {name for name, _ in world.moves}, "the one made by hand is served, too"
        for obj in world.drafts():  # the last state of each is the one that the rules say
            content = content_digest(world.files(obj["metadata"]["name"]))
            noted = (obj["metadata"].get("annotations") or {}).get(PROPOSED_CONTENT)
            is_proposed = world.is_ready(obj) and (lifecycle(obj) == "Proposed" or noted == content)
            assert is_proposed == world.is_ready(obj), obj
            assert lifecycle(obj) == "Draft" or world.is_ready(obj), obj
        writes = len(world.cluster.writes)
        await world.stop()
        await world.start(ALL_SERVICES)
        await world.converge()
        assert len(world.cluster.writes) == writes, "a restart of a settled fleet writes nothing"
        await world.close()

    run_simulated(main())


@pytest.mark.parametrize("services", [SERVICES, (*SERVICES, "promote"), (*SERVICES, "release")])
def test_without_both_services_nothing_is_proposed(services: tuple[str, ...]) -> None:
    async def main() -> None:
        world = await fleet(services=services)
        for obj in world.drafts():
            annotate(world, obj, {ACKNOWLEDGED: obj["metadata"]["name"]})
            report(world, obj, "True")
        await world.converge()
        assert len(world.drafts()) == SITES
        assert world.moves == []
        await world.close()

    run_simulated(main())
