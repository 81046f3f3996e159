"""The aggregated package store on a real kube-apiserver, with its garbage collector."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import REPOSITORY as CHECKOUT
from tests.integration.aggregated.replicas import ReplicaWorld, until
from tests.integration.aggregated.test_model import play
from tests.integration.packages.support import NAMESPACE, bare, refs, revision
from tests.kit.cluster import resource_of
from tests.tools.realcluster import RealCluster, real_cluster_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def real_cluster() -> Iterator[RealCluster]:
    yield from real_cluster_of(sorted((CHECKOUT / "schemas" / "crds").glob("*.yaml")))


async def _world(real_cluster: RealCluster, folder: Path) -> ReplicaWorld:
    cluster = await HttpCluster.connect(real_cluster.kubeconfig)
    namespaces = await resource_of(cluster, Kind("", "Namespace"))
    if await cluster.get(namespaces, "", NAMESPACE) is None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await cluster.create(namespaces, body)
    return ReplicaWorld(cluster, folder, None)


async def test_two_replicas_on_a_real_api_server_do_what_a_model_says(
    real_cluster: RealCluster, tmp_path: Path
) -> None:
    world = await _world(real_cluster, tmp_path)
    try:
        remote = bare(tmp_path / "git" / "edge.git")
        await play(world, real_cluster.kubeconfig, remote, rounds=2, kills=1)
    finally:
        await world.cluster.close()


async def test_what_one_replica_does_on_a_real_api_server_the_other_continues(
    real_cluster: RealCluster, tmp_path: Path
) -> None:
    world = await _world(real_cluster, tmp_path)
    remote = bare(tmp_path / "git" / "other.git")
    try:
        async with world.replica("a") as a, world.replica("b") as b:
            await world.add_repository("other", remote, git={"createBranch": True})
            made = await until(lambda: a.create(revision("other", "app", "ws", labels={"team": "x"})))
            assert await b.get("other.app.ws") == made
            files = await b.put(await b.files("other.app.ws"), {"new.txt": "by b\n"})
            assert (await a.files("other.app.ws"))["spec"] == files["spec"]
            published = await a.publish(await b.get("other.app.ws"))
            assert published == await b.get("other.app.ws")
            await a.delete((await b.move(published, "DeletionProposed"))["metadata"]["name"])
            assert "other.app.ws" not in await b.names()
            assert "refs/tags/app/v1" not in refs(remote)
            assert await world.rev("other.app.ws") is None
    finally:
        await world.cluster.close()
