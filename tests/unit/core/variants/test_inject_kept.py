"""What people wrote into a draft outlives its variant, and is found again."""

from typing import Any

import pytest

from pvbus.core.kernel.keys import DELETE_EDITS, EDITED_BY, KEPT_FOR, KEPT_LABEL
from pvbus.core.variants.revisions.former import MADE_BY
from pvbus.ports.cluster import Object
from tests.simulation.inject_world import PIPELINE, InjectWorld, owner, package, upstream, variant
from tests.unit.core.variants.test_inject_return import again, made_by_set

FIRST = "edge.app.packagevariant-1"
OTHER = "edge.app.packagevariant-2"
MINE = [owner("v")]


def draft(
    workspace: str = "packagevariant-1", *, owners: list[Object] = MINE, **annotations: Any
) -> list[Object]:
    objects = package("edge", "app", workspace, owners=owners)
    objects[0]["metadata"]["annotations"] = dict(annotations)
    return objects


def edited(**annotations: str) -> list[Object]:
    given: Any = {EDITED_BY: "ann", **annotations}
    return draft(**given)


async def deleted(*objects: Object, lifecycle: str = "Draft", made_by: Object | None = None) -> InjectWorld:
    objects[0]["spec"]["lifecycle"] = lifecycle
    world = InjectWorld([*upstream(), *objects, made_by or variant()])
    world.change(deleted=True)
    await world.settle()
    assert world.variant() is None
    return world


def marks(world: InjectWorld, name: str = FIRST) -> tuple[Any, Any]:
    meta = world.revisions()[name]["metadata"]
    return (meta.get("annotations") or {}).get(KEPT_FOR), (meta.get("labels") or {}).get(KEPT_LABEL)


@pytest.mark.parametrize("lifecycle", ["Draft", "Proposed"])
async def test_what_people_edited_stays_without_owner_and_the_rest_goes(lifecycle: str) -> None:
    world = await deleted(*edited(), *draft("packagevariant-2"), lifecycle=lifecycle)
    assert world.lifecycles() == {FIRST: lifecycle}
    assert world.owners(FIRST) == []
    assert marks(world) == ("v@", "true")


async def test_the_mark_names_the_set_too() -> None:
    world = await deleted(*edited(), made_by=made_by_set(variant(), "web"))
    assert marks(world) == ("web/v@", "true")


@pytest.mark.parametrize("where", ["the draft", "the variant", "the template"])
async def test_an_annotation_asks_for_the_deletion_of_all(where: str) -> None:
    asked = {DELETE_EDITS: "true"}
    mine = variant(annotations=asked) if where == "the template" else variant()
    if where == "the variant":
        mine["metadata"]["annotations"] = asked
    world = await deleted(*edited(**(asked if where == "the draft" else {})), made_by=mine)
    assert world.lifecycles() == {}


async def test_another_downstream_leaves_the_edits_at_the_former_one() -> None:
    world = InjectWorld([*upstream(), *edited(), variant()])
    await world.settle()
    world.change(downstream={"repo": "edge", "package": "other"})
    await world.settle()
    assert marks(world) == ("v@", "true")
    assert world.owners(FIRST) == []
    world.change(downstream={"repo": "edge", "package": "app"})
    await world.settle()
    assert world.owners(FIRST) == ["uid-v"]
    assert marks(world) == (None, None)


async def test_the_variant_that_returns_has_its_draft_back_and_brings_it_up_to_date() -> None:
    world = await deleted(*edited())
    world.cluster.put(again(pipeline=PIPELINE))
    await world.settle()
    assert world.lifecycles() == {FIRST: "Draft"}
    assert world.owners(FIRST) == ["uid-v-2"]
    assert marks(world) == (None, None)
    assert world.revisions()[FIRST]["metadata"]["annotations"][MADE_BY] == "v@uid-v-2"
    assert world.reported()[:2] == ("True", "NoErrors")
    assert "set-labels" in world.files(FIRST)["Kptfile"]


async def test_a_draft_of_another_set_or_owner_is_left_alone() -> None:
    theirs = draft(owners=[], **{EDITED_BY: "ann", KEPT_FOR: "web/v@"})
    world = InjectWorld([*upstream(), *theirs, variant()])
    await world.settle()
    assert world.owners(FIRST) == []
    assert world.owners(OTHER) == ["uid-v"]


async def test_an_edited_draft_whose_variant_is_gone_without_a_trace_is_taken_up() -> None:
    """Somebody removed the finalizer by hand; the package store keeps the garbage collector from it."""
    world = InjectWorld(
        [*upstream(), *draft(owners=[owner("v", "uid-former")], **{EDITED_BY: "ann"}), variant()]
    )
    await world.settle()
    assert world.owners(FIRST) == ["uid-v"]
