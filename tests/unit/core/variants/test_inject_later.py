"""A person publishes a revision of the variant's package: what the variant goes on from."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest

from pvbus.adapters.memory.objects import REVISION
from pvbus.core.kernel.conflicts import CONFLICTS, reported
from pvbus.core.kernel.keys import RESTORES
from pvbus.core.kernel.kinds import Kind
from pvbus.core.variants.inject.later import MERGED
from pvbus.ports.cluster import Object
from tests.kit.deciding import CrashedError
from tests.simulation.inject_world import (
    KPTFILE,
    NAMESPACE,
    PIPELINE,
    InjectWorld,
    owner,
    package,
    variant,
)

FIRST, SECOND, FIX = (
    f"edge.app.{workspace}" for workspace in ("packagevariant-1", "packagevariant-2", "fix")
)
EDIT = {"type": "edit", "edit": {"sourceRef": {"name": FIRST}}}


def upgrade_of(name: str) -> Object:
    return {"type": "upgrade", "upgrade": {"localPackageRevisionRef": {"name": name}}}


def lock(number: int, package_name: str = "app") -> Object:
    git = {"repo": "blue-url", "directory": package_name, "ref": f"{package_name}/v{number}"}
    return {"type": "git", "git": {**git, "commit": f"c{number}"}}


def files(**data: str) -> dict[str, str]:
    lines = "".join(f"  {key}: {value}\n" for key, value in data.items())
    head = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n"
    return {"Kptfile": KPTFILE, "settings.yaml": head + lines}


def revision(
    workspace: str,
    number: int,
    *,
    lifecycle: str = "Published",
    owners: Iterable[Object] = (),
    task: Object | None = None,
    upstream: Object | None = None,
    **data: str,
) -> list[Object]:
    """A revision of the variant's package. upstream: its lock."""
    status = {"upstreamLock": upstream} if upstream else {}
    made = package(
        "edge", "app", workspace, lifecycle=lifecycle, revision=number, owners=owners, status=status,
        files=files(**data),
    )  # fmt: skip
    made[0]["spec"]["tasks"] = [task] if task else []
    return made


def upstreams(*numbers: int) -> list[Object]:
    return [
        obj
        for number in numbers
        for obj in package(
            "blue", "app", f"v{number}", lifecycle="Published", revision=number,
            files=files(own="a", theirs=f"u{number}"), status={"selfLock": lock(number)},
        )
    ]  # fmt: skip


def mine(**more: Any) -> list[Object]:
    return revision(
        "packagevariant-1", 1, owners=[owner("v")], upstream=lock(1), own="a", theirs="u1", **more
    )


def wanted(number: int, **spec: Any) -> Object:
    return variant(upstream={"repo": "blue", "package": "app", "revision": number}, **spec)


def fix(**more: Any) -> list[Object]:
    """A person's published edit."""
    return revision("fix", 2, **{"task": EDIT, "upstream": lock(1), "own": "fixed", "theirs": "u1", **more})


def created(world: InjectWorld) -> list[Object]:
    return [write.object for write in world.writes() if write.verb == "create" and write.object]


async def settled(*objects: Object) -> InjectWorld:
    world = InjectWorld(objects)
    await world.settle()
    return world


@pytest.mark.parametrize(
    ("changed", "task"), [({}, "upgrade"), ({"pipeline": PIPELINE}, "edit")], ids=["upgrade", "edit"]
)
async def test_the_next_draft_is_made_of_the_persons_revision(changed: Object, task: str) -> None:
    world = await settled(*upstreams(1, 2), *mine(), *fix(), wanted(2 if task == "upgrade" else 1, **changed))
    made = world.revisions()[SECOND]
    (found,) = made["spec"]["tasks"]
    source = {"upgrade": "localPackageRevisionRef", "edit": "sourceRef"}[task]
    assert found[task][source] == {"name": FIX}
    assert world.owners(SECOND) == ["uid-v"]
    assert world.owners(FIX) == []
    assert {write.name for write in world.writes()} <= {SECOND, "v"}


async def test_a_persons_revision_with_all_that_is_wanted_is_left_as_it_is() -> None:
    """The person has upgraded the package, with porchctl."""
    upgraded = fix(task=upgrade_of(FIRST), upstream=lock(2), theirs="u2")
    world = await settled(*upstreams(1, 2), *mine(), *upgraded, wanted(2))
    assert world.writes() == []
    assert world.reported()[:2] == ("True", "NoErrors")
    assert world.result().revisions == (FIX,)


CLONE = {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": "blue.other.v1"}}}}
BY = "was not made from a revision of this variant"

NOT_GONE_ON_FROM = [
    ({"task": {"type": "init", "init": {}}}, "LaterRevision", BY),
    ({"task": CLONE}, "LaterRevision", BY),
    ({"task": None, "upstream": lock(1, "other")}, "LaterRevision", BY),
    ({"task": {"type": "edit", "edit": {"sourceRef": {"name": FIX}}}}, "LaterRevision", BY),
    ({"upstream": None}, "LaterRevision", "names no upstreamLock any more"),
    ({"owners": [owner("w")]}, "OwnedByOther", "belongs to PackageVariant w"),
]


@pytest.mark.parametrize(("person", "reason", "words"), NOT_GONE_ON_FROM)
async def test_a_revision_that_is_no_edit_of_ours_is_reported_once_it_is_in_the_way(
    person: Object, reason: str, words: str
) -> None:
    others = [wanted(1)]
    others[0]["metadata"].update(name="w", uid="uid-w")
    world = await settled(*upstreams(1, 2), *mine(), *fix(**person), wanted(1), *others)
    assert world.reported()[:2] == ("True", "NoErrors")
    world.change(upstream={"repo": "blue", "package": "app", "revision": 2})
    await world.settle()
    assert world.reported()[:2] == ("False", reason)
    assert words in world.reported()[2]
    assert FIX in world.reported()[2]
    assert world.reported("Stalled")[0] == str(reason == "OwnedByOther")
    assert SECOND not in world.lifecycles()


GONE_ON_FROM = [
    ({"task": None}, "pushed with git"),
    ({"task": {"type": "edit", "edit": {"sourceRef": {"name": "edge.app.deleted"}}}}, "source is deleted"),
    ({"task": upgrade_of(FIRST), "upstream": lock(3)}, "upgraded by the person"),
    ({"owners": [owner("gone")]}, "of a variant that lives no more"),
]


@pytest.mark.parametrize(("person", "reason"), GONE_ON_FROM)
async def test_a_revision_with_the_same_upstream_package_is_gone_on_from(person: Object, reason: str) -> None:
    world = await settled(*upstreams(1, 2, 3), *mine(), *fix(**person), wanted(2))
    (task,) = world.revisions()[SECOND]["spec"]["tasks"]
    assert task["upgrade"]["localPackageRevisionRef"] == {"name": FIX}, reason


@pytest.mark.parametrize(("lifecycle", "number"), [("Draft", 0), ("Proposed", 0), ("DeletionProposed", 3)])
async def test_a_revision_that_is_not_published_does_not_count(lifecycle: str, number: int) -> None:
    """Nor is it written: the person's draft is the person's, and so is the proposal to delete a revision."""
    given = revision(
        "given", number, lifecycle=lifecycle, task=EDIT, upstream=lock(1), own="given", theirs="u1"
    )
    world = await settled(*upstreams(1, 2), *mine(), *fix(), *given, wanted(2))
    (task,) = world.revisions()[SECOND]["spec"]["tasks"]
    assert task["upgrade"]["localPackageRevisionRef"] == {"name": FIX}
    assert world.lifecycles()["edge.app.given"] == lifecycle
    assert {write.name for write in world.writes()} == {SECOND}


def draft(**more: Any) -> list[Object]:
    """The variant's open upgrade draft, made before the person published."""
    return revision(
        "packagevariant-2", 0,
        **{"lifecycle": "Draft", "owners": [owner("v")], "task": upgrade_of(FIRST), "upstream": lock(2),
           "own": "a", "theirs": "u2", **more},
    )  # fmt: skip


def data(world: InjectWorld, name: str) -> list[str]:
    return [line.strip() for line in world.files(name)["settings.yaml"].splitlines()]


async def test_an_edit_that_is_published_later_is_merged_into_the_open_draft_once() -> None:
    world = await settled(*upstreams(1, 2), *mine(), *draft(), *fix(), wanted(2))
    assert world.files(SECOND)["settings.yaml"] == files(own="fixed", theirs="u2")["settings.yaml"]
    annotations = world.revisions()[SECOND]["metadata"]["annotations"]
    assert annotations[MERGED] == FIX
    assert CONFLICTS not in annotations
    assert world.reported()[:2] == ("True", "NoErrors")
    done = len(world.writes())
    world.restart()
    await world.settle()
    assert len(world.writes()) == done


async def test_what_the_draft_and_the_later_edit_both_changed_is_a_conflict() -> None:
    world = await settled(*upstreams(1, 2), *mine(), *draft(), *fix(theirs="person"), wanted(2))
    assert "theirs: u2" in world.files(SECOND)["settings.yaml"]
    (found,) = reported(world.revisions()[SECOND]["metadata"]["annotations"][CONFLICTS])
    assert (found.field, found.old, found.local, found.new) == ("data.theirs", "u1", "person", "u2")


async def test_a_draft_is_merged_and_rebased_in_one_go() -> None:
    world = await settled(*upstreams(1, 2, 3), *mine(), *draft(), *fix(), wanted(3))
    assert {"own: fixed", "theirs: u3"} <= set(data(world, SECOND))


async def test_a_crash_between_the_merge_and_its_note_merges_again_to_the_same() -> None:
    for effects in range(12):
        world = InjectWorld([*upstreams(1, 2), *mine(), *draft(), *fix(), wanted(2)])
        world.observe()
        with suppress(CrashedError):
            await world.run(crash_after=effects)
        world.restart()
        await world.settle()
        assert world.files(SECOND)["settings.yaml"] == files(own="fixed", theirs="u2")["settings.yaml"]
        assert world.reported()[0] == "True"


async def test_a_proposed_draft_without_the_later_edit_is_reported_and_merged_once_rejected() -> None:
    world = await settled(*upstreams(1, 2), *mine(), *draft(lifecycle="Proposed"), *fix(), wanted(2))
    assert world.writes() == []
    assert world.reported()[:2] == ("False", "LaterRevision")
    assert FIX in world.reported()[2]
    assert "reject it" in world.reported()[2]
    world.touch(SECOND, lifecycle="Draft")
    await world.settle()
    assert "own: fixed" in world.files(SECOND)["settings.yaml"]


async def test_a_draft_and_a_later_edit_with_other_upstreams_are_not_mixed() -> None:
    """Each has another upstream: a merge would mix what upstream changed with what people did."""
    later = fix(task=upgrade_of(FIRST), upstream=lock(3), theirs="u3")
    world = await settled(*upstreams(1, 2, 3), *mine(), *draft(), *later, wanted(2))
    assert world.reported()[:2] == ("False", "LaterRevision")
    assert "delete the draft to have it made anew" in world.reported()[2]
    world.cluster.remove(Kind(*REVISION), NAMESPACE, SECOND)
    await world.settle()
    (task,) = world.revisions()[SECOND]["spec"]["tasks"]
    assert task["upgrade"]["localPackageRevisionRef"] == {"name": FIX}


# ------------------------------------------------------------ what a rollback publishes

ROLLBACK = "edge.app.rollback-1-0123abcd"


def rollback(number: int, lifecycle: str = "Published", **more: Any) -> list[Object]:
    """The content of the first revision again, as release makes it: an edit, owned once it is proposed."""
    owners = [owner("v")] if lifecycle != "Draft" else []
    task = {"type": "edit", "edit": {"sourceRef": {"name": FIRST}}}
    made = revision(
        "rollback-1-0123abcd", number, lifecycle=lifecycle, owners=owners, task=task, upstream=lock(1),
        own="a", theirs="u1", **more,
    )  # fmt: skip
    made[0]["metadata"]["annotations"] = {RESTORES: FIRST}
    return made


def second(**more: Any) -> list[Object]:
    """The revision that was rolled back."""
    return revision(
        "packagevariant-2", 2, owners=[owner("v")], task=upgrade_of(FIRST), upstream=lock(2), own="a",
        theirs="u2", **more,
    )  # fmt: skip


@pytest.mark.parametrize("policy", ["adoptNone", "adoptExisting"])
@pytest.mark.parametrize(("lifecycle", "number"), [("Draft", 0), ("Proposed", 0)])
async def test_what_a_rollback_makes_is_not_written_before_it_is_published(
    lifecycle: str, number: int, policy: str
) -> None:
    given = rollback(number, lifecycle)
    world = await settled(*upstreams(1, 2), *mine(), *second(), *given, wanted(2, adoptionPolicy=policy))
    assert world.writes() == []
    ready = world.reported()[0]
    assert ready == str(lifecycle == "Draft")


@pytest.mark.parametrize("policy", ["adoptNone", "adoptExisting"])
async def test_after_a_rollback_the_variant_makes_one_draft_and_is_quiet(policy: str) -> None:
    given = rollback(3)
    world = await settled(*upstreams(1, 2), *mine(), *second(), *given, wanted(2, adoptionPolicy=policy))
    (made,) = created(world)
    (task,) = made["spec"]["tasks"]
    assert task["upgrade"]["localPackageRevisionRef"] == {"name": ROLLBACK}
    assert world.reported()[:2] == ("True", "NoErrors")
    count = len(world.writes())
    world.restart()
    await world.settle()
    assert len(world.writes()) == count


@pytest.mark.parametrize("upgraded", [2, 3], ids=["edit", "upgrade"])
async def test_a_rollback_is_not_merged_into_an_open_draft(upgraded: int) -> None:
    """The draft of the next upstream, or of an edit, has all edits: a rollback has older content."""
    third = "edge.app.packagevariant-3"
    given = revision(
        "packagevariant-3", 0, lifecycle="Draft", owners=[owner("v")], task=upgrade_of(SECOND),
        upstream=lock(upgraded), own="a", theirs=f"u{upgraded}",
    )  # fmt: skip
    before = given[1]["spec"]["resources"]
    world = await settled(*upstreams(1, 2, 3), *mine(), *second(), *given, *rollback(3), wanted(upgraded))
    assert created(world) == []
    assert world.files(third) == before
    assert world.reported()[:2] == ("True", "NoErrors")
