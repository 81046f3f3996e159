"""Establish on a real API server: what it may grant, and how the server's own controllers take part."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from tests.integration.cluster.world import Kubectl
from tests.integration.establish import scenarios
from tests.integration.establish.world import ACCOUNT, DEFINITIONS, LiveWorld
from tests.tools.realcluster import RealCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240, func_only=True)]  # the fixture may have to build


@pytest.fixture(scope="module")
def packages(real_cluster: RealCluster, kubectl: Kubectl) -> Iterator[RealCluster]:
    """The definitions, as long as these tests run: PackageRevision is a kind of Porch's, too."""
    for definition in DEFINITIONS:
        real_cluster.define(definition)
    asyncio.run(_prepared(real_cluster))
    yield real_cluster
    kubectl("delete", "customresourcedefinitions", *(each["metadata"]["name"] for each in DEFINITIONS))


async def _prepared(cluster: RealCluster) -> None:
    async with world_of(cluster) as world:
        await scenarios.prepared(world)


@asynccontextmanager
async def world_of(cluster: RealCluster) -> AsyncIterator[LiveWorld]:
    client = await HttpCluster.connect(cluster.kubeconfig)
    try:
        yield LiveWorld(client, client.acting(as_user=ACCOUNT))
    finally:
        await client.close()


async def test_a_view_checks_without_storing_and_writes_as_another(packages: RealCluster) -> None:
    """The views of the cluster port do on this server what they say."""
    async with world_of(packages) as world:
        await scenarios.check_views(world)


async def test_a_provider_lives_as_the_lock_says(packages: RealCluster) -> None:
    """X3, X5, X8: install, upgrade, collection and removal, with the rights of establish alone."""
    async with world_of(packages) as world:
        await scenarios.check_life(world, "life.example.org", runs=True)


async def test_rights_that_are_not_held_are_not_granted(packages: RealCluster) -> None:
    """The escalation check refuses the package before anything is written; once granted, it is installed."""
    async with world_of(packages) as world:
        await scenarios.check_escalation(world, "rights.example.org")


async def test_a_package_install_has_the_rights_of_its_account(packages: RealCluster) -> None:
    """Writes are judged as the account's, all or nothing, and are undone with the install."""
    async with world_of(packages) as world:
        await scenarios.check_carvel(world, "carvel-team")


async def test_an_install_without_rights_holds_no_namespace(packages: RealCluster) -> None:
    """Its deletion fails with the account, the right and the way out; with the namespace it just goes."""
    async with world_of(packages) as world:
        await scenarios.check_deletion_without_rights(world, "lost-team")
