"""Check requests over real sockets: a watch that hangs is found out by a read, a server that hangs is not."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes import transport as adapter
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.library import Configuration
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.core.kernel.keys import check_key, okey, partition, watch_key
from pvbus.core.kernel.records import (
    META,
    OBJECTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ObjectRow,
    WatchRequest,
)
from pvbus.core.kernel.topics import partition_key, topic_specs
from pvbus.core.variants.ingest import checks
from pvbus.ports.bus import Output
from pvbus.ports.cluster import Kind
from pvbus.runtime.ingest.worker import IngestWorker
from tests.integration.apiserver.client import crd
from tests.kit.busbeside import records_of, write_beside
from tests.kit.cluster import resource_of

PARTITIONS = 2
WIDGETS = WatchRequest(group="example.com", kind="Widget", requester="unroll-0")
KEY = check_key("example.com", "Widget", "default/alpha")


class Middleman:
    """Forwards connections to a port; what comes back can be held up, of watches or of all."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: set[asyncio.Task[None]] = set()
        self.watches = asyncio.Event()
        self.requests = asyncio.Event()
        self.watches.set()
        self.requests.set()

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        gate = [self.requests]

        async def forth() -> None:
            while chunk := await reader.read(65_536):
                if b"watch=true" in chunk:
                    gate[0] = self.watches
                back.write(chunk)

        async def answer() -> None:
            while chunk := await there.read(65_536):
                await gate[0].wait()
                writer.write(chunk)

        ways = [asyncio.create_task(forth()), asyncio.create_task(answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            back.close()


class Bench:
    """Ingest between a real API server and a bus in memory."""

    def __init__(self, direct: HttpCluster, bus: SqliteBus, middleman: Middleman) -> None:
        self.direct = direct
        self.bus = bus
        self.middleman = middleman

    async def relabel(self, env: str) -> None:
        resource = await resource_of(self.direct, Kind("example.com", "Widget"))
        patch = {"metadata": {"labels": {"env": env}}}
        await self.direct.patch(resource, "default", "a", patch)

    async def write(self, key: str, row: msgspec.Struct) -> None:
        number = partition(partition_key(WATCHES, key), PARTITIONS)
        output = Output(WATCHES, number, key.encode(), msgspec.json.encode(row))
        await write_beside(self.bus, output)

    async def ask(self, nonce: str, *names: str) -> None:
        await self.write(KEY, CheckRequest(group="example.com", kind="Widget", nonce=nonce, names=names))

    def _value(self, key: str) -> bytes | None:
        values = [r.value for r in records_of(self.bus, OBJECTS, PARTITIONS) if r.key.decode() == key]
        return values[-1] if values else None

    @property
    def answer(self) -> str:
        value = self._value(KEY)
        return msgspec.json.decode(value, type=CheckAnswer).nonce if value else ""

    @property
    def env(self) -> str:
        value = self._value(okey("example.com", "Widget", "default", "a"))
        return msgspec.json.decode(value, type=ObjectRow).labels.get("env", "") if value else ""

    async def until(self, condition: Callable[[], bool], seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.answer, self.env)
            await asyncio.sleep(0.02)


def connection(port: int, token: str) -> Connection:
    keys = {"BearerToken": f"Bearer {token}"}
    return Connection(Configuration(host=f"http://127.0.0.1:{port}", api_key=keys))


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    server = ApiServer(None, crds=[crd()], tls=False)
    await server.start()
    port = int(server.url.rpartition(":")[2])
    middleman = Middleman(port)
    direct = HttpCluster(connection(port, server.token))
    through = HttpCluster(connection(await middleman.start(), server.token))
    bus = await SqliteBus.open(":memory:", clock=SystemClock())
    specs = [
        s if s.name == META else msgspec.structs.replace(s, partitions=PARTITIONS) for s in topic_specs()
    ]
    await bus.create_topics(specs)
    worker = IngestWorker(bus, through, SystemClock(), partitions=PARTITIONS)
    running = asyncio.create_task(worker.run())
    resource = await resource_of(direct, Kind("example.com", "Widget"))
    metadata = {"name": "a", "namespace": "default", "labels": {"env": "test"}}
    widget = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {"size": 1}}
    await direct.create(resource, widget)
    try:
        yield Bench(direct, bus, middleman)
    finally:
        worker.stop()
        await running
        await middleman.stop()
        for closing in (direct, through, bus):
            await closing.close()
        await server.stop()


def checked(scenario: Callable[[Bench], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        async with bench() as there:
            await there.write(watch_key(WIDGETS), WIDGETS)
            await there.until(lambda: there.env == "test")
            await scenario(there)

    return run


@pytest.mark.parametrize("names", [(), ("default/a",)])
async def test_a_watch_that_hangs_is_found_out(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes with what the read found; the next change is seen by a watch again."""
    monkeypatch.setattr(checks, "CHECK_SECONDS", 0.2)

    async def scenario(there: Bench) -> None:
        await there.ask("n1", *names)
        await there.until(lambda: there.answer == "n1")
        there.middleman.watches.clear()
        await there.relabel("prod")
        await asyncio.sleep(0.3)
        assert there.env == "test"
        await there.ask("n2", *names)
        await there.until(lambda: there.answer == "n2")
        assert there.env == "prod"
        there.middleman.watches.set()
        await there.relabel("dev")
        await there.until(lambda: there.env == "dev")

    await checked(scenario)()


async def test_a_server_that_hangs_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "REQUEST_SECONDS", 0.5)

    async def scenario(there: Bench) -> None:
        there.middleman.requests.clear()
        there.middleman.watches.clear()
        await there.relabel("prod")
        await there.ask("n")
        await asyncio.sleep(1.5)
        assert (there.answer, there.env) == ("", "test")
        there.middleman.requests.set()
        there.middleman.watches.set()
        await there.until(lambda: there.env == "prod")

    await checked(scenario)()
