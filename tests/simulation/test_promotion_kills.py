"""Promote, rollout and release are killed at every await: the end and the judged history stay the same.

One undisturbed run shows how many turns each service takes: the code between two awaits is one. Then there is
one run for each turn of each service, in which that service is killed before the turn, and a new one takes
over. Requests that it had sent are carried out all the same; the answers reach nobody.

Most turns only wait. Those with an effect are: a write about to be sent, a write that is carried out and not
answered yet, a step of the bus before and after its commit. CI takes a sample of these;
`PVBUS_TEST_KILLS=effects` takes all of them, `PVBUS_TEST_KILLS=all` takes every turn.
"""

import asyncio
import os
from typing import Any, NamedTuple

import pytest

from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.kernel.topics import PROMOTION
from tests.kit.processes import run_simulated
from tests.simulation.cluster import QUARANTINE
from tests.simulation.killing import Kill, KillingWorld
from tests.simulation.rolling import HEALTHY, Acting, begin

SITES = 3
POLICY: dict[str, Any] = {
    "settle": "60s",  # longer than a killed process keeps its leases: its proposals are of the same attempt
    "waves": [{"count": 1, "hold": "3s"}, {"percent": 100}],
    "budgets": {"maxInFlight": 1, "onFailure": "RollBack"},
    "conditions": [HEALTHY],
}
KILLS = os.environ.get("PVBUS_TEST_KILLS", "sample")
SAMPLE = 8
"""Runs per service in CI: each takes a second."""


class Ending(NamedTuple):
    """moves: each lifecycle that a revision got, in order. state: of each revision at the end, its content
    with it. rollout, targets: the rows. quarantines: their names and contents."""

    moves: dict[str, tuple[str, ...]]
    state: dict[str, tuple[str, int, str]]
    rollout: tuple[str, int]
    targets: dict[str, tuple[str, str, int]]
    quarantines: list[tuple[str, tuple[str, ...]]]


class KilledPromotion(KillingWorld, Acting):
    """A world of rollouts.

    lasts: the turns of each service when the story was over; what follows is the stop
    ending: how it was then
    """

    counted = PROMOTION
    lasts: dict[str, int]
    ending: Ending


# ------------------------------------------------------------ the story


async def story(world: KilledPromotion) -> None:
    """Tell what people and programs do: each act waits for what the services have done before."""
    for package in ("s0", "s1", "s2"):  # two waves, one target at a time
        world.report(await world.has(package, 1), healthy=True)
    await world.converge()

    world.move()  # a proposal is taken back and given again; the last target turns out bad: all go back
    canary = await world.has("s0", 2)
    world.reject("s2")
    await world.becomes("s2", TargetState.LEFT)
    world.report(canary, healthy=True)
    second = await world.has("s1", 2)
    world.ask_again("s2")
    await world.becomes("s2", TargetState.PLANNED)
    world.report(second, healthy=True)
    world.report(await world.has("s2", 2), healthy=False)
    for package in ("s0", "s1", "s2"):  # what is restored needs evidence of its own, before the next goes
        world.report(await world.goes_back(package), healthy=True)
    await world.becomes("s2", TargetState.UNDONE)  # bad evidence counts when it is seen twice
    await world.converge()

    world.at_order["s1"] = lambda: world.reject("s1")
    world.move()
    for package in ("s0", "s1", "s2"):
        await world.is_proposed(package)
    world.move()  # before they have settled: each goes back to Draft
    world.report(await world.has("s0", 4), healthy=True)
    world.report(await world.has("s2", 4), healthy=True)
    await world.converge()

    world.ask_again("s1")  # it has an attempt of its own
    world.report(await world.has("s1", 4), healthy=True)
    await world.converge()


def run_with(kill: Kill | None) -> KilledPromotion:
    """Run the story with one kill, and return the world at its end."""

    async def main() -> KilledPromotion:
        world = KilledPromotion(in_flight_max=1)
        world.kill_at = kill
        await begin(world, sites=SITES, **POLICY)
        killing = asyncio.create_task(world.obey())
        await asyncio.gather(story(world), *([killing] if kill is not None else []))
        killing.cancel()
        world.lasts = dict(world.turns)
        world.ending = ending(world)
        await world.close()
        return world

    return run_simulated(main(), context={"kill": kill})


def ending(world: KilledPromotion) -> Ending:
    state = {}
    for obj in world.revisions():
        name, spec = obj["metadata"]["name"], obj["spec"]
        state[name] = (spec["lifecycle"], spec.get("revision", 0), world.content(name))
    rollout, rows = world.rollout()
    targets = {name: (row.revision, row.state.value, row.attempt) for name, row in rows.items()}
    moves = {name: tuple(each) for name, each in world.moves.items()}
    quarantines = [
        (obj["metadata"]["name"], tuple(obj["spec"]["contents"])) for obj in world.objects(QUARANTINE)
    ]
    return Ending(moves, state, (rollout.state.value, rollout.attempt), targets, quarantines)


def positions(world: KilledPromotion, service: str) -> list[int]:
    """Return the turns of a service to kill it before. world: of an undisturbed run."""
    if KILLS == "all":
        return list(range(1, world.lasts[service] + 1))
    effects = sorted(turn for turn in world.effects[service] if turn <= world.lasts[service])
    return effects if KILLS == "effects" else effects[:: max(1, len(effects) // SAMPLE)]


@pytest.fixture(scope="module")
def undisturbed() -> KilledPromotion:
    return run_with(None)


def test_the_story_has_all_that_it_is_about(undisturbed: KilledPromotion) -> None:
    """A proposal given twice, one returned to Draft, a rollback after a quarantine, an order taken back and
    given again."""
    moves = undisturbed.ending.moves
    assert moves["r1.s2.packagevariant-2"] == ("Proposed", "Proposed", "Published")
    assert moves["r1.s0.packagevariant-3"] == ("Proposed", "Draft", "Proposed", "Published")
    assert ("r1.s1.packagevariant-3", 3) not in undisturbed.approved
    assert ("r1.s1.packagevariant-3", 4) in undisturbed.approved
    assert len([name for name in moves if ".rollback-2-" in name]) == SITES
    (quarantine,) = undisturbed.ending.quarantines
    assert quarantine[0].startswith("web-2-1-")
    assert len(quarantine[1]) == 1, "their content, which is one, as the upstream revision is the same"
    assert undisturbed.ending.rollout == ("Completed", 4)


@pytest.mark.slow
@pytest.mark.timeout(0 if KILLS != "sample" else 300)
@pytest.mark.parametrize("service", PROMOTION)
def test_a_kill_at_any_await_changes_neither_the_end_nor_the_history(
    undisturbed: KilledPromotion, service: str
) -> None:
    turns = positions(undisturbed, service)
    assert len(turns) >= SAMPLE
    for turn in turns:
        world = run_with(Kill(service, turn))
        assert world.ending == undisturbed.ending, f"{service} was killed before its turn {turn}"
        assert world.approved == undisturbed.approved, f"{service} was killed before its turn {turn}"
