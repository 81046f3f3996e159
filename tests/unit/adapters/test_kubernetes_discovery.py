"""Discovery is asked once, and again after a change."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.cluster import Kind, Object, Resource
from tests.kit.cluster import resource_of
from tests.unit.adapters.http_servers import connected, serving, status, write_kubeconfig

SITE = Kind("example.org", "Site")


class Server:
    """Serves Sites in some versions. seen: paths. held: the answers wait while it is not set."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.seen: list[str] = []
        self.asked = asyncio.Event()
        self.held = asyncio.Event()
        self.held.set()
        self.code = 200

    async def __call__(self, request: web.Request) -> web.Response:
        versions = self.versions
        self.seen.append(request.path)
        self.asked.set()
        await self.held.wait()
        if self.code != 200:
            return status(self.code, "Trouble")
        if not versions:
            return status(404, "NotFound")
        if request.path == "/apis/example.org":
            named = [{"version": version} for version in versions]
            return web.json_response({"kind": "APIGroup", "versions": named, "preferredVersion": named[0]})
        sites = {"kind": "Site", "name": "sites", "namespaced": True}
        return web.json_response({"kind": "APIResourceList", "resources": [sites]})


async def test_requests_share_one_answer(tmp_path: Path) -> None:
    """Before the first answer is in as well; one that gives up leaves it to the others."""
    server = Server("v1")
    server.held.clear()
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        asking = [asyncio.create_task(cluster.named(f"a{i}").resource(SITE)) for i in range(31)]
        await server.asked.wait()
        asking[0].cancel()
        server.held.set()
        found = await asyncio.gather(*asking[1:])
        found.append(await cluster.resource(SITE))
    assert {resource.plural for resource in found if resource is not None} == {"sites"}
    assert None not in found
    assert server.seen == ["/apis/example.org", "/apis/example.org/v1"]


async def test_a_change_asks_again(tmp_path: Path) -> None:
    server = Server("v1")
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        assert await cluster.versions(SITE) == ("v1",)
        server.versions = ("v2", "v1")
        assert await cluster.versions(SITE) == ("v1",)
        cluster.forget_resources()
        assert await cluster.versions(SITE) == ("v2", "v1")


async def test_an_answer_from_before_the_change_is_not_cached(tmp_path: Path) -> None:
    """It was asked for before the definition changed, and came after."""
    server = Server("v1")
    server.held.clear()
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        early = asyncio.create_task(cluster.versions(SITE))
        await server.asked.wait()
        server.versions = ("v2",)
        cluster.forget_resources()
        late = asyncio.create_task(cluster.versions(SITE))
        server.held.set()
        await early
        assert await late == ("v2",)
        assert await cluster.versions(SITE) == ("v2",)


@pytest.mark.parametrize("code", [200, 503])
async def test_what_is_not_served_or_not_known_is_asked_again(tmp_path: Path, code: int) -> None:
    server = Server()
    server.code = code
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        for _ in range(2):
            if code == 200:
                assert await cluster.versions(SITE) == ()
            else:
                with pytest.raises(TransientError, match="503"):
                    await cluster.versions(SITE)
        server.code, server.versions = 200, ("v1",)
        assert await cluster.versions(SITE) == ("v1",)
    assert len(server.seen) == 4


OBJECT: Object = {"metadata": {"name": "a", "namespace": "default"}}


async def _watch(cluster: HttpCluster, resource: Resource) -> None:
    async for _ in cluster.watch(resource, "1"):
        pass


@pytest.mark.parametrize(
    "ask",
    [
        lambda cluster, resource: cluster.list(resource),
        lambda cluster, resource: cluster.get(resource, "default", "a"),
        lambda cluster, resource: cluster.create(resource, OBJECT),
        lambda cluster, resource: cluster.update(resource, OBJECT),
        lambda cluster, resource: cluster.delete(resource, "default", "a"),
        _watch,
    ],
    ids=["list", "get", "create", "update", "delete", "watch"],
)
async def test_a_kind_that_is_not_served_any_more_is_discovered_again(
    tmp_path: Path, ask: Callable[[HttpCluster, Resource], Awaitable[object]]
) -> None:
    """Nobody said that the definition changed: the 404 of the kind does."""
    server = Server("v1")
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        resource = await resource_of(cluster, SITE)
        server.versions = ()
        with pytest.raises((PermanentError, ConflictError), match="404"):
            await ask(cluster, resource)
        server.versions = ("v2",)
        assert await cluster.versions(SITE) == ("v2",)


async def test_an_object_that_is_missing_changes_nothing_of_discovery(tmp_path: Path) -> None:
    async def missing(request: web.Request) -> web.Response:
        if request.path.endswith("/sites/a"):
            details = {"name": "a", "kind": "sites"}
            body = {"kind": "Status", "code": 404, "reason": "NotFound", "details": details}
            return web.json_response(body, status=404)
        return await server(request)

    server = Server("v1")
    async with serving(missing) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        resource = await resource_of(cluster, SITE)
        assert await cluster.get(resource, "default", "a") is None
        with pytest.raises(ConflictError, match="404"):
            await cluster.update(resource, OBJECT)
        await cluster.resource(SITE)
    assert server.seen == ["/apis/example.org", "/apis/example.org/v1"]


async def test_closing_ends_a_reading(tmp_path: Path) -> None:
    server = Server("v1")
    server.held.clear()
    async with serving(server) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        asking = asyncio.create_task(cluster.versions(SITE))
        await server.asked.wait()
        await cluster.close()
        with pytest.raises(asyncio.CancelledError):
            await asking
        server.held.set()
