"""What the fault table needs: a running `pvbus up`, git repositories, and questions with a deadline."""

import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.ports.cluster import Kind, Object
from tests.kit.cluster import KindClient
from tests.tools.installation import Installation

SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
CONFIG_MAP = Kind("", "ConfigMap")
NAMESPACE = Kind("", "Namespace")
PATIENCE_SECONDS = 30.0

KPTFILE = """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: base
  annotations:
    config.kubernetes.io/local-config: "true"
"""
CONTEXT = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: kptfile.kpt.dev
  annotations:
    config.kubernetes.io/local-config: "true"
data:
  name: example
"""

_T = TypeVar("_T")


def git(folder: Path, *arguments: str) -> str:
    """Run plain git, as a person would."""
    who = ("-c", "user.name=A Person", "-c", "user.email=person@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def branches(remote: Path) -> list[str]:
    return git(remote, "for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split()


def commit(remote: Path, branch: str, files: Mapping[str, str], *, tag: str = "") -> str:
    """Add files to a branch of a bare repository through a clone; returns the commit."""
    clone = remote.with_name(f"{remote.stem}-clone")
    if not clone.exists():
        git(remote.parent, "clone", "--quiet", str(remote), str(clone))
    git(clone, "fetch", "--quiet", "origin")
    known = git(clone, "branch", "--remotes", "--list", f"origin/{branch}").strip()
    git(clone, "checkout", "--quiet", "-B", branch, *([f"origin/{branch}"] if known else []))
    for path, text in files.items():
        file = clone / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "--no-verify", "--message", "by hand")
    git(clone, "push", "--quiet", "origin", branch)
    if tag:
        git(clone, "tag", tag)
        git(clone, "push", "--quiet", "origin", f"refs/tags/{tag}")
    return git(clone, "rev-parse", "HEAD").strip()


def refuse_pushes(remote: Path, words: str) -> Path:
    """Install a hook that refuses every push with these words; removing the file ends that."""
    hook = remote / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    hook.chmod(0o755)
    return hook


class NamespaceWorld(KindClient[HttpCluster]):
    """One namespace of a running installation; several rows of the table share the installation."""

    def __init__(
        self, installation: Installation, cluster: HttpCluster, namespace: str, folder: Path
    ) -> None:
        super().__init__(cluster, namespace)
        self.installation = installation
        self.folder = folder

    # ------------------------------------------------------------ making

    def bare(self, name: str) -> Path:
        remote = self.folder / f"{name}.git"
        git(self.folder, "init", "--quiet", "--bare", "--initial-branch=main", str(remote))
        return remote

    async def blueprints(self) -> Path:
        """A repository with the published package `base`, v1."""
        remote = self.bare("blueprints")
        commit(remote, "main", {"base/Kptfile": KPTFILE, "base/package-context.yaml": CONTEXT}, tag="base/v1")
        await self.register("blueprints", remote)
        await self.until(lambda: self.get(REVISION, "blueprints.base.v1"))
        return remote

    async def edge(self, name: str = "edge") -> Path:
        """An empty repository to deploy to."""
        remote = self.bare(name)
        await self.register(name, remote, deployment=True)
        return remote

    async def register(self, name: str, address: Path | str, **spec: Any) -> Object:
        location = {"repo": str(address), "branch": "main", "createBranch": True}
        return await self.create(REPOSITORY, name, spec={"type": "git", "git": location, **spec})

    async def make_set(self, name: str, *targets: Object, **spec: Any) -> Object:
        upstream = {"repo": "blueprints", "package": "base", "revision": 1}
        return await self.create(SET, name, spec={"upstream": upstream, "targets": list(targets), **spec})

    async def sites(self, count: int, **labels: str) -> None:
        """ConfigMaps to select, `site-0` and so on."""
        await asyncio.gather(
            *(self.create(CONFIG_MAP, f"site-{number}", labels=labels) for number in range(count))
        )

    # ------------------------------------------------------------ looking

    async def names(self, kind: Kind) -> set[str]:
        """Return the names of what lives (and is not being deleted)."""
        return {
            obj["metadata"]["name"]
            for obj in await self.items(kind)
            if not obj["metadata"].get("deletionTimestamp")
        }

    async def reported(self, kind: Kind, name: str, pattern: str) -> str:
        """Wait until a condition of an object says what is expected; returns what they all say at the end."""
        text = ""

        async def says() -> bool:
            nonlocal text
            text = _reported(await self.get(kind, name))
            return re.search(pattern, text, re.DOTALL) is not None

        try:
            await self.until(says)
        except TimeoutError:
            return text
        return text

    async def variants_ready(self, *names: str) -> None:
        for name in names:
            text = await self.reported(VARIANT, name, r"^Ready=True")
            assert "Ready=True" in text, f"{name}: {text}"

    async def until(self, ask: Callable[[], Awaitable[_T]], seconds: float = PATIENCE_SECONDS) -> _T:
        """Ask until the answer is true, and return it. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while not (answer := await ask()):  # noqa: ASYNC110 - nobody would set an event
                await asyncio.sleep(0.05)
            return answer


def _reported(obj: Object | None) -> str:
    """One line per condition of the current generation: `Type=Status (Reason): message`."""
    if obj is None:
        return "there is no such object"
    generation = obj["metadata"].get("generation", 0)
    return "\n".join(
        f"{c['type']}={c['status']} ({c['reason']}): {c['message']}"
        for c in sorted((obj.get("status") or {}).get("conditions") or (), key=lambda c: str(c["type"]))
        if c.get("observedGeneration", generation) == generation
    )
