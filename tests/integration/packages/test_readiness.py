"""The condition Ready of a Repository is true of the world: it goes and comes back with the remote."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.packages.support import KPTFILE, StoreWorld, bare, becomes, git, push_files, put_secret
from tests.tools.gitserver import GitServer, git_server

Files = dict[str, str]


@pytest.fixture
def server(blueprints: Path) -> Iterator[GitServer]:
    with git_server(blueprints.parent) as server:
        yield server


async def test_credentials_that_are_missing_wrong_right_and_changed(
    world: StoreWorld, server: GitServer
) -> None:
    await world.add_repository("blue", server.url("blue%20prints.git"), git={"secretRef": {"name": "login"}})
    await becomes(world, "blue", "False", 'the Secret "login" of spec.git.secretRef does not exist')
    await put_secret(world, "wrong-password")
    await becomes(world, "blue", "False", "the remote does not accept the credentials")
    assert "wrong-password" not in world.condition("blue")["message"]
    assert world.names() == []
    await put_secret(world, "right-password")
    await becomes(world, "blue", "True", "Repository Ready")
    await world.until(lambda: world.revision("blue.app.v1"))
    server.password = "new-password"
    await becomes(world, "blue", "False", "the remote does not accept the credentials")
    assert world.revision("blue.app.v1"), "what is known of a remote that is away stays"
    await put_secret(world, "new-password")
    await becomes(world, "blue", "True", "Repository Ready")


async def test_a_branch_that_is_wrong_comes_goes_and_comes_back(world: StoreWorld, tmp_path: Path) -> None:
    remote = bare(tmp_path / "git" / "remote.git")
    files: Files = {"app/Kptfile": KPTFILE.format(name="app")}
    push_files(remote, files, branch="other")
    await world.add_repository("blue", remote, git={"branch": "wanted"})
    await becomes(world, "blue", "False", 'branch "wanted" is not in the git repository')
    push_files(remote, files, branch="wanted")
    await becomes(world, "blue", "True", "Repository Ready")
    await world.until(lambda: world.revision("blue.app.wanted"))
    commit = git(remote, "rev-parse", "wanted")
    git(remote, "branch", "-D", "wanted")
    await becomes(world, "blue", "False", 'branch "wanted" is not in the git repository')
    await world.restart()
    await becomes(world, "blue", "False", 'branch "wanted" is not in the git repository')
    git(remote, "branch", "wanted", commit)
    await becomes(world, "blue", "True", "Repository Ready")
    assert world.revision("blue.app.wanted")


async def test_a_folder_that_is_no_repository_becomes_one(world: StoreWorld, tmp_path: Path) -> None:
    remote = tmp_path / "git" / "remote.git"
    remote.mkdir(parents=True)
    await world.add_repository("blue", remote)
    await becomes(world, "blue", "False", "there is no git repository at this address")
    git(remote, "init", "--quiet", "--bare", "--initial-branch=main")
    push_files(remote, {"app/Kptfile": KPTFILE.format(name="app")})
    await becomes(world, "blue", "True", "Repository Ready")
    since = world.condition("blue")["lastTransitionTime"]
    push_files(remote, {"app/more.txt": "more"})
    await world.restart()
    await becomes(world, "blue", "True", "Repository Ready")
    assert world.condition("blue")["lastTransitionTime"] == since
