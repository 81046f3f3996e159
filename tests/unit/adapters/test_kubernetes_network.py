"""How a request reaches its server: TLS names, proxies, and the name that the client gives itself."""

import asyncio
import base64
import gc
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus import __version__
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.errors import TransientError, UsageError
from tests.unit.adapters.http_servers import (
    NO_SITES,
    SITES,
    Guard,
    Pair,
    connected,
    issue,
    no_sites,
    server_context,
    serving,
    write_kubeconfig,
)


async def handle(_: web.Request) -> web.Response:
    return no_sites()


def with_ca(folder: Path) -> Pair:
    ca = issue("ca")
    (folder / "ca.crt").write_text(ca.certificate_pem)
    return ca


# ---------------------------------------------------------------- TLS


@pytest.mark.parametrize(
    ("cluster", "works"),
    [
        ({}, False),
        ({"tls_server_name": "api.example.org"}, True),
        ({"tls_server_name": "other.example.org"}, False),
        ({"insecure_skip_tls_verify": True}, True),
    ],
)
async def test_the_name_in_the_certificate(tmp_path: Path, cluster: dict[str, Any], works: bool) -> None:
    """Behind a tunnel or a load balancer, the address is not the name in the server's certificate."""
    tls = server_context(tmp_path, issue("api.example.org", with_ca(tmp_path)))
    async with serving(handle, tls) as url:
        path = write_kubeconfig(tmp_path, url, certificate_authority="ca.crt", **cluster)
        async with connected(path) as client:
            if works:
                await client.list(SITES)
            else:
                with pytest.raises(TransientError, match=r"certificate verify failed: .*mismatch"):
                    await client.list(SITES)


# ---------------------------------------------------------------- proxies


class Proxy:
    """An HTTP proxy. seen: the first line of each request, and its credentials."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.seen: list[tuple[str, str]] = []

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=tls)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line = head.partition("\r\n")[0]
        fields = dict(field.split(": ", 1) for field in head.split("\r\n")[1:] if field)
        self.seen.append((line, fields.get("Proxy-Authorization", "")))
        if self.refuses:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        elif line.startswith("CONNECT"):
            host, _, port = line.split()[1].partition(":")
            back, there = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, there), _copy(back, writer))
            return
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(NO_SITES), NO_SITES))
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except OSError:
        pass
    writer.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_requests_and_watches_go_through_the_proxy(tmp_path: Path, scheme: str) -> None:
    """TLS is with the server behind it; the proxy may have a password, and TLS of its own."""
    ca, proxy = with_ca(tmp_path), Proxy()
    tls = server_context(tmp_path, issue("server", ca))
    async with serving(handle, tls) as url, proxy.serving(tls if scheme == "https" else None) as port:
        address = f"{scheme}://me:secret@127.0.0.1:{port}"
        path = write_kubeconfig(tmp_path, url, certificate_authority="ca.crt", proxy_url=address)
        async with connected(path) as cluster:
            await cluster.list(SITES)
            with pytest.raises(TransientError, match="not one of an API server"):
                async for _ in cluster.watch(SITES, "1"):
                    pass
    line = f"CONNECT {url.removeprefix('https://')} HTTP/1.1"
    password = "Basic " + base64.b64encode(b"me:secret").decode()
    assert proxy.seen == [(line, password)] * 2


async def test_a_server_without_tls_behind_a_proxy(tmp_path: Path) -> None:
    proxy = Proxy()
    async with proxy.serving() as port:
        path = write_kubeconfig(
            tmp_path, "http://api.invalid:80", proxy_url=f"http://a:b%40c@127.0.0.1:{port}"
        )
        async with connected(path) as cluster:
            await cluster.list(SITES)
    [(line, password)] = proxy.seen
    assert line.startswith("GET http://api.invalid")
    assert password == "Basic " + base64.b64encode(b"a:b@c").decode()


async def test_a_proxy_that_refuses_is_named(tmp_path: Path) -> None:
    ca, proxy = with_ca(tmp_path), Proxy(refuses=True)
    async with (
        serving(handle, server_context(tmp_path, issue("server", ca))) as url,
        proxy.serving() as port,
    ):
        address = f"http://me:secret@127.0.0.1:{port}"
        path = write_kubeconfig(tmp_path, url, certificate_authority="ca.crt", proxy_url=address)
        async with connected(path) as cluster:
            with pytest.raises(TransientError, match=r"403.*Forbidden") as caught:
                await cluster.list(SITES)
    assert "secret" not in str(caught.value)


async def test_a_proxy_that_is_gone_is_named_without_its_password(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, "https://api.invalid", proxy_url="http://me:secret@127.0.0.1:1")
    async with connected(path) as cluster:
        with pytest.raises(TransientError, match="the proxy makes no connection") as caught:
            await cluster.list(SITES)
    assert "secret" not in repr(caught.value)


@pytest.mark.parametrize(
    ("server", "cluster", "user", "said"),
    [
        (
            "https://x",
            {"proxy_url": "socks5://me:secret@x:1080"},
            {},
            'proxy-url with scheme "socks5" is not',
        ),
        ("api.example.org:6443", {}, {}, 'server "api.example.org:6443" is no address: expected https'),
        ("https://x", {}, {"as": "somebody"}, r"impersonation \(as: somebody\) is not supported"),
    ],
)
async def test_what_is_not_supported_is_said_at_the_start(
    tmp_path: Path, server: str, cluster: dict[str, str], user: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        await Connection.load(write_kubeconfig(tmp_path, server, user, **cluster))
    assert "secret" not in str(caught.value)


# ---------------------------------------------------------------- names


async def test_each_service_has_a_name(tmp_path: Path) -> None:
    """Audit and managedFields can tell them apart; connections are shared."""
    seen: list[tuple[str, object]] = []

    async def note(request: web.Request) -> web.Response:
        seen.append((request.headers["User-Agent"], request.transport))
        return no_sites()

    async with serving(note) as url, connected(write_kubeconfig(tmp_path, url)) as cluster:
        for each in (cluster, cluster.named("pvbus-ingest"), cluster.named("pvbus-render")):
            await each.list(SITES)
    agents, connections = zip(*seen, strict=True)
    assert agents == tuple(f"{name}/{__version__}" for name in ("pvbus", "pvbus-ingest", "pvbus-render"))
    assert len(set(connections)) == 1


# ---------------------------------------------------------------- connections that fail


async def test_a_failed_connection_says_what_to_check(tmp_path: Path) -> None:
    """Which request, which server, why, and where to look."""
    async with serving(handle) as gone:
        pass
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (gone, {}, f"no connection to {gone} (Connection refused); ", "check that it runs"),
        ("https://api.invalid", {}, "the name of https://api.invalid is not found (", "and DNS"),
        (gone.replace("http", "https"), {}, "no connection to https://", "(Connection refused); "),
        ("https://x", {"proxy_url": gone}, "the proxy makes no connection to https://x (", "check proxy-url"),
    ]
    for server, cluster, happened, advice in cases:
        async with connected(write_kubeconfig(tmp_path, server, **cluster)) as client:
            with pytest.raises(TransientError) as caught:
                await client.list(SITES)
        text = str(caught.value)
        assert text.startswith(f"GET /apis/example.org/v1/sites: {happened}")
        assert advice in text
        assert " object at 0x" not in text
    tls = server_context(tmp_path, issue("server", with_ca(tmp_path)))
    async with serving(handle, tls) as url, connected(write_kubeconfig(tmp_path, url)) as client:
        with pytest.raises(TransientError, match=r"no TLS connection with https://.*check certificate-auth"):
            await client.list(SITES)


async def test_a_rejected_token_says_where_it_comes_from(tmp_path: Path) -> None:
    async with serving(Guard()) as url:
        path = write_kubeconfig(tmp_path, url, {"token": "old"})
        async with connected(path) as client:
            with pytest.raises(TransientError, match=r"401 Unauthorized.*read at the start only"):
                await client.list(SITES)


async def test_no_socket_is_open_after_the_close(tmp_path: Path) -> None:
    """Not even that of a watch that was just cut off, whose TLS connection still has to say that it ends: the
    loop may be over by then."""
    tls = server_context(tmp_path, issue("server", with_ca(tmp_path)))

    async def watched(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return no_sites()
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"2"}}}\n')
        await asyncio.sleep(60)
        return stream

    async with serving(watched, tls) as url:
        port = int(url.rpartition(":")[2])
        kubeconfig = write_kubeconfig(tmp_path, url, {}, certificate_authority="ca.crt")
        async with connected(kubeconfig) as cluster:
            async with aclosing(cluster.watch(SITES, "1")) as events:
                assert (await anext(events)).type == "ADDED"
            assert open_to(port)
        assert open_to(port) == []


def open_to(port: int) -> list[socket.socket]:
    """Return the sockets of this process that are connected to a port."""
    sockets = [thing for thing in gc.get_objects() if isinstance(thing, socket.socket)]
    return [opened for opened in sockets if opened.fileno() >= 0 and _is_connected(opened, port)]


def _is_connected(opened: socket.socket, port: int) -> bool:
    try:
        return opened.family == socket.AF_INET and opened.getpeername()[1] == port
    except OSError:  # it listens
        return False
