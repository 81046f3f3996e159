"""The folder of a deleted package: counted and replaceable, or removed with the last revision."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages import leftovers
from pvbus.core.kernel.keys import REMOVE_LAST_REVISION
from pvbus.core.kernel.objectrows import REPOSITORY
from tests.integration.packages.support import (
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    clone_of,
    git,
    push_files,
    refs,
    revision,
    tree,
)

PLACEHOLDER = "edge.app-1.main"
INIT = {"type": "init", "init": {"description": "anew"}}


async def publish(world: StoreWorld, workspace: str = "ws", package: str = "app-1") -> str:
    draft = await world.create(revision("edge", package, workspace, clone_of("blue.app.v1")))
    await world.publish(draft)
    return str(draft["metadata"]["name"])


async def delete_published(world: StoreWorld, name: str) -> None:
    """Propose the deletion of a published revision and approve it."""
    await world.update(world.present(name), lifecycle="DeletionProposed")
    await world.delete(name)


async def annotate(world: StoreWorld, value: str) -> None:
    stored = world.objects.get(REPOSITORY, NAMESPACE, "edge")
    assert stored is not None
    metadata = {**stored["metadata"], "annotations": {REMOVE_LAST_REVISION: value}}
    await world.objects.update(REPOSITORY, world.store.repositories, {**stored, "metadata": metadata})


def condition(world: StoreWorld) -> dict[str, Any] | None:
    stored = world.objects.get(REPOSITORY, NAMESPACE, "edge")
    assert stored is not None
    found = [each for each in stored["status"]["conditions"] if each["type"] == "LeftoverFolders"]
    return found[0] if found else None


def folders(remote: Path) -> list[str]:
    return git(remote, "ls-tree", "--name-only", "main").splitlines()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("task", [clone_of("blue.app.v1"), INIT], ids=["clone", "init"])
async def test_a_package_comes_back_over_the_folder_of_its_deleted_self(
    fleet: StoreWorld, edge: Path, task: dict[str, Any], restarted: bool
) -> None:
    await delete_published(fleet, await publish(fleet))
    assert folders(edge) == ["app-1"]
    if restarted:
        await fleet.restart()
        await fleet.until(lambda: fleet.revision(PLACEHOLDER))
    draft = await fleet.create(revision("edge", "app-1", "again", task))
    again = await fleet.publish(draft)
    assert again["spec"]["revision"] == 1
    wanted = (await fleet.files("edge.app-1.again"))["spec"]["resources"]
    assert tree(edge, "main", "app-1") == tree(edge, "app-1/v1", "app-1") == wanted
    await fleet.until(lambda: condition(fleet) is None)


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_annotation_removes_the_folder_with_the_last_revision_and_the_package_comes_back(
    fleet: StoreWorld, edge: Path, restarted: bool
) -> None:
    await annotate(fleet, "true")
    first = await publish(fleet)
    other = await publish(fleet, package="app-2")
    draft = await fleet.create(
        revision("edge", "app-1", "ws2", {"type": "edit", "edit": {"sourceRef": {"name": first}}})
    )
    await fleet.publish(draft)
    await delete_published(fleet, "edge.app-1.ws2")
    assert folders(edge) == ["app-1", "app-2"], "another revision is still published"
    await fleet.update(fleet.present(PLACEHOLDER), lifecycle="DeletionProposed")
    if restarted:
        await fleet.restart()
        await fleet.until(lambda: fleet.ready("edge"))
    await delete_published(fleet, first)
    assert folders(edge) == ["app-2"]
    assert git(edge, "log", "-1", "--format=%s", "main") == "Delete app-1"
    assert [ref for ref in refs(edge) if "app-1" in ref] == []
    await fleet.until(lambda: fleet.revision(PLACEHOLDER) is None)
    assert condition(fleet) is None
    assert fleet.present(other)
    await publish(fleet)
    assert folders(edge) == ["app-1", "app-2"]
    assert fleet.present(PLACEHOLDER)["spec"]["lifecycle"] == "Published"


async def test_a_condition_counts_the_folders_and_names_the_first_ones_and_both_ways_out(
    fleet: StoreWorld,
) -> None:
    for number in range(1, 6):
        await delete_published(fleet, await publish(fleet, package=f"app-{number}"))
    await fleet.restart()
    reported = await fleet.until(
        lambda: (found := condition(fleet)) and found["message"].startswith("5 ") and found
    )
    assert reported["status"] == "True"
    assert "app-1, app-2, app-3 (and 2 more)" in reported["message"]
    assert PLACEHOLDER in reported["message"]
    assert f'{REMOVE_LAST_REVISION}: "true"' in reported["message"]
    assert fleet.condition("edge")["type"] == "Ready"
    for number in range(1, 6):
        await delete_published(fleet, f"edge.app-{number}.main")
    await fleet.until(lambda: condition(fleet) is None)


async def test_a_folder_that_a_person_pushed_or_changed_is_theirs(fleet: StoreWorld, edge: Path) -> None:
    push_files(edge, {"mine/Kptfile": KPTFILE.format(name="mine")})
    await fleet.until(lambda: fleet.revision("edge.mine.main"))
    await delete_published(fleet, await publish(fleet))
    push_files(edge, {"app-1/by-hand.txt": "mine"})
    changed = git(edge, "rev-parse", "main")
    await fleet.until(lambda: fleet.present(PLACEHOLDER)["status"]["selfLock"]["git"]["commit"] == changed)
    for package in ("mine", "app-1"):
        with pytest.raises(StatusError, match="already exists"):
            await fleet.create(revision("edge", package, "ws", clone_of("blue.app.v1")))
    await fleet.until(lambda: condition(fleet) is None)


async def test_an_approval_that_is_not_on_a_rewritten_branch_any_more_is_forgotten(
    fleet: StoreWorld, edge: Path
) -> None:
    """As after a restart: the folder is of whoever rewrote the branch."""
    await delete_published(fleet, await publish(fleet))
    await fleet.until(lambda: condition(fleet))
    squashed = git(edge, "commit-tree", "main^{tree}", "-m", "All of it")
    git(edge, "update-ref", "refs/heads/main", squashed)
    await fleet.until(lambda: fleet.present(PLACEHOLDER)["status"]["selfLock"]["git"]["commit"] == squashed)
    await fleet.until(lambda: condition(fleet) is None)
    await delete_published(fleet, await publish(fleet, package="app-2"))
    await fleet.until(lambda: condition(fleet))


async def test_approvals_are_remembered_of_so_many_commits_only(
    fleet: StoreWorld, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "COMMITS_MAX", 2)
    await delete_published(fleet, await publish(fleet))
    await fleet.until(lambda: condition(fleet))
    for name in ("one", "two", "three", "four"):
        push_files(edge, {f"{name}/Kptfile": KPTFILE.format(name=name)})
        await fleet.until(partial(fleet.revision, f"edge.{name}.main"))
    await fleet.until(lambda: condition(fleet) is None)


@pytest.mark.parametrize("package", ["fresh", "app-1"])
async def test_a_package_that_exists_is_not_begun_anew(fleet: StoreWorld, edge: Path, package: str) -> None:
    await fleet.create(revision("edge", "fresh", "ws", INIT))
    await publish(fleet)
    before = refs(edge)
    with pytest.raises(
        StatusError, match=f'package "{package}" already exists in repository "edge"'
    ) as refused:
        await fleet.create(revision("edge", package, "other", INIT))
    assert refused.value.code == 500
    assert refs(edge) == before
