"""Release approves and restores on the embedded server, and the variant does not work against it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.apiserver import control_plane
from pvbus.cli.progress import SET, VARIANT
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.promotionrows import ApprovalRow
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.kernel.rights import requests_of, rights_of
from pvbus.core.kernel.topics import PARTITIONS, SERVICES, owned_topics, row_partition
from pvbus.core.variants.revisions.content import content_digest
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Object
from pvbus.runtime.process.hosting import host_services
from pvbus.runtime.process.settings import ApiServerConfig, ServicesConfig
from tests.e2e.cli.small_fleet import (
    FILES,
    PACKAGES,
    REVISION,
    SECONDS_MAX,
    Client,
    follow_second_revision,
    manifests,
    name_of,
    stop_rollouts,
)
from tests.e2e.test_rights import create_all, until
from tests.tools.authorizer import Authorizer, authorizing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGE = PACKAGES[0]
KEY = f"default/web-edge-asia-{PACKAGE}"
QUIET_SECONDS = 4
WITH_PROMOTE = (*SERVICES, "promote")
"""Promote asks ingest for quarantines: without them release publishes nothing."""


@asynccontextmanager
async def running(names: Sequence[str], kubeconfig: Path, bus: Path) -> AsyncIterator[None]:
    stop = asyncio.Event()
    async with host_services(names, ServicesConfig(bus=f"sqlite:{bus}", kubeconfig=str(kubeconfig))) as host:
        task = asyncio.create_task(host.run(stop))
        try:
            yield
        finally:
            stop.set()
            await task


class Rollout:
    """Writes orders as the service rollout does. Release is the only one that reads them."""

    def __init__(self, bus: SqliteBus, client: Client) -> None:
        self.bus = bus
        self.client = client
        self.leases: dict[int, Lease] = {}

    async def join(self) -> None:
        given: asyncio.Queue[Lease] = asyncio.Queue()

        async def revoked(lease: Lease) -> None:
            raise AssertionError(f"{lease} is taken by another rollout")

        await self.bus.join("pvbus-rollout", owned_topics("rollout"), assigned=given.put, revoked=revoked)
        for _ in range(PARTITIONS):
            lease = await given.get()
            self.leases[lease.partition] = lease

    async def order(self, order: Any, revision: str) -> str:
        """Give an order on a revision as it is; return the digest of its content."""
        uid = (await self.client.get(VARIANT, KEY.partition("/")[2]))["metadata"]["uid"]
        digest = await self.content(revision)
        row = ApprovalRow(uid=uid, attempt=1, order=order, revision=revision, digest=digest)
        key = f"{KEY}|fleet"
        partition = row_partition(APPROVALS, key, PARTITIONS)
        output = Output(APPROVALS, partition, key.encode(), encode_row(row))
        await self.bus.step(self.leases[partition], [output])
        return digest

    async def content(self, name: str) -> str:
        found = await self.client.get(FILES, name)
        return content_digest(found["spec"]["resources"])

    async def revisions(self) -> list[Object]:
        return [each for each in await self.client.items(REVISION) if each["spec"]["packageName"] == PACKAGE]

    async def published(self, number: int) -> Object:
        """Wait for the published revision of this number."""
        for _ in range(SECONDS_MAX * 10):
            for each in await self.revisions():
                if (each["spec"]["lifecycle"], each["spec"].get("revision")) == ("Published", number):
                    return each
            await asyncio.sleep(0.1)
        raise AssertionError(f"no revision {number}: {await self.revisions()}")

    async def is_quiet(self) -> bool:
        """Watch whether all revisions keep their versions for some seconds."""
        before = await self.versions()
        for _ in range(QUIET_SECONDS * 10):
            await asyncio.sleep(0.1)
            if await self.versions() != before:
                return False
        return True

    async def versions(self) -> dict[str, str]:
        return {
            each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in await self.revisions()
        }


async def propose(client: Client, name: str) -> None:
    revision = await client.until_there(name)
    revision["spec"]["lifecycle"] = "Proposed"
    await client.put(REVISION, revision)


async def test_a_rollback_is_published_and_its_variant_makes_one_draft_and_is_quiet(tmp_path: Path) -> None:
    """With its own rights, of which none is left over."""
    rights = frozenset(
        request for right in rights_of("release", namespaced=False) for request in requests_of(right)
    )
    authorizer, bus = Authorizer(rights, namespaced=False), tmp_path / "bus.db"
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(control_plane(tmp_path / "data", 0, ApiServerConfig()))
        config = await stack.enter_async_context(
            authorizing(address.kubeconfig, authorizer, tmp_path / "release")
        )
        cluster = await HttpCluster.connect(address.kubeconfig)
        stack.push_async_callback(cluster.close)
        client = Client(cluster)
        async with running(WITH_PROMOTE, address.kubeconfig, bus), running(["release"], config, bus):
            await create_all(client, list(manifests(tmp_path / "repositories")))
            await until(client, SET, "web", Ready="True")
            await client.until_there(name_of(PACKAGE, 1))
            await client.approve(name_of(PACKAGE, 1))
            await follow_second_revision(client, tmp_path)
            await propose(client, name_of(PACKAGE, 2))
            rollout = Rollout(await SqliteBus.open(str(bus)), client)
            stack.push_async_callback(rollout.bus.close)
            await rollout.join()

            upgraded = await rollout.order("approve", name_of(PACKAGE, 2))
            await rollout.published(2)
            good = await rollout.order("restore", name_of(PACKAGE, 1))
            restored = await rollout.published(3)
            assert await rollout.content(restored["metadata"]["name"]) == good != upgraded
            assert restored["metadata"]["labels"]["kpt.dev/latest-revision"] == "true"
            assert [each["kind"] for each in restored["metadata"]["ownerReferences"]] == ["PackageVariant"]

            await client.until_there(name_of(PACKAGE, 3))  # the upgrade that its variant makes again
            await until(client, VARIANT, KEY.partition("/")[2], Ready="True")
            assert await rollout.content(name_of(PACKAGE, 3)) == upgraded
            assert await rollout.is_quiet()
            assert len(await rollout.revisions()) == 5  # two, the rollback, the new draft, the branch's
            versions = await rollout.versions()
            await stop_rollouts(client)
        async with running(WITH_PROMOTE, address.kubeconfig, bus), running(["release"], config, bus):
            assert await rollout.is_quiet()
            assert await rollout.versions() == versions
    assert authorizer.refused == set()
    assert rights - authorizer.seen == set()
