"""What happens in the middle of a rollout: a revision is deleted, the upstream moves, clocks jump."""

import asyncio

import pytest

from pvbus.core.kernel.rolloutstates import TargetState
from pvbus.core.promotion.protocol.rules import LOOK_SECONDS_MAX
from tests.kit.processes import run_simulated
from tests.simulation.rolling import HEALTHY, Acting, begin
from tests.simulation.world import REVISION

HOLD_SECONDS = 300
POLICY = {
    "waves": [{"count": 1}, {"percent": 100}],
    "conditions": [HEALTHY],
    "budgets": {"maxInFlight": 3, "maxFailing": 0},
}


@pytest.mark.parametrize("is_ordered", [False, True], ids=["waiting", "ordered"])
def test_a_deleted_revision_leaves_and_the_new_one_of_its_name_is_approved(*, is_ordered: bool) -> None:
    """Its variant makes it again, with the same name and content: another object, which nobody has judged."""

    async def delete(world: Acting) -> None:
        obj = next(obj for obj in world.revisions("s2") if obj["spec"]["lifecycle"] == "Proposed")
        await world.delete(REVISION, obj["metadata"]["name"])

    async def main() -> None:
        world = Acting(in_flight_max=3)
        await begin(world, sites=4, **POLICY)
        canary = await world.has("s0", 1)
        before = next(obj["metadata"]["uid"] for obj in world.revisions("s2"))
        deleting: list[asyncio.Task[None]] = []
        if is_ordered:
            world.at_order["s2"] = lambda: deleting.append(asyncio.create_task(delete(world)))
        else:
            await delete(world)
            await world.becomes("s2", TargetState.LEFT)
        world.report(canary, healthy=True)
        for package in ("s1", "s3", "s2"):
            world.report(await world.has(package, 1), healthy=True)
        await world.converge()
        assert len(deleting) == is_ordered
        rollout, rows = world.rollout()
        assert rollout.state == "Completed"
        assert {row.state for row in rows.values()} == {TargetState.PROVEN}
        (made,) = world.revisions("s2")
        assert made["metadata"]["uid"] != before
        assert sorted(name.split(".")[1] for name, _ in world.approved) == ["s0", "s1", "s2", "s3"]
        await world.close()

    run_simulated(main())


def test_what_the_canary_did_not_have_goes_to_nobody_when_the_upstream_moves() -> None:
    async def main() -> None:
        world = Acting(in_flight_max=3)
        await begin(world, sites=4, **POLICY)
        canary = await world.has("s0", 1)
        world.move()
        for package in ("s1", "s2", "s3"):
            await world.becomes(package, TargetState.LEFT)
        world.report(canary, healthy=True)
        await world.converge()
        assert [sorted(world.published(f"s{number}")) for number in range(4)] == [[1, 2], [], [], []]
        world.report(await world.has("s0", 2), healthy=True)
        for number in range(1, 4):
            world.report(await world.has(f"s{number}", 2), healthy=True)
        await world.converge()
        assert [sorted(world.published(f"s{number}")) for number in range(4)] == [[1, 2], [2], [2], [2]]
        assert world.rollout()[0].state == "Completed"
        await world.close()

    run_simulated(main())


@pytest.mark.parametrize("jump", [1e6, -1e6], ids=["ahead", "back"])
@pytest.mark.parametrize("service", ["promote", "rollout", "release"])
def test_a_clock_that_jumps_shortens_no_hold_time_and_holds_nothing_up(service: str, jump: float) -> None:
    """The clock of one service jumps twice in a hold time, there and back."""

    async def main() -> None:
        world = Acting(in_flight_max=3)
        waves = [{"count": 1, "hold": f"{HOLD_SECONDS}s"}, {"percent": 100}]
        await begin(world, sites=4, **{**POLICY, "waves": waves})
        world.report(await world.has("s0", 1), healthy=True)
        proven = world.now
        clock = next(each.clock for each in world.running.values() if each.name.startswith(service))
        for skew in (jump, 0.0):
            await asyncio.sleep(75)
            clock.skew = skew
        await asyncio.sleep(75)
        assert [name for name, _ in world.approved] == ["r1.s0.packagevariant-1"]
        for number in range(1, 4):
            world.report(await world.has(f"s{number}", 1), healthy=True)
        waited = world.now - proven  # of the two jumps one is ahead: it counts as one look at most
        assert HOLD_SECONDS - LOOK_SECONDS_MAX <= waited <= HOLD_SECONDS + 2 * LOOK_SECONDS_MAX
        await world.converge()
        assert world.rollout()[0].state == "Completed"
        await world.close()

    run_simulated(main())
