"""From Porch's controllers to pvbus and back, on the same repositories, with a stand-in for Porch's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.examples import fleet
from pvbus.ports.cluster import Object
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import Client, name_of, publish
from tests.kit.cluster import resource_of
from tests.tools.porchstandin import REVISION, SET, VARIANT, PorchStandIn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PACKAGES = ("web-a", "web-b")
SECONDS_MAX = 60.0


def _set(workspace: str) -> Object:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": "PackageVariantSet",
        "metadata": {"name": "shops", "namespace": "default"},
        "spec": {
            "upstream": {"repo": "blueprints", "package": "web", "workspaceName": workspace},
            "targets": [{"repositories": [{"name": "edge-asia", "packageNames": list(PACKAGES)}]}],
        },
    }


class StandInWorld:
    """Porch's stand-in, and what there is of the set."""

    def __init__(self, cluster: HttpCluster) -> None:
        self.cluster, self.client, self.porch = cluster, Client(cluster), PorchStandIn(cluster)

    async def make_set(self) -> None:
        resource = await resource_of(self.cluster, SET)
        await self.cluster.create(resource, _set("v1"))

    async def until_published(self, workspace: str) -> None:
        """Wait until a revision of the blueprint is known."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                found = [each["spec"]["workspaceName"] for each in await self.porch.items(REVISION)]
                if workspace in found:
                    return
                await asyncio.sleep(0.2)

    async def approve(self, number: int) -> None:
        for package in PACKAGES:
            await self.client.until_there(name_of(package, number))
            await self.client.approve(name_of(package, number))

    async def variants(self) -> dict[str, str]:
        """Return the uid of each variant."""
        found = await self.porch.items(VARIANT)
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}

    async def revisions(self) -> dict[str, tuple[Any, ...]]:
        """Return uid, owners and lifecycle of each revision of the packages."""
        found = await self.porch.items(REVISION)
        return {
            each["metadata"]["name"]: (
                each["metadata"]["uid"],
                [owner["name"] for owner in each["metadata"].get("ownerReferences", ())],
                each["spec"]["lifecycle"],
            )
            for each in found
            if each["spec"]["workspaceName"].startswith("packagevariant-")
        }


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[StandInWorld]:
    """Serve the data folder without pvbus' services."""
    with running("apiserver", cwd=folder) as server:
        server.wait_for("export KUBECONFIG")
        cluster = await HttpCluster.connect(folder / ".pvbus" / "kubeconfig")
        try:
            yield StandInWorld(cluster)
        finally:
            await cluster.close()
        assert server.end() == 0


def pvbus_works(folder: Path) -> None:
    """Let pvbus work until all is ready. The stand-in has stopped, so it need not wait until that shows."""
    done = pvbus("up", "--once", cwd=folder, PVBUS_BESIDE_PORCH="true")
    assert done.code == 0, done


async def test_from_porch_to_pvbus_and_back_no_draft_is_lost_or_made_twice(tmp_path: Path) -> None:
    """Drafts of the one are drafts of the other: same objects, same owners, next numbers."""
    objects = [each.object for each in fleet.make(tmp_path / "repositories")]
    wanted = [o for o in objects if o["metadata"]["name"] in ("blueprints", "edge-asia")]
    for each in wanted:
        each["spec"]["deployment"] = False  # nothing is injected, and a gate asks for that
    (tmp_path / "repositories.yaml").write_text(yaml.safe_dump_all(wanted))
    assert pvbus("up", "repositories.yaml", "--once", cwd=tmp_path).code == 0
    async with world(tmp_path) as there:
        await there.make_set()
        await there.porch.reconcile()
        of_porch, variants = await there.revisions(), await there.variants()
        assert list(of_porch) == [name_of(package, 1) for package in PACKAGES]
    pvbus_works(tmp_path)
    async with world(tmp_path) as there:
        assert await there.revisions() == of_porch
        assert await there.variants() == variants
        await there.approve(1)
        publish(tmp_path / "repositories" / "blueprints.git", tmp_path / "clone")
        await there.until_published("v2")
        old = await there.client.get(SET, "shops")
        await there.client.put(SET, {**old, "spec": _set("v2")["spec"]})
    pvbus_works(tmp_path)
    async with world(tmp_path) as there:
        of_pvbus = await there.revisions()
        assert sorted(of_pvbus) == sorted(name_of(package, n) for package in PACKAGES for n in (1, 2))
        assert all(of_pvbus[name][:2] == of_porch[name][:2] for name in of_porch)
        assert await there.variants() == variants
        before = there.porch.writes
        await there.porch.reconcile()
        assert await there.revisions() == of_pvbus
        assert await there.variants() == variants
        await there.approve(2)
        await there.porch.reconcile()
        assert sorted(await there.revisions()) == sorted(of_pvbus)
        assert there.porch.writes - before < 20
