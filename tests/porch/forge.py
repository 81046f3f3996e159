"""A git server in the place of the Gitea that Porch's tests expect: one user, public repositories, and the
two calls of Gitea's API that the tests make."""

import base64
import json
import re
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path

from tests.tools.gitserver import GitServer, _Handler, serving

PORT = 3000
"""Porch's tests know the server by its address."""

USER, PASSWORD = "nephio", "secret"
_SUFFIX = re.compile(r"^(/[^/]+/[^/?]+?)\.git(?=[/?]|$)")
_BRANCH = ("-c", "init.defaultBranch=main")
_AUTHOR = ("-c", "user.name=Test", "-c", "user.email=test@example.com")


class Forge(GitServer):
    """Serves `USER/NAME`, with and without `.git`. Everybody reads; to write takes the password."""

    def __init__(self, folder: Path, port: int = PORT) -> None:
        super().__init__(folder, port)
        self.RequestHandlerClass = _ForgeHandler
        self.user, self.password = USER, PASSWORD

    @property
    def address(self) -> str:
        return f"http://localhost:{self.server_address[1]}"

    def create(self, name: str) -> None:
        """Create a repository whose main branch has a README."""
        target = self._path(name)
        source = self.folder / "source"
        _git("init", "--quiet", str(source), config=_BRANCH)
        (source / "README.md").write_text(f"# {name}\n")
        _git("-C", str(source), "add", ".")
        _git("-C", str(source), "commit", "--quiet", "-m", "Initial commit", config=_AUTHOR)
        _git("clone", "--quiet", "--bare", str(source), str(target))
        shutil.rmtree(source)

    def restore(self, name: str, bundle: Path) -> None:
        """Create a repository from a bundle: its main branch and its tags."""
        target = self._path(name)
        _git("init", "--quiet", "--bare", str(target), config=_BRANCH)
        wanted = ("refs/heads/*:refs/heads/*", "refs/tags/*:refs/tags/*")
        _git("-C", str(target), "fetch", "--quiet", str(bundle), *wanted)

    def delete(self, name: str) -> bool:
        """Delete a repository; return whether it was there."""
        target = self._path(name)
        found = target.exists()
        shutil.rmtree(target, ignore_errors=True)
        return found

    def _path(self, name: str) -> Path:
        assert re.fullmatch(r"[\w-]+", name), name
        return self.folder / USER / name


class _ForgeHandler(_Handler):
    server: Forge

    def do_DELETE(self) -> None:  # noqa: N802  # the name is given
        self._serve()

    def _serve(self) -> None:
        if self.path.startswith("/api/v1/"):
            self._manage()
            return
        self.path = _SUFFIX.sub(r"\1", self.path)
        if "git-receive-pack" not in self.path:
            del self.headers["Authorization"]
            self.headers["Authorization"] = _token()
        super()._serve()

    def _manage(self) -> None:
        """Answer a call of Gitea's API."""
        body = self._body()
        if self.headers.get("Authorization") != _token():
            self._answer(401, [], b"")
        elif self.command == "DELETE":
            self._answer(204 if self.server.delete(self.path.rpartition("/")[2]) else 404, [], b"")
        else:
            self.server.create(json.loads(body)["name"])
            self._answer(201, [("Content-Type", "application/json")], b"{}")


def _token() -> str:
    return "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def _git(*arguments: str, config: tuple[str, ...] = ()) -> None:
    subprocess.run(["git", *config, *arguments], check=True, capture_output=True)


def forge(folder: Path, port: int = PORT) -> AbstractContextManager[Forge]:
    """Run a server."""
    (folder / USER).mkdir(parents=True)
    return serving(Forge(folder, port))
