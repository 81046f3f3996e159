"""Accidents of an aggregated package store: what is deleted, killed, made by others or away."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from pvbus.controlplane.aggregated.state import ClusterNotes
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.apiserver.store import UnavailableError
from pvbus.controlplane.packages.journal import Note
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Kind
from tests.integration.aggregated.replicas import PACKAGE_REV, Replica, ReplicaWorld, embedded_cluster, until
from tests.integration.packages.support import KPTFILE, NAMESPACE, bare, git, push_files, refs, revision
from tests.kit.cluster import resource_of

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "set", "uid": "1-2-3", "controller": True}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ReplicaWorld]:
    async with embedded_cluster(tmp_path) as world:
        yield world


@pytest.fixture
def edge(tmp_path: Path) -> Path:
    return bare(tmp_path / "git" / "edge.git")


async def _draft(replica: Replica, world: ReplicaWorld, edge: Path, **metadata: object) -> dict[str, object]:
    await world.add_repository("edge", edge, git={"createBranch": True})
    made: dict[str, object] = await until(lambda: replica.create(revision("edge", "app", "ws", **metadata)))
    return made


async def test_a_recreated_repository_gets_its_drafts_back_with_labels_and_owners(
    world: ReplicaWorld, edge: Path
) -> None:
    async with world.replica("a") as a, world.replica("b") as b:
        made = await _draft(a, world, edge, labels={"team": "x"}, ownerReferences=[OWNER])
        await world.delete(REPOSITORY, "edge")
        await until(lambda: _is_empty(a))
        await until(lambda: _is_empty(b))
        assert "refs/heads/drafts/app/ws" in refs(edge)
        await world.add_repository("edge", edge)
        for each in (a, b):
            again = await until(lambda each=each: each.get("edge.app.ws"))
            assert again["metadata"]["labels"] == {"team": "x"}
            assert again["metadata"]["ownerReferences"] == [OWNER]
            assert again["spec"] == made["spec"]


async def _is_empty(replica: Replica) -> bool:
    return not await replica.names()


async def test_a_package_rev_that_is_deleted_by_hand_comes_back(world: ReplicaWorld, edge: Path) -> None:
    async with world.replica("a") as a, world.replica("b") as b:
        await _draft(a, world, edge, labels={"team": "x"}, ownerReferences=[OWNER])
        await b.get("edge.app.ws")
        before = await world.rev("edge.app.ws")
        assert before is not None
        await world.delete(PACKAGE_REV, "edge.app.ws")

        async def is_new() -> bool:
            rev = await world.rev("edge.app.ws")
            return rev is not None and rev["metadata"]["uid"] != before["metadata"]["uid"]

        await until(is_new)
        for each in (a, b):
            again = await until(lambda each=each: each.get("edge.app.ws"))
            assert again["metadata"]["labels"] == {"team": "x"}
            assert again["metadata"]["ownerReferences"] == [OWNER]


async def test_a_revision_whose_package_rev_is_torn_out_comes_back_without_labels(
    world: ReplicaWorld, edge: Path
) -> None:
    async with world.replica("a") as a:
        await _draft(a, world, edge, labels={"team": "x"})
        rev = await world.rev("edge.app.ws")
        resource = await world.cluster.resource(PACKAGE_REV)
        assert rev is not None
        assert resource is not None
        rev["metadata"].pop("finalizers")
        await world.cluster.update(resource, rev)
        await world.cluster.delete(resource, NAMESPACE, "edge.app.ws")

        async def is_back() -> bool:
            return "team" not in ((await a.get("edge.app.ws"))["metadata"].get("labels") or {})

        await until(is_back)
        assert (await a.files("edge.app.ws"))["spec"]["resources"]["Kptfile"]


async def test_the_metadata_of_porchs_package_revs_is_taken_over(world: ReplicaWorld, edge: Path) -> None:
    async with world.replica("a") as a:
        await _draft(a, world, edge, labels={"team": "x"}, ownerReferences=[OWNER])
    resource = await world.cluster.resource(PACKAGE_REV)
    rev = await world.rev("edge.app.ws")
    assert resource is not None
    assert rev is not None
    rev["spec"] = {}
    maps = await resource_of(world.cluster, Kind("", "ConfigMap"))
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "set", "namespace": NAMESPACE}}
    owner = {**OWNER, "uid": (await world.cluster.create(maps, body))["metadata"]["uid"]}
    rev["metadata"]["ownerReferences"] = [
        owner,
        {
            "apiVersion": "porch.kpt.dev/v1alpha1",
            "kind": "PackageRevision",
            "name": "edge.app.ws",
            "uid": "u",
        },
    ]
    await world.cluster.update(resource, rev)
    async with world.replica("b") as b:
        found = await until(lambda: b.get("edge.app.ws"))
        assert found["metadata"]["labels"] == {"team": "x"}
        assert found["metadata"]["ownerReferences"] == [owner]


async def test_another_replica_finishes_a_creation_that_was_pushed(world: ReplicaWorld, edge: Path) -> None:
    """The killed replica is played by what it leaves: a note in the cluster, and the draft in git."""
    async with world.replica("a") as a:
        await _draft(a, world, edge)
        notes = ClusterNotes(a.state.store, NAMESPACE, "edge")
        metadata = {"labels": {"team": "x"}, "ownerReferences": [OWNER]}
        await notes.reserve("edge.other.ws", Note("", metadata))
        await notes.reserve("edge.lost.ws", Note("", metadata))
        git(edge, "update-ref", "refs/heads/drafts/other/ws", _commit_of_other(edge))
    async with world.replica("b") as b:
        found = await until(lambda: b.get("edge.other.ws"))
        assert found["metadata"]["labels"] == {"team": "x"}
        assert found["metadata"]["ownerReferences"] == [OWNER]

        async def is_free() -> bool:
            return await world.rev("edge.lost.ws") is None

        await until(is_free)
        await b.create(revision("edge", "lost", "ws"))


def _commit_of_other(edge: Path) -> str:
    return push_files(
        edge,
        {"other/Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: other\n"},
        branch="drafts/other/ws",
    )


async def test_another_replica_ends_a_change_that_was_not_pushed(world: ReplicaWorld, edge: Path) -> None:
    async with world.replica("a") as a:
        made = await _draft(a, world, edge, labels={"team": "x"})
        version = made["metadata"]["resourceVersion"]  # type: ignore[index]
        notes = ClusterNotes(a.state.store, NAMESPACE, "edge")
        await notes.reserve("edge.app.ws", Note("", {"labels": {"team": "y"}}, "Proposed", version))
        async with world.replica("b") as b:
            found = await until(lambda: b.get("edge.app.ws"))
            assert found == made  # it is as it was while the change is under way
            with pytest.raises(StatusError, match="in progress"):
                await b.move(found, "Proposed")
        await a.state.stop()
        async with world.replica("c") as c:
            await until(lambda: _proposed(c))
            found = await c.get("edge.app.ws")
            assert (found["metadata"]["labels"], found["spec"]["lifecycle"]) == ({"team": "x"}, "Proposed")
        await a.state.start()


async def _proposed(replica: Replica) -> bool:
    await replica.move(await replica.get("edge.app.ws"), "Proposed")
    return True


async def test_git_that_moved_while_all_replicas_were_off_is_followed(
    world: ReplicaWorld, edge: Path
) -> None:
    async with world.replica("a") as a:
        made = await _draft(a, world, edge, labels={"team": "x"})
        await a.publish(made)
    git(edge, "update-ref", "-d", "refs/tags/app/v1")
    git(edge, "update-ref", "refs/heads/drafts/other/ws", _commit_of_other(edge))
    async with world.replica("b") as b:
        await until(lambda: b.get("edge.other.ws"))

        async def is_gone() -> bool:
            return "edge.app.ws" not in await b.names()

        await until(is_gone)
        assert await world.rev("edge.app.ws") is None


async def test_git_away_refuses_writes_and_serves_what_is_known(world: ReplicaWorld, edge: Path) -> None:
    async with world.replica("a") as a:
        made = await _draft(a, world, edge)
        shutil.move(edge, edge.with_name("away"))
        with pytest.raises(StatusError) as refused:
            await a.move(made, "Proposed")
        assert refused.value.code == 503
        assert (await a.get("edge.app.ws"))["spec"]["lifecycle"] == "Draft"
        shutil.move(edge.with_name("away"), edge)
        await until(lambda: _proposed(a))


async def test_missing_definitions_are_named(world: ReplicaWorld, edge: Path) -> None:
    resource = await resource_of(world.cluster, Kind("apiextensions.k8s.io", "CustomResourceDefinition"))
    await world.cluster.delete(resource, "", "packagerevs.config.porch.kpt.dev")
    world.cluster.forget_resources()
    async with world.replica("a") as a:

        async def is_named() -> bool:
            return "PackageRev.config.porch.kpt.dev" in a.state.problem()

        await until(is_named)
        with pytest.raises(UnavailableError, match="kubectl apply -k deploy/crds"):
            await a.get("edge.app.ws")


async def test_reads_need_the_cluster_unless_they_accept_what_is_cached(
    world: ReplicaWorld, edge: Path
) -> None:
    async with world.replica("a") as a:
        await _draft(a, world, edge)
        assert world.server is not None
        await world.server.stop()
        with pytest.raises(UnavailableError):
            await a.get("edge.app.ws")
        cached = await a.ask("GET", "packagerevisions", None, {"resourceVersion": "0"})
        assert [obj["metadata"]["name"] for obj in cached["items"]] == ["edge.app.ws"]

        async def is_said() -> bool:
            await asyncio.sleep(0)
            return bool(a.state.problem())

        await until(is_said)


async def test_a_replica_that_knows_no_repositories_yet_deletes_in_git_too(
    world: ReplicaWorld, edge: Path
) -> None:
    """A PackageRevision without a Repository is deleted as an object only: that must be certain."""
    async with world.replica("a") as a:
        await _draft(a, world, edge)
    async with world.replica("b") as b:
        followers = b.state.store.followers
        await followers[PACKAGE_REVISION].listed.wait()
        table = b.state.store.table(REPOSITORY)
        table.entries.clear()  # as before the list of Repositories has come
        with suppress(StatusError, UnavailableError):
            await b.delete("edge.app.ws")
        assert "refs/heads/drafts/app/ws" not in refs(edge) or await world.rev("edge.app.ws") is not None


async def test_the_secret_of_a_repository_is_read_when_it_is_needed(world: ReplicaWorld, edge: Path) -> None:
    await world.add_repository("edge", edge, git={"createBranch": True, "secretRef": {"name": "login"}})
    async with world.replica("a") as a:

        async def ready(status: str, message: str) -> bool:
            obj = await world.get(REPOSITORY, "edge")
            found = ((obj or {}).get("status") or {}).get("conditions") or [{}]
            return found[0].get("status") == status and message in found[0]["message"]

        await until(lambda: ready("False", 'Secret "login"'))
        secrets = await resource_of(world.cluster, Kind("", "Secret"))
        data = {"username": "am9l", "password": "c2VjcmV0"}
        metadata = {"name": "login", "namespace": NAMESPACE}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
        await world.cluster.create(secrets, body)
        await until(lambda: ready("True", ""))
        await a.create(revision("edge", "app", "ws"))


async def test_a_path_is_read_in_the_folders_of_the_setting_alone(world: ReplicaWorld, edge: Path) -> None:
    """Anybody may have stored the Repository, which no hook of the store has seen: not even a clone by its
    address reads it, nor the copy that another replica has of it."""
    hidden = bare(edge.parent.parent / "hidden.git")
    push_files(hidden, {"app/Kptfile": KPTFILE.format(name="app")}, tag="app/v1")
    (edge.parent / "link.git").symlink_to(hidden)
    await world.add_repository("hidden", hidden)
    await world.add_repository("link", edge.parent / "link.git")

    async def problem(name: str) -> str:
        obj = await world.get(REPOSITORY, name)
        found = ((obj or {}).get("status") or {}).get("conditions") or [{}]
        return str(found[0].get("message")) if found[0].get("status") == "False" else ""

    async with world.replica("a", local_folders=(str(edge.parent), str(world.folder / "a"))) as a:
        await _draft(a, world, edge)
        for name in ("hidden", "link"):
            message = await until(lambda name=name: problem(name))
            assert message.startswith("spec.git.repo: is a path of the server's machine that may not be read")
        own = world.folder / "a" / "repositories" / NAMESPACE / "edge" / "mirror.git"
        assert own.exists()
        for number, repo in enumerate((hidden, edge.parent / "link.git", own)):
            location = {"repo": str(repo), "ref": "main", "directory": "app"}
            task = {"type": "clone", "clone": {"upstreamRef": {"type": "git", "git": location}}}
            with pytest.raises(StatusError, match="may not be read") as refused:
                await a.create(revision("edge", f"web-{number}", "ws", task))
            assert refused.value.code == 400
        assert [name for name in await a.names() if not name.startswith("edge.")] == []
