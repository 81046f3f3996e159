"""Sends requests to one API server: sessions, credentials, timeouts.

Bodies are bytes to and from msgspec. The sessions do not read proxy variables (that alone costs four fifths
of the throughput).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pvbus import __version__
from pvbus.adapters.kubernetes.connection import Access, Connection
from pvbus.adapters.kubernetes.errors import error_of, lost
from pvbus.core.errors import PvbusError, TransientError
from pvbus.ports.cluster import GoneError, SilentError

REQUEST_SECONDS = 30.0
WATCH_START_SECONDS = 20.0  # until a watch's headers arrive: below the time after which a watch is missed
WATCH_SILENCE_SECONDS = 90.0  # bookmarks come each minute: longer silence may be a dead connection
WATCH_LINE_BYTES_MAX = 64_000_000  # far above any object: a longer line is not from a watch
CONNECTIONS_MAX = 100

_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """The response to a request. where: method and path, for messages."""

    code: int
    body: bytes
    retry_after: str | None
    where: str

    def error(self, method: str) -> PvbusError | GoneError:
        return error_of(self.code, self.body, method=method, where=self.where, retry_after=self.retry_after)


class Transport:
    """Sends requests and watches over two pools of connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = self._open_session(CONNECTIONS_MAX)
        self._watching = self._open_session(0)  # watches are long-lived: they must not use up the connections

    @staticmethod
    def _open_session(connections_max: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max),
            trust_env=False,
            auto_decompress=True,
            headers={"User-Agent": f"pvbus/{__version__}"},
        )

    async def close(self) -> None:
        await self._session.close()
        await self._watching.close()
        await self._connection.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """Send a request, and once more after a 401 with renewed credentials. Raises TransientError."""
        headers, data = {"Accept": accept}, None
        if body is not None:
            data, headers["Content-Type"] = _encode(body), content
        access = await self._connection.access()
        answer = await self._exchange(method, path, access, parameters, headers, data)
        if answer.code == 401 and self._connection.reject(access):
            access = await self._connection.access()
            answer = await self._exchange(method, path, access, parameters, headers, data)
        return answer

    async def _exchange(
        self,
        method: str,
        path: str,
        access: Access,
        parameters: Mapping[str, str] | None,
        headers: Mapping[str, str],
        data: bytes | None,
    ) -> Answer:
        where = f"{method} {path}"
        try:
            async with self._session.request(
                method,
                self._connection.url + path,
                params=parameters,
                data=data,
                headers={**headers, **access.headers},
                ssl=access.ssl,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            ) as response:
                body = await response.read()
                return Answer(response.status, body, response.headers.get("Retry-After"), where)
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as exc:
            raise lost(where, exc, REQUEST_SECONDS) from exc

    async def lines(self, path: str, *, parameters: Mapping[str, str], accept: str) -> AsyncGenerator[bytes]:
        """Yield the lines of a watch. The last one may be cut off.

        Raises SilentError if nothing came for WATCH_SILENCE_SECONDS, and the errors of `error_of`.
        """
        where = f"GET {path} (watch)"
        try:
            async with AsyncExitStack() as stack:
                response = await self._start_watch(stack, path, parameters, accept, where)
                rest = b""
                async for chunk in response.content.iter_any():
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    for line in lines:
                        if line:
                            yield line
                    if len(rest) > WATCH_LINE_BYTES_MAX:
                        raise TransientError(f"{where}: a line has more than {WATCH_LINE_BYTES_MAX} bytes")
                if rest.strip():  # cut off in the middle of an event, or not a watch
                    yield rest
        except TimeoutError as exc:
            raise SilentError(f"{where}: nothing came for {WATCH_SILENCE_SECONDS:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise lost(where, exc, WATCH_SILENCE_SECONDS) from exc

    async def _start_watch(
        self, stack: AsyncExitStack, path: str, parameters: Mapping[str, str], accept: str, where: str
    ) -> aiohttp.ClientResponse:
        access = await self._connection.access()
        try:
            async with asyncio.timeout(WATCH_START_SECONDS):
                response = await stack.enter_async_context(self._watch(path, access, parameters, accept))
                if response.status == 401 and self._connection.reject(access):
                    access = await self._connection.access()
                    response = await stack.enter_async_context(self._watch(path, access, parameters, accept))
                if response.status >= 400:
                    after, body = response.headers.get("Retry-After"), await response.read()
                    raise error_of(response.status, body, method="GET", where=where, retry_after=after)
        except TimeoutError as exc:
            raise TransientError(f"{where}: no answer within {WATCH_START_SECONDS:g} s") from exc
        return response

    def _watch(
        self, path: str, access: Access, parameters: Mapping[str, str], accept: str
    ) -> "aiohttp.client._RequestContextManager":
        return self._watching.get(
            self._connection.url + path,
            params=parameters,
            headers={"Accept": accept, **access.headers},
            ssl=access.ssl,
            timeout=aiohttp.ClientTimeout(total=None, sock_read=WATCH_SILENCE_SECONDS),
        )
