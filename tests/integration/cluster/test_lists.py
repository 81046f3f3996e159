"""How a real API server answers lists: as streams if they are large, and in pages if it has no streams."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.kubernetes.streaming import FIRST_PAGE_OBJECTS
from pvbus.ports.cluster import Kind, Listing
from tests.integration.cluster.world import Kubectl
from tests.kit.cluster import resource_of
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build

T = TypeVar("T")
COUNT = FIRST_PAGE_OBJECTS + 100


def on(kubeconfig: Path, work: Callable[[HttpCluster], Awaitable[T]]) -> T:
    async def main() -> T:
        cluster = await HttpCluster.connect(kubeconfig)
        try:
            return await work(cluster)
        finally:
            await cluster.close()

    return asyncio.run(main())


async def read(cluster: HttpCluster) -> tuple[Listing, str]:
    """List ConfigMaps of a namespace, and return what a watch from there on shows first."""
    resource = await resource_of(cluster, Kind("", "ConfigMap"))
    listing = await cluster.list(resource, "many", metadata_only=True, is_followed=True)
    made = {"metadata": {"namespace": "many", "name": "after"}, "apiVersion": "v1", "kind": "ConfigMap"}
    await cluster.create(resource, made)
    # Closed here: a stream that is still open when the loop ends leaves its socket to the next test.
    async with aclosing(cluster.watch(resource, listing.resource_version, namespace="many")) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                await cluster.delete(resource, "many", "after")
                return listing, event.object["metadata"]["name"]
    raise AssertionError("the watch ended")


def test_a_large_kind_is_one_page_and_one_stream(real_cluster: RealCluster, kubectl: Kubectl) -> None:
    """Every object, without its content; the watch goes on where the stream ended; by the audit log, the
    server was asked for one page and one stream, and no second page."""
    kubectl("create", "namespace", "many")
    maps = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"map-{number:04}", "namespace": "many"},
            "data": {"content": "x" * 100},
        }
        for number in range(COUNT)
    ]
    kubectl("create", "-f", "-", stdin=yaml.safe_dump_all(maps))
    since = real_cluster.audit.end()
    listing, first = on(real_cluster.kubeconfig_of("reader", "system:masters"), read)
    names = {obj["metadata"]["name"] for obj in listing.items}
    assert {f"map-{number:04}" for number in range(COUNT)} <= names
    assert not any("data" in obj for obj in listing.items)
    assert first == "after"
    asked = [
        event.verb
        for event in real_cluster.audit.events(since)
        if event.user.username == "reader" and event.object_ref.resource == "configmaps"
        and event.verb in ("list", "watch") and event.stage != "ResponseStarted"
    ]  # fmt: skip
    assert asked.count("list") == 1
    kubectl("delete", "namespace", "many", "--wait=false")
