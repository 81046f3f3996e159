"""`pvbus up`: a set is deleted while a person's edit of one of its drafts is not published."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import Manifest
from pvbus.cli.apply import apply
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR
from pvbus.ports.cluster import Kind
from tests.e2e.cli.command import pvbus, running
from tests.e2e.cli.small_fleet import (
    CLUSTERS,
    FILES,
    PACKAGES,
    REVISION,
    SECONDS_MAX,
    Client,
    name_of,
    write_manifests,
)
from tests.kit.cluster import resource_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DRAFT = name_of(PACKAGES[1], 1)
VARIANT_NAME = f"web-edge-asia-{PACKAGES[1]}"


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(SECONDS_MAX * 5):
        if await condition():
            return
        await asyncio.sleep(0.2)
    raise AssertionError("the state did not come about in time")


async def _scenario(folder: Path) -> None:
    client = Client(await HttpCluster.connect(folder / ".pvbus" / "kubeconfig"))

    async def drafts() -> set[str]:
        names = {each["metadata"]["name"] for each in await client.items(REVISION)}
        return {name for name in names if name.startswith("edge-")}

    async def owned() -> bool:
        found = await client.get(REVISION, DRAFT)
        return bool(found["metadata"].get("ownerReferences"))

    async def is_alone() -> bool:
        return await drafts() == {DRAFT} and not await client.items(VARIANT) and not await owned()

    async def is_told() -> bool:
        return any(
            (each["reason"], each["involvedObject"]["name"]) == ("Kept", DRAFT)
            for each in await client.items(Kind("", "Event"))
        )

    async def is_back() -> bool:
        return len(await drafts()) == CLUSTERS and await owned()

    try:
        for package in PACKAGES:
            await client.until_there(name_of(package, 1))
        await client.edit(FILES, DRAFT, lambda files: files["spec"]["resources"].update({"n.txt": "mine\n"}))
        resource = await resource_of(client.cluster, SET)
        await client.cluster.delete(resource, "default", "web")
        await _until(is_alone)
        await _until(is_told)
        annotations = (await client.get(REVISION, DRAFT))["metadata"]["annotations"]
        assert annotations[KEPT_FOR] == f"web/{VARIANT_NAME}@"
        assert annotations[EDITED_BY]
        explained = await asyncio.to_thread(pvbus, "explain", f"default/{VARIANT_NAME}", cwd=folder)
        assert f"kept: {DRAFT} (Draft)" in explained.out
        documents = yaml.safe_load_all((folder / "manifests" / "all.yaml").read_text())
        made = [each for each in documents if each["kind"] == "PackageVariantSet"]
        await apply(client.cluster, [Manifest(folder, 1, each) for each in made])
        await _until(is_back)
        assert (await client.get(FILES, DRAFT))["spec"]["resources"]["n.txt"] == "mine\n"
        assert KEPT_FOR not in (await client.get(REVISION, DRAFT))["metadata"]["annotations"]
    finally:
        await client.cluster.close()


def test_an_edited_draft_outlives_its_set_and_comes_back_to_its_variant(tmp_path: Path) -> None:
    """It stays without an owner, named; everything else goes. Applied again, the variant has it back."""
    write_manifests(tmp_path)
    with running("up", "manifests", cwd=tmp_path) as up:
        up.wait_for("metrics and health: ")
        asyncio.run(_scenario(tmp_path))
        assert up.end() == 0, up.output
