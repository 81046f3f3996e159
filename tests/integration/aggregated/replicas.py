"""Replicas of the aggregated package store on one cluster, and the requests of their clients."""

import asyncio
import json
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.controlplane.aggregated.state import AggregatedState
from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver import watching
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.resources import Answer, Call
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.controlplane.packages.render import render
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.core.api.crds import cluster_crds
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.ports.cluster import Kind, Object
from tests.integration.packages.support import NAMESPACE, repository
from tests.kit.cluster import KindClient, resource_of

DEADLINE_SECONDS = 30.0
PACKAGE_REV = Kind("config.porch.kpt.dev", "PackageRev")
_PREFIX = f"/apis/porch.kpt.dev/v1alpha1/namespaces/{NAMESPACE}"


class Client(ABC):
    """What clients ask of a replica."""

    @abstractmethod
    async def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, str] = {}) -> Any:
        """Send a request as the front does. Raises: StatusError."""

    async def create(self, obj: Object) -> Object:
        made: Object = await self.ask("POST", "packagerevisions", obj)
        return made

    async def get(self, name: str) -> Object:
        found: Object = await self.ask("GET", f"packagerevisions/{name}")
        return found

    async def names(self) -> list[str]:
        listed = await self.ask("GET", "packagerevisions")
        return [obj["metadata"]["name"] for obj in listed["items"]]

    async def move(self, obj: Object, lifecycle: str, *, approval: bool = False) -> Object:
        """PUT another lifecycle, on condition that the object is as it was read."""
        path = f"packagerevisions/{obj['metadata']['name']}" + ("/approval" if approval else "")
        moved: Object = await self.ask("PUT", path, {**obj, "spec": {**obj["spec"], "lifecycle": lifecycle}})
        return moved

    async def publish(self, obj: Object) -> Object:
        return await self.move(await self.move(obj, "Proposed"), "Published", approval=True)

    async def files(self, name: str) -> Object:
        found: Object = await self.ask("GET", f"packagerevisionresources/{name}")
        return found

    async def put(self, files: Object, changes: Mapping[str, str]) -> Object:
        resources = {**files["spec"]["resources"], **changes}
        path = f"packagerevisionresources/{files['metadata']['name']}"
        body = {**files, "spec": {**files["spec"], "resources": resources}}
        written: Object = await self.ask("PUT", path, body)
        return written

    async def delete(self, name: str) -> None:
        await self.ask("DELETE", f"packagerevisions/{name}")


class Replica(Client):
    """One aggregated store in this process."""

    def __init__(self, cluster: HttpCluster, folder: Path, **options: Any) -> None:
        self.cluster = cluster
        settings = StoreOptions(
            **{"poll_seconds": 0.5, "fetch_seconds": 2.0, "local_folders": ("/",), **options}
        )
        self.state = AggregatedState(
            cluster,
            folder,
            render=partial(render, registry=FunctionRegistry({})),
            jitter=random.uniform,
            options=settings,
            abandoned_seconds=2.0,
        )

    async def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, str] = {}) -> Any:
        """Send a request as the front does. Raises: StatusError."""
        target = rq.parse_path(f"{_PREFIX}/{path}")
        assert target is not None
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        raw = json.dumps(body).encode() if body is not None else b""
        answer = await self.state.resources.answer(
            Call(method, target, query, rq.wanted(""), media, raw, "alice")
        )
        assert isinstance(answer, Answer)
        return json.loads(answer.body)

    async def watch(self, resource_version: str, seconds: int) -> list[Object]:
        """Return the events of a watch."""
        target = rq.parse_path(f"{_PREFIX}/packagerevisions")
        assert target is not None
        query = {"watch": "true", "resourceVersion": resource_version, "timeoutSeconds": str(seconds)}
        plan = await self.state.resources.answer(
            Call("GET", target, query, rq.wanted(""), "application/json", b"", "alice")
        )
        assert isinstance(plan, watching.WatchPlan)
        chunks = [bytes(c) async for c in watching.stream(self.state.store, self.state.registry, plan)]
        return [json.loads(line) for line in b"".join(chunks).splitlines()]


class ReplicaWorld(KindClient[HttpCluster]):
    """A cluster with the definitions, and replicas on it."""

    def __init__(self, cluster: HttpCluster, folder: Path, server: ApiServer | None) -> None:
        super().__init__(cluster, NAMESPACE)
        self.server = server
        self.folder = folder

    @asynccontextmanager
    async def replica(self, name: str, **options: Any) -> AsyncIterator[Replica]:
        made = Replica(self.cluster, self.folder / name, **options)
        await made.state.start()
        try:
            yield made
        finally:
            await made.state.stop()

    async def add_repository(self, name: str, remote: Path, **spec: Any) -> None:
        resource = await resource_of(self.cluster, REPOSITORY)
        await self.cluster.create(resource, repository(name, remote, **spec))

    async def rev(self, name: str) -> Object | None:
        found: Object | None = await self.get(PACKAGE_REV, name)
        return found


async def until(found: Any) -> Any:
    """Wait until an async function returns something true."""
    error: object = None
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                if result := await found():
                    return result
            except StatusError as exc:
                if exc.code not in (404, 409, 503):
                    raise
                error = exc
            await asyncio.sleep(0.02)
    raise AssertionError(error)


@asynccontextmanager
async def embedded_cluster(folder: Path) -> AsyncIterator[ReplicaWorld]:
    """Serve the definitions of Repository and PackageRev: an API server that knows nothing of packages."""
    crds = [crd for crd in cluster_crds() if "packagevariant" not in crd["metadata"]["name"]]
    server = ApiServer(folder / "api", crds=crds)
    await server.start()
    cluster = await HttpCluster.connect(server.kubeconfig_path)
    try:
        namespaces = await resource_of(cluster, Kind("", "Namespace"))
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await cluster.create(namespaces, body)
        yield ReplicaWorld(cluster, folder, server)
    finally:
        await cluster.close()
        await server.stop()
