"""The services in one process, each as a user of its own, at the embedded API server."""

import asyncio
from pathlib import Path

import pytest
import yaml

from pvbus.adapters.kubernetes.access import Refusals
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apiserver import control_plane
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.kernel.rights import SERVICE_RIGHTS
from pvbus.runtime.process.hosting import host_services
from pvbus.runtime.process.settings import ApiServerConfig, ServicesConfig
from tests.e2e.cli.small_fleet import PACKAGES, REVISION, Client, name_of
from tests.e2e.test_rights import main_job, promotion_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("namespaces", ["", "default"], ids=["cluster", "namespace"])
async def test_the_main_job_needs_no_more_than_the_services_own_rights(
    tmp_path: Path, namespaces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request is refused, from the first one on, and the objects tell which service wrote them."""
    refused: list[tuple[object, ...]] = []
    monkeypatch.setattr(Refusals, "note", lambda self, *what, **more: refused.append(what))
    stop, limit = asyncio.Event(), tuple(filter(None, [namespaces]))
    async with control_plane(tmp_path / "data", 0, ApiServerConfig(), namespaces=limit) as address:
        users = yaml.safe_load((tmp_path / "data" / "services.kubeconfig").read_text())["users"]
        tokens = {user["name"].removeprefix("pvbus-"): user["user"]["token"] for user in users}
        cluster = await HttpCluster.connect(address.kubeconfig)
        settings = ServicesConfig(
            bus=f"sqlite:{tmp_path / 'bus.db'}", kubeconfig=str(address.kubeconfig), namespaces=namespaces
        )
        try:
            async with host_services(tuple(SERVICE_RIGHTS), settings, tokens) as host:
                running = asyncio.create_task(host.run(stop))
                client = Client(cluster)
                await main_job(client, tmp_path)
                await promotion_job(client)
                assert await managers(client) == {"pvbus-render", "pvbus-conditions"}
                assert refused == []
                stop.set()
                await running
        finally:
            await cluster.close()


async def managers(client: Client) -> set[str]:
    """Return who wrote the set, and a variant with a draft, besides inject and people."""
    variant = await client.get(VARIANT, f"web-edge-asia-{PACKAGES[0]}")
    assert await client.get(REVISION, name_of(PACKAGES[0], 2))
    found = [
        *variant["metadata"]["managedFields"],
        *(await client.get(SET, "web"))["metadata"]["managedFields"],
    ]
    return {entry["manager"] for entry in found if entry["manager"].startswith("pvbus-")} - {"pvbus-inject"}
