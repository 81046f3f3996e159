"""Rollouts with all other services, under faults and kills: nothing is approved twice, early or too much."""

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from pvbus.core.kernel.topics import ALL_SERVICES, PROMOTION
from pvbus.core.promotion.protocol.rules import EVIDENCE_SECONDS
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.cluster import QUARANTINE
from tests.simulation.rolling import SITES, Rolling, fleet
from tests.simulation.world import RESOURCES, REVISION

STEPS = 25
PAUSE = "promotion.pvbus.dev/pause"
ABORT = "promotion.pvbus.dev/abort"


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


def release_all(world: Rolling) -> None:
    for obj in world.objects(QUARANTINE):
        end = {"reason": "a target was not ready for a moment", "by": "ann", "at": "2026-01-01T00:00:00Z"}
        world.put(QUARANTINE, obj["metadata"]["name"], spec={**obj["spec"], "released": end})


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
        await world.converge(quiet=130.0, limit=2 * EVIDENCE_SECONDS)  # what is not proven stops it in time
        while world.rollout()[0].state in ("Rolling", "Stopped"):
            # A newer revision hides the proof, or a target was not ready for a moment: a person gives it up,
            # and finds nothing wrong with what the attempt has quarantined.
            world.annotate(**{ABORT: str(world.rollout()[0].attempt)})
            release_all(world)
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
