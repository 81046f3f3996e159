"""What is gone leaves on the bus when and why it went, whoever removed it."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from pvbus.cli.gone import read_gone
from pvbus.core.kernel.keys import Key
from tests.kit.processes import run_simulated
from tests.simulation.world import REPOSITORY, SET, SITE, VARIANT, SimulatedWorld

SITES = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"group": "a"}}
SELECTED = {"objectSelector": SITES, "template": {"downstream": {"repo": "r1", "packageExpr": "target.name"}}}
LISTED = {"repositories": [{"name": "r1", "packageNames": ["p1", "p2"]}]}
RENAMED = {
    "objectSelector": SITES,
    "template": {"downstream": {"repo": "r1", "packageExpr": "'new-' + target.name"}},
}
BY_HAND = {
    "upstream": {"repo": "up", "package": "base", "revision": 1},
    "downstream": {"repo": "r1", "package": "own"},
}


async def fleet() -> SimulatedWorld:
    world = SimulatedWorld(watched=False)
    world.upstream()
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={})
    for name in ("s1", "s2"):
        world.put(SITE, name, metadata={"labels": {"group": "a"}})
    world.set("web", [SELECTED, LISTED])
    world.put(VARIANT, "own", spec=BY_HAND)
    await world.start()
    await world.converge()
    return world


async def object_goes(world: SimulatedWorld) -> None:
    await world.delete(SITE, "s1")


async def label_goes(world: SimulatedWorld) -> None:
    world.put(SITE, "s1", metadata={"labels": {"group": "b"}})


async def target_goes(world: SimulatedWorld) -> None:
    world.set("web", [LISTED])


async def entry_goes(world: SimulatedWorld) -> None:
    world.set("web", [SELECTED, {"repositories": [{"name": "r1", "packageNames": ["p2"]}]}])


async def name_changes(world: SimulatedWorld) -> None:
    world.set("web", [RENAMED, LISTED])


async def person_deletes(world: SimulatedWorld) -> None:
    await world.delete(VARIANT, "own")


async def set_goes(world: SimulatedWorld) -> None:
    await world.delete(SET, "web")


async def many_go(world: SimulatedWorld) -> None:
    world.set("web", [SELECTED], annotations={"pvbus.dev/removals-max": "0", "pvbus.dev/removals-share": "0"})
    await world.converge()
    await world.confirm_all()


BY_SET = "PackageVariantSet default/web (generation {}) removed it: "
CASES: dict[str, tuple[Callable[[SimulatedWorld], Coroutine[Any, Any, None]], str, str]] = {
    "the object of a target": (
        object_goes,
        "web-r1-s1",
        BY_SET.format(1) + "Site default/s1, the object of its",
    ),
    "a label": (label_goes, "web-r1-s1", BY_SET.format(1) + "no target selects Site default/s1 any more"),
    "a target": (target_goes, "web-r1-s1", BY_SET.format(2) + "no target selects Site default/s1 any more"),
    "an entry": (
        entry_goes,
        "web-r1-p1",
        BY_SET.format(2) + "no target names package p1 in repository r1 any",
    ),
    "another name": (
        name_changes,
        "web-r1-s1",
        BY_SET.format(2) + "Site default/s1 gives package new-s1 in repository r1 now, before package s1",
    ),
    "a confirmed removal": (many_go, "web-r1-p1", "repository r1 any more; a person confirmed it"),
    "a person": (
        person_deletes,
        "own",
        "a person or another program deleted it; no PackageVariantSet made it",
    ),
    "the set": (
        set_goes,
        "web-r1-s1",
        "PackageVariantSet default/web did not remove it: a person or another",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_variant_that_is_gone_says_why(case: str) -> None:
    act, name, words = CASES[case]

    async def main() -> None:
        world = await fleet()
        key = Key("default", name)
        assert (await read_gone(world.bus, VARIANT, key))["at"] == "", "it is there"
        await act(world)
        await world.converge()
        assert world.find(VARIANT, name) is None
        gone = await read_gone(world.bus, VARIANT, key)
        assert words in gone["why"]
        assert gone["at"] > "20"
        assert gone["keptDays"] == 7
        assert gone["set"] == ("" if case == "a person" else "web")
        assert bool(gone["setAt"]) == (case == "the set")
        if case == "the set":
            assert (await read_gone(world.bus, SET, Key("default", "web")))["why"]
        await world.close()

    run_simulated(main())


def test_a_variant_that_its_set_makes_again_is_not_gone_and_goes_with_its_own_reason() -> None:
    async def main() -> None:
        world = await fleet()
        key = Key("default", "web-r1-s1")
        await object_goes(world)
        await world.converge()
        world.put(SITE, "s1", metadata={"labels": {"group": "a"}})
        await world.converge()
        assert (await read_gone(world.bus, VARIANT, key))["at"] == ""
        await label_goes(world)
        await world.converge()
        assert "no target selects" in (await read_gone(world.bus, VARIANT, key))["why"]
        await world.close()

    run_simulated(main())
