"""The condition Ready of a Repository is true of the world: it goes and comes back with the remote."""

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pvbus.controlplane.packages.settings import SECRET
from tests.integration.packages.support import KPTFILE, NAMESPACE, World, bare, git, push_files

Files = dict[str, str]


class _Guarded(SimpleHTTPRequestHandler):
    """Serves a folder to those who know the password."""

    password = "right-password"

    def do_GET(self) -> None:
        token = base64.b64encode(f"joe:{self.password}".encode()).decode()
        if self.headers.get("Authorization") == f"Basic {token}":
            super().do_GET()
            return
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="git"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is inherited
        """Say nothing."""


@pytest.fixture
def server(blueprints: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The blueprints by HTTP, as files (git's dumb protocol)."""
    git(blueprints, "update-server-info")
    monkeypatch.setattr(_Guarded, "password", "right-password")
    handler = partial(_Guarded, directory=str(blueprints.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}/blue%20prints.git"
        http.shutdown()
        thread.join()


async def put_secret(world: World, password: str) -> None:
    data = {"username": "joe", "password": password}
    await world.objects.put(
        SECRET,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "login", "namespace": NAMESPACE},
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
        },
    )


async def becomes(world: World, name: str, status: str, message: str) -> None:
    await world.until(
        lambda: (
            world.condition(name)["status"] == status
            and message in world.condition(name)["message"]
            and world.condition(name)
        )
    )


async def test_credentials_that_are_missing_wrong_right_and_changed(
    world: World, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.add_repository("blue", server, git={"secretRef": {"name": "login"}})
    await becomes(world, "blue", "False", 'the Secret "login" of spec.git.secretRef does not exist')
    await put_secret(world, "wrong-password")
    await becomes(world, "blue", "False", "the remote does not accept the credentials")
    assert "wrong-password" not in world.condition("blue")["message"]
    assert world.names() == []
    await put_secret(world, "right-password")
    await becomes(world, "blue", "True", "Repository Ready")
    await world.until(lambda: world.revision("blue.app.v1"))
    monkeypatch.setattr(_Guarded, "password", "new-password")
    await becomes(world, "blue", "False", "the remote does not accept the credentials")
    assert world.revision("blue.app.v1"), "what is known of a remote that is away stays"
    await put_secret(world, "new-password")
    await becomes(world, "blue", "True", "Repository Ready")


async def test_a_branch_that_is_wrong_comes_goes_and_comes_back(world: World, tmp_path: Path) -> None:
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


async def test_a_folder_that_is_no_repository_becomes_one(world: World, tmp_path: Path) -> None:
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
