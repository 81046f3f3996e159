"""A package store on real git repositories, with objects in memory."""

import asyncio
import base64
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pvbus.controlplane.apiserver.registry import PACKAGE_REVISION
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import RenderResult, render
from pvbus.controlplane.packages.settings import SECRET, StoreOptions
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Object
from tests.kit.objects import MemoryObjects

NAMESPACE = "fleet"
DEADLINE_SECONDS = 60.0
"""A check of a remote is followed by a pause of 20 times what it took: this is that of a fetch of three
seconds, as it takes on a busy machine."""

KPTFILE = """\
# The blueprint's own remark.
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: {name}
info:
  description: an example
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap:
      app: example
"""

CONFIG = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings  # kept
  namespace: example
data:
  size: small
"""


def git(folder: Path, *arguments: str) -> str:
    """Run plain git, as a person would."""
    identity = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def bare(path: Path) -> Path:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--bare", "--initial-branch=main")
    return path


def push_files(
    remote: Path, files: Mapping[str, str], *, branch: str = "main", message: str = "Change", tag: str = ""
) -> str:
    """Commit files on a branch of a remote through a clone of it; returns the commit."""
    clone = remote.parent / f"clone-of-{remote.name}"
    if not clone.exists():
        git(remote.parent, "clone", "--quiet", str(remote), str(clone))
    git(clone, "fetch", "--quiet", "origin")
    known = git(clone, "branch", "--remotes", "--list", f"origin/{branch}")
    git(clone, "checkout", "--quiet", "-B", branch, *([f"origin/{branch}"] if known else []))
    for path, text in files.items():
        file = clone / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", message)
    git(clone, "push", "--quiet", "origin", branch)
    if tag:
        git(clone, "tag", tag)
        git(clone, "push", "--quiet", "origin", tag)
    return git(clone, "rev-parse", "HEAD")


def refs(remote: Path) -> list[str]:
    return git(remote, "for-each-ref", "--format=%(refname)").splitlines()


def tree(remote: Path, commit: str, directory: str) -> dict[str, str]:
    """Read the files of a folder with plain git."""
    listed = git(remote, "ls-tree", "-r", "--name-only", f"{commit}:{directory}").splitlines()
    return {
        path: subprocess.run(
            ["git", "show", f"{commit}:{directory}/{path}"],
            cwd=remote,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for path in listed
    }


def repository(name: str, remote: Path | str, **spec: Any) -> Object:
    git_spec = {"repo": str(remote), "branch": "main", **spec.pop("git", {})}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "Repository",
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
        "spec": {"type": "git", "git": git_spec, **spec},
    }


def revision(repo: str, package: str, workspace: str, *tasks: Object, **metadata: Any) -> Object:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"namespace": NAMESPACE, **metadata},
        "spec": {
            "repository": repo,
            "packageName": package,
            "workspaceName": workspace,
            "tasks": list(tasks),
        },
    }


def clone_of(upstream: str) -> Object:
    return {"type": "clone", "clone": {"upstreamRef": {"upstreamRef": {"name": upstream}}}}


class StoreWorld:
    """A store, its objects, and the requests clients make."""

    def __init__(self, data: Path, **options: Any) -> None:
        self.objects = MemoryObjects()
        self.renders: list[Mapping[str, str]] = []
        self.render_error: Exception | None = None
        self.registry = FunctionRegistry({})
        self.data = data
        self.options = StoreOptions(**{"poll_seconds": 0.05, "fetch_seconds": 0.2, **options})
        self.store = self.new_store()

    def new_store(self) -> PackageStore:
        return PackageStore(self.objects, self.data, render=self._render, options=self.options)

    def _render(self, resources: Mapping[str, str]) -> RenderResult:
        self.renders.append(resources)
        if self.render_error is not None:
            raise self.render_error
        return partial(render, registry=self.registry)(resources)

    async def restart(self) -> None:
        await self.store.stop()
        self.store = self.new_store()
        await self.store.start()

    async def add_repository(self, name: str, remote: Path | str, **spec: Any) -> Object:
        await self.objects.create(REPOSITORY, self.store.repositories, repository(name, remote, **spec))
        ready: Object = await self.until(lambda: self.ready(name))
        return ready

    def ready(self, name: str) -> Object | None:
        """Return the Repository once its condition Ready says anything."""
        obj = self.objects.get(REPOSITORY, NAMESPACE, name)
        return obj if obj is not None and obj.get("status", {}).get("conditions") else None

    def condition(self, name: str) -> Object:
        obj = self.objects.get(REPOSITORY, NAMESPACE, name)
        assert obj is not None
        return dict(obj["status"]["conditions"][0])

    async def until(self, found: Callable[[], Any]) -> Any:
        """Wait until something is the case, and return it."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            # The store tells nobody what it did.
            while not (result := found()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return result

    def revision(self, name: str) -> Object | None:
        return self.objects.get(PACKAGE_REVISION, NAMESPACE, name)

    def present(self, name: str) -> Object:
        found = self.revision(name)
        assert found is not None, f"{name} is not among {self.names()}"
        return found

    def names(self) -> list[str]:
        return [obj["metadata"]["name"] for obj in self.objects.list(PACKAGE_REVISION, NAMESPACE)]

    async def create(self, obj: Object, user: str = "") -> Object:
        return await self.objects.create(PACKAGE_REVISION, self.store.package_revisions, obj, user=user)

    async def update(self, obj: Object, *, subresource: str = "", user: str = "", **spec: Any) -> Object:
        """Update a PackageRevision; spec: fields to set in it."""
        changed = {**obj, "spec": {**obj["spec"], **spec}}
        return await self.objects.update(
            PACKAGE_REVISION, self.store.package_revisions, changed, subresource=subresource, user=user
        )

    async def delete(self, name: str) -> None:
        await self.objects.delete(PACKAGE_REVISION, self.store.package_revisions, self.present(name))

    async def publish(self, obj: Object) -> Object:
        proposed = await self.update(obj, lifecycle="Proposed")
        return await self.update(proposed, lifecycle="Published", subresource="approval")

    async def files(self, name: str) -> Object:
        found = await self.store.resources.get(NAMESPACE, name)
        assert found is not None
        return found

    async def put(self, resources: Object, changes: Mapping[str, str | None], user: str = "") -> Object:
        """Update files; None removes one."""
        merged = {**resources["spec"]["resources"], **changes}
        retained = {path: text for path, text in merged.items() if text is not None}
        return await self.store.resources.update(
            {**resources, "spec": {**resources["spec"], "resources": retained}}, user=user
        )


async def put_secret(world: StoreWorld, password: str, **more: str) -> None:
    """Store the Secret `login`."""
    data = {"username": "joe", "password": password, **more}
    await world.objects.put(
        SECRET,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "login", "namespace": NAMESPACE},
            "data": {key: base64.b64encode(text.encode()).decode() for key, text in data.items()},
        },
    )


async def becomes(world: StoreWorld, name: str, status: str, message: str) -> None:
    """Wait until the condition Ready of a Repository has this status and says this."""
    await world.until(
        lambda: (
            world.condition(name)["status"] == status
            and message in world.condition(name)["message"]
            and world.condition(name)
        )
    )


@asynccontextmanager
async def running(data: Path, **options: Any) -> AsyncIterator[StoreWorld]:
    world = StoreWorld(data, **options)
    await world.store.start()
    try:
        yield world
    finally:
        await world.store.stop()
