"""Two replicas of the aggregated package store on one cluster and one git repository."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.packages.clone import RepositoryClone
from pvbus.controlplane.packages.layout import LATEST_LABEL
from tests.integration.aggregated.replicas import Replica, ReplicaWorld, embedded_cluster, until
from tests.integration.packages.support import KPTFILE, bare, push_files, refs, revision, tree


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ReplicaWorld]:
    async with embedded_cluster(tmp_path) as world:
        yield world


@pytest.fixture
def edge(tmp_path: Path) -> Path:
    return bare(tmp_path / "git" / "edge.git")


@pytest.fixture
async def pair(world: ReplicaWorld, edge: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    async with world.replica("a") as a, world.replica("b") as b:
        await world.add_repository("edge", edge, deployment=True, git={"createBranch": True})
        yield a, b


async def test_what_one_replica_has_made_the_other_reads_at_once(
    pair: tuple[Replica, Replica], edge: Path
) -> None:
    a, b = pair
    made = await until(lambda: a.create(revision("edge", "app", "ws", labels={"team": "x"})))
    assert await b.get("edge.app.ws") == made
    assert await b.names() == await a.names() == ["edge.app.ws"]
    files = await b.files("edge.app.ws")
    written = await b.put(files, {"new.txt": "by b\n"})
    assert (await a.files("edge.app.ws"))["spec"]["resources"]["new.txt"] == "by b\n"
    newest = await a.get("edge.app.ws")
    assert newest["metadata"]["resourceVersion"] == written["metadata"]["resourceVersion"]
    proposed = await a.move(newest, "Proposed")
    published = await b.move(proposed, "Published", approval=True)
    assert published["metadata"]["labels"] == {"team": "x", "kpt.dev/latest-revision": "true"}
    assert await a.get("edge.app.ws") == published
    assert "refs/tags/app/v1" in refs(edge)
    assert tree(edge, "main", "app")["new.txt"] == "by b\n"


async def test_a_list_begun_at_one_replica_goes_on_at_the_other(pair: tuple[Replica, Replica]) -> None:
    """On its list only, and not at a version that no replica has."""
    a, b = pair
    await until(lambda: a.create(revision("edge", "one", "ws")))
    await a.create(revision("edge", "two", "ws"))
    first = await a.ask("GET", "packagerevisions", query={"limit": "1"})
    token = first["metadata"]["continue"]
    second = await b.ask("GET", "packagerevisions", query={"limit": "1", "continue": token})
    listed = [obj["metadata"]["name"] for obj in (*first["items"], *second["items"])]
    assert listed == ["edge.one.ws", "edge.two.ws"]
    for query in ({"continue": token, "labelSelector": "a"}, {"continue": "B" * len(token)}):
        with pytest.raises(StatusError) as refused:
            await b.ask("GET", "packagerevisions", query={"limit": "1", **query})
        assert refused.value.code in (400, 410)


async def test_the_answer_to_a_change_comes_after_all_that_follows_from_it(
    world: ReplicaWorld, edge: Path
) -> None:
    """The label of the latest revision moves, and the placeholder appears, without a look at the remote."""

    async def latest(replica: Replica) -> list[str]:
        listed = await replica.ask("GET", "packagerevisions")
        return [
            each["metadata"]["name"]
            for each in listed["items"]
            if LATEST_LABEL in (each["metadata"].get("labels") or {})
        ]

    async with world.replica("a", poll_seconds=60.0, fetch_seconds=60.0) as a:
        await world.add_repository("edge", edge, deployment=True, git={"createBranch": True})
        first = await until(lambda: a.create(revision("edge", "app", "v1")))
        await a.publish(first)
        assert await a.names() == ["edge.app.main", "edge.app.v1"]
        edit = {"type": "edit", "edit": {"sourceRef": {"name": "edge.app.v1"}}}
        second = await a.publish(await a.create(revision("edge", "app", "v2", edit)))
        assert await latest(a) == ["edge.app.v2"]
        await a.move(second, "DeletionProposed", approval=True)
        await a.delete("edge.app.v2")
        assert await latest(a) == ["edge.app.v1"]


async def test_a_stale_version_is_refused_at_both(pair: tuple[Replica, Replica]) -> None:
    a, b = pair
    made = await until(lambda: a.create(revision("edge", "app", "ws")))
    await b.move(made, "Proposed")
    for replica in pair:
        with pytest.raises(StatusError) as refused:
            await replica.ask("PUT", "packagerevisions/edge.app.ws", made)
        assert refused.value.code == 409


async def test_concurrent_creations_of_one_workspace_have_one_winner(pair: tuple[Replica, Replica]) -> None:
    a, b = pair
    await until(lambda: a.create(revision("edge", "first", "ws")))
    await b.get("edge.first.ws")
    outcomes = await asyncio.gather(
        *(
            each.create(revision("edge", "app", "ws", labels={"by": name}))
            for each, name in ((a, "a"), (b, "b"))
        ),
        return_exceptions=True,
    )
    made = [each for each in outcomes if not isinstance(each, BaseException)]
    refused = [each for each in outcomes if isinstance(each, StatusError)]
    assert (len(made), len(refused)) == (1, 1), outcomes
    assert (await a.get("edge.app.ws"))["metadata"]["labels"] == made[0]["metadata"]["labels"]


async def test_a_list_of_one_replica_is_continued_by_a_watch_of_the_other(
    pair: tuple[Replica, Replica],
) -> None:
    a, b = pair
    await until(lambda: a.create(revision("edge", "one", "ws")))
    listed = await a.ask("GET", "packagerevisions")
    made = await a.create(revision("edge", "other", "two"))
    events = await b.watch(listed["metadata"]["resourceVersion"], 1)
    assert [event["type"] for event in events] == ["ADDED"]
    assert events[0]["object"] == made


async def test_replicas_agree_on_the_placeholders_of_a_branch_that_both_have_read_at_other_commits(
    pair: tuple[Replica, Replica], world: ReplicaWorld, edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second replica reads slowly, and the branch moves meanwhile: it corrects nothing."""
    a, b = pair
    draft = await until(lambda: b.create(revision("edge", "other", "ws")))
    read, may_read = RepositoryClone.sync, asyncio.Event()

    async def read_later(self: RepositoryClone, *arguments: Any) -> Any:
        if self.mirror.path.is_relative_to(world.folder / "b"):
            await may_read.wait()
        return await read(self, *arguments)

    monkeypatch.setattr(RepositoryClone, "sync", read_later)
    push_files(edge, {"app/Kptfile": KPTFILE.format(name="app")})
    shown = await until(lambda: a.get("edge.app.main"))
    push_files(edge, {"README.md": "Not in the package.\n"})
    may_read.set()
    await b.publish(draft)
    await until(lambda: b.get("edge.other.main"))
    for replica in (a, b):
        assert await replica.get("edge.app.main") == shown
