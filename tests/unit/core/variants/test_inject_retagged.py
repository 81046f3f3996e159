"""A variant of a tag that its author moves, with a number or without: an update from what the tag had."""

from typing import Any

import pytest

from pvbus.adapters.memory.objects import RESOURCES
from pvbus.core.kernel.effects import Get
from pvbus.core.variants.following import MOVED_TAGS
from tests.simulation.draft_world import FIRST, SECOND, UPSTREAM, DraftWorld

NUMBERED: Any = {"lifecycle": "Published", "revision": 1}
NEXT: Any = {"lifecycle": "Published", "revision": 2, "workspace": "v2"}
TO_SECOND = {**UPSTREAM, "workspaceName": "v2"}


async def following(downstream: str, **spec: Any) -> DraftWorld:
    """Return a world in which the tag has one field, and the package another of its own."""
    world = DraftWorld(**spec)
    world.save("t1", **NUMBERED, size="small")
    await world.settle()
    draft = next(obj for obj in world.all(RESOURCES) if obj["metadata"]["name"] == FIRST)
    files = draft["spec"]["resources"]
    files["settings.yaml"] = files["settings.yaml"].replace("size: small", "size: small\n  mine: 'yes'")
    world.cluster.put(draft)
    await world.settle()
    if downstream == "Published":
        world.publish(FIRST)
    elif downstream == "Proposed":
        world.touch(FIRST, lifecycle="Proposed")
    await world.settle()
    world.effects.clear()
    return world


def head(downstream: str) -> str:
    return SECOND if downstream == "Published" else FIRST


def drafts(world: DraftWorld) -> list[str]:
    return [name for name, lifecycle in world.own().items() if lifecycle == "Draft"]


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
async def test_a_moved_tag_brings_its_content_without_a_false_conflict(downstream: str) -> None:
    world = await following(downstream)
    world.save("t2", **NUMBERED, size="big")
    await world.settle()
    name = head(downstream)
    assert (world.reported()[:2], world.data(name)) == (("True", "NoErrors"), {"size": "big", "mine": "yes"})
    assert world.lock_of(name) == ("app/v1", "t2")
    assert world.reported("UpgradeConflict") == ("", "", "")
    assert drafts(world) == [name]
    effects = len(world.effects)
    world.restart()
    await world.settle()
    assert len(world.effects) == effects


async def test_a_proposed_revision_waits_for_a_person() -> None:
    world = await following("Proposed")
    world.save("t2", **NUMBERED, size="big")
    await world.settle()
    assert world.reported()[:2] == ("False", "UpstreamChanged")
    assert world.data(FIRST) == {"size": "small", "mine": "yes"}


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
@pytest.mark.parametrize("refuses", [False, True])
async def test_an_upgrade_after_a_move_starts_from_what_the_tag_had(downstream: str, refuses: bool) -> None:
    """The tag's present content is no base: what both have in common with it would be called a conflict."""
    world = await following(downstream)
    if refuses:
        world.change(annotations={MOVED_TAGS: "refuse"})
    world.save("t2", **NUMBERED, size="wrong")
    world.save("n1", **NEXT, size="big")
    world.change(upstream=TO_SECOND)
    await world.settle()
    name = head(downstream)
    assert (world.reported()[:2], world.data(name)) == (("True", "NoErrors"), {"size": "big", "mine": "yes"})
    assert (world.lock_of(name), world.reported("UpgradeConflict")[0]) == (("app/v2", "n1"), "")


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
@pytest.mark.parametrize("upgrades", [False, True])
async def test_without_the_former_commit_nothing_is_merged_and_the_way_out_is_named(
    downstream: str, upgrades: bool
) -> None:
    world = await following(downstream)
    before = world.own()
    content = world.git.pop("t1")
    world.save("t2", **NUMBERED, size="big")
    if upgrades:
        world.save("n1", **NEXT, size="big")
        world.change(upstream=TO_SECOND)
    await world.settle()
    status, _, message = world.reported()
    assert (status, world.own(), world.data(FIRST)["size"]) == ("False", before, "small")
    assert "was made of app/v1 (commit t1)" in message
    assert "the tag was moved to commit t2" in message
    assert "push that commit again" in message
    world.git["t1"] = content
    world.change(annotations={"pvbus.dev/retry": "1"})
    await world.settle()
    assert world.reported()[0] == "True"
    assert world.data(head(downstream)) == {"size": "big", "mine": "yes"}


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
async def test_a_variant_that_refuses_moved_tags_is_stalled_until_the_tag_is_back(downstream: str) -> None:
    world = await following(downstream)
    world.change(annotations={MOVED_TAGS: "refuse"})
    await world.settle()
    assert world.reported()[0] == "True"
    before = world.own()
    world.save("t2", **NUMBERED, size="big")
    await world.settle()
    for kind, status in (("Stalled", "True"), ("Ready", "False")):
        assert world.reported(kind)[:2] == (status, "TagMoved")
        assert "the tag of blue.app.v1 was moved" in world.reported(kind)[2]
    assert (world.own(), world.data(FIRST)["size"]) == (before, "small")
    world.save("t1", **NUMBERED, size="small")
    await world.settle()
    assert (world.reported()[0], world.reported("Stalled")[0], world.own()) == ("True", "False", before)
    world.save("t2", **NUMBERED, size="big")
    await world.settle()
    world.change(annotations={MOVED_TAGS: "update"})
    await world.settle()
    assert (world.reported()[0], world.data(head(downstream))["size"]) == ("True", "big")


async def test_a_tag_that_is_moved_to_the_same_content_makes_no_draft() -> None:
    """As after a history was rewritten."""
    world = await following("Published")
    world.save("t2", **NUMBERED, size="small")
    await world.settle()
    assert (world.reported()[0], drafts(world)) == ("True", [])
    assert all(isinstance(effect, Get) for effect in world.effects)


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
async def test_a_moved_tag_without_a_number_is_followed_in_the_same_way(downstream: str) -> None:
    """Also for a published package: an upgrade task would name one revision as both upstreams."""
    stable: Any = {"lifecycle": "Published", "revision": -1, "workspace": "stable"}
    world = DraftWorld(upstream={**UPSTREAM, "workspaceName": "stable"})
    world.save("s1", **stable, ref="app/stable", size="small")
    await world.settle()
    if downstream == "Published":
        world.publish(FIRST)
        await world.settle()
    world.save("s2", **stable, ref="app/stable", size="big")
    await world.settle()
    name = head(downstream)
    assert (world.reported()[0], world.data(name)) == ("True", {"size": "big"})
    assert world.lock_of(name) == ("app/stable", "s2")
    world.change(annotations={MOVED_TAGS: "refuse"})
    world.save("s3", **stable, ref="app/stable", size="huge")
    await world.settle()
    assert world.reported("Stalled")[:2] == ("True", "TagMoved")
