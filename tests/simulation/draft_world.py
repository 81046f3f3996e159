"""A variant of a draft: blueprint `app`, workspace `v1`, in repository `blue`, whose git keeps every commit.

The package store's rules are those of `pvbus plan`; the files of a commit are served, too.
"""

from typing import Any

from pvbus.adapters.memory.objects import RESOURCES, REVISION
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.variants.following import FOLLOW
from pvbus.core.variants.merge import copies
from pvbus.core.yaml import editor
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.preview.packages import StoreRules
from tests.simulation.inject_world import KPTFILE, NAMESPACE, InjectWorld, owner, package, variant

ADDRESS = "https://git.example/blue.git"
FIRST, SECOND = "edge.app.packagevariant-1", "edge.app.packagevariant-2"
UPSTREAM = {"repo": "blue", "package": "app", "workspaceName": "v1"}


def repository(name: str) -> Object:
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "config.porch.kpt.dev/v1alpha1", "kind": "Repository", "metadata": metadata}


def files_of(**data: Any) -> dict[str, str]:
    lines = "".join(f"  {key}: {value}\n" for key, value in data.items())
    settings = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata:\n{lines}"
    return {"Kptfile": KPTFILE, "settings.yaml": settings}


def lock(ref: str, commit: str, address: str = ADDRESS) -> Object:
    return {"type": "git", "git": {"repo": address, "directory": "app", "ref": ref, "commit": commit}}


class DraftWorld(InjectWorld):
    """git: the files of each commit of the upstream's repository."""

    def __init__(self, *, follow: str = "", downstream: str = "", **spec: Any) -> None:
        """downstream: the lifecycle of a revision that was made of the draft's first commit, and edited; ""
        for none."""
        super().__init__([repository("blue"), repository("edge")])
        self.cluster.rules = StoreRules(self.cluster, FunctionRegistry({}), is_embedded=True)
        self.git: dict[str, dict[str, str]] = {}
        self._peek = self.cluster.peek
        self.cluster.peek = self._peek_at  # type: ignore[method-assign]  # this world's git
        self.save("c1", size="small")
        if downstream:
            self._put_downstream(downstream)
        asked = variant(**({"upstream": UPSTREAM} | spec))
        asked["metadata"]["annotations"] = {FOLLOW: follow} if follow else {}
        self.cluster.put(asked)

    def _peek_at(self, kind: Kind, namespace: str, name: str) -> Object | None:
        revision, at, commit = name.partition("@")
        if kind != RESOURCES or not at:
            return self._peek(kind, namespace, name)
        found = self._peek(kind, namespace, revision)
        is_there = commit in self.git and revision.startswith(("blue.", "azure."))
        return (
            {**found, "spec": {**found["spec"], "resources": self.git[commit]}}
            if found and is_there
            else None
        )

    def _put_downstream(self, lifecycle: str) -> None:
        made = copies.upstream_texts(files_of(size="small", mine="yes"))
        texts = copies.edit_kptfile(made, copies.derived_from(lock("drafts/app/v1", "c1")))
        is_open = lifecycle in ("Draft", "Proposed")
        own = {"git": {"repo": "edge-url", "directory": "app", "ref": "x", "commit": "e1"}}
        for obj in package(
            "edge", "app", "packagevariant-1", lifecycle=lifecycle, revision=0 if is_open else 1,
            owners=[owner("v")], files=texts,
            status={"selfLock": own, "upstreamLock": lock("drafts/app/v1", "c1")},
        ):  # fmt: skip
            self.cluster.put(obj)

    # ------------------------------------------------------------ the upstream

    def save(
        self,
        commit: str,
        *,
        lifecycle: str = "Draft",
        revision: int = 0,
        workspace: str = "v1",
        repo: str = "blue",
        address: str = ADDRESS,
        ref: str = "",
        **data: Any,
    ) -> None:
        """Put the upstream's revision with this content and state."""
        self.git[commit] = files_of(**data)
        branch = {"Draft": "drafts", "Proposed": "proposed"}.get(lifecycle)
        ref = ref or (f"{branch}/app/{workspace}" if branch else f"app/v{revision}")
        for obj in package(
            repo, "app", workspace, lifecycle=lifecycle, revision=revision, files=self.git[commit],
            status={"selfLock": lock(ref, commit, address)},
        ):  # fmt: skip
            self.cluster.put(obj)

    def drop(self, name: str) -> None:
        self.cluster.remove(REVISION, NAMESPACE, name)
        self.cluster.remove(RESOURCES, NAMESPACE, name)

    def upstreams(self) -> dict[str, Object]:
        found = {obj["metadata"]["name"]: obj for obj in self.all(REVISION)}
        return {name: obj for name, obj in found.items() if not name.startswith("edge.")}

    # ------------------------------------------------------------ the downstream

    def own(self) -> dict[str, str]:
        """Return the lifecycles of the downstream."""
        return {name: state for name, state in self.lifecycles().items() if name.startswith("edge.")}

    def data(self, name: str) -> Object:
        data: Object = editor.values(self.files(name)["settings.yaml"])[0]["data"]
        return data

    def lock_of(self, name: str) -> tuple[str, str]:
        """Return ref and commit of a downstream's lock."""
        git = self.revisions()[name]["status"]["upstreamLock"]["git"]
        return git["ref"], git["commit"]

    def task_of(self, name: str) -> Object:
        (task,) = self.revisions()[name]["spec"]["tasks"]
        found: Object = task
        return found
