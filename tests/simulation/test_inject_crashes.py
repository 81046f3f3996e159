"""A worker may die after any effect, with or without its echo: the next one reaches the same world."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.core.errors import ConflictError
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR, KEPT_LABEL
from pvbus.core.variants.revisions.former import MADE_BY, PROPOSED_BY
from pvbus.ports.cluster import Object
from tests.kit.deciding import CrashedError
from tests.simulation.draft_world import FIRST, SECOND, DraftWorld
from tests.simulation.inject_world import (
    PIPELINE,
    POINT,
    SITES,
    InjectWorld,
    owner,
    package,
    site,
    upstream,
    variant,
)

EFFECTS_MAX = 24
MINE = [owner("v")]


def fresh() -> InjectWorld:
    return InjectWorld([*upstream(), variant(pipeline=PIPELINE)])


def injected() -> InjectWorld:
    world = InjectWorld([SITES, site("s"), *upstream(site=POINT), variant(injectors=[{"name": "s"}])])
    world.observe()
    return world


def edited() -> InjectWorld:
    """The mutations of a published package change: an edit draft is made."""
    published = package("edge", "app", "packagevariant-1", lifecycle="Published", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *published, variant(pipeline=PIPELINE)])


def adopted() -> InjectWorld:
    foreign = package("edge", "app", "by-hand", lifecycle="Draft")
    return InjectWorld([*upstream(), *foreign, variant(adoptionPolicy="adoptExisting", labels={"a": "b"})])


def retargeted() -> InjectWorld:
    old = package("old", "app", "packagevariant-1", owners=MINE)
    old += package("old", "app", "packagevariant-2", lifecycle="Published", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *old, variant(pipeline=PIPELINE)])


def deleted() -> InjectWorld:
    mine = package("edge", "app", "packagevariant-1", lifecycle="Published", revision=1, owners=MINE)
    mine += package("edge", "app", "packagevariant-2", owners=MINE)
    world = InjectWorld([*upstream(), *mine, variant()])
    world.change(deleted=True)
    return world


def orphaned() -> InjectWorld:
    """Made from an edit, so that the release is what records whose it was."""
    mine = package("edge", "app", "packagevariant-2", lifecycle="Published", revision=2, owners=MINE)
    mine += package("edge", "app", "packagevariant-3", owners=MINE)
    world = InjectWorld([*upstream(), *mine, variant(deletionPolicy="orphan")])
    world.change(deleted=True)
    return world


def returned() -> InjectWorld:
    """The variant is made again after its removal proposed the deletion of two published revisions."""
    left = []
    for number in (1, 2):
        left += package(
            "edge", "app", f"packagevariant-{number}", lifecycle="DeletionProposed", revision=number
        )
        left[-2]["metadata"]["annotations"] = {MADE_BY: "v@uid-before", PROPOSED_BY: "v@uid-before"}
    return InjectWorld([*upstream(), *left, variant(pipeline=PIPELINE)])


def come_back() -> InjectWorld:
    """The downstream is set back to its former value: our own deletion proposals are withdrawn."""
    left = []
    for number in (1, 2):
        workspace = f"packagevariant-{number}"
        left += package("edge", "app", workspace, lifecycle="DeletionProposed", revision=number, owners=MINE)
        left[-2]["metadata"]["annotations"] = {MADE_BY: "v@uid-v", PROPOSED_BY: "v@uid-v"}
    return InjectWorld(
        [*upstream(), *left, *package("old", "app", "packagevariant-1", owners=MINE), variant()]
    )


def drafted() -> DraftWorld:
    """The draft upstream of a published package is published: an upgrade draft is made, and saved."""
    world = DraftWorld(downstream="Published", pipeline=PIPELINE)
    world.save("m2", lifecycle="Published", revision=1, size="big")
    return world


def saved() -> DraftWorld:
    """Saves are followed, of which no upgrade task can be made: an edit draft, and the merge into it."""
    world = DraftWorld(follow="saves", downstream="Published", pipeline=PIPELINE)
    world.save("c2", size="big")
    return world


def rebased() -> DraftWorld:
    """What git has lost is merged into an open draft: conflicts first, then the files."""
    world = DraftWorld(follow="saves", downstream="Draft", pipeline=PIPELINE)
    world.git.clear()
    world.save("c2", size="big")
    return world


DRAFTS = [drafted, saved, rebased]


def by_people(objects: list[Object]) -> list[Object]:
    """A draft as the package store shows one that people edited."""
    objects[0]["metadata"]["annotations"] = {EDITED_BY: "ann"}
    return objects


def deleted_with_edits() -> InjectWorld:
    mine = by_people(package("edge", "app", "packagevariant-1", owners=MINE))
    mine += package("edge", "app", "packagevariant-2", owners=MINE)
    world = InjectWorld([*upstream(), *mine, variant()])
    world.change(deleted=True)
    return world


def retargeted_with_edits() -> InjectWorld:
    old = by_people(package("old", "app", "packagevariant-1", lifecycle="Proposed", owners=MINE))
    return InjectWorld([*upstream(), *old, variant(pipeline=PIPELINE)])


def returned_to_edits() -> InjectWorld:
    left = by_people(package("edge", "app", "packagevariant-1"))
    left[0]["metadata"]["annotations"][KEPT_FOR] = "v@"
    left[0]["metadata"]["labels"] = {KEPT_LABEL: "true"}
    return InjectWorld([*upstream(), *left, variant(pipeline=PIPELINE)])


SCENARIOS = [fresh, injected, edited, adopted, retargeted, returned, come_back, *DRAFTS]
SCENARIOS += [retargeted_with_edits, returned_to_edits, deleted, orphaned, deleted_with_edits]


async def converged(make: Callable[[], InjectWorld]) -> InjectWorld:
    world = make()
    await world.settle()
    return world


@pytest.mark.parametrize("stale", [False, True], ids=["echoed", "stale"])
@pytest.mark.parametrize("make", SCENARIOS)
async def test_a_crash_after_each_effect_and_a_rerun_reach_the_same_world(
    make: Callable[[], InjectWorld], stale: bool
) -> None:
    expected = (await converged(make)).snapshot()
    crashes = 0
    for crash_after in range(EFFECTS_MAX):
        world = make()
        world.observe()
        for _ in range(3):  # requests for content come before the effects
            try:
                await world.run(crash_after=crash_after)
            except CrashedError:
                crashes += 1
                world.restart(observe=not stale)
                if stale:  # the next worker decides before anything of the first one is observed
                    try:
                        await world.run()
                    except ConflictError:
                        world.dirty["default/v"] = None
                break
            world.observe()
        await world.settle()
        assert world.snapshot() == expected, f"crash after {crash_after} effects"
    assert crashes > 0


@pytest.mark.parametrize(("make", "name"), [(drafted, SECOND), (saved, SECOND), (rebased, FIRST)])
async def test_an_upstream_that_moves_on_between_two_writes_of_an_upgrade_arrives(
    make: Callable[[], DraftWorld], name: str
) -> None:
    """A worker dies after each effect, and meanwhile the upstream gets another content: one draft has it."""
    for crash_after in range(EFFECTS_MAX):
        world = make()
        world.observe()
        try:
            await world.run(crash_after=crash_after)
        except CrashedError:
            world.save("m9", lifecycle="Published", revision=2, size="huge")
            world.restart()
            await world.settle()
            assert list(world.own())[-1] == name
            assert len(world.own()) == (2 if name == SECOND else 1)
            assert world.lock_of(name) == ("app/v2", "m9")
            assert (world.data(name)["size"], world.data(name)["mine"]) == ("huge", "yes")
            continue
        break
    assert crash_after > 3


@settings(deadline=None, max_examples=60)
@given(
    script=st.lists(
        st.sampled_from(["run", "observe", "restart", "crash-1", "crash-2", "crash-3"]), max_size=30
    )
)
async def test_any_order_of_duplicates_echoes_and_crashes_makes_one_draft(script: list[str]) -> None:
    world = fresh()
    world.observe()
    for act in script:
        match act.partition("-"):
            case ("run", _, _):
                await world.run()
            case ("observe", _, _):
                world.observe()
            case ("restart", _, _):
                world.restart(observe=False)
            case (_, _, effects):
                try:
                    await world.run(crash_after=int(effects))
                except CrashedError:
                    world.restart(observe=False)
        assert len(world.revisions()) <= 1
    await world.settle()
    assert world.lifecycles() == {"edge.app.packagevariant-1": "Draft"}
    creates = [write for write in world.writes() if write.verb == "create"]
    assert len(creates) == 1


@pytest.mark.parametrize("make", SCENARIOS[:-3])
async def test_a_converged_variant_costs_nothing_again(make: Callable[[], InjectWorld]) -> None:
    """Not after its own echoes, and not after a restart: no write, no row, no request to the cluster."""
    world = await converged(make)
    writes, effects, row = len(world.writes()), len(world.effects), world.result()
    world.restart()
    await world.settle()
    for _ in range(3):
        assert (await world.run()).puts == ()
    assert (len(world.writes()), len(world.effects), world.result()) == (writes, effects, row)
