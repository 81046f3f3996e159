"""A target that is brought back: the variant that is made again takes up its own package, and no other."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariant
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.variants.revisions.former import MADE_BY, PLACEHOLDER, PROPOSED_BY, made, trace_of
from pvbus.ports.cluster import Object
from tests.simulation.inject_world import NAMESPACE, PIPELINE, InjectWorld, owner, package, upstream, variant

FIRST = "edge.app.packagevariant-1"
SECOND = "edge.app.packagevariant-2"


def again(uid: str = "uid-v-2", *, set_name: str = "", **spec: Any) -> Object:
    """The variant that is made again: the same name, another uid."""
    obj = variant(**spec)
    obj["metadata"]["uid"] = uid
    return made_by_set(obj, set_name) if set_name else obj


def made_by_set(obj: Object, name: str) -> Object:
    reference = {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }
    obj["metadata"]["ownerReferences"] = [reference]
    return obj


async def published(*objects: Object, **spec: Any) -> InjectWorld:
    """A world with Porch's rules, the variant's package published once."""
    world = InjectWorld([*upstream(), *(objects or [variant(**spec)])])
    world.obey_porch()
    await world.settle()
    world.publish(FIRST)
    await world.settle()
    return world


async def test_the_proposed_deletion_is_taken_back_and_the_package_goes_on() -> None:
    world = await published()
    await world.remove_variant()
    assert world.lifecycles()[FIRST] == "DeletionProposed"
    assert world.owners(FIRST) == []
    world.cluster.put(again())
    await world.settle()
    assert world.lifecycles() == {FIRST: "Published", "edge.app.main": "Published"}
    assert world.owners(FIRST) == ["uid-v-2"]
    assert world.reported()[:2] == ("True", "NoErrors")
    assert PROPOSED_BY not in world.revisions()[FIRST]["metadata"]["annotations"]
    world.change(pipeline=PIPELINE)
    await world.settle()
    assert world.lifecycles()[SECOND] == "Draft"


async def test_it_can_go_and_come_back_any_number_of_times() -> None:
    world = await published()
    for number in range(2, 5):
        await world.remove_variant()
        world.cluster.put(again(f"uid-v-{number}"))
        await world.settle()
        assert world.lifecycles()[FIRST] == "Published"
        assert world.owners(FIRST) == [f"uid-v-{number}"]
    world.disown(FIRST)  # on purpose, from the variant that lives
    await world.settle()
    assert world.owners(FIRST) == []


async def test_every_revision_that_the_removal_proposed_comes_back_and_no_other() -> None:
    """A person had proposed the deletion of the first one before."""
    world = await published()
    for name in (SECOND, "edge.app.packagevariant-3"):
        world.change(pipeline={**PIPELINE, "validators": [{"name": name[-1], "image": "x:v1"}]})
        await world.settle()
        world.publish(name)
        await world.settle()
    world.touch(FIRST, lifecycle="DeletionProposed")
    await world.settle()
    await world.remove_variant()
    assert set(world.lifecycles().values()) == {"DeletionProposed", "Published"}  # the branch's stays
    world.cluster.put(
        again(pipeline={**PIPELINE, "validators": [{"name": "3", "image": "x:v1"}]}),
    )
    await world.settle()
    assert world.lifecycles() == {
        FIRST: "DeletionProposed",
        SECOND: "Published",
        "edge.app.packagevariant-3": "Published",
        "edge.app.main": "Published",
    }
    assert all(world.owners(name) == ["uid-v-2"] for name in world.lifecycles() if "main" not in name)


async def test_after_an_approved_deletion_the_message_names_the_placeholder_to_delete() -> None:
    """Porch's server refuses the clone while the folder is on the branch; without it, inject continues."""
    world = await published()
    await world.remove_variant()
    world.approve_deletion(FIRST)
    world.cluster.put(again())
    await world.settle()
    status, reason, message = world.reported()
    assert (status, reason) == ("False", "Error")
    assert "placeholder PackageRevision edge.app.main" in message
    assert f"porchctl rpkg delete edge.app.main -n {NAMESPACE}" in message
    assert world.lifecycles() == {"edge.app.main": "Published"}
    world.touch("edge.app.main", lifecycle="DeletionProposed")
    world.approve_deletion("edge.app.main")
    await world.settle()
    assert world.lifecycles() == {FIRST: "Draft"}
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_a_server_that_replaces_a_leftover_folder_just_does_it() -> None:
    world = await published()
    await world.remove_variant()
    world.approve_deletion(FIRST)
    world.cluster.before_write = None
    world.cluster.put(again())
    await world.settle()
    assert world.lifecycles() == {FIRST: "Draft", "edge.app.main": "Published"}
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_with_one_of_two_deletions_approved_the_other_revision_is_taken_up() -> None:
    world = await published()
    world.change(pipeline=PIPELINE)
    await world.settle()
    world.publish(SECOND)
    await world.settle()
    await world.remove_variant()
    world.approve_deletion(SECOND)
    world.cluster.put(again())
    await world.settle()
    assert world.lifecycles() == {FIRST: "Published", "edge.app.main": "Published"}


@pytest.mark.parametrize("policy", ["delete", "orphan"])
async def test_the_newest_revision_is_taken_up_whatever_it_was_made_from(policy: str) -> None:
    """The second one is an edit of the first."""
    world = await published(deletionPolicy=policy)
    world.change(pipeline=PIPELINE)
    await world.settle()
    world.publish(SECOND)
    await world.settle()
    await world.remove_variant()
    world.cluster.put(again(deletionPolicy=policy, pipeline=PIPELINE))
    await world.settle()
    assert [world.owners(name) for name in (FIRST, SECOND)] == [["uid-v-2"]] * 2
    assert [world.lifecycles()[name] for name in (FIRST, SECOND)] == ["Published"] * 2
    assert len(world.lifecycles()) == 3  # with the branch's: no draft was needed
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_a_package_that_was_only_adopted_is_foreign_again_once_it_is_released() -> None:
    """adoptNone says that it must not be taken over again."""
    foreign = package("edge", "app", "v1", lifecycle="Published", revision=1)
    world = InjectWorld(
        [*upstream(), *foreign, variant(adoptionPolicy="adoptExisting", deletionPolicy="orphan")]
    )
    world.obey_porch()
    await world.settle()
    assert world.owners("edge.app.v1") == ["uid-v"]
    await world.remove_variant()
    world.cluster.put(again())
    await world.settle()
    assert world.owners("edge.app.v1") == []
    assert "adoptionPolicy: adoptExisting" in world.reported()[2]


async def test_a_refusal_without_a_revision_in_the_list_is_decided_again() -> None:
    """Another writer was faster, or the list was not complete: inject waits for the echo."""
    world = InjectWorld([*upstream(), variant()])

    def refuse(verb: str, obj: Object) -> None:
        raise PermanentError("`clone` cannot create a new revision", reason="PackageExists")

    world.cluster.before_write = refuse
    world.observe()
    with pytest.raises(ConflictError):
        await world.run()


@pytest.mark.parametrize("policy", ["delete", "orphan"])
async def test_a_revision_that_is_published_still_or_again_is_taken_up(policy: str) -> None:
    """Orphaned with the variant, or the proposal to delete it was rejected."""
    world = await published(deletionPolicy=policy)
    await world.remove_variant()
    world.touch(FIRST, lifecycle="Published")
    world.cluster.put(again(deletionPolicy=policy))
    await world.settle()
    assert world.owners(FIRST) == ["uid-v-2"]
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_a_foreign_package_is_left_alone_until_the_policy_says_adopt() -> None:
    """The server's refusal is explained, with a remedy."""
    foreign = package("edge", "app", "v1", lifecycle="Published", revision=1)
    world = InjectWorld([*upstream(), *foreign, variant()])
    world.obey_porch()
    await world.settle()
    status, reason, message = world.reported()
    assert (status, reason) == ("False", "Error")
    assert 'package "app" in repository "edge"' in message
    assert "edge.app.v1 (Published, no record of its maker)" in message
    assert "adoptionPolicy: adoptExisting" in message
    assert world.writes() == []
    world.change(adoptionPolicy="adoptExisting")
    await world.settle()
    assert world.owners("edge.app.v1") == ["uid-v"]
    assert world.reported()[:2] == ("True", "NoErrors")


@pytest.mark.parametrize(
    ("maker", "taker"),
    [
        (made_by_set(variant(), "blue-set"), again(set_name="other-set")),
        (made_by_set(variant(), "blue-set"), again()),
        (variant(), again(set_name="blue-set")),
    ],
    ids=["another set", "from a set to a person", "from a person to a set"],
)
async def test_the_package_of_a_variant_of_another_set_is_foreign(maker: Object, taker: Object) -> None:
    world = await published(maker)
    await world.remove_variant()
    world.cluster.put(taker)
    await world.settle()
    assert world.owners(FIRST) == []
    assert world.lifecycles()[FIRST] == "DeletionProposed"
    assert "left by PackageVariant v" in world.reported()[2]
    assert "adoptionPolicy: adoptExisting" in world.reported()[2]


async def test_the_package_of_a_set_that_was_made_again_comes_back() -> None:
    """The set has another uid then; its name is what stays."""
    world = await published(made_by_set(variant(), "blue-set"))
    await world.remove_variant()
    back = again(set_name="blue-set")
    back["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.cluster.put(back)
    await world.settle()
    assert world.owners(FIRST) == ["uid-v-2"]
    assert world.lifecycles()[FIRST] == "Published"


async def test_the_package_of_a_variant_of_another_name_is_foreign() -> None:
    world = await published()
    await world.remove_variant()
    world.cluster.put(variant("w"))
    await world.settle()
    assert world.owners(FIRST) == []
    assert "left by PackageVariant v)" in world.reported(name="w")[2]


async def test_a_package_that_another_variant_has_adopted_meanwhile_is_foreign() -> None:
    world = await published()
    await world.remove_variant()
    world.cluster.put(variant("w", adoptionPolicy="adoptExisting"))
    await world.settle()
    assert world.owners(FIRST) == ["uid-w"]
    world.cluster.put(again())
    await world.settle()
    assert world.owners(FIRST) == ["uid-w"]
    assert "belongs to PackageVariant w" in world.reported()[2]
    assert "adoptionPolicy: adoptExisting" in world.reported()[2]


async def test_the_last_owner_takes_a_package_up_and_not_the_one_who_made_it() -> None:
    """Another variant had adopted it and proposed its deletion when it went."""
    world = await published()
    await world.remove_variant()
    world.cluster.put(variant("w", adoptionPolicy="adoptExisting"))
    await world.settle()
    assert PROPOSED_BY not in world.revisions()[FIRST]["metadata"]["annotations"]
    await world.remove_variant("w")
    world.cluster.put(again())
    await world.settle()
    assert world.owners(FIRST) == []
    assert "left by PackageVariant w" in world.reported()[2]
    await world.remove_variant()
    back = variant("w")
    back["metadata"]["uid"] = "uid-w-2"
    world.cluster.put(back)
    await world.settle()
    assert world.owners(FIRST) == ["uid-w-2"]
    assert world.lifecycles()[FIRST] == "Published"


# ------------------------------------------------------------ revisions of before the records


@pytest.mark.parametrize(
    ("workspace", "lifecycle", "owners", "taken"),
    [
        ("packagevariant-1", "DeletionProposed", [], True),
        ("packagevariant-1", "Published", [], False),
        ("by-hand", "DeletionProposed", [], False),
        ("packagevariant-1", "Published", [owner("v", "uid-of-before")], True),
        ("packagevariant-1", "DeletionProposed", [owner("v", "uid-of-before")], True),
        ("packagevariant-1", "DeletionProposed", [owner("w")], False),
        ("packagevariant-1", "DeletionProposed", [{"kind": "Pod", "name": "v", "uid": "u"}], False),
    ],
)
async def test_without_a_record_the_owner_reference_or_the_proposed_deletion_decides(
    workspace: str, lifecycle: str, owners: list[Object], taken: bool
) -> None:
    old = package("edge", "app", workspace, lifecycle=lifecycle, revision=1, owners=owners)
    world = InjectWorld([*upstream(), *old, variant()])
    world.obey_porch()
    await world.settle()
    name = f"edge.app.{workspace}"
    assert ("uid-v" in world.owners(name)) == taken
    assert world.reported()[0] == ("True" if taken else "False")
    if taken:
        assert world.lifecycles()[name] == "Published"
        assert world.revisions()[name]["metadata"]["annotations"][MADE_BY] == "v@uid-v"


def test_a_placeholder_was_made_by_nobody() -> None:
    """Not even if its workspace looks like a variant's and it has a record."""
    for annotations in ({}, {MADE_BY: "v@before"}):
        (branch, _) = package(
            "edge", "app", "packagevariant-1", lifecycle="DeletionProposed", revision=PLACEHOLDER
        )
        branch["metadata"]["annotations"] = annotations
        asked = msgspec.convert(variant(), PackageVariant)
        assert not made(trace_of(branch), asked)
        branch["spec"]["revision"] = 1
        assert made(trace_of(branch), asked)


async def test_a_revision_that_somebody_took_since_it_was_seen_is_not_taken_up() -> None:
    """The row shows a proposed deletion that is ours to take back; the object says otherwise by now."""
    old = package("edge", "app", "packagevariant-1", lifecycle="DeletionProposed", revision=1)
    world = InjectWorld([*upstream(), *old, variant()])
    world.obey_porch()
    world.observe()
    live = world.revisions()[FIRST]
    live["metadata"]["annotations"] = {MADE_BY: "other@uid-other"}
    world.cluster.put(live)
    await world.run()
    assert world.owners(FIRST) == []
    assert world.lifecycles() == {FIRST: "DeletionProposed"}
    assert "made by PackageVariant other" in world.reported()[2]


async def test_a_draft_that_a_former_variant_left_is_not_taken_up() -> None:
    """It may be a person's work by now: nothing is written into it without adoptExisting."""
    world = InjectWorld([*upstream(), variant(deletionPolicy="orphan")])
    world.obey_porch()
    await world.settle()
    await world.remove_variant()
    world.cluster.put(again(pipeline=PIPELINE))
    await world.settle()
    assert world.owners(FIRST) == []
    assert "adoptionPolicy: adoptExisting" in world.reported()[2]


# ------------------------------------------------------------ a downstream that comes back


async def test_a_downstream_that_was_orphaned_by_the_variant_itself_is_taken_up_again() -> None:
    """The variant still lives, but it was the one who let the revision go."""
    world = await published(deletionPolicy="orphan")
    world.change(pipeline=PIPELINE)
    await world.settle()
    world.publish(SECOND)
    await world.settle()
    world.change(downstream={"repo": "west", "package": "app"})
    await world.settle()
    assert [world.owners(name) for name in (FIRST, SECOND)] == [[], []]
    world.change(downstream={"repo": "edge", "package": "app"})
    await world.settle()
    assert [world.owners(name) for name in (FIRST, SECOND)] == [["uid-v"], ["uid-v"]]
    assert world.reported()[:2] == ("True", "NoErrors")


async def test_a_downstream_that_comes_back_has_all_its_revisions_published_again() -> None:
    world = await published()
    world.change(pipeline=PIPELINE)
    await world.settle()
    world.publish(SECOND)
    await world.settle()
    world.change(downstream={"repo": "west", "package": "app"})
    await world.settle()
    assert [world.lifecycles()[name] for name in (FIRST, SECOND)] == ["DeletionProposed"] * 2
    world.change(downstream={"repo": "edge", "package": "app"})
    await world.settle()
    assert [world.lifecycles()[name] for name in (FIRST, SECOND)] == ["Published"] * 2
    assert "west.app.packagevariant-1" not in world.lifecycles()
    for name in (FIRST, SECOND):  # what a person proposes from now on is not ours to take back
        assert PROPOSED_BY not in (world.revisions()[name]["metadata"].get("annotations") or {})


@pytest.mark.parametrize(
    ("proposer", "lifecycle"),
    [
        ("v@uid-v", "Published"),
        ("v@uid-before", "Published"),
        ("w@uid-w", "DeletionProposed"),
        ("set/v@uid-before", "DeletionProposed"),
        ("", "DeletionProposed"),
    ],
)
async def test_a_proposal_of_our_own_that_is_done_late_is_taken_back(proposer: str, lifecycle: str) -> None:
    """A former variant's is done after we took the revision up; others' proposals stay."""
    mine = []
    for number in (1, 2):
        workspace = f"packagevariant-{number}"
        mine += package("edge", "app", workspace, lifecycle="Published", revision=number, owners=[owner("v")])
    world = InjectWorld([*upstream(), *mine, variant()])
    await world.settle()
    late = world.revisions()[FIRST]
    late["spec"]["lifecycle"] = "DeletionProposed"
    late["metadata"]["annotations"] = {PROPOSED_BY: proposer} if proposer else {}
    world.cluster.put(late)
    await world.settle()
    assert world.lifecycles() == {FIRST: lifecycle, SECOND: "Published"}
    assert world.reported()[:2] == ("True", "NoErrors")
