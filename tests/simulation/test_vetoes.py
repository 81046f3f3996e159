"""A veto of one target in the middle of a rollout takes out this target alone; given back, it is approved."""

import asyncio
import re
from collections.abc import Callable
from typing import NamedTuple

import pytest

from pvbus.core.kernel.keys import HOLD, RETURNED
from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.cluster import POLICY as POLICY_KIND
from tests.simulation.rolling import HEALTHY, Acting, begin
from tests.simulation.world import REVISION, VARIANT

PACKAGE, OTHERS = "s2", ("s1", "s3")
GATE = "Licensed"
POLICY = {
    "waves": [{"count": 1}, {"percent": 100}],
    "conditions": [HEALTHY],
    "budgets": {"maxInFlight": 3, "maxFailing": 0},
}


class Way(NamedTuple):
    """A way to veto, and to give the target back."""

    veto: Callable[[Acting], None]
    give_back: Callable[[Acting], None]


def open_one(world: Acting) -> Object:
    open_ = ("Draft", "Proposed")
    return next(obj for obj in world.revisions(PACKAGE) if obj["spec"]["lifecycle"] in open_)


def set_gate(world: Acting, status: str) -> None:
    """Report a gate of the revision, which may be proposed already: as a push to its branch does."""
    obj = open_one(world)
    condition = {"type": GATE, "status": status, "reason": "Looked", "message": "no licence"}
    spec = {**obj["spec"], "readinessGates": [{"conditionType": GATE}]}
    world.put(REVISION, obj["metadata"]["name"], spec=spec, status={"conditions": [condition]})


def hold(world: Acting, value: str) -> None:
    obj = world.find(VARIANT, f"web-r1-{PACKAGE}")
    assert obj is not None
    annotations = {**(obj["metadata"].get("annotations") or {}), HOLD: value}
    world.put(VARIANT, f"web-r1-{PACKAGE}", metadata={"annotations": annotations})


def propose(world: Acting) -> None:
    """Propose the draft as `pvbus propose` does."""
    obj = open_one(world)
    world.put(REVISION, obj["metadata"]["name"], spec={**obj["spec"], "lifecycle": "Proposed"})


WAYS = {
    "condition": Way(lambda world: set_gate(world, "False"), lambda world: set_gate(world, "True")),
    "hold": Way(lambda world: hold(world, "true"), lambda world: hold(world, "false")),
    "rejection": Way(lambda world: world.reject(PACKAGE), lambda world: world.ask_again(PACKAGE)),
    "rejection, proposed by hand": Way(lambda world: world.reject(PACKAGE), propose),
}


@pytest.mark.parametrize("is_ordered", [False, True], ids=["waiting", "ordered"])
@pytest.mark.parametrize("way", WAYS)
def test_a_veto_takes_out_one_target_and_the_wave_goes_on(way: str, *, is_ordered: bool) -> None:
    """Before its order a target returns to its attempt; after it the next attempt is for it alone."""
    veto, give_back = WAYS[way]

    async def main() -> None:
        world = Acting(in_flight_max=3)
        await begin(world, sites=4, **POLICY)
        canary = await world.has("s0", 1)
        if is_ordered:
            world.at_order[PACKAGE] = lambda: veto(world)
        else:
            veto(world)
            await world.becomes(PACKAGE, TargetState.LEFT)
        world.report(canary, healthy=True)
        published = [await world.has(package, 1) for package in OTHERS]
        world.report(published[0], healthy=True)
        if is_ordered:
            await world.becomes(PACKAGE, TargetState.GONE)
        else:
            give_back(world)  # the last one of its wave is not proven yet
            await world.becomes(PACKAGE, TargetState.APPROVED)
        world.report(published[1], healthy=True)
        await world.converge()
        if is_ordered:
            assert (world.rollout()[0].state, world.rollout()[0].attempt) == ("Completed", 1)
            assert PACKAGE not in {name.split(".")[1] for name, _ in world.approved}
            give_back(world)
        approved = await world.has(PACKAGE, 1)
        world.report(approved, healthy=True)
        await world.converge()
        rollout, rows = world.rollout()
        assert (rollout.state, rollout.attempt) == ("Completed", 2 if is_ordered else 1)
        assert {row.state for row in rows.values()} == {TargetState.PROVEN}
        assert sorted(name.split(".")[1] for name, _ in world.approved) == ["s0", "s1", "s2", "s3"]
        if way == "condition":
            moves = world.moves[approved["metadata"]["name"]]
            assert moves == ["Proposed", "Draft", "Proposed", "Published"], "promote has given the reason"
            assert RETURNED not in approved["metadata"]["annotations"]
        await world.close()

    run_simulated(main())


@pytest.mark.parametrize("is_ordered", [False, True], ids=["before the plan", "ordered"])
def test_a_canary_on_hold_keeps_the_fleet_waiting_and_goes_first_when_it_is_back(*, is_ordered: bool) -> None:
    async def main() -> None:
        world = Acting(in_flight_max=3)
        await begin(world, sites=4, **POLICY, canaries=[f"web-r1-{PACKAGE}"])
        if is_ordered:
            world.at_order[PACKAGE] = lambda: hold(world, "true")
            await world.becomes(PACKAGE, TargetState.GONE)
        else:
            await world.until(lambda: next(iter(world.revisions(PACKAGE)), None))
            hold(world, "true")
        await asyncio.sleep(300)  # many settle times
        assert world.approved == []
        policy = world.find(POLICY_KIND, "web")
        assert policy is not None
        (going,) = (each for each in policy["status"]["conditions"] if each["type"] == "Progressing")
        assert (going["status"], going["reason"]) == ("False", "CanaryNotReady")
        revision = rf"(r1\.{PACKAGE}\.packagevariant-1: )?"  # once promote has judged its draft
        said = rf"canary web-r1-{PACKAGE}: OnHold: {revision}it is on hold: pvbus unhold"
        assert re.search(said, going["message"]), going["message"]
        hold(world, "false")
        world.report(await world.has(PACKAGE, 1), healthy=True)
        for package in ("s0", *OTHERS):
            world.report(await world.has(package, 1), healthy=True)
        await world.converge()
        assert world.rollout()[0].state == "Completed"
        assert next(name.split(".")[1] for name, _ in world.approved) == PACKAGE
        assert len(world.approved) == 4
        await world.close()

    run_simulated(main())
