"""Establish on the embedded API server: its defaults, checks, access control and garbage collection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.library import Configuration
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.establish import scenarios
from tests.integration.establish.world import (
    ACCOUNT,
    DEFINITIONS,
    LiveWorld,
    definition,
    granted,
    provider,
)


@asynccontextmanager
async def served() -> AsyncIterator[LiveWorld]:
    server = ApiServer(None, crds=list(DEFINITIONS), tls=False)
    await server.start()
    keys = {"BearerToken": f"Bearer {server.token}"}
    client = HttpCluster(Connection(Configuration(host=server.url, api_key=keys)))
    world = LiveWorld(client, client.acting(as_user=ACCOUNT))
    await scenarios.prepared(world)
    yield world
    await client.close()
    await server.stop()


@pytest.fixture
async def world() -> AsyncIterator[LiveWorld]:
    async with served() as world:
        yield world


async def test_a_server_without_pods_gets_the_objects_alone() -> None:
    """The package is installed, and the row says that nothing is started."""
    async with served() as world:
        group = "alone.example.org"
        await granted(world.client)
        spec = {"controller": {"image": "registry.example.org/run:1"}}
        obj = await world.create(provider("alone"))
        digest = f"sha256:{'d' * 64}"
        revision = world.publish(digest, [definition("One", group)], kind="Provider", spec=spec)
        key = await world.order(obj, revision)
        await world.settle(key)
        row = world.done[key]
        assert row.is_healthy
        assert "the API server has no Pods" in row.message
        assert await world.get("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"ones.{group}")


async def test_a_view_checks_without_storing_and_writes_as_another(world: LiveWorld) -> None:
    """The views of the cluster port do on this server what they say."""
    await scenarios.check_views(world)


async def test_a_provider_lives_as_the_lock_says(world: LiveWorld) -> None:
    """X3, X5, X8: install, upgrade, collection and removal, with the rights of establish alone."""
    await scenarios.check_life(world, "life.example.org", runs=False)


async def test_a_package_install_has_the_rights_of_its_account(world: LiveWorld) -> None:
    """Writes are judged as the account's, all or nothing, and are undone with the install."""
    await scenarios.check_carvel(world, "carvel-team")


async def test_an_install_without_rights_holds_no_namespace(world: LiveWorld) -> None:
    """Its deletion fails with the account, the right and the way out; with the namespace it just goes."""
    await scenarios.check_deletion_without_rights(world, "lost-team")
