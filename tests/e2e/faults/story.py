"""A story with one outcome, whatever happens to pvbus meanwhile: clones, upgrades, edits, a rename, a return.

Each chapter asks again until it is as it must be, so it can be told through any number of kills. The content
of the repositories at the end depends on the story alone.
"""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pygit2

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.api.variants import CONFIG_GROUP
from pvbus.core.errors import ConflictError, TransientError
from pvbus.core.kernel.keys import REMOVAL_CANCELLED
from pvbus.ports.cluster import Kind, Object
from tests.kit.cluster import resource_of

NAMESPACE = "default"
PATIENCE_SECONDS = 60.0
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SET = Kind(CONFIG_GROUP, "PackageVariantSet")
VARIANT = Kind(CONFIG_GROUP, "PackageVariant")
REPOSITORY = Kind(CONFIG_GROUP, "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
FILES = Kind("porch.kpt.dev", "PackageRevisionResources")
SITE = Kind("", "ConfigMap")
TOKENS = (REMOVAL_CANCELLED,)
"""Annotations that depend on moments: of an order to delete that was withdrawn before its delete."""

NEXT = {"Draft": ("Proposed", ""), "Proposed": ("Published", "approval")}
LOCAL_EDIT = "  mine: '1'  # a person's\n"
PACKAGE = {
    "Kptfile": """\
apiVersion: kpt.dev/v1
kind: Kptfile
metadata:
  name: web
pipeline:
  mutators:
  - image: set-labels:v0.2
    configMap:
      app: web
""",
    "site.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: site
  annotations:
    kpt.dev/config-injection: required
data:
  nodes: "0"
""",
}
SETTINGS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
data:
  local: none
  edition: "{edition}"
"""


class Story:
    """The world of one telling, below `folder`."""

    def __init__(self, folder: Path, kubeconfig: Path, *, sites: int) -> None:
        self.folder = folder
        self.sites = [f"site-{number}" for number in range(sites)]
        self._kubeconfig = kubeconfig
        self._cluster: HttpCluster | None = None
        folder.mkdir(parents=True)
        for name in ("blueprints", "edge"):
            pygit2.init_repository(str(self.remote(name)), bare=True, initial_head="main")
        self.release(1)

    def chapters(self) -> list[Callable[[], Coroutine[None, None, None]]]:
        return [self.clone, self.publish, self.upgrade, self.inject, self.rename, self.remove, self.go_on]

    # ------------------------------------------------------------ chapters

    async def clone(self) -> None:
        for name in ("blueprints", "edge"):
            await self.change(REPOSITORY, name, partial(self._or_repository, name))
        for site in self.sites:
            await self.change(SITE, site, lambda obj: obj or _site("3"))
        await self.change(SET, "web", lambda obj: obj or _set())
        await self.change(VARIANT, "solo", lambda obj: obj or _solo())
        await self.rendered(1, [*self.sites, "solo"])

    async def publish(self) -> None:
        """Two of the drafts have a person's line."""
        for package in ("site-0", "solo"):
            await self.change(FILES, f"edge.{package}.packagevariant-1", _with_local_edit)
        await self.approve(1, [*self.sites, "solo"])

    async def upgrade(self) -> None:
        self.release(2)
        await self._follow(2)
        await self.rendered(2, [*self.sites, "solo"])
        await self.approve(2, [*self.sites, "solo"])

    async def inject(self) -> None:
        """What is injected changes: a published package gets a draft."""
        await self.change(SITE, "site-1", lambda obj: {**(obj or {}), "data": {"nodes": "9"}})
        await self.until(self._is_injected)
        await self.approve(3, ["site-1"])

    async def rename(self) -> None:
        """The old package is left to be deleted, the new one is a clone."""
        downstream = {"repo": "edge", "package": "duo"}
        await self.change(VARIANT, "solo", lambda obj: _with_spec(obj, downstream=downstream))
        await self.rendered(1, ["duo"])
        await self.approve(1, ["duo"])
        await self.until(lambda: self._lifecycle("edge.solo.packagevariant-2", "DeletionProposed"))

    async def remove(self) -> None:
        """A site leaves the set's selection, and comes back to its package."""
        site = self.sites[-1]
        name = f"edge.{site}.packagevariant-2"
        await self.change(SITE, site, lambda obj: _labelled(obj, {"role": "none"}))
        await self.until(lambda: self._lifecycle(name, "DeletionProposed"))
        await self.change(SITE, site, lambda obj: _labelled(obj, {"role": "site"}))
        await self.until(lambda: self._lifecycle(name, "Published"))

    async def go_on(self) -> None:
        """The last drafts stay open."""
        self.release(3)
        await self._follow(3)
        await self.rendered(2, ["duo"])
        await self.rendered(4, ["site-1"])
        await self.rendered(3, [site for site in self.sites if site != "site-1"])

    async def _follow(self, number: int) -> None:
        upstream = {"repo": "blueprints", "package": "web", "revision": number}
        for kind, name in ((SET, "web"), (VARIANT, "solo")):
            await self.change(kind, name, lambda obj: _with_spec(obj, upstream=upstream))

    # ------------------------------------------------------------ git

    def remote(self, name: str) -> Path:
        return self.folder / f"{name}.git"

    def release(self, number: int) -> None:
        """Publish the next revision of the blueprint; every machine makes the same commits."""
        work = self.folder / "work"
        if not work.exists():
            _git(self.folder, "clone", "--quiet", "blueprints.git", "work")
        files = {**PACKAGE, "settings.yaml": SETTINGS.format(edition=number), f"new-{number}.txt": "new\n"}
        for name, text in files.items():
            (work / "web").mkdir(exist_ok=True)
            (work / "web" / name).write_text(text)
        _git(work, "add", "--all")
        _git(work, "commit", "--quiet", "--message", f"Edition {number}")
        _git(work, "tag", f"web/v{number}")
        _git(work, "push", "--quiet", "origin", "HEAD:main", f"web/v{number}")

    def content(self) -> dict[str, dict[str, str]]:
        """Return the files of every ref of the deployment's repository."""
        repository = pygit2.Repository(str(self.remote("edge")))
        return {
            ref: dict(self._files(repository.revparse_single(ref).peel(pygit2.Tree), ""))
            for ref in repository.references
        }

    def _files(self, tree: pygit2.Tree, path: str) -> Iterable[tuple[str, str]]:
        for entry in tree:
            if isinstance(entry, pygit2.Tree):
                yield from self._files(entry, f"{path}{entry.name}/")
            elif isinstance(entry, pygit2.Blob):
                yield f"{path}{entry.name}", entry.data.decode().replace(str(self.folder), "")

    async def objects(self) -> dict[str, Object]:
        """Return what every object says, but for what differs in each telling: uids, times and commits."""
        items = [obj for kind in (SET, VARIANT, REVISION) for obj in await self._list(kind)]
        names = {obj["metadata"]["uid"]: obj["metadata"]["name"] for obj in items}
        return {f"{obj['kind']} {obj['metadata']['name']}": self._said(obj, names) for obj in items}

    def _said(self, obj: Object, names: Mapping[str, str]) -> Object:
        """names: of the living objects by uid; any other uid is of an object that is gone."""
        metadata, status = obj["metadata"], obj.get("status") or {}
        conditions = {c["type"]: (c["status"], c.get("reason")) for c in status.get("conditions") or ()}
        parts = ("labels", "ownerReferences", "finalizers")
        said = {
            **{part: metadata.get(part) for part in parts},
            "annotations": {
                key: text for key, text in (metadata.get("annotations") or {}).items() if key not in TOKENS
            },
            "spec": obj["spec"],
            "conditions": conditions,
            "targets": status.get("downstreamTargets"),
        }
        text = json.dumps(said, sort_keys=True).replace(str(self.folder), "")
        return dict(json.loads(UID.sub(lambda uid: names.get(uid[0], "gone"), text)))

    def damage(self) -> set[str]:
        """Return what git finds broken, twice: to one check, a push that ends meanwhile lacks objects."""
        found = self._broken()
        return found & self._broken() if found else found

    def _broken(self) -> set[str]:
        check = ("fsck", "--full", "--no-dangling", "--no-progress")
        lines = [
            f"{name}: {line}"
            for name in ("edge", "blueprints")
            for line in _git(self.remote(name), *check, check=False).splitlines()
        ]
        return {line for line in lines if ": notice: " not in line}  # of an empty repository

    # ------------------------------------------------------------ the API

    async def change(self, kind: Kind, name: str, to: Callable[[Object | None], Object]) -> None:
        """Make an object what it must be, asking again until it was answered and is so."""

        async def changed() -> bool:
            cluster = await self.cluster()
            resource = await resource_of(cluster, kind)
            found = await cluster.get(resource, NAMESPACE, name)
            wanted = to(found)
            if wanted == found:
                return True
            if found is None:
                head = {"apiVersion": resource.api_version, "kind": kind.kind}
                metadata = {"name": name, "namespace": NAMESPACE, **wanted.get("metadata", {})}
                await cluster.create(resource, {**wanted, **head, "metadata": metadata})
            else:
                await cluster.update(resource, wanted)
            return False

        await self.until(changed)

    async def rendered(self, number: int, packages: Iterable[str]) -> None:
        """Wait for drafts with a pipeline that has run."""
        for package in packages:
            await self.until(partial(self._is_rendered, f"edge.{package}.packagevariant-{number}"))

    async def _is_rendered(self, name: str) -> bool:
        found = await self.get(REVISION, name)
        return found is not None and any(
            c["type"] == "Rendered" and c["status"] == "True"
            for c in found.get("status", {}).get("conditions") or ()
        )

    async def approve(self, number: int, packages: Iterable[str]) -> None:
        for package in packages:
            await self.until(partial(self._approved, f"edge.{package}.packagevariant-{number}"))

    async def _approved(self, name: str) -> bool:
        cluster = await self.cluster()
        found = await self.get(REVISION, name)
        assert found is not None, f"{name} is gone"
        lifecycle = found["spec"]["lifecycle"]
        if lifecycle == "Published":
            return True
        resource = await resource_of(cluster, REVISION)
        found["spec"]["lifecycle"], where = NEXT[lifecycle]
        await cluster.update(resource, found, subresource=where)
        return False

    async def _is_injected(self) -> bool:
        """An edit draft is there, and rendered, before it has what is injected."""
        found = await self.get(FILES, "edge.site-1.packagevariant-3")
        return found is not None and 'nodes: "9"' in found["spec"]["resources"]["site.yaml"]

    async def _lifecycle(self, name: str, wanted: str) -> bool:
        found = await self.get(REVISION, name)
        return found is not None and found["spec"]["lifecycle"] == wanted

    async def get(self, kind: Kind, name: str) -> Object | None:
        cluster = await self.cluster()
        resource = await resource_of(cluster, kind)
        return await cluster.get(resource, NAMESPACE, name)

    async def _list(self, kind: Kind) -> list[Object]:
        cluster = await self.cluster()
        resource = await resource_of(cluster, kind)
        return (await cluster.list(resource, NAMESPACE)).items

    async def settled(self) -> None:
        """Wait until every variant and set is ready."""
        unready: list[Object] = []

        async def ready() -> bool:
            unready.clear()
            for kind in (SET, VARIANT):
                unready.extend(obj for obj in await self._list(kind) if not _is_ready(obj))
            return not unready

        try:
            await self.until(ready)
        except TimeoutError:
            shown = {obj["metadata"]["name"]: obj["status"]["conditions"] for obj in unready}
            raise AssertionError(f"not ready: {shown}") from None

    async def cluster(self) -> HttpCluster:
        if self._cluster is None:
            self._cluster = await HttpCluster.connect(self._kubeconfig)
        return self._cluster

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None

    async def until(self, ask: Callable[[], Awaitable[bool]]) -> None:
        """Ask until the answer is true, through any number of servers that are killed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    if await ask():
                        return
                except (TransientError, ConflictError):
                    pass
                await asyncio.sleep(0.05)

    def _or_repository(self, name: str, found: Object | None) -> Object:
        return found or self._repository(name)

    def _repository(self, name: str) -> Object:
        git = {"repo": str(self.remote(name)), "branch": "main", "createBranch": True}
        return {"spec": {"type": "git", "deployment": name == "edge", "git": git}}


def _site(nodes: str) -> Object:
    return {"metadata": {"labels": {"role": "site"}}, "data": {"nodes": nodes}}


def _upstream(number: int) -> Object:
    return {"repo": "blueprints", "package": "web", "revision": number}


def _set() -> Object:
    template = {
        "downstream": {"repo": "edge", "packageExpr": "target.name"},
        "injectors": [{"kind": "ConfigMap", "nameExpr": "target.name"}],
    }
    selector = {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": {"role": "site"}}
    return {
        "spec": {"upstream": _upstream(1), "targets": [{"objectSelector": selector, "template": template}]}
    }


def _solo() -> Object:
    return {
        "spec": {
            "upstream": _upstream(1),
            "downstream": {"repo": "edge", "package": "solo"},
            "deletionPolicy": "delete",
            "injectors": [{"kind": "ConfigMap", "name": "site-0"}],
        }
    }


def _with_spec(obj: Object | None, **fields: Any) -> Object:
    assert obj is not None
    return {**obj, "spec": {**obj["spec"], **fields}}


def _labelled(obj: Object | None, labels: dict[str, str]) -> Object:
    assert obj is not None
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def _with_local_edit(obj: Object | None) -> Object:
    assert obj is not None
    files = obj["spec"]["resources"]
    if LOCAL_EDIT in files["settings.yaml"]:
        return obj
    edited = files["settings.yaml"].replace("data:\n", f"data:\n{LOCAL_EDIT}")
    return _with_spec(obj, resources={**files, "settings.yaml": edited})


def _is_ready(obj: Object) -> bool:
    generation = obj["metadata"]["generation"]
    return any(
        c["type"] == "Ready" and c["status"] == "True" and c["observedGeneration"] == generation
        for c in (obj.get("status") or {}).get("conditions") or ()
    )


def _git(folder: Path, *arguments: str, check: bool = True) -> str:
    person = {"NAME": "A Person", "EMAIL": "person@example.com", "DATE": "2026-01-01T00:00:00Z"}
    identity = {
        f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in person.items()
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env={**os.environ, **identity},
        capture_output=True,
        text=True,
        check=check,
    )
    return done.stdout + done.stderr
