"""An embedded API server on an event loop of its own, for tests that drive it from outside."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.ports.cluster import Kind, Object

_T = TypeVar("_T")
_SECONDS_MAX = 30


class Served:
    """A running server. Its methods may be called from any thread but the server's own."""

    def __init__(self, server: ApiServer, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self._loop = loop

    def object(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return what is stored now."""
        return self._call(lambda: self.server.objects.get(kind, namespace, name))

    def objects(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        return self._call(lambda: self.server.objects.list(kind, namespace))

    def _call(self, function: Callable[[], _T]) -> _T:
        async def call() -> _T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(_SECONDS_MAX)


@contextmanager
def serve(data: Path | None, crds: Sequence[Any] = ()) -> Iterator[Served]:
    """Run a server until the block ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="apiserver", daemon=True)
    thread.start()

    async def make() -> ApiServer:
        server = ApiServer(data, 0, crds=crds)
        await server.start()
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(make(), loop).result(_SECONDS_MAX)
        try:
            yield Served(server, loop)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(_SECONDS_MAX)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_SECONDS_MAX)
        loop.close()
