"""A set whose every target costs as much as it may leaves the loop to others, and the workers can stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from pvbus.core.cel import TARGET_COST_MAX
from pvbus.core.variants.pacing import SHARE, TURN_COST, UNIT_SECONDS
from tests.kit.processes import run_simulated
from tests.simulation.schedule import seeded
from tests.simulation.world import REPOSITORY, SITE, SimulatedWorld

TARGETS = 200
COSTLY = "target.annotations.text.contains(target.annotations.part) ? '-x' : ''"  # 78,000, and quick
ANNOTATIONS = {"text": "a" * 8_300, "part": "a" * 900}
DELAY_MAX = 0.25
"""Seconds by which a costly set may delay another one's label."""
STAGES = ("ingest", "unroll", "render")


def selecting(env: str, package: str, label: str) -> dict[str, Any]:
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": env}}
    template = {
        "downstream": {"repo": "r1", "packageExpr": package},
        "labelExprs": [{"key": "region", "valueExpr": label}],
    }
    return {"objectSelector": selector, "template": template}


def played(scenario: Callable[[SimulatedWorld], Awaitable[None]]) -> None:
    """Play beside a set of one cheap target, whose variant is there, and a costly one that has begun."""

    async def main() -> None:
        world = SimulatedWorld(1, watched=False)
        world.upstream()
        world.serve_sites()
        world.put(REPOSITORY, "r1", spec={})
        world.set("cheap", [selecting("small", "target.name", "target.labels.region")])
        await world.start(STAGES)
        await followed(world, "eu")
        for number in range(TARGETS):
            metadata = {"labels": {"env": "large"}, "annotations": ANNOTATIONS}
            world.put(SITE, f"s{number:03}", metadata=metadata)
        await asyncio.sleep(3.0)  # until ingest has read them
        world.set("costly", [selecting("large", f"target.name + ({COSTLY})", COSTLY)])
        await asyncio.sleep(1.0)
        await scenario(world)
        await world.close()

    with seeded(1):
        run_simulated(main())


def evaluations(world: SimulatedWorld) -> int:
    return sum(world.of(name).controller.evaluations for name in ("unroll", "render"))


async def followed(world: SimulatedWorld, region: str) -> int:
    """Change the label of the cheap set's target. Return how many targets are evaluated until its variant has
    it, without its own two evaluations."""
    before = evaluations(world)
    world.put(SITE, "edge", metadata={"labels": {"env": "small", "region": region}})
    deadline = world.now + 60
    while not any(found["spec"].get("labels") == {"region": region} for found in world.variants().values()):
        assert world.now < deadline
        await asyncio.sleep(0.01)
    return evaluations(world) - before - 2


def test_a_costly_set_delays_the_label_of_another_by_few_of_its_targets() -> None:
    """Counted work instead of time: each evaluation takes at most 20 ms of the same processor."""

    async def scenario(world: SimulatedWorld) -> None:
        began = world.now
        between: list[int] = []
        while len(world.variants()) <= TARGETS:  # while targets are evaluated, and variants rendered
            assert world.now - began < 120
            between.append(await followed(world, f"r{len(between)}"))
            await asyncio.sleep(1.0)
        assert max(between) * TARGET_COST_MAX * UNIT_SECONDS <= DELAY_MAX, between
        assert sum(between) > 0
        assert world.now - began > TARGETS * TURN_COST * UNIT_SECONDS / SHARE / 2

    played(scenario)


def test_workers_end_while_a_costly_set_is_evaluated() -> None:
    """Before the end no more than a few of its targets are evaluated."""

    async def scenario(world: SimulatedWorld) -> None:
        unroll, render = (world.of(name).controller for name in ("unroll", "render"))
        before = unroll.evaluations + render.evaluations
        began = world.now
        await world.stop()
        assert unroll.evaluations + render.evaluations < TARGETS
        assert unroll.evaluations + render.evaluations - before < 10
        assert world.now - began < 10

    played(scenario)
