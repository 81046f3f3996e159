"""The worlds of a chaos run: an API server that can be struck, and where its drafts are.

A world is one object with a kubeconfig, the folder of its git remotes (None: it makes no drafts), a watch for
the checker, and what can be done to its server. The real world is kube-apiserver with etcd and a stand-in
for the package kinds; the embedded one is `pvbus apiserver`, with the package store. A real API server that
has a package store behind it is one more class here.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from pvbus.adapters.kubernetes.connection import Connection
from pvbus.ports.cluster import Kind
from tests.chaos.watches import ApiWatch, EtcdWatch, ObjectSink, compact
from tests.e2e.faults.fleet import CLUSTER, REPOSITORY, REVISION, SET, VARIANT
from tests.integration.kafka.faults.deployment import (
    SETTINGS,
    START_SECONDS_MAX,
    ServiceProcess,
    command_of,
)
from tests.tools import packages, realcluster
from tests.tools.auditlog import AuditLog
from tests.tools.realcluster import ADMINS, RealCluster
from tests.tools.runcluster import DEFINITIONS

USER = "pvbus"
SERVED: tuple[tuple[Kind, str, str], ...] = (
    (CLUSTER, "v1", "clusters"),
    (SET, "v1alpha2", "packagevariantsets"),
    (VARIANT, "v1alpha1", "packagevariants"),
    (REPOSITORY, "v1alpha1", "repositories"),
    (REVISION, "v1alpha1", "packagerevisions"),
)


class ChaosWorld(Protocol):
    """kubeconfig: of an administrator; account: of the services. audit: None where no server keeps one."""

    name: str
    kubeconfig: Path
    account: Path
    has_drafts: bool
    audit: AuditLog | None

    async def watch(self, sink: ObjectSink) -> None:
        """Follow the kinds of `SERVED` until it is cancelled."""

    async def kill(self) -> None: ...

    async def restart(self) -> None:
        """Start the API server again, and wait until it answers."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    async def compact(self) -> bool:
        """Compact etcd; False if there is nothing to forget. Raises NotImplementedError without etcd."""

    async def heal(self) -> None:
        """Begin a time without faults."""

    def logs(self) -> list[Path]:
        """Return the logs that go with the world, so that a failure can be explained afterwards."""


class RealWorld:
    """kube-apiserver, etcd and kube-controller-manager."""

    name = "real"
    has_drafts = False

    def __init__(self, cluster: RealCluster) -> None:
        self._cluster = cluster
        self.kubeconfig = cluster.kubeconfig
        self.account = cluster.kubeconfig_of(USER, ADMINS)
        self.audit: AuditLog | None = cluster.audit

    async def watch(self, sink: ObjectSink) -> None:
        prefixes = {kind: f"/registry/{kind.group}/{plural}/" for kind, _, plural in SERVED}
        await EtcdWatch(self._cluster.etcd_url, prefixes, sink).run()

    async def kill(self) -> None:
        await asyncio.to_thread(self._cluster.apiserver.kill)

    async def restart(self) -> None:
        self._cluster.apiserver.start()  # from here: it ends with the thread that starts it
        if not await asyncio.to_thread(self._cluster.wait_until_ready):
            raise RuntimeError(f"kube-apiserver did not come back: {self._cluster.tails()}")

    def freeze(self) -> None:
        self._cluster.apiserver.freeze()

    def thaw(self) -> None:
        self._cluster.apiserver.thaw()

    async def compact(self) -> bool:
        return await compact(self._cluster.etcd_url)

    async def heal(self) -> None:
        """Start kube-controller-manager again.

        Its garbage collector asks for each object again after longer and longer waits, up to 1,000 seconds,
        each time that kube-apiserver is away.
        """
        self._cluster.controllers.kill()
        self._cluster.controllers.start()

    def logs(self) -> list[Path]:
        return self._cluster.logs()


class EmbeddedWorld:
    """`pvbus apiserver`, with its package store over git."""

    name = "embedded"
    has_drafts = True
    audit: AuditLog | None = None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._starts = 0
        self._process: ServiceProcess | None = None
        self.kubeconfig = self.account = self._data / "kubeconfig"

    async def start(self) -> None:
        log = self._folder / f"apiserver-{self._starts}.log"
        self._starts += 1
        command = command_of("pvbus.cli", "apiserver", "--data", str(self._data))
        self._process = process = ServiceProcess(
            log, command, {"PVBUS_POLL_SECONDS": SETTINGS["PVBUS_POLL_SECONDS"]}
        )
        async with asyncio.timeout(START_SECONDS_MAX):
            while not re.search("API server: ", process.output):
                if not process.is_running:
                    raise RuntimeError(f"the API server ended: {process.output[-2000:]}")
                await asyncio.sleep(0.05)

    restart = start

    async def watch(self, sink: ObjectSink) -> None:
        connection = await Connection.load(self.kubeconfig)
        paths = {kind: f"/apis/{kind.group}/{version}/{plural}" for kind, version, plural in SERVED}
        try:
            await ApiWatch(connection, paths, sink).run()
        finally:
            await connection.close()

    async def kill(self) -> None:
        assert self._process is not None
        await asyncio.to_thread(self._process.kill)

    def freeze(self) -> None:
        assert self._process is not None
        self._process.freeze()

    def thaw(self) -> None:
        assert self._process is not None
        self._process.continue_()

    async def compact(self) -> bool:
        raise NotImplementedError("the embedded API server has no etcd")

    async def heal(self) -> None:
        pass  # it collects garbage itself

    def logs(self) -> list[Path]:
        return []  # they are written to the folder of the leg


@asynccontextmanager
async def real(folder: Path) -> AsyncIterator[ChaosWorld]:
    """Raises ClusterUnavailableError, ClusterFailedError."""
    with realcluster.running([*DEFINITIONS, packages.DEFINITION]) as cluster:
        yield RealWorld(cluster)


@asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[ChaosWorld]:
    world = EmbeddedWorld(folder)
    try:
        await world.start()
        yield world
    finally:
        await world.kill()


WORLDS = {"real": real, "embedded": embedded}
