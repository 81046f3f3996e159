"""A TCP proxy on the loopback that does to connections what networks do.

Each `Proxy` stands before one port. What passes is its `weather`, which may change at any moment; `cut` ends
every connection with a reset. Bytes are never changed, and never overtake each other.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

CHUNK_BYTES = 64 * 1024
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends a reset


class Weather(NamedTuple):
    """delay_seconds: each way. holds_requests, holds_answers: bytes wait until the weather changes."""

    delay_seconds: float = 0.0
    holds_requests: bool = False
    holds_answers: bool = False


FINE = Weather()
BLACK_HOLE = Weather(holds_requests=True, holds_answers=True)
HALF_OPEN = Weather(holds_answers=True)


class Proxy:
    """Listens at `port` and passes on to `target`, both on the loopback."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._weather = FINE
        self._changed = asyncio.Event()
        self.connections = 0
        self.reset = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def set_weather(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    def cut(self) -> None:
        """Reset every connection, on both sides; what is under way in either direction is lost."""
        self.reset += len(self._writers) // 2
        for writer in tuple(self._writers):
            _reset(writer)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self._writers.add(writer)
        behind: asyncio.StreamWriter | None = None
        try:
            answers, behind = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(behind)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, behind, is_answer=False))
                pumps.create_task(self._pump(answers, writer, is_answer=True))
        except* (OSError, EOFError):
            pass  # one side is gone, and so is the other one
        except* asyncio.CancelledError:
            pass  # the proxy is closed
        finally:
            for side in (writer, behind):
                if side is not None:
                    self._writers.discard(side)
                    _reset(side)
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while True:
            data = await reader.read(CHUNK_BYTES)
            if not data:
                raise EOFError
            if self._weather.delay_seconds:
                await asyncio.sleep(self._weather.delay_seconds)
            while self._weather.holds_answers if is_answer else self._weather.holds_requests:
                await self._changed.wait()
            writer.write(data)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


@asynccontextmanager
async def proxies(routes: Sequence[tuple[int, int]]) -> AsyncIterator[list[Proxy]]:
    """Run proxies for (port, target) pairs until the block ends."""
    made = [Proxy(*route) for route in routes]
    try:
        for proxy in made:
            await proxy.start()
        yield made
    finally:
        await asyncio.gather(*(proxy.close() for proxy in made))
