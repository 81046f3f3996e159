"""The page over TLS, with a real TLS client: the same headers, a cookie for TLS only, and no plain HTTP."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pvbus.adapters.servingtls import ServingFiles, ServingTls
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.kernel.keys import Key
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.gate import HEADERS
from pvbus.runtime.web.server import FILES, Address, PageServer
from tests.tools.bustables import PARTITIONS, write_tables
from tests.tools.certificate import make_pair
from tests.tools.fleetrows import fleet

TOKEN = "a-token-of-the-test-0123456789"
NAME = "fleet.example"
STRICT = "Strict-Transport-Security"


async def _explain(key: Key, is_set: bool) -> dict[str, Any]:
    raise AssertionError(key)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[PageServer]:
    await asyncio.to_thread(write_tables, tmp_path / "bus.db", list(fleet(3)))
    tls = ServingTls(ServingFiles(*make_pair(tmp_path)))
    bus = await SqliteBus.open(tmp_path / "bus.db")
    feed = Feed(bus, PARTITIONS)
    async with PageServer(feed, _explain, TOKEN, Address(names=(NAME,), tls=tls)) as page:
        reading = asyncio.create_task(feed.run())
        yield page
        reading.cancel()
        await asyncio.wait({reading})
    await bus.close()


@pytest.fixture
async def client(tmp_path: Path, server: PageServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client that trusts the certificate, and nothing else."""
    context = ssl.create_default_context(cafile=str(tmp_path / "certificate.pem"))
    async with aiohttp.ClientSession(
        f"https://127.0.0.1:{server.port}",
        connector=aiohttp.TCPConnector(ssl=context),
        cookie_jar=aiohttp.CookieJar(unsafe=True),
    ) as session:
        yield session


async def test_who_has_the_address_sees_the_fleet(server: PageServer, client: aiohttp.ClientSession) -> None:
    """Its cookie goes over TLS only, and no plain page of the same host can set it."""
    assert server.url == f"https://{NAME}:{server.port}/?token={TOKEN}"
    assert (await client.get("/api/fleet")).status == 401
    async with client.get(f"/?token={TOKEN}") as answer:
        cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"__Host-pvbus-{server.port}=")
    assert {"Secure", "HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    async with client.get("/api/fleet") as answer:
        assert answer.status == 200
    async with client.get("/api/events") as events:
        assert events.status == 200
        assert (await events.content.readline()).startswith(b"id: ")


@pytest.mark.parametrize(
    "path", [*FILES, "/api/fleet", "/api/events", "/none", f"/?token={TOKEN}", "/?token=x"]
)
async def test_every_answer_has_the_headers_of_plain_http(client: aiohttp.ClientSession, path: str) -> None:
    """And, where browsers use a name of its own, that they shall not come without TLS."""
    for signed_in in (False, True):
        if signed_in:
            await client.get(f"/?token={TOKEN}")
        async with client.get(path, headers={"Host": NAME}) as answer:
            assert dict(answer.headers).items() >= HEADERS.items()
            assert answer.headers[STRICT] == "max-age=2592000"
        for host in ("localhost", "127.0.0.1", "[::1]", "evil.example"):
            async with client.get(path, headers={"Host": host}) as answer:
                assert STRICT not in answer.headers


@pytest.mark.parametrize(
    ("origin", "status"),
    [(f"https://{NAME}", 200), (f"http://{NAME}", 403), ("https://evil.example", 403), ("https://[", 403)],
)
async def test_a_plain_page_of_the_same_host_is_another_origin(
    client: aiohttp.ClientSession, origin: str, status: int
) -> None:
    await client.get(f"/?token={TOKEN}")
    async with client.get("/api/fleet", headers={"Host": NAME, "Origin": origin}) as answer:
        assert answer.status == status


async def test_plain_http_gets_nothing(server: PageServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"HTTP/" not in await reader.read()
    writer.close()
