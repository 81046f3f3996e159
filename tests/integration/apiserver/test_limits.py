"""Many connections, watches and bodies at once, and clients that are slow: everything has a limit."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pvbus.controlplane.apiserver import connections, frontend, shares
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.attacks import HOST, MAPS
from tests.integration.apiserver.client import Api, config_map, crd, eventually, serving
from tests.integration.apiserver.wires import Address, wires


@pytest.fixture
async def target(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ApiServer, Api]]:
    server = ApiServer(None, crds=[crd()], tls=False)
    async with serving(server) as api:
        yield server, api


def front(server: ApiServer) -> frontend.Frontend:
    assert server._frontend is not None
    return server._frontend


async def test_idle_connections_give_way(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens many and says nothing, or half a request, holds no more than the limit, and locks
    nobody out."""
    server, api = target
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 20)
    async with wires(server, 60) as silent:
        for wire in silent[::2]:
            wire.write(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert await api.get(MAPS)
        assert len(front(server).connections.connections) <= 20
        assert await silent[0].is_closed()


async def test_watches_have_a_limit(target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the answer is 429 with a time to come again; a watch that ends makes room."""
    server, api = target
    monkeypatch.setattr(shares, "WATCHES", shares.Room("watches", 3, 3, 6))
    path = f"{MAPS}?watch=1&timeoutSeconds=600"
    async with wires(server, 3) as watching:
        for wire in watching:
            wire.head("GET", path)
            assert await wire.code() == 200
        refused = await api.call("GET", path)
        assert (refused.code, refused.body["reason"]) == (429, "TooManyRequests")
        assert refused.headers["Retry-After"] == "1"
        assert "3 watches" in refused.body["message"]

    async def has_room() -> bool:
        return front(server).limits.watches.total == 0

    await eventually(has_room)
    async with api.watch(path):
        pass


async def test_bodies_have_a_limit_together(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While large bodies are on their way, further ones are asked to come later."""
    server, api = target
    monkeypatch.setattr(shares, "BODIES", shares.Room("bytes of bodies", 1000, 1000, 2000))
    async with wires(server, 1) as (slow,):
        slow.head("POST", MAPS, **{"Content-Type": "application/json", "Content-Length": "900"})

        async def is_held() -> bool:
            return front(server).limits.bodies.total == 900

        await eventually(is_held)
        refused = await api.call("POST", MAPS, config_map("a", data={"a": "b" * 200}))
        assert (refused.code, refused.headers["Retry-After"]) == (429, "1")
        slow.write(b" " * 900)
        assert await slow.code() == 400
    await api.create(MAPS, config_map("a", data={"a": "b" * 200}))
    assert front(server).limits.bodies.total == 0


async def test_a_body_that_does_not_arrive(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for a limited time, and is answered; one that breaks off leaves nothing."""
    server, api = target
    monkeypatch.setattr(connections, "BODY_IDLE_SECONDS", 0.2)
    async with wires(server, 2) as (slow, broken):
        for wire in (slow, broken):
            wire.head("POST", MAPS, **{"Content-Type": "application/json", "Content-Length": "900"})
            wire.write(b'{"kind":')
        broken.close()
        assert await slow.code() == 408
    assert front(server).limits.bodies.total == 0
    assert await api.get(MAPS)


async def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose head comes a byte at a time is told so, also if it is not the first head."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.5)
    server = ApiServer(None, tls=False)
    async with serving(server), wires(server, 3) as (silent, slow, second):
        slow.write(b"GET / HTTP/1.1\r\nX-Slow: a")
        second.write(f"GET /readyz HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        assert await second.code() == 200
        second.write(b"GET / HTTP/1.1\r\nX-Slow: a")
        assert await silent.rest() == b""
        for wire in (slow, second):
            answer = await wire.rest()
            assert b"408 Request Timeout" in answer
            assert b"the head of the request did not arrive" in answer
            assert b'"reason":"Timeout"' in answer


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its last answer, without a word."""
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    server = ApiServer(None, tls=False)
    async with serving(server), wires(server, 1) as (wire,):
        wire.head("GET", "/readyz")
        assert await wire.code() == 200
        assert await wire.rest() == b"ok"


async def test_a_reader_that_takes_nothing_is_cut_off(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a large answer are not held for ever."""
    server, api = target
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.2)
    monkeypatch.setattr(connections, "SEND_BYTES_PER_SECOND", 10**9)
    for n in range(12):
        await api.create(MAPS, config_map(f"m{n}", data={"a": "b" * 1_000_000}))
    async with wires(server, 1) as (deaf,):
        deaf.head("GET", MAPS)

        async def is_busy() -> bool:
            return bool(front(server).connections.busy)

        async def is_cut_off() -> bool:
            return not front(server).connections.busy

        await eventually(is_busy)
        await eventually(is_cut_off)
    assert len((await api.get(MAPS))["items"]) == 12


async def test_large_answers_have_a_limit_together(
    target: tuple[ApiServer, Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a large list is on its way to a slow reader, further ones are asked to come later."""
    server, api = target
    monkeypatch.setattr(shares, "ANSWERS", shares.Room("bytes of answers", 1, 1, 24_000_000))
    for n in range(8):
        await api.create(MAPS, config_map(f"m{n}", data={"a": "b" * 1_000_000}))
    async with wires(server, 1) as (slow,):
        slow.head("GET", MAPS)

        async def is_held() -> bool:
            return front(server).limits.answers.total > 8_000_000

        await eventually(is_held)
        assert (await api.call("GET", MAPS)).code == 429
        assert await api.get(f"{MAPS}/m1")
    await eventually(lambda: is_released(server))
    assert len((await api.get(MAPS))["items"]) == 8


async def is_released(server: ApiServer) -> bool:
    return front(server).limits.answers.total == 0


async def test_a_watcher_that_takes_nothing_holds_little(target: tuple[ApiServer, Api]) -> None:
    """However much there is to send: the objects are shared, and only a piece of them is on its way."""
    server, api = target
    for n in range(40):
        await api.create(MAPS, config_map(f"m{n}", data={"a": "b" * 400_000}))
    async with wires(server, 20) as deaf:
        for wire in deaf:
            wire.head("GET", f"{MAPS}?watch=1")

        async def are_watching() -> bool:
            return front(server).limits.watches.total == 20

        await eventually(are_watching)
        await api.create(MAPS, config_map("last", data={"a": "b" * 400_000}))
        open_ones = [c.transport for c in front(server).connections.connections]
        held = [transport.get_write_buffer_size() for transport in open_ones if transport is not None]
        assert max(held) < 300_000
    async with api.watch(f"{MAPS}?watch=1") as watch:
        names = {(await watch.next())["object"]["metadata"]["name"] for _ in range(41)}
    assert names == {"last", *(f"m{n}" for n in range(40))}


FEW_DESCRIPTORS = """
import asyncio, resource, sys
from pathlib import Path
from pvbus.controlplane.apiserver.server import ApiServer

async def main():
    server = ApiServer(Path(sys.argv[1]), tls=False)
    await server.start()
    print(server.url, server.token, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
asyncio.run(main())
"""
"""A server in a process of its own, which ends with its standard input."""


@contextlib.asynccontextmanager
async def few_descriptors(folder: Path) -> AsyncIterator[tuple[Address, asyncio.subprocess.Process]]:
    pipe = asyncio.subprocess.PIPE
    with (folder / "errors").open("w") as errors:  # nobody would read a pipe while the server writes
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", FEW_DESCRIPTORS, folder), stdin=pipe, stdout=pipe, stderr=errors
        )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        url, token = (await process.stdout.readline()).decode().split()
    try:
        yield Address(url, token), process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_process_with_few_descriptors_goes_on_answering(tmp_path: Path) -> None:
    """64 of them, and 150 silent connections: some are closed for a new one, and it never runs out."""

    async def answers(server: Address) -> int:
        async with wires(server, 1) as (wire,):
            wire.head("GET", "/api/v1/namespaces")
            return await wire.code(10.0)

    async with few_descriptors(tmp_path) as (server, process):
        async with wires(server, 150):
            assert await answers(server) == 200
        assert await answers(server) == 200
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(20):
            await process.wait()
        assert (process.returncode, (tmp_path / "errors").read_text()) == (0, "")
