"""The package store behind a real kube-apiserver, and a git server, for Porch's clients and tests."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pvbus.controlplane.aggregated.packagerevs import API_VERSION, is_withdrawn
from pvbus.ports.cluster import Object
from tests.porch.forge import Forge, forge
from tests.porch.programs import Porch
from tests.tools.packagestore import Replica, install, wait_until_available
from tests.tools.realcluster import RealCluster, running
from tests.tools.runcluster import DEFINITIONS

SECONDS_MAX = 120
REVS = f"/apis/{API_VERSION}/packagerevs"


class PorchWorld:
    """A control plane with the package store. environment: what programs run with."""

    def __init__(self, cluster: RealCluster, store: Replica, git: Forge, porch: Porch, kubectl: Path) -> None:
        self.cluster, self.store, self.git, self.porch = cluster, store, git, porch
        path = os.pathsep.join([str(porch.client.parent), str(kubectl.parent), os.environ["PATH"]])
        self.environment: Mapping[str, str] = {
            "PATH": path,
            "HOME": str(cluster.folder),
            "KUBECONFIG": str(cluster.kubeconfig),
            "PORCHCTL_NO_PAGER_HELP": "1",
        }

    def run(
        self, command: list[str], stdin: str = "", folder: Path | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, input=stdin, env=self.environment, cwd=folder, capture_output=True, text=True,
            timeout=SECONDS_MAX, check=False,
        )  # fmt: skip


@contextmanager
def world(porch: Porch, kubectl: Path, folder: Path) -> Iterator[PorchWorld]:
    """Run everything. Raises ClusterUnavailableError, ClusterFailedError."""
    with running(DEFINITIONS) as cluster, forge(folder / "git") as git:
        git.restore("test-blueprints", porch.blueprints)
        git.create("porch-test")
        store = Replica(cluster, folder / "store", {"PVBUS_LOG_LEVEL": "info"})
        install(cluster, store.port)
        try:
            store.start()
            wait_until_available(cluster)
            yield PorchWorld(cluster, store, git, porch, kubectl)
        finally:
            store.kill()


@contextmanager
def without_leftovers(cluster: RealCluster) -> Iterator[None]:
    """Delete the PackageRevs of Repositories that are gone, which Porch does, and its tests wait for.

    pvbus retains them, with the labels of their PackageRevisions, for a Repository of the same name.
    """
    ended = threading.Event()

    def clean() -> None:
        while not ended.wait(0.3):
            with contextlib.suppress(OSError):
                _, found = cluster.ask("GET", REVS)
                for rev in found.get("items", ()):
                    if is_withdrawn(rev) or not rev.get("spec"):
                        _delete(cluster, rev)

    thread = threading.Thread(target=clean, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _delete(cluster: RealCluster, rev: Object) -> None:
    metadata = rev["metadata"]
    path = f"/apis/{API_VERSION}/namespaces/{metadata['namespace']}/packagerevs/{metadata['name']}"
    if metadata.get("finalizers"):
        cluster.ask("PUT", path, {**rev, "metadata": {**metadata, "finalizers": []}})
    cluster.ask("DELETE", path)
