"""Any schedule of user actions and faults ends where the oracle says, and nothing is lost on the way.

`PVBUS_SIMULATION_SEEDS` asks for more schedules, `PVBUS_SIMULATION_FIRST` begins elsewhere; a failure
prints the seed that repeats it.
"""

import asyncio
import os
import random
from typing import Any

import msgspec
import pytest

from pvbus.core.conditions import WITHDRAWN
from pvbus.core.ids import HOLD, digest
from pvbus.core.model import PackageVariant
from pvbus.core.records import CONDITIONS, LATEST, ConditionEvent
from pvbus.core.unroll.children import Limits
from pvbus.testing.clock import run_simulated
from tests.simulation.world import CONFIG_MAP, REPOSITORY, REVISION, SET, SITE, VARIANT, World

SEEDS = int(os.environ.get("PVBUS_SIMULATION_SEEDS", "20"))
FIRST = int(os.environ.get("PVBUS_SIMULATION_FIRST", "1"))
ACTIONS = 25
STORM_SECONDS = 150.0
SITES = [f"s{i}" for i in range(6)]
REPOSITORIES = ["r1", "r2", "r3"]
TEMPLATES: list[Any] = [
    None,
    {"downstream": {"repo": "r1", "packageExpr": "'p-' + target.name"}},
    {"downstream": {"repoExpr": "target.labels['to']", "packageExpr": "'q-' + target.name"}},
    {
        "downstream": {"repo": "r2", "packageExpr": "target.name"},
        "labelExprs": [{"key": "env", "valueExpr": "target.labels['env']"}],
        "packageContext": {"dataExprs": [{"key": "fleet", "valueExpr": "repository.labels['fleet']"}]},
    },
]


def targets(chance: random.Random) -> list[Any]:
    found: list[Any] = []
    for _ in range(chance.randint(1, 2)):
        labels = {"env": chance.choice(["prod", "test"])}
        match chance.randint(0, 4):
            case 0:
                found.append({"repositories": [{"name": r} for r in chance.sample(REPOSITORIES, 2)]})
            case 1:
                found.append({"repositorySelector": {"matchLabels": {"fleet": chance.choice("ab")}}})
            case 2:
                selector = {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": labels}
                found.append({"objectSelector": selector, "template": chance.choice(TEMPLATES[1:])})
            case _:
                selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": labels}
                found.append({"objectSelector": selector, "template": chance.choice(TEMPLATES[1:])})
    return found


def labels(chance: random.Random) -> dict[str, str]:
    return {"env": chance.choice(["prod", "prod", "test"]), "to": chance.choice(REPOSITORIES)}


async def act(world: World, chance: random.Random) -> None:
    """Do one thing that a user does."""
    name = chance.choice(["alpha", "beta"])
    site, variants = chance.choice(SITES), sorted(world.variants())
    picked = (
        world.find(VARIANT, variants[chance.randrange(len(variants))].partition("/")[2]) if variants else None
    )
    hold = chance.choice([{}, {}, {HOLD: "true"}])
    match chance.randint(0, 15):
        case 0 | 1:
            world.set(name, targets(chance), revision=chance.choice([1, 1, 1, 2]))
        case 2:
            await world.delete(SET, name)
        case 3 | 4 | 5 if world.cluster.serves(SITE):
            world.put(SITE, site, metadata={"labels": labels(chance)})
        case 6 if world.cluster.serves(SITE):
            await world.delete(SITE, site)
        case 7:
            world.put(CONFIG_MAP, site, metadata={"labels": labels(chance)}, data={})
        case 8:
            await world.delete(CONFIG_MAP, site)
        case 9:
            fleet = {"fleet": chance.choice("ab")}
            world.put(REPOSITORY, chance.choice(REPOSITORIES), spec={}, metadata={"labels": fleet})
        case 10:
            await world.delete(REPOSITORY, chance.choice(REPOSITORIES))
        case 11 if picked is not None:  # somebody edits what a set made
            spec = {**picked["spec"], "labels": {"by": "hand"}}
            world.put(VARIANT, picked["metadata"]["name"], spec=spec)
        case 12 if picked is not None:
            await world.delete(VARIANT, picked["metadata"]["name"])
        case 13:
            if world.cluster.serves(SITE):
                world.unserve(SITE)
            else:
                world.serve_sites()
        case 14:
            number = chance.choice([1, 2])
            if world.find(REVISION, f"up.base.v{number}") is None:
                world.upstream(number)
            else:
                await world.delete(REVISION, f"up.base.v{number}")
        case 15 if world.find(SET, name) is not None:
            world.put(SET, name, metadata={"annotations": hold})


async def disturb(world: World, chance: random.Random) -> None:
    """Do to a worker what machines do to processes."""
    running = world.running[chance.choice(sorted(world.running))]
    match chance.randint(0, 3):
        case 0:
            await world.kill(running.name)
            await asyncio.sleep(chance.uniform(0, 5))
            world.add_worker(running.name.partition("-")[0])
        case 1:
            running.process.freeze()
            asyncio.get_running_loop().call_later(chance.uniform(3, 30), running.process.thaw)
        case _:
            return


async def storm(world: World, chance: random.Random) -> None:
    world.faults.storm()
    for _ in range(ACTIONS):
        await act(world, chance)
        await disturb(world, chance)
        await asyncio.sleep(chance.expovariate(ACTIONS / STORM_SECONDS))
    world.faults.calm()
    for running in world.running.values():
        running.process.thaw()
    await world.faults.settle()


def check_variants(world: World) -> None:
    """The PackageVariants are those that the oracle wants, with its specs and owners."""
    made = {}
    for vkey, obj in world.variants().items():
        variant = msgspec.convert(obj, PackageVariant)
        owner = next((o.uid for o in variant.metadata.owner_references if o.controller), "")
        made[vkey] = (owner, digest(variant.spec), variant.spec)
    wanted = {vkey: (e.owner, digest(e.spec), e.spec) for vkey, e in world.expected().items()}
    assert made == wanted


def check_conditions(world: World) -> None:
    """Consumers were told every transition once and in order, and `latest` is the fold of it."""
    fold: dict[str, ConditionEvent] = {}
    seen: set[str] = set()
    for record in world.records(CONDITIONS):
        assert record.value is not None
        event = msgspec.json.decode(record.value, type=ConditionEvent)
        key = f"{event.kind}|{event.namespace}/{event.name}|{event.condition.type}"
        assert event.id not in seen, f"told twice: {event}"
        seen.add(event.id)
        last = fold.get(key)
        if last is not None and last.uid == event.uid:
            assert event.previous == last.condition.status, (last, event)
        else:
            assert event.previous == "", event
        if event.condition.reason == WITHDRAWN:
            fold.pop(key)
        else:
            fold[key] = event
    latest = {k: msgspec.json.decode(v, type=ConditionEvent) for k, v in world.table(LATEST).items()}
    assert latest == fold
    for kind in (SET, VARIANT):
        for obj in world.objects(kind):
            for condition in (obj.get("status") or {}).get("conditions") or ():
                place = f"{kind.kind}|default/{obj['metadata']['name']}|{condition['type']}"
                told = latest[place].condition
                assert (told.status, told.reason) == (condition["status"], condition["reason"]), place


def check_generations(world: World) -> None:
    """The observedGeneration of a condition never goes back."""
    highest: dict[tuple[str, str], int] = {}
    for write in world.cluster.writes:
        if write.subresource == "status" and write.object is not None:
            for condition in write.object["status"].get("conditions") or ():
                place = (write.object["metadata"]["uid"], condition["type"])
                generation = condition.get("observedGeneration", 0)
                assert generation >= highest.get(place, 0), write
                highest[place] = generation


async def live_through(seed: int) -> None:
    world = World(seed, workers=2, limits=Limits(removals_max=3))
    chance = world.random
    world.upstream()
    world.serve_sites()
    for name in REPOSITORIES[:2]:
        world.put(REPOSITORY, name, spec={}, metadata={"labels": {"fleet": chance.choice("ab")}})
    for name in SITES:
        world.put(SITE, name, metadata={"labels": labels(chance)})
    world.set("alpha", targets(chance))
    await world.start()
    if chance.random() < 0.7:
        await asyncio.sleep(chance.uniform(0, 20))
    await storm(world, chance)
    await world.converge()
    await world.confirm_all()
    await world.converge(quiet=70.0)  # longer than any second look
    assert world.faults.broken == []
    check_variants(world)
    check_conditions(world)
    check_generations(world)
    await world.stop()
    writes, ends = len(world.cluster.writes), await world.ends()
    await world.start()
    await asyncio.sleep(30.0)
    assert world.cluster.writes[writes:] == []
    grown = {tp: end for tp, end in (await world.ends()).items() if end != ends[tp]}
    assert grown == {}, [r for t, _ in grown for r in world.records(t) if r.offset >= ends[t, r.partition]]
    await world.close()


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_after_any_storm_the_fleet_is_as_the_oracle_wants_it_and_a_restart_is_silent(seed: int) -> None:
    random.seed(seed)  # workers draw their backoffs from it
    run_simulated(live_through(seed), context={"seed": seed})
