"""Repositories behind real git servers: HTTP and HTTPS with a password, and ssh.

What is in the remote is read with plain git, and what it has to be is written out here, from Porch's layout.
"""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.ports.cluster import Object
from tests.integration.packages.support import (
    CONFIG,
    KPTFILE,
    StoreWorld,
    bare,
    becomes,
    clone_of,
    git,
    push_files,
    put_secret,
    refs,
    revision,
    running,
)
from tests.tools.certificate import make_certificate
from tests.tools.gitserver import SSHD, GitServer, git_server, ssh_server

LOGIN = {"secretRef": {"name": "login"}}


@pytest.fixture
def server(edge: Path, blueprints: Path) -> Iterator[GitServer]:
    with git_server(edge.parent) as server:
        yield server


@pytest.fixture
async def remote(world: StoreWorld, server: GitServer) -> StoreWorld:
    """The fleet's two repositories by HTTP."""
    await put_secret(world, "right-password")
    await register(world, server.url("blue%20prints.git"), server.url("edge.git"))
    return world


async def register(world: StoreWorld, blueprints: str, edge: str) -> None:
    await world.add_repository("blue", blueprints, git=LOGIN)
    await world.add_repository("edge", edge, deployment=True, git=LOGIN)
    await world.until(lambda: world.revision("blue.app.v1"))


def log(remote: Path, ref: str) -> list[list[str]]:
    """Return the commits of a ref, each a list of hash, parents, title and annotations."""
    lines = git(remote, "log", "--first-parent", "--format=%H%x00%P%x00%B%x01", ref).split("\x01")
    found = []
    for line in lines:
        if line.strip():
            commit, parents, message = line.strip().split("\x00")
            notes = [each for each in message.splitlines() if each.startswith("kpt:")]
            found.append([commit, parents, message.splitlines()[0], *notes])
    return found


def listing(remote: Path, ref: str) -> list[str]:
    return git(remote, "ls-tree", "-r", "--name-only", ref).splitlines()


async def lifecycle(world: StoreWorld, edge: Path) -> None:
    """Clone, edit, propose, publish, propose deletion and delete; after each, check the remote."""
    base = git(edge, "rev-parse", "main")
    task = clone_of("blue.app.v1")
    await world.create(revision("edge", "net/web", "first", task))
    assert refs(edge) == ["refs/heads/drafts/net/web/first", "refs/heads/main"]
    (draft, *_) = log(edge, "drafts/net/web/first")
    assert draft[1:3] == [base, "Creating new revision by cloning"]
    assert json.loads(draft[3].removeprefix("kpt:")) == {
        "package": "net/web",
        "workspaceName": "first",
        "revision": "0",
        "task": task,
    }
    package = ["net/web/Kptfile", "net/web/package-context.yaml", "net/web/settings.yaml"]
    assert listing(edge, "drafts/net/web/first") == ["README.md", *package]

    files = await world.files("edge.net.web.first")
    await world.put(files, {"own.txt": "own\n", "settings.yaml": files["spec"]["resources"]["settings.yaml"]})
    (edit, *_) = log(edge, "drafts/net/web/first")
    assert edit[1:3] == [draft[0], "Render own.txt"]
    package.insert(1, "net/web/own.txt")
    assert listing(edge, "drafts/net/web/first") == sorted(["README.md", *package])

    proposed = await world.update(world.present("edge.net.web.first"), lifecycle="Proposed")
    assert refs(edge) == ["refs/heads/main", "refs/heads/proposed/net/web/first"]
    assert git(edge, "rev-parse", "proposed/net/web/first") == edit[0]

    other = push_files(edge, {"by-hand.txt": "mine\n"})
    published = await world.update(proposed, lifecycle="Published", subresource="approval")
    assert published["spec"]["revision"] == 1
    assert refs(edge) == ["refs/heads/main", "refs/tags/net/web/v1"]
    (merge, *_) = log(edge, "main")
    assert merge[1:] == [
        f"{other} {edit[0]}",
        "Approving package revision net/web/1",
        'kpt:{"package":"net/web","workspaceName":"first","revision":"1"}',
    ]
    assert git(edge, "cat-file", "-t", "refs/tags/net/web/v1") == "commit"
    assert git(edge, "rev-parse", "refs/tags/net/web/v1") == merge[0]
    assert git(edge, "rev-parse", "main:net/web") == git(edge, "rev-parse", f"{edit[0]}:net/web")
    assert listing(edge, "main") == sorted(["README.md", "by-hand.txt", *package])

    await world.update(published, lifecycle="DeletionProposed")
    assert git(edge, "rev-parse", "deletionProposed/net/web/v1") == merge[0]
    await world.delete("edge.net.web.first")
    assert refs(edge) == ["refs/heads/main"]
    assert git(edge, "rev-parse", "main") == merge[0]
    git(edge, "fsck", "--strict")


@pytest.fixture
def started(edge: Path) -> None:
    push_files(edge, {"README.md": "of the team\n"})


@pytest.mark.usefixtures("started")
async def test_a_package_goes_all_the_way_by_http(world: StoreWorld, server: GitServer, edge: Path) -> None:
    await put_secret(world, "right-password")
    await register(world, server.url("blue%20prints.git"), server.url("edge.git"))
    await lifecycle(world, edge)


async def test_https_needs_the_certificate_of_the_authority(
    world: StoreWorld, blueprints: Path, edge: Path, tmp_path: Path
) -> None:
    keystore, authority = make_certificate(tmp_path)
    with git_server(edge.parent, keystore=keystore) as server:
        await put_secret(world, "right-password")
        await world.add_repository("edge", server.url("edge.git"), git=LOGIN)
        await becomes(
            world, "edge", "False", "cannot trust the remote's certificate: add that of its authority"
        )
        await put_secret(world, "right-password", **{"ca.crt": authority.read_text()})
        await becomes(world, "edge", "True", "Repository Ready")
        await world.create(revision("edge", "app", "ws"))
        assert refs(edge) == ["refs/heads/drafts/app/ws"]


@pytest.mark.skipif(SSHD is None, reason="there is no sshd on this machine (apt-get install openssh-server)")
@pytest.mark.long
@pytest.mark.usefixtures("started")
async def test_a_package_goes_all_the_way_by_ssh(
    blueprints: Path, edge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ssh_server(tmp_path) as (port, command):
        monkeypatch.setenv("GIT_SSH_COMMAND", command)
        async with running(tmp_path / "data") as world:
            await put_secret(world, "right-password")
            address = f"ssh://127.0.0.1:{port}{edge.parent}"
            await register(world, f"{address}/blue%20prints.git", f"{address}/edge.git")
            await lifecycle(world, edge)
            (tmp_path / "authorized_keys").write_text("")
            with pytest.raises(
                StatusError, match=r"ssh cannot log in: give this user a key.*Permission denied \(publickey"
            ):
                await world.create(revision("edge", "last", "ws"))


async def test_a_password_that_is_changed_at_the_remote_stops_writes_until_the_secret_follows(
    server: GitServer, edge: Path, tmp_path: Path
) -> None:
    """The refused write itself makes the store look at the remote, long before its next fetch."""
    async with running(tmp_path / "data", fetch_seconds=600) as world:
        await put_secret(world, "right-password")
        await register(world, server.url("blue%20prints.git"), server.url("edge.git"))
        draft = await world.create(revision("edge", "app", "ws", clone_of("blue.app.v1")))
        server.password = "new-password"
        with pytest.raises(
            StatusError, match="does not accept the credentials: correct the Secret"
        ) as refused:
            await world.update(draft, lifecycle="Proposed")
        assert refused.value.code == 503
        await becomes(world, "edge", "False", "correct the Secret of spec.git.secretRef")
        assert world.present("edge.app.ws")["spec"]["lifecycle"] == "Draft"
        await put_secret(world, "new-password")
        await becomes(world, "edge", "True", "Repository Ready")
        await world.publish(world.present("edge.app.ws"))
        assert refs(edge) == ["refs/heads/main", "refs/tags/app/v1"]


async def test_a_server_that_is_down_for_a_while_takes_nothing_along(
    world: StoreWorld, blueprints: Path, edge: Path
) -> None:
    with git_server(edge.parent) as server:
        await put_secret(world, "right-password")
        await register(world, server.url("blue%20prints.git"), server.url("edge.git"))
        draft = await world.create(revision("edge", "app", "ws", clone_of("blue.app.v1")))
        names = world.names()
        port = server.server_address[1]
    await becomes(world, "edge", "False", "cannot reach the remote")
    assert world.names() == names
    assert (await world.files("edge.app.ws"))["spec"]["resources"]
    with pytest.raises(StatusError, match="cannot reach the remote") as refused:
        await world.update(draft, lifecycle="Proposed")
    assert refused.value.code == 503
    await world.restart()
    await becomes(world, "edge", "False", "cannot reach the remote")
    assert world.names() == names
    with git_server(edge.parent, port):
        await becomes(world, "edge", "True", "Repository Ready")
        assert world.names() == names
        await world.publish(world.present("edge.app.ws"))
        assert refs(edge) == ["refs/heads/main", "refs/tags/app/v1"]


async def test_two_stores_and_a_person_that_publish_at_once_lose_nothing(
    server: GitServer, edge: Path, tmp_path: Path
) -> None:
    async with running(tmp_path / "one") as first, running(tmp_path / "two") as two:
        proposals = []
        for world, letter in ((first, "a"), (two, "b")):
            await put_secret(world, "right-password")
            await world.add_repository("edge", server.url("edge.git"), git=LOGIN)
            for number in range(3):
                draft = await world.create(revision("edge", f"{letter}{number}", "ws"))
                proposals.append((world, await world.update(draft, lifecycle="Proposed")))

        async def approve(world: StoreWorld, proposal: Object) -> None:
            while True:
                try:
                    await world.update(proposal, lifecycle="Published", subresource="approval")
                    return
                except StatusError as exc:  # told to try again: the others were faster
                    if exc.code != 409:
                        raise

        def commit() -> None:
            for _ in range(20):
                with suppress(subprocess.CalledProcessError):
                    push_files(edge, {"hand/mine.txt": "mine\n"})
                    return

        await asyncio.gather(*(approve(*each) for each in proposals), asyncio.to_thread(commit))
        names = {f"{letter}{number}" for letter in "ab" for number in range(3)}
        assert refs(edge) == ["refs/heads/main", *(f"refs/tags/{name}/v1" for name in sorted(names))]
        assert set(git(edge, "ls-tree", "--name-only", "main").split()) == {*names, "hand"}
        for name in names:
            git(edge, "merge-base", "--is-ancestor", f"{name}/v1", "main")
            assert git(edge, "rev-parse", f"main:{name}") == git(edge, "rev-parse", f"{name}/v1:{name}")
        approvals = [entry for entry in log(edge, "main") if entry[2].startswith("Approving")]
        assert len(approvals) == 6
        for world in (first, two):
            for name in names:
                await world.until(partial(is_published, world, f"edge.{name}.ws"))


def is_published(world: StoreWorld, name: str) -> bool:
    found = world.revision(name)
    return found is not None and found["spec"]["lifecycle"] == "Published"


async def test_a_rewritten_branch_and_a_moved_tag_are_followed_and_built_upon(
    remote: StoreWorld, edge: Path
) -> None:
    draft = await remote.create(revision("edge", "app", "ws", clone_of("blue.app.v1")))
    await remote.publish(draft)
    waiting = await remote.update(
        await remote.create(revision("edge", "late", "ws", clone_of("blue.app.v1"))), lifecycle="Proposed"
    )
    clone = edge.parent / "rewriting"
    git(edge.parent, "clone", "--quiet", str(edge), str(clone))
    git(clone, "checkout", "--quiet", "--orphan", "fresh")
    (clone / "app" / "settings.yaml").write_text(CONFIG.replace("small", "rewritten"))
    (clone / "other").mkdir()
    (clone / "other" / "Kptfile").write_text(KPTFILE.format(name="other"))
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--message", "History begins here")
    git(clone, "tag", "--force", "app/v1")
    git(clone, "push", "--quiet", "--force", "origin", "fresh:main", "app/v1")
    head = git(edge, "rev-parse", "main")

    published = await remote.update(waiting, lifecycle="Published", subresource="approval")
    assert published["spec"]["revision"] == 1
    merge, begin = log(edge, "main")
    assert begin[0] == head
    assert merge[2] == "Approving package revision late/1"
    assert merge[1].split()[0] == head

    # The commit of the moved tag names no workspace, so the revision is named by its number.
    moved = await remote.until(lambda: remote.revision("edge.app.v1"))
    assert moved["status"]["selfLock"]["git"]["commit"] == head
    await remote.until(lambda: remote.revision("edge.app.ws") is None and remote.revision("edge.other.main"))
    assert "size: rewritten" in (await remote.files("edge.app.v1"))["spec"]["resources"]["settings.yaml"]
    assert remote.condition("edge")["status"] == "True"
    assert git(edge, "rev-parse", "app/v1") == head


@pytest.mark.parametrize("fetch_seconds", [0.2, 600])
async def test_a_remote_that_is_replaced_by_an_empty_one_takes_nothing_along(
    server: GitServer, edge: Path, tmp_path: Path, fetch_seconds: float
) -> None:
    """The next fetch finds it, or the next write."""
    async with running(tmp_path / "data", fetch_seconds=fetch_seconds) as world:
        await put_secret(world, "right-password")
        await world.add_repository("edge", server.url("edge.git"), git=LOGIN)
        await world.publish(await world.create(revision("edge", "app", "ws")))
        await world.create(revision("edge", "more", "ws"))
        await world.until(lambda: world.revision("edge.app.main"))
        names = world.names()
        away = edge.rename(edge.with_name("away.git"))
        bare(edge)
        if fetch_seconds > 1:
            with pytest.raises(StatusError, match="has been modified"):
                await world.update(world.present("edge.more.ws"), lifecycle="Proposed")
        for _ in range(2):
            await becomes(world, "edge", "False", 'branch "main" is not in the git repository')
            assert world.names() == names
            await world.restart()
        edge.rename(edge.with_name("empty.git"))
        away.rename(edge)
        await becomes(world, "edge", "True", "Repository Ready")
        assert world.names() == names
        await world.publish(world.present("edge.more.ws"))
