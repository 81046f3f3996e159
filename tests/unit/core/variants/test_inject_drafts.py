"""A variant of a draft: every state of its downstream beside everything that happens to its upstream."""

from typing import Any

import pytest

from pvbus.core.kernel.effects import Get
from tests.simulation.draft_world import FIRST, SECOND, UPSTREAM, DraftWorld, repository

RENAMED = {"repo": "azure", "package": "app", "workspaceName": "v1"}

# What happened to the upstream, and what each downstream has then. kept: as it was; clone: the upstream as it
# is now; merge: so has the draft, beside its own edit; upgrade: so has a second draft; hold: it is reported;
# missing: the upstream is. With the annotation, `saves`.
EXPECTED = """
happened                 none    Draft   Proposed Published DeletionProposed
saved                    clone   kept    kept     kept      kept
saves-saved              clone   merge   hold     edit      edit
proposed                 clone   kept    kept     kept      kept
saves-proposed           clone   merge   hold     edit      edit
published                clone   merge   hold     upgrade   upgrade
saves-published          clone   merge   hold     upgrade   upgrade
deleted                  missing missing missing  missing   missing
saves-deleted            missing missing missing  missing   missing
made-again               clone   kept    kept     kept      kept
saves-made-again         clone   merge   hold     edit      edit
made-again-published     clone   merge   hold     upgrade   upgrade
published-as-another     clone   merge   hold     upgrade   upgrade
renamed                  clone   kept    kept     kept      kept
saves-renamed            clone   merge   hold     edit      edit
renamed-published        clone   merge   hold     upgrade   upgrade
moved-published          clone   merge   hold     upgrade   upgrade
"""
HEADS, *LINES = [line.split() for line in EXPECTED.strip().splitlines()]
CASES = [
    (line[0], downstream, after)
    for line in LINES
    for downstream, after in zip(HEADS[1:], line[1:], strict=True)
]
RELEASED: Any = {"lifecycle": "Published", "revision": 1}


def happen(world: DraftWorld, event: str) -> None:
    match event:
        case "saved":
            world.save("c2", size="big")
        case "proposed":
            world.save("c2", lifecycle="Proposed", size="big")
        case "published":
            world.save("m2", **RELEASED, size="big")
        case "deleted":
            world.drop("blue.app.v1")
        case "made-again" | "made-again-published":
            world.drop("blue.app.v1")
            world.save("c9", **(RELEASED if event.endswith("published") else {}), size="big")
        case "published-as-another":
            world.save("m2", **RELEASED, size="middle")
            world.drop("blue.app.v1")
            world.save("m3", lifecycle="Published", revision=2, size="big")
        case "renamed" | "renamed-published":
            world.drop("blue.app.v1")
            world.cluster.put(repository("azure"))
            world.save("c2", repo="azure", **(RELEASED if event.endswith("published") else {}), size="big")
            world.change(upstream=RENAMED)
        case "moved-published":
            world.save("m2", **RELEASED, address="https://new.example/blue.git", size="big")


@pytest.mark.parametrize(("event", "downstream", "after"), CASES)
async def test_every_downstream_beside_every_upstream(event: str, downstream: str, after: str) -> None:
    lifecycle = "" if downstream == "none" else downstream
    follow = "saves" if event.startswith("saves-") else ""
    world = DraftWorld(follow=follow, downstream=lifecycle)
    if lifecycle:
        await world.settle()
    before = world.own()
    happen(world, event.removeprefix("saves-"))
    await world.settle()
    status, reason, message = world.reported()
    if after == "missing":
        assert (status, world.own()) == ("False", before)
        assert "could not find upstream package revision" in world.reported("Stalled")[2]
        return
    assert (status, reason) == (("False", "UpstreamChanged") if after == "hold" else ("True", "NoErrors"))
    assert world.reported("UpgradeConflict") == ("", "", "")
    held = {"Proposed": "Proposed", "Draft": "Draft"}.get(downstream, "Published")
    match after:
        case "clone":
            assert (world.own(), world.data(FIRST)) == ({FIRST: "Draft"}, {"size": "big"})
        case "kept" | "hold":
            assert (world.own(), world.data(FIRST)) == ({FIRST: held}, {"size": "small", "mine": "yes"})
            assert (f'"{FIRST}" is Proposed: reject it' in message) == (after == "hold")
        case "merge":
            assert (world.own(), world.data(FIRST)) == ({FIRST: held}, {"size": "big", "mine": "yes"})
        case "upgrade" | "edit":
            assert world.own() == {FIRST: held, SECOND: "Draft"}
            assert world.data(SECOND) == {"size": "big", "mine": "yes"}
            assert world.task_of(SECOND)["type"] == after
    if after in ("merge", "upgrade", "edit"):
        name = SECOND if after in ("upgrade", "edit") else FIRST
        upstream = next(obj for key, obj in world.upstreams().items() if key.endswith(".app.v1"))
        git = upstream["status"]["selfLock"]["git"]
        assert world.lock_of(name) == (git["ref"], git["commit"])


@pytest.mark.parametrize("downstream", ["Draft", "Published"])
@pytest.mark.parametrize("event", ["saves-saved", "published", "saves-made-again"])
async def test_a_commit_that_git_has_lost_gives_every_difference_to_a_person(
    event: str, downstream: str
) -> None:
    """The revision of its workspace is the new upstream itself, which cannot tell what has changed: nothing
    of it is missed, and what the package had instead is reported."""
    follow = "saves" if event.startswith("saves-") else ""
    world = DraftWorld(follow=follow, downstream=downstream)
    await world.settle()
    world.git.clear()
    happen(world, event.removeprefix("saves-"))
    await world.settle()
    name = SECOND if downstream == "Published" else FIRST
    assert world.data(name) == {"size": "big", "mine": "yes"}
    status, _, message = world.reported("UpgradeConflict")
    assert status == "True"
    assert "data.size" in message
    assert world.lock_of(name)[1] in ("c2", "m2", "c9")


async def test_another_revision_of_the_workspace_stands_for_a_lost_commit() -> None:
    """The draft that was cloned is published meanwhile, and the variant moves on to the next one."""
    world = DraftWorld(downstream="Published")
    await world.settle()
    world.save("m1", **RELEASED, size="small")
    del world.git["c1"]
    world.save("m2", lifecycle="Published", revision=2, workspace="v2", size="big")
    world.change(upstream={**UPSTREAM, "workspaceName": "v2"})
    await world.settle()
    assert world.data(SECOND) == {"size": "big", "mine": "yes"}
    assert world.reported("UpgradeConflict")[0] == ""
    assert world.task_of(SECOND)["upgrade"]["oldUpstreamRef"] == {"name": "blue.app.v1"}


@pytest.mark.parametrize(
    ("downstream", "reason", "way_out"),
    [
        ("Draft", "UpstreamChanged", "delete it to have it made anew, or set spec.upstream back"),
        ("Proposed", "UpstreamChanged", "delete it to have it made anew, or set spec.upstream back"),
        ("Published", "Error", "bring that revision back, or set spec.upstream back, or delete the package"),
    ],
)
async def test_an_old_upstream_of_which_nothing_is_left_is_named_with_the_way_out(
    downstream: str, reason: str, way_out: str
) -> None:
    """There is neither the commit nor a revision of its workspace. Once the commit is back, it goes on."""
    world = DraftWorld(downstream=downstream)
    await world.settle()
    before = world.own()
    content = world.git.pop("c1")
    world.drop("blue.app.v1")
    world.save("m2", lifecycle="Published", revision=2, workspace="v2", size="big")
    world.change(upstream={**UPSTREAM, "workspaceName": "v2"})
    await world.settle()
    status, why, message = world.reported()
    assert (status, why, world.own()) == ("False", reason, before)
    assert "was made of drafts/app/v1 (commit c1), which cannot be read any more" in message
    assert way_out in message
    world.git["c1"] = content
    world.change(annotations={"pvbus.dev/retry": "1"})
    await world.settle()
    if downstream != "Proposed":
        assert world.reported()[0] == "True"
        assert world.data(SECOND if downstream == "Published" else FIRST) == {"size": "big", "mine": "yes"}


async def test_a_release_that_is_published_again_under_another_number_is_read_by_its_commit() -> None:
    """The published downstream holds revision 1, which is gone as a revision, not from git."""
    world = DraftWorld(downstream="Published")
    await world.settle()
    world.save("m1", **RELEASED, size="small")
    await world.settle()
    world.publish(SECOND)
    world.drop("blue.app.v1")
    world.save("m2", lifecycle="Published", revision=2, size="big")
    await world.settle()
    third = "edge.app.packagevariant-3"
    assert (world.reported()[:2], world.data(third)) == (("True", "NoErrors"), {"size": "big", "mine": "yes"})


async def test_saves_between_publications_cost_no_request_and_the_published_content_arrives() -> None:
    world = DraftWorld()
    await world.settle()
    world.publish(FIRST)
    await world.settle()
    effects = len(world.effects)
    for number in range(2, 12):
        world.save(f"c{number}", size=f"s{number}")
        await world.settle()
    assert len(world.effects) == effects
    world.save("m11", **RELEASED, size="s11")
    await world.settle()
    assert (world.data(SECOND), world.lock_of(SECOND)) == ({"size": "s11"}, ("app/v1", "m11"))


async def test_a_change_of_the_variant_between_publications_takes_no_unpublished_content() -> None:
    world = DraftWorld(downstream="Published")
    world.save("c2", size="big")
    await world.settle()
    pipeline = {"mutators": [{"name": "label", "image": "set-labels:v0.2", "configMap": {"app": "x"}}]}
    world.change(pipeline=pipeline)
    await world.settle()
    assert "set-labels" in world.files(SECOND)["Kptfile"]
    assert (world.data(SECOND), world.lock_of(SECOND)[1]) == ({"size": "small", "mine": "yes"}, "c1")
    world.save("m2", **RELEASED, size="big")
    await world.settle()
    assert world.data(SECOND) == {"size": "big", "mine": "yes"}


@pytest.mark.parametrize("field", ["metadata", "spec"])
async def test_the_switch_takes_effect_at_once_and_a_wrong_value_is_refused(field: str) -> None:
    """On the variant, or in its spec, where the template of a set puts it. The variant's own comes first."""

    async def switch(value: str) -> None:
        obj = world.variant()
        assert obj is not None
        obj[field]["annotations"] = {"pvbus.dev/follow": value}
        world.cluster.put(obj)
        await world.settle()

    world = DraftWorld(downstream="Draft")
    world.save("c2", size="big")
    await world.settle()
    await switch("publication")
    wrong = f'{field}.annotations[pvbus.dev/follow] can only be "publications" or "saves", not "publication"'
    assert wrong in world.reported("Stalled")[2]
    await switch("publications")
    assert world.data(FIRST)["size"] == "small"
    await switch("saves")
    assert world.data(FIRST) == {"size": "big", "mine": "yes"}


async def test_a_lock_without_a_commit_gets_the_upgrade_task_of_porch() -> None:
    """A lock on a draft is out of date once there is a published revision, whatever its number."""
    world = DraftWorld(downstream="Published")
    world.save("m1", **RELEASED, size="small")
    obj = world.revisions()[FIRST]
    del obj["status"]["upstreamLock"]["git"]["commit"]
    world.cluster.put(obj)
    await world.settle()
    task = world.task_of(SECOND)["upgrade"]
    references = [task[field]["name"] for field in ("oldUpstreamRef", "newUpstreamRef")]
    assert references == ["blue.app.v1", "blue.app.v1"]


async def test_a_draft_that_is_held_is_read_once_a_repository() -> None:
    """Git is asked through one revision of each repository, however many the package has."""
    world = DraftWorld(downstream="Published")
    for number in range(2, 9):
        world.save(f"m{number}", lifecycle="Published", revision=number, workspace=f"w{number}", size="other")
    world.git.pop("c1")
    await world.settle()
    world.save("m9", lifecycle="Published", revision=9, size="big")
    world.effects.clear()
    await world.settle()
    asked = [effect.name for effect in world.effects if isinstance(effect, Get) and "@" in effect.name]
    assert asked
    assert set(asked) == {"blue.app.v1@c1"}
    assert len(asked) <= 2


@pytest.mark.parametrize(
    ("event", "publish"), [({}, "publish the upstream, and then it,"), (RELEASED, "publish it")]
)
async def test_what_is_no_text_names_what_has_to_be_published(event: Any, publish: str) -> None:
    """The package store merges bytes, and only between published revisions."""
    world = DraftWorld(follow="saves", downstream="Draft")
    await world.settle()
    world.save("c2", **event, size="\ufffd")
    await world.settle()
    words = f"settings.yaml is no text; {publish} to have the package store merge it, or delete it"
    assert words in world.reported()[2]
