"""Repositories: what is found in them, how they are followed, and what their condition says."""

import asyncio
import os
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.layout import LATEST_LABEL
from pvbus.core.kernel.objectrows import REPOSITORY
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    NAMESPACE,
    StoreWorld,
    bare,
    clone_of,
    git,
    push_files,
    refs,
    repository,
    revision,
    running,
)


def package(name: str) -> dict[str, str]:
    return {f"{name}/Kptfile": KPTFILE.format(name=name.rpartition("/")[2]), f"{name}/c.yaml": CONFIG}


async def test_packages_that_plain_git_made_are_found(world: StoreWorld, tmp_path: Path) -> None:
    remote = bare(tmp_path / "plain.git")
    push_files(remote, package("app"), tag="app/v1")
    push_files(remote, {"app/c.yaml": CONFIG.replace("small", "big")}, tag="app/v2")
    push_files(remote, {}, tag="app/v1.2")
    push_files(remote, package("deep/er/pkg"))
    push_files(remote, package("app/inner"))
    push_files(remote, {"no-package/readme.txt": "nothing"}, tag="no-package/v1")
    push_files(remote, package("UPPER case"), tag="toplevel")
    push_files(remote, package("sketch"), branch="drafts/sketch/idea")
    push_files(remote, package("plan"), branch="proposed/plan/b")
    git(remote, "branch", "deletionProposed/app/v1", "app/v1")

    ready = await world.add_repository("plain", remote)

    message = ready["status"]["conditions"][0]["message"]
    assert message.startswith("Repository Ready; 1 branches or tags name a folder without a Kptfile")
    assert "refs/tags/no-package/v1" in message
    assert ready["status"]["gitCommitHash"] == git(remote, "rev-parse", "main")
    found = {
        obj["metadata"]["name"]: (obj["spec"].get("revision", 0), obj["spec"]["lifecycle"])
        for obj in (world.present(name) for name in world.names())
    }
    assert found == {
        "plain.app.v1": (1, "DeletionProposed"),
        "plain.app.v2": (2, "Published"),
        "plain.app.v1.2": (-1, "Published"),
        "plain.app.main": (-1, "Published"),
        "plain.deep.er.pkg.main": (-1, "Published"),
        "plain.sketch.idea": (0, "Draft"),
        "plain.plan.b": (0, "Proposed"),
    }
    assert ready["status"]["packageCount"] == len(found)
    latest = [name for name in found if LATEST_LABEL in world.present(name)["metadata"].get("labels", {})]
    assert latest == ["plain.app.v2"]
    published = world.present("plain.app.v1")["status"]
    assert published["publishedBy"] == "person@example.com"
    assert published["selfLock"]["git"]["ref"] == "app/v1"


async def test_a_restart_has_nothing_to_say_about_what_was_made_before(fleet: StoreWorld) -> None:
    """A draft made just before the end is in the Repository's status then, not only after the next start."""
    await fleet.create(revision("edge", "app", "v1", clone_of("blue.app.v1")))
    await fleet.store.stop()
    last = fleet.ready("edge")
    assert last is not None
    assert last["status"]["packageCount"] == 1
    fleet.store = fleet.new_store()
    await fleet.store.start()
    await asyncio.sleep(0.5)
    assert fleet.ready("edge") == last


async def test_annotated_tags_are_revisions_too_and_can_be_deleted(world: StoreWorld, tmp_path: Path) -> None:
    remote = bare(tmp_path / "plain.git")
    commit = push_files(remote, package("app"))
    git(remote, "tag", "--annotate", "--message", "first", "app/v1", commit)
    await world.add_repository("plain", remote)
    published = world.present("plain.app.v1")
    assert published["status"]["selfLock"]["git"]["commit"] == commit
    await world.update(published, lifecycle="DeletionProposed")
    await world.delete("plain.app.v1")
    assert "refs/tags/app/v1" not in refs(remote)


async def test_the_directory_of_a_repository_bounds_and_shortens_its_packages(
    world: StoreWorld, tmp_path: Path
) -> None:
    remote = bare(tmp_path / "plain.git")
    push_files(remote, {**package("in/side/app"), **package("out/app")}, tag="in/side/app/v1")
    await world.add_repository("plain", remote, git={"directory": "/in/side/"})
    assert world.names() == ["plain.app.main", "plain.app.v1"]
    lock = world.present("plain.app.v1")["status"]["selfLock"]["git"]
    assert (lock["directory"], lock["ref"]) == ("app", "in/side/app/v1")
    await world.create(revision("plain", "fresh", "ws"))
    assert "refs/heads/drafts/in/side/fresh/ws" in refs(remote)


async def test_what_others_push_shows_up_and_what_they_remove_goes(
    fleet: StoreWorld, blueprints: Path
) -> None:
    push_files(blueprints, package("late"), tag="late/v1")
    await fleet.until(lambda: fleet.revision("blue.late.v1"))
    assert fleet.revision("blue.late.main")
    git(blueprints, "tag", "--delete", "late/v1")
    await fleet.until(lambda: fleet.revision("blue.late.v1") is None)


async def test_a_placeholder_changes_only_when_its_own_folder_does(
    fleet: StoreWorld, blueprints: Path
) -> None:
    before = fleet.present("blue.app.main")
    push_files(blueprints, package("other"))
    await fleet.until(lambda: fleet.revision("blue.other.main"))
    assert fleet.present("blue.app.main") == before
    await fleet.restart()
    push_files(blueprints, package("third"))
    await fleet.until(lambda: fleet.revision("blue.third.main"))
    assert fleet.present("blue.app.main") == before
    head = push_files(blueprints, {"app/c.yaml": CONFIG})
    await fleet.until(lambda: fleet.present("blue.app.main")["status"]["selfLock"]["git"]["commit"] == head)


async def test_a_restart_writes_nothing_where_nothing_changed(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1"), labels={"a": "b"}))
    await fleet.publish(draft)
    await fleet.until(lambda: fleet.revision("edge.app-1.main"))
    await fleet.until(
        lambda: (
            (fleet.ready("edge") or {}).get("status", {}).get("gitCommitHash")
            == git(edge, "rev-parse", "main")
        )
    )
    before = {name: fleet.present(name) for name in fleet.names()}
    await fleet.restart()
    await fleet.files("edge.app-1.ws")
    await fleet.files("blue.app.v1")
    assert {name: fleet.present(name) for name in fleet.names()} == before


async def test_a_draft_found_without_its_object_comes_back_with_its_owner(
    fleet: StoreWorld, edge: Path
) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1"}
    wanted = revision("edge", "app-1", "ws", clone_of("blue.app.v1"), ownerReferences=[owner])
    # The process dies after the push and before the object is stored.
    await fleet.store.package_revisions.on_create(wanted, user="")
    assert fleet.revision("edge.app-1.ws") is None
    await fleet.restart()
    adopted = await fleet.until(lambda: fleet.revision("edge.app-1.ws"))
    assert adopted["metadata"]["ownerReferences"] == [owner]
    assert adopted["spec"]["tasks"] == [clone_of("blue.app.v1")]


async def test_a_deleted_repository_takes_its_objects_along_but_nothing_in_git(
    fleet: StoreWorld, edge: Path
) -> None:
    await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    await fleet.objects.remove(REPOSITORY, NAMESPACE, "edge")
    await fleet.until(lambda: fleet.revision("edge.app-1.ws") is None)
    assert refs(edge) == ["refs/heads/drafts/app-1/ws"]
    await fleet.until(lambda: not (fleet.data / "repositories" / NAMESPACE / "edge" / "mirror.git").exists())
    await fleet.add_repository("edge", edge)
    assert fleet.revision("edge.app-1.ws")


async def test_a_repository_that_comes_back_has_its_drafts_with_their_owners(
    fleet: StoreWorld, edge: Path
) -> None:
    """Owners, labels and uid are in no git repository: they are noted when the Repository goes."""
    wanted = revision("edge", "app-1", "ws", clone_of("blue.app.v1"))
    owner = {"apiVersion": "v1", "kind": "Owner", "name": "o", "uid": "uid-of-o", "controller": True}
    wanted["metadata"] |= {"ownerReferences": [owner], "labels": {"a": "b"}}
    before = (await fleet.create(wanted))["metadata"]
    await fleet.objects.remove(REPOSITORY, NAMESPACE, "edge")
    await fleet.until(lambda: fleet.revision("edge.app-1.ws") is None)
    await fleet.add_repository("edge", edge)
    after = (await fleet.until(lambda: fleet.revision("edge.app-1.ws")))["metadata"]
    for field in ("uid", "ownerReferences", "labels"):
        assert after[field] == before[field]


async def test_a_repository_deleted_while_nobody_looked_leaves_no_revisions(fleet: StoreWorld) -> None:
    await fleet.store.stop()
    await fleet.objects.remove(REPOSITORY, NAMESPACE, "blue")
    fleet.store = fleet.new_store()
    await fleet.store.start()
    await fleet.until(lambda: fleet.names() == [])


async def test_a_missing_branch_is_named_and_can_be_created(world: StoreWorld, tmp_path: Path) -> None:
    remote = bare(tmp_path / "plain.git")
    push_files(remote, package("app"), branch="trunk")
    await world.add_repository("plain", remote)
    condition = world.condition("plain")
    assert condition["status"] == "False"
    assert 'branch "main" is not in the git repository' in condition["message"]
    await world.add_repository("made", remote, git={"branch": "made", "createBranch": True})
    assert world.condition("made")["status"] == "True"
    assert git(remote, "show", "--format=", "--name-only", "made") == "README.md"


async def test_a_repository_that_is_not_there_is_named_and_found_later(
    world: StoreWorld, tmp_path: Path
) -> None:
    remote = tmp_path / "not yet.git"
    await world.add_repository("late", remote)
    assert f"{remote} does not exist" in world.condition("late")["message"]
    with pytest.raises(StatusError, match="is not ready") as refused:
        await world.create(revision("late", "app", "ws"))
    assert refused.value.code == 503
    push_files(bare(remote), package("app"))
    await world.until(lambda: world.revision("late.app.main"))
    assert world.condition("late")["status"] == "True"


async def test_a_remote_that_vanishes_takes_nothing_along(fleet: StoreWorld, edge: Path) -> None:
    draft = await fleet.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
    away = edge.rename(edge.with_name("away.git"))
    await fleet.until(lambda: fleet.condition("edge")["status"] == "False")
    assert fleet.present("edge.app-1.ws")["spec"] == draft["spec"]
    assert (await fleet.files("edge.app-1.ws"))["spec"]["resources"]
    with pytest.raises(StatusError) as refused:
        await fleet.put(await fleet.files("edge.app-1.ws"), {"a.txt": "a"})
    assert refused.value.code == 503
    away.rename(edge)
    await fleet.until(lambda: fleet.condition("edge")["status"] == "True")
    await fleet.put(await fleet.files("edge.app-1.ws"), {"a.txt": "a"})


async def test_a_remote_that_lost_its_branch_takes_nothing_along(fleet: StoreWorld, blueprints: Path) -> None:
    for ref in refs(blueprints):
        git(blueprints, "update-ref", "-d", ref)
    await fleet.until(lambda: fleet.condition("blue")["status"] == "False")
    assert fleet.revision("blue.app.v1")


async def test_a_repository_in_a_working_copy_works_and_its_checked_out_branch_is_protected(
    world: StoreWorld, tmp_path: Path
) -> None:
    folder = tmp_path / "my work"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "file").write_text("mine")
    git(folder, "add", "file")
    git(folder, "commit", "--quiet", "--message", "mine")
    await world.add_repository("work", folder)
    draft = await world.create(revision("work", "app", "ws"))
    assert "refs/heads/drafts/app/ws" in refs(folder)
    proposed = await world.update(draft, lifecycle="Proposed")
    with pytest.raises(StatusError, match=r"checked out.*receive\.denyCurrentBranch") as refused:
        await world.update(proposed, lifecycle="Published", subresource="approval")
    assert refused.value.code == 500
    assert "refs/tags/app/v1" not in refs(folder)
    git(folder, "config", "receive.denyCurrentBranch", "updateInstead")
    await world.update(proposed, lifecycle="Published", subresource="approval")
    assert (folder / "app" / "Kptfile").exists()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"git": {"directory": "sub"}}, "already has the directory"),
        ({}, "already has the directory"),
    ],
)
async def test_two_repositories_cannot_hold_the_same_packages(
    fleet: StoreWorld, blueprints: Path, spec: dict[str, object], words: str
) -> None:
    with pytest.raises(StatusError, match=words) as refused:
        await fleet.store.repositories.on_create(repository("twin", blueprints, **spec), user="")
    assert refused.value.code == 422


async def test_what_a_repository_is_cannot_change(fleet: StoreWorld, blueprints: Path) -> None:
    old = fleet.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert old is not None
    for field in ("repo", "branch", "directory"):
        new = {**old, "spec": {**old["spec"], "git": {**old["spec"]["git"], field: "other"}}}
        with pytest.raises(StatusError, match="immutable"):
            await fleet.store.repositories.on_update(old, new, subresource="", user="")


async def test_a_repository_that_becomes_a_deployment_says_so_in_its_revisions(fleet: StoreWorld) -> None:
    old = fleet.objects.get(REPOSITORY, NAMESPACE, "blue")
    assert old is not None
    await fleet.objects.put(REPOSITORY, {**old, "spec": {**old["spec"], "deployment": True}})
    await fleet.until(lambda: fleet.present("blue.app.v1")["status"].get("deployment") is True)


async def test_other_types_of_repositories_are_not_ready(world: StoreWorld) -> None:
    obj = repository("oci", "x")
    obj["spec"] = {"type": "oci", "oci": {"registry": "example.com"}}
    await world.objects.create(REPOSITORY, world.store.repositories, obj)
    await world.until(lambda: world.ready("oci"))
    assert "only Repositories of type git" in world.condition("oci")["message"]


async def test_the_users_own_git_settings_do_not_matter(
    tmp_path: Path, blueprints: Path, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for name in ("pre-push", "pre-commit", "commit-msg", "post-checkout", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\necho ran >> '{tmp_path}/ran'\nexit 1\n")
        (hooks / name).chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f"[core]\n\thooksPath = {hooks}\n[commit]\n\tgpgsign = true\n[push]\n\tgpgSign = if-asked\n"
        "[tag]\n\tgpgSign = true\n[gpg]\n\tprogram = /bin/false\n[fetch]\n\tprune = false\n"
        "[protocol]\n\tallow = never\n[init]\n\tdefaultBranch = odd\n"
    )
    # The remotes' own hooks are theirs: a remote of this user would have them, a server has not.
    for remote in (blueprints, edge):
        git(remote, "config", "core.hooksPath", str(remote / "hooks"))
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    async with running(tmp_path / "da ta") as world:
        await world.add_repository("blue", blueprints)
        await world.add_repository("edge", edge)
        assert world.condition("blue")["status"] == "True"
        draft = await world.create(revision("edge", "app-1", "ws", clone_of("blue.app.v1")))
        assert (await world.publish(draft))["spec"]["revision"] == 1
    assert not (tmp_path / "ran").exists()
    monkeypatch.delenv("GIT_DIR")
    author = git(edge, "log", "-1", "--format=%an <%ae> %cn <%ce>", "main")
    assert author == " ".join(["Package Orchestration Service <porch@kpt.dev>"] * 2)
    assert os.environ["HOME"] == str(home)


async def test_the_author_is_the_user_unless_the_repository_names_one(fleet: StoreWorld, edge: Path) -> None:
    await fleet.create(revision("edge", "a", "ws"), user="ada")
    assert git(edge, "log", "-1", "--format=%an <%ae>", "drafts/a/ws") == "ada <ada>"
    old = fleet.objects.get(REPOSITORY, NAMESPACE, "edge")
    assert old is not None
    named = {**old["spec"]["git"], "author": "Bot", "email": "bot@example.com"}
    await fleet.objects.put(REPOSITORY, {**old, "spec": {**old["spec"], "git": named}})
    await fleet.create(revision("edge", "b", "ws"), user="ada")
    assert git(edge, "log", "-1", "--format=%an <%ae>", "drafts/b/ws") == "Bot <bot@example.com>"
