"""Lists of large kinds as streams, where the server answers one, and in pages where it does not."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from pvbus.adapters.kubernetes import cluster as kubernetes_cluster
from pvbus.adapters.kubernetes import streaming
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import TransientError
from tests.unit.adapters.http_servers import SITES, connected, serving, status, write_kubeconfig

SILENCE_SECONDS = {"ignores": 0.5, "slow": 1.5}
"""How long a server that does this may be silent. All others have the usual time: machines may pause."""

END = {"k8s.io/initial-events-end": "true"}


def named(name: str, version: str = "5") -> dict[str, Any]:
    return {"kind": "Site", "metadata": {"namespace": "default", "name": name, "resourceVersion": version}}


class Fleet:
    """A server of so many Sites. how: what it does with a stream. asked: the query of each request."""

    def __init__(self, sites: int, how: str) -> None:
        self.sites = [named(f"s{number}") for number in range(sites)]
        self.how = how
        self.asked: list[dict[str, str]] = []
        self.expired = False

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        return await (self.stream(request) if "watch" in request.query else self.page(request))

    async def page(self, request: web.Request) -> web.StreamResponse:
        if self.expired and "continue" in request.query:
            return status(410, "Expired")
        start, limit = int(request.query.get("continue", 0)), int(request.query["limit"])
        meta = {"resourceVersion": "" if self.how == "aggregated" else "9"}
        if start + limit < len(self.sites):
            meta["continue"] = str(start + limit)
        return web.json_response(
            {"kind": "SiteList", "metadata": meta, "items": self.sites[start : start + limit]}
        )

    async def stream(self, request: web.Request) -> web.StreamResponse:
        match self.how:
            case "invalid":
                return status(422, "Invalid")
            case "bad":
                return status(400, "BadRequest")
            case "broken":
                return status(503, "ServiceUnavailable")
        response = web.StreamResponse()
        await response.prepare(request)
        for number, site in enumerate(self.sites):
            if self.how == "slow" and number % 100 == 0:
                await asyncio.sleep(0.4)
            await self.send(response, "ADDED", site)
        if self.how == "changing":
            await self.send(response, "BOOKMARK", {"metadata": {"resourceVersion": "11"}})
            await self.send(response, "MODIFIED", named("s0", "12"))
            await self.send(response, "DELETED", named("s1", "13"))
        if self.how in ("streams", "changing", "slow"):
            bookmark = {"metadata": {"resourceVersion": "14", "annotations": END}}
            await self.send(response, "BOOKMARK", bookmark)
        if self.how != "ends":
            await asyncio.sleep(20)
        return response

    async def send(self, response: web.StreamResponse, kind: str, obj: dict[str, Any]) -> None:
        await response.write(msgspec.json.encode({"type": kind, "object": obj}) + b"\n")

    @property
    def streams(self) -> int:
        return sum("watch" in query for query in self.asked)


Tests = Callable[[HttpCluster, Fleet], Awaitable[None]]


@pytest.fixture
def against(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[Fleet, Tests], Awaitable[None]]:
    monkeypatch.setattr(streaming, "LOOK_SECONDS", 0.1)

    async def run(fleet: Fleet, test: Tests) -> None:
        if seconds := SILENCE_SECONDS.get(fleet.how):
            monkeypatch.setattr(streaming, "SILENCE_SECONDS_MAX", seconds)
        async with serving(fleet) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
            await test(cluster, fleet)

    return run


@pytest.mark.parametrize("how", ["streams", "changing"])
async def test_a_large_kind_is_streamed_and_complete(how: str, against: Any) -> None:
    """What changed while it was streamed counts, and the watch begins at the last bookmark."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        listing = await cluster.list(SITES, is_followed=True)
        versions = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in listing.items}
        assert len(versions) == len(listing.items) == (600 if how == "streams" else 599)
        assert versions["s0"] == ("5" if how == "streams" else "12")
        assert listing.resource_version == "14"
        (query,) = [each for each in fleet.asked if "watch" in each]
        assert query.items() >= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}.items()
        assert query["allowWatchBookmarks"] == "true"
        assert "resourceVersion" not in query  # that asks for the newest state

    await against(Fleet(600, how), test)


async def test_a_stream_may_take_longer_than_its_server_may_be_silent(against: Any) -> None:
    """A large kind takes minutes; only a server that sends nothing is asked for pages instead."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        listing = await cluster.list(SITES, is_followed=True)
        assert (len(listing.items), listing.resource_version, fleet.streams) == (600, "14", 1)

    await against(Fleet(600, "slow"), test)


@pytest.mark.parametrize("how", ["streams", "ignores"])
async def test_what_is_kept_of_an_object_is_made_as_it_is_read(
    how: str, against: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large kind no more objects are there at a time than a page has."""
    monkeypatch.setattr(kubernetes_cluster, "PAGE_OBJECTS", 300)
    kept_at: list[int] = []

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        def keep(obj: dict[str, Any]) -> dict[str, Any]:
            kept_at.append(len(fleet.asked))
            return {"kept": obj["metadata"]["name"]}

        listing = await cluster.list(SITES, is_followed=True, keep=keep)
        assert sorted(obj["kept"] for obj in listing.items) == sorted(
            site["metadata"]["name"] for site in fleet.sites
        )

    await against(Fleet(600, how), test)
    pages = {"streams": [1] * 500 + [2] * 600, "ignores": [1] * 500 + [2] * 600 + [3] * 100}[how]
    assert kept_at == pages


@pytest.mark.parametrize("how", ["invalid", "bad", "ignores", "ends"])
async def test_a_server_that_sends_no_stream_is_asked_once(how: str, against: Any) -> None:
    """It refuses the parameters, or ignores them and never says that all is sent: pages, now and later."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        for _ in range(2):
            listing = await cluster.list(SITES, is_followed=True)
            assert len(listing.items) == 600
            assert listing.resource_version == "9"
        assert fleet.streams == 1

    await against(Fleet(600, how), test)


@pytest.mark.parametrize(("sites", "how", "is_followed"), [(500, "streams", True), (600, "streams", False),
                                                             (600, "aggregated", True)])  # fmt: skip
async def test_what_needs_no_stream_has_none(sites: int, how: str, is_followed: bool, against: Any) -> None:
    """One page has all; who only lists may lack the right to watch; an aggregated API replays anyway."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        listing = await cluster.list(SITES, is_followed=is_followed)
        assert len(listing.items) == sites
        assert fleet.streams == 0

    await against(Fleet(sites, how), test)


async def test_a_stream_that_fails_is_no_list(against: Any) -> None:
    """503 says nothing about streams: the informer tries again, and a stream is asked for again."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        for _ in range(2):
            with pytest.raises(TransientError):
                await cluster.list(SITES, is_followed=True)
        assert fleet.streams == 2

    await against(Fleet(600, "broken"), test)


async def test_a_page_that_is_gone_makes_the_list_fail_as_a_whole(against: Any) -> None:
    """410 of a continue token: never half a list; the next try begins with the first page."""

    async def test(cluster: HttpCluster, fleet: Fleet) -> None:
        fleet.expired = True
        with pytest.raises(TransientError, match="410"):
            await cluster.list(SITES, is_followed=True)
        fleet.expired = False
        assert len((await cluster.list(SITES, is_followed=True)).items) == 600
        assert "continue" not in fleet.asked[-1]

    await against(Fleet(600, "invalid"), test)
