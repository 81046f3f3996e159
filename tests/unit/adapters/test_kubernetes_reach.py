"""What counts as an answer of an API server."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from pvbus.adapters.kubernetes import transport
from pvbus.adapters.kubernetes.reach import Reach
from pvbus.core.errors import PvbusError
from tests.unit.adapters.http_servers import SITES, connected, serving, status, write_kubeconfig


@pytest.mark.parametrize("code", [200, 403, 404, 409, 429, 401, 500, 503])
@pytest.mark.parametrize("by", ["list", "watch", "probe"])
async def test_what_is_an_answer(tmp_path: Path, code: int, by: str) -> None:
    """A refusal is one, but not of the credentials; 5xx is none, as a load balancer sends it, too."""

    async def handle(request: web.Request) -> web.Response:
        return web.json_response({}) if code == 200 else status(code, "Because")

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        reach = cluster.reach
        match by:
            case "list":
                with pytest.raises(PvbusError):
                    await cluster.list(SITES)
            case "watch":
                with pytest.raises(PvbusError):
                    await anext(cluster.named("another").watch(SITES, "1"))
            case _:
                await cluster.probe()
        is_answer = code not in (401, 500, 503)
        assert reach.server == url
        assert reach.has_answered == is_answer
        assert (reach.failing_seconds == 0) == is_answer
        assert (str(code) in reach.error) == (not is_answer)


@pytest.mark.parametrize("by", ["list", "watch", "probe"])
async def test_no_response_is_no_answer(tmp_path: Path, by: str) -> None:
    """The reason is the one that the failed request gives."""

    async def handle(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        match by:
            case "list":
                with pytest.raises(PvbusError):
                    await cluster.list(SITES)
            case "watch":
                with pytest.raises(PvbusError):
                    await anext(cluster.watch(SITES, "1"))
            case _:
                await cluster.probe()
        assert not cluster.reach.has_answered
        assert cluster.reach.failing_seconds > 0
        assert url in cluster.reach.error


async def test_a_server_that_takes_its_time_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may drop every packet: a probe ends before another request would."""
    monkeypatch.setattr(transport, "PROBE_SECONDS_MAX", 0.05)

    async def handle(request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    async with serving(handle) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        await cluster.probe()
        assert "within 0.05 s" in cluster.reach.error


async def test_credentials_that_cannot_be_had_are_no_answer(tmp_path: Path) -> None:
    """Nothing is sent then, and nothing ever will be."""

    async def handle(request: web.Request) -> web.Response:
        return web.json_response({})

    async with serving(handle) as url:
        token = tmp_path / "token"
        token.write_text("secret")
        path = write_kubeconfig(tmp_path, url, {"tokenFile": str(token)})
        async with connected(path) as cluster:
            token.unlink()
            await cluster.probe()
            assert "token file cannot be read" in cluster.reach.error


def test_failures_count_from_the_first_since_the_last_answer() -> None:
    """Later ones change the reason, not the time; an answer ends both."""
    now = 100.0
    reach = Reach("https://x", monotonic=lambda: now)
    assert reach.quiet_seconds == float("inf")
    reach.note_failure(PvbusError("first"))
    now = 107.0
    reach.note_failure(PvbusError("second"))
    assert (reach.failing_seconds, reach.error) == (7.0, "second")
    reach.note_response(403, PvbusError("forbidden"))
    now = 109.0
    assert (reach.failing_seconds, reach.error, reach.quiet_seconds) == (0.0, "", 2.0)
