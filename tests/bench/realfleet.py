"""A fleet at a real kube-apiserver with etcd, beside which the benchmarks' services run."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.bench import apiserver
from tests.bench.children import process_cpu_seconds
from tests.bench.fleet import REPOSITORIES, REVISIONS, Fleet, package_revision, repository
from tests.tools import packages
from tests.tools.auditlog import writes_of
from tests.tools.realcluster import ADMINS, RealCluster, running
from tests.tools.runcluster import DEFINITIONS

USER = "pvbus-bench"
"""Who sends everything here, so that other programs' writes are not counted."""


class RealFleet(Fleet):
    """A fleet whose API server is real: what it does is read from its audit log and from /proc."""

    def __init__(self, real: RealCluster) -> None:
        super().__init__(real.folder, real.kubeconfig_of(USER, ADMINS))
        self.real = real
        self._read = 0
        self._writes = 0

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator["RealFleet"]:
        """Start a control plane. Raises ClusterUnavailableError."""
        with cluster() as real:
            fleet = cls(real)
            async with fleet.http:
                await fleet.post(REVISIONS, package_revision("blueprints.app.v1", "app"))
                await fleet.post(REPOSITORIES, repository("deploy"))
                yield fleet

    async def version(self) -> int:
        """Return how many writes were accepted: the version of etcd counts other programs' writes, too."""
        events, self._read = self.real.audit.read(self._read)
        self._writes += len(writes_of(USER, events))
        return self._writes

    async def server_cpu_seconds(self) -> float:
        return cpu_seconds(self.real)


def cluster() -> contextlib.AbstractContextManager[RealCluster]:
    """Return a control plane with pvbus' definitions and one of PackageRevisions, to be entered."""
    return running([*DEFINITIONS, packages.DEFINITION])


def cpu_seconds(real: RealCluster) -> float:
    """Return the CPU time of the API server and of etcd."""
    return process_cpu_seconds(real.apiserver.pid) + process_cpu_seconds(real.etcd.pid)


async def bare_creates(creates: int, clients: int) -> dict[str, float]:
    """Let the bare load generator run against a fresh control plane."""
    with cluster() as real:

        async def used() -> float:
            return cpu_seconds(real)

        async with apiserver.session(real.kubeconfig_of(USER, ADMINS)) as http:
            return await apiserver.load(http, used, creates, clients)
