"""The owner of a package revision: inject reads the live object before each write and delete."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import ConflictError, PvbusError
from pvbus.core.kernel.effects import Create, Delete, Get, Update
from pvbus.core.kernel.objectrows import REVISION, VARIANT, rows_of, topics_of
from pvbus.core.kernel.records import OBJECTS
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.revisions.former import MADE_BY
from pvbus.core.variants.revisions.owning import RESOURCES, belongs_to
from pvbus.ports.cluster import Kind, Object
from tests.simulation.inject_world import (
    NAMESPACE,
    PIPELINE,
    InjectWorld,
    owner,
    package,
    upstream,
    variant,
)

MINE = [owner("v")]
FIRST = "edge.app.packagevariant-1"


def observe_only_variants(world: InjectWorld) -> None:
    """Two kinds have two watches, and what happened second may be seen first."""
    for obj in world.all(Kind(*VARIANT)):
        for row in rows_of(VARIANT, obj, topics_of(VARIANT, requested=False)):
            world._load(row.topic, row.key, row.value)


@pytest.mark.parametrize(("lifecycle", "revision"), [("Draft", 0), ("Proposed", 0), ("Published", 1)])
@pytest.mark.parametrize("policy", ["delete", "orphan"])
@pytest.mark.parametrize("taker", [[], [owner("w")]], ids=["nobody", "another"])
async def test_a_revision_that_was_taken_over_is_left_alone_when_the_downstream_changes(
    lifecycle: str, revision: int, policy: str, taker: list[Object]
) -> None:
    """The row still names us as the owner, the object does not."""
    old = package("old", "app", "packagevariant-1", lifecycle=lifecycle, revision=revision, owners=MINE)
    world = InjectWorld([*upstream(), *old, variant(repo="old", deletionPolicy=policy)])
    await world.settle()
    world.disown("old.app.packagevariant-1", *taker)
    before = world.revisions()["old.app.packagevariant-1"]
    world.change(downstream={"repo": "edge", "package": "app"})
    observe_only_variants(world)
    await world.run()
    assert world.revisions()["old.app.packagevariant-1"] == before
    assert world.lifecycles()[FIRST] == "Draft"
    await world.settle()
    assert world.revisions()["old.app.packagevariant-1"] == before
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_the_files_of_a_draft_that_was_taken_over_are_not_written() -> None:
    world = InjectWorld([*upstream(), *package("edge", "app", "packagevariant-1", owners=MINE), variant()])
    await world.settle()
    files = world.files(FIRST)
    world.disown(FIRST)
    world.change(pipeline=PIPELINE)
    observe_only_variants(world)
    world.obey_porch()
    await world.run()
    await world.settle()
    assert world.files(FIRST) == files
    assert world.reported()[:2] == ("False", "Error")
    assert "adoptionPolicy: adoptExisting" in world.reported()[2]


async def test_a_published_revision_that_was_taken_over_is_not_taken_back() -> None:
    """Its record names this very variant, so a person removed the owner reference on purpose."""
    world = InjectWorld([*upstream(), variant()])
    world.obey_porch()
    await world.settle()
    world.publish(FIRST)
    await world.settle()
    world.disown(FIRST)
    await world.settle()
    assert world.owners(FIRST) == []
    assert world.reported()[:2] == ("False", "Error")
    assert f"{FIRST} (Published, made by this variant, but its owner reference" in world.reported()[2]


async def test_a_deletion_proposed_revision_that_was_taken_over_is_not_published_again() -> None:
    mine = package("edge", "app", "packagevariant-1", lifecycle="DeletionProposed", revision=1, owners=MINE)
    mine[0]["metadata"]["annotations"] = {MADE_BY: "v@uid-v"}
    world = InjectWorld([*upstream(), *mine, variant()])
    world.observe()
    world.disown(FIRST)
    await world.run()
    assert world.revisions()[FIRST]["spec"]["lifecycle"] == "DeletionProposed"


async def test_references_from_another_namespace_make_no_owner() -> None:
    """Revisions there that name this variant's uid are not its own, and neither are their namesakes
    here."""
    mine = package("edge", "app", "packagevariant-1", owners=MINE)
    others = package("edge", "other", "packagevariant-1", owners=[owner("w")])
    manual = package("edge", "manual", "work")
    public = package("edge", "prod", "v1", lifecycle="Published", revision=1)
    world = InjectWorld(
        [*upstream(), *mine, *others, *manual, *public, variant(), variant("w", package="other")]
    )
    await world.settle()
    before = world.revisions()
    for name, workspace in (("other", "packagevariant-1"), ("manual", "work"), ("prod", "v1")):
        for obj in package("edge", name, workspace, owners=MINE):
            obj["metadata"].update(namespace="other", uid=f"x-{name}-{obj['kind']}")
            world.cluster.put(obj)
    copies = [obj for obj in world.all(Kind(*REVISION)) if obj["metadata"]["namespace"] == "other"]
    world.observe()
    assert not world.dirty
    world.change(labels={"a": "b"})
    await world.settle()
    world.change(deleted=True)
    await world.settle()
    after = {
        obj["metadata"]["name"]: obj
        for obj in world.all(Kind(*REVISION))
        if obj["metadata"]["namespace"] == NAMESPACE and not obj["metadata"]["name"].startswith("blue.")
    }
    del before[FIRST]
    assert after == before
    assert [o for o in world.all(Kind(*REVISION)) if o["metadata"]["namespace"] == "other"] == copies


@pytest.mark.parametrize(
    ("namespace", "owner_uid", "uid", "mine"),
    [
        (NAMESPACE, "uid-v", "uid-v", True),
        ("other", "uid-v", "uid-v", False),
        (NAMESPACE, "uid-w", "uid-v", False),
        (NAMESPACE, "", "", False),
    ],
)
def test_namespace_and_uid_make_an_owner(namespace: str, owner_uid: str, uid: str, mine: bool) -> None:
    (obj, _) = package("edge", "app", "w", owners=[{**owner("v"), "uid": owner_uid}])
    obj["metadata"]["namespace"] = namespace
    asked = variant()
    asked["metadata"]["uid"] = uid
    assert belongs_to(obj, msgspec.convert(asked, PackageVariant)) == mine


def test_the_view_finds_owned_revisions_by_namespace_and_uid() -> None:
    view = InjectView(1)
    for namespace in (NAMESPACE, "other"):
        (obj, _) = package("edge", "app", "w", owners=MINE)
        obj["metadata"]["namespace"] = namespace
        for row in rows_of(REVISION, obj, (OBJECTS,)):
            view.load_object(0, row.key, row.value)
    assert [r.namespace for r in view.owned(NAMESPACE, "uid-v")] == [NAMESPACE]
    assert [r.namespace for r in view.owned("other", "uid-v")] == ["other"]
    assert view.owned("third", "uid-v") == []


# ------------------------------------------------------------ at each effect


def edited() -> InjectWorld:
    return InjectWorld([*upstream(), *package("edge", "app", "packagevariant-1", owners=MINE), variant()])


def published() -> InjectWorld:
    mine = package("edge", "app", "packagevariant-1", lifecycle="Published", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *mine, variant()])


def retargeted() -> InjectWorld:
    old = package("old", "app", "packagevariant-1", owners=MINE)
    old += package("old", "app", "packagevariant-2", lifecycle="Published", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *old, variant()])


def proposed() -> InjectWorld:
    mine = package("edge", "app", "packagevariant-1", lifecycle="DeletionProposed", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *mine, variant()])


def deleted() -> InjectWorld:
    world = retargeted()
    world.change(deleted=True, downstream={"repo": "old", "package": "app"})
    return world


def orphaned() -> InjectWorld:
    world = retargeted()
    world.change(deletionPolicy="orphan", deleted=True, downstream={"repo": "old", "package": "app"})
    return world


def adopting() -> InjectWorld:
    asked = variant(adoptionPolicy="adoptExisting")
    return InjectWorld([*upstream(), *package("edge", "app", "by-hand"), asked])


def take_over(world: InjectWorld, taken: dict[str, Any], moment: int, number: int, effect: Any) -> None:
    """Give every revision to another variant, if it is the moment; note what they are then."""
    # The server of package revisions versions both kinds as one, the one in memory does not; and a create
    # has no precondition.
    unprotected = isinstance(effect, Create) or (isinstance(effect, Update) and effect.kind == RESOURCES)
    if number == moment and not unprotected:
        for name in world.revisions():
            world.disown(name, owner("w"))
            taken[name] = (world.revisions()[name], world.files(name))


@pytest.mark.parametrize("make", [edited, published, retargeted, proposed, deleted, orphaned, adopting])
async def test_whenever_somebody_takes_a_revision_over_nothing_is_written_to_it_afterwards(
    make: Callable[[], InjectWorld],
) -> None:
    """Before each effect in turn, another variant takes every revision over: from then on none of them
    is changed or deleted, and no draft is made from one."""
    moments = 0
    for moment in range(24):
        world = make()
        if world.variant()["metadata"].get("deletionTimestamp") is None:  # type: ignore[index]
            world.change(pipeline=PIPELINE)
        world.cluster.put(variant("w", repo="far"))
        world.observe()
        taken: dict[str, Any] = {}

        with contextlib.suppress(PvbusError):
            await world.run(before_effect=partial(take_over, world, taken, moment))
        for name, (revision, files) in taken.items():
            assert world.revisions().get(name) == revision, (name, moment)
            assert world.files(name) == files, (name, moment)
        for name in world.revisions().keys() - taken.keys() if taken else ():
            tasks = world.revisions()[name]["spec"]["tasks"]
            assert [task["type"] for task in tasks] == ["clone"], (name, moment)
        moments += bool(taken)
    assert moments > 1


async def test_every_write_to_a_revision_follows_a_look_at_it() -> None:
    """The effect before each update and delete is the read of that very revision."""
    for make in (edited, published, retargeted, proposed, deleted, orphaned):
        world = make()
        if world.variant()["metadata"].get("deletionTimestamp") is None:  # type: ignore[index]
            world.change(pipeline=PIPELINE)
        await world.settle()
        for before, effect in zip(world.effects, world.effects[1:], strict=False):
            if isinstance(effect, Update | Delete):
                name = effect.name if isinstance(effect, Delete) else effect.object["metadata"]["name"]
                kind = "PackageVariant" if effect.kind.kind == "PackageVariant" else "PackageRevision"
                assert isinstance(before, Get), (effect, before)
                assert (before.kind.kind, before.name) == (kind, name)


# ------------------------------------------------------------ the variant itself


async def test_the_finalizer_is_not_put_on_another_object_of_the_name() -> None:
    world = InjectWorld([*upstream(), {**variant(), "metadata": {**variant()["metadata"], "finalizers": []}}])
    world.observe()
    again = variant()
    again["metadata"].update(uid="uid-other", finalizers=[])
    world.cluster.put(again)
    with pytest.raises(ConflictError):
        await world.run()
    assert world.writes() == []


async def test_the_finalizer_is_put_on_and_taken_off_the_live_object() -> None:
    """Concurrent changes of other writers stay, and cause no conflict."""
    world = InjectWorld([*upstream(), {**variant(), "metadata": {**variant()["metadata"], "finalizers": []}}])
    world.observe()
    live = world.variant()
    assert live is not None
    live["metadata"]["labels"] = {"team": "x"}
    world.cluster.put(live)
    await world.run()
    found = world.variant()
    assert found is not None
    assert found["metadata"]["labels"] == {"team": "x"}
    assert len(found["metadata"]["finalizers"]) == 1
    await world.settle()
    await world.remove_variant()
    assert world.revisions() == {}
