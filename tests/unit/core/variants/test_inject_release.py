"""What becomes of a variant's revisions: every lifecycle, policy and way in which the variant gives them up.

The server obeys Porch's rules: no clone into a package that exists, no deletion of a published revision.
"""

import pytest

from pvbus.core.variants.revisions.former import MADE_BY
from tests.simulation.inject_world import InjectWorld, owner, package, upstream, variant
from tests.unit.core.variants.test_inject_return import again

FIRST = "edge.app.packagevariant-1"
WEST = "west.app.packagevariant-1"
LIFECYCLES = ("Draft", "Proposed", "Published", "DeletionProposed")


async def world_with(lifecycle: str, policy: str) -> InjectWorld:
    number = 1 if lifecycle in ("Published", "DeletionProposed") else 0
    mine = package(
        "edge", "app", "packagevariant-1", lifecycle=lifecycle, revision=number, owners=[owner("v")]
    )
    mine[0]["metadata"]["annotations"] = {MADE_BY: "v@uid-v"}
    world = InjectWorld([*upstream(), *mine, variant(deletionPolicy=policy)])
    world.obey_porch()
    return world


# way, lifecycle, policy -> lifecycle and owner afterwards ("-": gone, ".": no owner)
TABLE = """
deleted           Draft             delete  -
deleted           Proposed          delete  -
deleted           Published         delete  DeletionProposed .
deleted           DeletionProposed  delete  DeletionProposed .
deleted           Draft             orphan  Draft .
deleted           Proposed          orphan  Proposed .
deleted           Published         orphan  Published .
deleted           DeletionProposed  orphan  DeletionProposed .
renamed           Draft             delete  -
renamed           Proposed          delete  -
renamed           Published         delete  DeletionProposed uid-v
renamed           DeletionProposed  delete  DeletionProposed uid-v
renamed           Draft             orphan  Draft .
renamed           Proposed          orphan  Proposed .
renamed           Published         orphan  Published .
renamed           DeletionProposed  orphan  DeletionProposed .
deleted-and-back  Draft             delete  Draft uid-v-2
deleted-and-back  Proposed          delete  Draft uid-v-2
deleted-and-back  Published         delete  Published uid-v-2
deleted-and-back  DeletionProposed  delete  Published uid-v-2
deleted-and-back  Draft             orphan  Draft .
deleted-and-back  Proposed          orphan  Proposed .
deleted-and-back  Published         orphan  Published uid-v-2
deleted-and-back  DeletionProposed  orphan  Published uid-v-2
renamed-and-back  Draft             delete  Draft uid-v
renamed-and-back  Proposed          delete  Draft uid-v
renamed-and-back  Published         delete  Published uid-v
renamed-and-back  DeletionProposed  delete  Published uid-v
renamed-and-back  Draft             orphan  Draft .
renamed-and-back  Proposed          orphan  Proposed .
renamed-and-back  Published         orphan  Published uid-v
renamed-and-back  DeletionProposed  orphan  Published uid-v
"""
CASES = [line.split(maxsplit=3) for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize(("way", "lifecycle", "policy", "after"), CASES)
async def test_a_revision_that_is_given_up_follows_the_policy(
    way: str, lifecycle: str, policy: str, after: str
) -> None:
    world = await world_with(lifecycle, policy)
    world.observe()  # nothing runs before the change
    if way.startswith("deleted"):
        await world.remove_variant()
    else:
        world.change(downstream={"repo": "west", "package": "app"})
        await world.settle()
        assert world.lifecycles()[WEST] == "Draft"
    if way == "deleted-and-back":
        world.cluster.put(again(deletionPolicy=policy))
        await world.settle()
    if way == "renamed-and-back":
        world.change(downstream={"repo": "edge", "package": "app"})
        await world.settle()
        assert (WEST in world.lifecycles()) is (policy == "orphan")
    present = world.lifecycles().get(FIRST, "-")
    owners = world.owners(FIRST) if present != "-" else []
    assert f"{present} {' '.join(owners) or '.'}".removesuffix(" .") == after.removesuffix(" .")
    if after.endswith(" .") and way.endswith("back"):
        assert f"{FIRST} ({lifecycle}, " in world.reported()[2]


def test_the_table_has_every_pair() -> None:
    ways = {case[0] for case in CASES}
    assert len(ways) == 4
    expected = {(way, life, policy) for way in ways for life in LIFECYCLES for policy in ("delete", "orphan")}
    assert {tuple(case[:3]) for case in CASES} == expected


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_echoes_of_an_ended_variant_are_no_conflict(*, restarts: bool) -> None:
    """Its revisions' deletions are seen before its own: nothing is written or read a second time."""
    world = InjectWorld([*upstream(), variant()])
    await world.settle()
    world.change(deleted=True)
    world.observe()
    await world.run()
    assert (world.variant(), world.revisions()) == (None, {})
    writes, effects = len(world.writes()), len(world.effects)
    if restarts:
        world.restart(observe=False)
    outcome = await world.run()
    assert len(world.writes()) == writes
    assert restarts or len(world.effects) == effects
    assert not outcome.puts
    await world.settle()
    assert "default/v" not in {key for _, key in world.rows}
