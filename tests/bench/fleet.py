"""A fleet at an API server: targets, sets, and the two processes that make variants of them.

Everything is in a temporary folder: data of the API server, and the bus.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.apply import apply
from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.examples import fleet as example
from tests.bench import apiserver
from tests.bench.children import Child, eventually, running_beside

CLIENTS = 32
COUNTED_PER_SECOND = 50_000
CONFIG = "/apis/config.porch.kpt.dev"
SETS = f"{CONFIG}/v1alpha2/namespaces/default/packagevariantsets"
VARIANTS = f"{CONFIG}/v1alpha1/namespaces/default/packagevariants"
ALL_VARIANTS = f"{CONFIG}/v1alpha1/packagevariants"
REPOSITORIES = f"{CONFIG}/v1alpha1/namespaces/default/repositories"
REVISIONS = "/apis/porch.kpt.dev/v1alpha1/namespaces/default/packagerevisions"
TARGETS = "/api/v1/namespaces/default/configmaps"
CHAIN = ("ingest", "unroll", "render", "conditions")
"""All services but inject, whose work is git: it is measured with the package store."""

FIVE_EXPRESSIONS = {
    "downstream": {"repo": "deploy", "packageExpr": "'app-' + target.name"},
    "labelExprs": [
        {"key": "region", "valueExpr": "target.labels.region"},
        {"keyExpr": "'tier-' + target.labels.tier", "valueExpr": "target.name"},
    ],
    "packageContext": {"dataExprs": [{"key": "cluster", "valueExpr": "target.name + '.example.org'"}]},
}


def package_revision(name: str, package: str) -> dict[str, Any]:
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "packageName": package,
            "repository": "blueprints",
            "workspaceName": "v1",
            "revision": 1,
            "lifecycle": "Published",
        },
    }


def repository(
    name: str, url: str = "https://example.org/deploy.git", *, deployment: bool = True
) -> dict[str, Any]:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "Repository",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "git",
            "deployment": deployment,
            "git": {"repo": url, "branch": "main", "createBranch": True},
        },
    }


def target(number: int, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"cluster-{number:06}", "namespace": "default", "labels": labels},
        "data": {"zone": f"zone-{number % 30}"},
    }


def variant_set(name: str, match: dict[str, str], template: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "app", "revision": 1},
            "targets": [
                {
                    "objectSelector": {"apiVersion": "v1", "kind": "ConfigMap", "matchLabels": match},
                    "template": template,
                }
            ],
        },
    }


class Fleet:
    """An API server in a process of its own, and requests to it."""

    def __init__(
        self, folder: Path, kubeconfig: Path, server: asyncio.subprocess.Process | None = None
    ) -> None:
        self.folder = folder
        self.kubeconfig = kubeconfig
        self._server = server
        self.http = apiserver.session(kubeconfig)

    @classmethod
    @asynccontextmanager
    async def started(cls) -> AsyncIterator["Fleet"]:
        with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
            folder = Path(name)
            async with apiserver.started(str(folder / "data")) as (server, kubeconfig):
                fleet = cls(folder, kubeconfig, server)
                async with fleet.http:
                    await fleet.post(REVISIONS, package_revision("blueprints.app.v1", "app"))
                    await fleet.post(REPOSITORIES, repository("deploy"))
                    yield fleet

    @classmethod
    @asynccontextmanager
    async def of_example(cls) -> AsyncIterator["Fleet"]:
        """The example fleet of `pvbus up`, with the package store: 200 variants become drafts in git."""
        with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
            folder = Path(name)
            async with ControlPlaneProcess(folder / "data", 0) as process:
                kubeconfig = process.address.kubeconfig
                cluster = await HttpCluster.connect(kubeconfig)
                try:
                    await apply(cluster, example.make(folder / "example"))
                finally:
                    await cluster.close()
                fleet = cls(folder, kubeconfig)
                async with fleet.http:
                    yield fleet

    def services(self, *names: str) -> Child:
        """Return the other process, to be entered."""
        return Child("tests.bench.services", str(self.kubeconfig), self.bus, *(names or CHAIN))

    @property
    def bus(self) -> str:
        """The bus of this fleet in a file."""
        return f"sqlite:{self.folder / 'bus.db'}"

    # ------------------------------------------------------------ requests

    async def _send(self, method: str, path: str, body: Any, content: str) -> dict[str, Any]:
        headers = {"Content-Type": content}
        async with self.http.request(method, path, data=msgspec.json.encode(body), headers=headers) as reply:
            text = await reply.read()
            if reply.status >= 300:
                raise RuntimeError(f"{method} {path} was answered with {reply.status}: {text.decode()}")
            answer: dict[str, Any] = msgspec.json.decode(text)
            return answer

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("POST", path, body, "application/json")

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._send("PATCH", path, body, "application/merge-patch+json")

    async def post_all(self, path: str, bodies: Iterable[dict[str, Any]]) -> None:
        remaining = iter(bodies)

        async def send() -> None:
            for body in remaining:
                await self.post(path, body)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS):
                tasks.create_task(send())

    async def get(self, path: str) -> dict[str, Any]:
        async with self.http.get(path) as reply:
            answer: dict[str, Any] = msgspec.json.decode(await reply.read())
            return answer

    # ------------------------------------------------------------ looking

    async def count(self, path: str) -> int:
        """Return how many objects there are, without reading more than one."""
        page = await self.get(f"{path}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    async def wait_count(self, path: str, count: int, *, seconds: float = 600.0) -> float:
        """Wait for so many objects. The server puts all in order to count them: many are counted rarely."""

        async def reached() -> bool:
            return await self.count(path) >= count

        every = max(0.1, count / COUNTED_PER_SECOND)
        return await eventually(reached, f"{count} objects at {path}", seconds=seconds, every=every)

    async def version(self) -> int:
        """Return the server's resourceVersion, which counts all writes that changed something."""
        return int((await self.get(f"{REPOSITORIES}?limit=1"))["metadata"]["resourceVersion"])

    async def server_cpu_seconds(self) -> float:
        assert self._server is not None
        return await apiserver.cpu_seconds(self._server)

    async def count_ready(self) -> int:
        """Return how many PackageVariants are Ready."""
        variants = (await self.get(VARIANTS))["items"]
        conditions = [
            condition for one in variants for condition in one.get("status", {}).get("conditions", ())
        ]
        return sum(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def bus_ends(path: Path) -> dict[tuple[str, int], int]:
    """Return the end offsets of all partitions of a bus: their sum counts all records ever written."""
    bus = await SqliteBus.open(path)
    try:
        topics = await bus.topics()
        return dict(
            await bus.end_offsets(
                [(name, number) for name, spec in topics.items() for number in range(spec.partitions)]
            )
        )
    finally:
        await bus.close()


def records_since(before: dict[tuple[str, int], int], after: dict[tuple[str, int], int]) -> dict[str, int]:
    """Return how many records each topic got, topics without news left out."""
    found: dict[str, int] = {}
    for (topic, number), end in after.items():
        if more := end - before.get((topic, number), 0):
            found[topic] = found.get(topic, 0) + more
    return found


@asynccontextmanager
async def watching(fleet: Fleet, path: str, seen: dict[str, float]) -> AsyncIterator[None]:
    """Note the time of the first ADDED of each object from now on, by name."""
    loop = asyncio.get_running_loop()
    version = (await fleet.get(f"{path}?limit=1"))["metadata"]["resourceVersion"]
    timeout = aiohttp.ClientTimeout(total=None)

    async def follow() -> None:
        url = f"{path}?watch=1&resourceVersion={version}"
        async with fleet.http.get(url, timeout=timeout) as events:
            async for line in events.content:
                now = loop.time()
                event = msgspec.json.decode(line)
                if event["type"] == "ADDED":
                    seen.setdefault(event["object"]["metadata"]["name"], now)

    async with running_beside(follow()):
        yield
