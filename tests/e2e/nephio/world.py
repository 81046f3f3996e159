"""A whole pvbus on one event loop, over Nephio's catalog in git repositories of its own.

API server, package store and the five services are the real ones, joined by HTTP, or `pvbus up` as a process
of its own (`installed`); users are kubectl, and git where the packages are looked at.
"""

import asyncio
import json
import os
import shlex
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.apiserver import control_plane
from pvbus.core.kernel.topics import SERVICES, topic_specs
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.assembly import Service, build_service, is_settled, run_all
from pvbus.runtime.process.settings import ApiServerConfig
from tests.kit.cluster import KindClient
from tests.tools.installation import Installation
from tests.tools.kubectl import KubectlUnavailableError, find_or_build

CATALOG = Path(__file__).parents[4] / "shared" / "data" / "nephio"
NAMESPACE = "default"
DEADLINE_SECONDS = 60.0

VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
REPOSITORY = Kind("config.porch.kpt.dev", "Repository")

_T = TypeVar("_T")


def kubectl_binary() -> Path | None:
    """Any kubectl that is here already, or can be built."""
    for version in ("1.36.3", "1.32.4"):
        try:
            return find_or_build(version)
        except KubectlUnavailableError:
            continue
    return None


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A Person", "-c", "user.email=person@example.com")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def manifest(name: str) -> str:
    """Read one of Nephio's own test manifests, for the catalog's branch `main`."""
    return (CATALOG / "e2e" / name).read_text(encoding="utf-8").replace("${BRANCH}", "main")


class Nephio(KindClient[HttpCluster]):
    """What users see and do."""

    def __init__(self, folder: Path, cluster: HttpCluster, kubectl: Path, kubeconfig: Path) -> None:
        super().__init__(cluster, NAMESPACE)
        self.folder = folder
        self._kubectl = kubectl
        self._kubeconfig = kubeconfig

    # ------------------------------------------------------------ repositories

    async def register(self, *deployments: str) -> None:
        """Register the catalog's repositories, and empty ones for deployments; wait for the packages."""
        manifests = [self._catalog(path) for path in sorted((CATALOG / "catalog").glob("*/*"))]
        for name in deployments:
            git(self.folder, "init", "--quiet", "--bare", "--initial-branch=main", f"{name}.git")
            manifests.append(self._repository(name, deployment=True))
        await self.apply(yaml.safe_dump_all(manifests))
        await self.until(self._packages_are_known)

    def _catalog(self, source: Path) -> Object:
        name = f"catalog-{source.parent.name}-{source.name}"
        work = self.folder / name
        git(self.folder, "init", "--quiet", "--initial-branch=main", name)
        for file in source.rglob("*"):
            if file.is_file():
                target = work / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())
        git(work, "add", "--all")
        git(work, "commit", "--quiet", "--message", "Nephio's packages")
        git(self.folder, "clone", "--quiet", "--bare", name, f"{name}.git")
        return self._repository(name)

    def release(self, repository: str, package: str, change: Callable[[Path], None]) -> None:
        """Publish revision 1 of a package of the catalog with a change, as its maintainer does with git."""
        (work,) = self.folder.glob(f"{repository}")
        change(work / package)
        git(work, "commit", "--quiet", "--all", "--message", f"Release {package}")
        git(work, "tag", f"{package}/v1")
        git(work, "push", "--quiet", f"../{repository}.git", "HEAD", f"{package}/v1")

    def _repository(self, name: str, **spec: Any) -> Object:
        return {
            "apiVersion": "config.porch.kpt.dev/v1alpha1",
            "kind": "Repository",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {
                "type": "git",
                "git": {"repo": str(self.folder / f"{name}.git"), "branch": "main"},
                **spec,
            },
        }

    async def _packages_are_known(self) -> bool:
        found = {obj["metadata"]["name"] for obj in await self.items(REVISION)}
        upstreams = {
            "catalog-infra-capi.nephio-workload-cluster.main",
            "catalog-workloads-free5gc.pkg-example-upf-bp.main",
        }
        return upstreams <= found

    def draft_tree(self, repository: str, package: str, number: int = 1) -> dict[str, str]:
        """Read the files of a package's draft with plain git."""
        return self.tree(repository, package, f"drafts/{package}/packagevariant-{number}")

    def tree(self, repository: str, package: str, commit: str = "main") -> dict[str, str]:
        remote = self.folder / f"{repository}.git"
        location = f"{commit}:{package}"
        listed = git(remote, "ls-tree", "-r", "--name-only", location).splitlines()
        return {path: git(remote, "show", f"{location}/{path}") for path in listed}

    def drafts(self, repository: str) -> list[str]:
        refs = git(self.folder / f"{repository}.git", "for-each-ref", "--format=%(refname:short)")
        return refs.splitlines()

    def commit_titles(self, repository: str, package: str) -> list[str]:
        """Return the titles of the commits of a package's first draft, newest first."""
        location = f"drafts/{package}/packagevariant-1"
        return git(self.folder / f"{repository}.git", "log", "--format=%s", location).splitlines()

    # ------------------------------------------------------------ the API

    async def apply(self, manifests: str) -> str:
        return await self.kubectl("apply -f -", manifests)

    async def kubectl(self, arguments: str, given: str = "") -> str:
        command = [str(self._kubectl), "--kubeconfig", str(self._kubeconfig), *shlex.split(arguments)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, "HOME": str(self.folder)}
        )
        out, error = await process.communicate(given.encode())
        assert process.returncode == 0, error.decode()
        return out.decode()

    async def publish(self, revision: str) -> None:
        """Propose a draft, and approve it."""
        for lifecycle, where in (("Proposed", ""), ("Published", "--subresource=approval")):
            patch = json.dumps({"spec": {"lifecycle": lifecycle}})
            await self.kubectl(f"patch packagerevision {revision} {where} --type merge -p '{patch}'")

    async def edit_file(self, revision: str, file: str, old: str, new: str) -> None:
        """Change one file of a draft."""
        found = json.loads(await self.kubectl(f"get packagerevisionresources {revision} -o json"))
        files = found["spec"]["resources"]
        assert old in files[file]
        files[file] = files[file].replace(old, new)
        await self.kubectl("replace -f -", json.dumps(found))

    async def follow(self, kind: str, name: str) -> None:
        """Move a variant or a set to the revision that the catalog has released."""
        patch = json.dumps({"spec": {"upstream": {"workspaceName": None, "revision": 1}}})
        await self.kubectl(f"patch {kind} {name} --type merge -p '{patch}'")

    async def until(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Ask until the answer is true, and return it."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not (answer := await ask()):  # noqa: ASYNC110 - nobody would set an event
                await asyncio.sleep(0.1)
            return answer

    async def until_answered(self, count: int) -> dict[str, Object]:
        """Wait until so many PackageVariants are stalled, or have a condition Ready and a target."""

        found: dict[str, Object] = {}

        async def answered() -> bool:
            found.clear()
            found.update({obj["metadata"]["name"]: obj for obj in await self.items(VARIANT)})
            return len(found) == count and all(_is_answered(obj) for obj in found.values())

        try:
            await self.until(answered)
        except TimeoutError:
            status = {name: obj.get("status") for name, obj in found.items()}
            raise AssertionError(f"not {count} answered variants: {status}") from None
        return found


class Hosted(Nephio):
    """With the services on this event loop: they can be stopped and counted."""

    def __init__(
        self, folder: Path, cluster: HttpCluster, bus: SqliteBus, kubectl: Path, kubeconfig: Path
    ) -> None:
        super().__init__(folder, cluster, kubectl, kubeconfig)
        self.bus = bus
        self._services: list[Service] = []
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        clock = SystemClock()
        self._services = [build_service(name, self.bus.peer(), self.cluster, clock) for name in SERVICES]
        self._running = asyncio.create_task(run_all(self._services))

    async def stop(self) -> None:
        for service in self._services:
            service.stop()
        if self._running is not None:
            await self._running

    async def until_settled(self) -> None:
        """Wait until nothing is left to do, twice in a row."""
        quiet = 0

        async def settled_twice() -> bool:
            nonlocal quiet
            quiet = quiet + 1 if await is_settled(self._services, self.bus) else 0
            return quiet > 3

        await self.until(settled_twice)

    async def records(self) -> int:
        """Count what was ever written to the bus."""
        parts = [(spec.name, number) for spec in topic_specs() for number in range(spec.partitions)]
        return sum((await self.bus.end_offsets(parts)).values())


def _is_answered(variant: Object) -> bool:
    stalled = condition(variant, "Stalled")
    if stalled is not None and stalled["status"] == "True":
        return True
    return ready(variant) is not None and bool((variant.get("status") or {}).get("downstreamTargets"))


def ready(obj: Object) -> Object | None:
    return condition(obj, "Ready")


def condition(obj: Object, name: str) -> Object | None:
    for found in (obj.get("status") or {}).get("conditions") or ():
        if found["type"] == name:
            return dict(found)
    return None


@asynccontextmanager
async def nephio(folder: Path, kubectl: Path) -> AsyncIterator[Hosted]:
    """Start everything, and end it. The bus outlives the services."""
    data, git_folder = folder / "data", folder / "git"
    git_folder.mkdir(parents=True)
    config = ApiServerConfig(fetch_seconds=5.0, poll_seconds=0.5)
    async with control_plane(data, 0, config) as address:
        cluster = await HttpCluster.connect(address.kubeconfig)
        bus = await SqliteBus.open(":memory:", clock=SystemClock())
        await bus.create_topics(topic_specs())
        running = Hosted(git_folder, cluster, bus, kubectl, address.kubeconfig)
        running.start()
        try:
            yield running
        finally:
            await running.stop()
            await bus.close()
            await cluster.close()


@asynccontextmanager
async def installed(folder: Path, kubectl: Path, **settings: str) -> AsyncIterator[Nephio]:
    """Run `pvbus up` with a data folder, and end it."""
    git_folder = folder / "git"
    git_folder.mkdir(parents=True)
    installation = Installation(folder / "data", settings={"PVBUS_POLL_SECONDS": "0.5", **settings})
    installation.start()
    try:
        await asyncio.to_thread(installation.wait_ready)
        cluster = await HttpCluster.connect(installation.kubeconfig)
        try:
            yield Nephio(git_folder, cluster, kubectl, installation.kubeconfig)
        finally:
            await cluster.close()
        assert await asyncio.to_thread(installation.stop) == 0
    finally:
        installation.kill()
