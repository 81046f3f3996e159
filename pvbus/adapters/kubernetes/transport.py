"""Sends requests to one API server: sessions, credentials, limits, timeouts, and its warnings in the log.

Bodies are bytes to and from msgspec. The sessions do not read proxy variables (that alone costs four fifths
of the throughput).
"""

import asyncio
import copy
import random
import re
import socket
import weakref
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pvbus import __version__
from pvbus.adapters.kubernetes.access import Refusals
from pvbus.adapters.kubernetes.connection import Access, Connection
from pvbus.adapters.kubernetes.errors import error_of, lost
from pvbus.adapters.kubernetes.limit import InflightLimit
from pvbus.adapters.kubernetes.reach import Reach
from pvbus.core.errors import PvbusError, TransientError
from pvbus.ports.cluster import GoneError, SilentError
from pvbus.telemetry.logs import get_logger

TEXTS_MAX = 1_000  # a text may name an object: the log must not fill with them

_FORM = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")

_log = get_logger("kubernetes")


class Warnings:
    """Logs each distinct text once: deprecated versions, unknown fields, policies of the administrator.

    Source: https://kubernetes.io/docs/reference/using-api/#warnings and RFC 7234, section 5.5.
    """

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def note(self, headers: Iterable[str], where: str) -> None:
        """Log the Warning headers of a response that are new.

        where: the request of the response
        """
        for header in headers:
            for quoted in _FORM.findall(header):
                text = _ESCAPE.sub(r"\1", quoted)
                if text not in self._texts and len(self._texts) < TEXTS_MAX:
                    self._texts.add(text)
                    _log.warning("the API server warns", warning=text, request=where)


REQUEST_SECONDS = 30.0
WATCH_START_SECONDS = 20.0  # until a watch's headers arrive: below the time after which a watch is missed
WATCH_SILENCE_SECONDS = 90.0  # bookmarks come each minute: longer silence may be a dead connection
WATCH_LINE_BYTES_MAX = 64_000_000  # far above any object: a longer line is not from a watch
PROBE_SECONDS_MAX = 5.0  # a healthy server answers /version within milliseconds
CONNECTIONS_MAX = 100
TLS_READ_BYTES = 32_768
"""What one read of a TLS connection takes at most: two records of TLS. Python has a buffer of this size for
each connection, 256 kB by default: 16 MB for the writes that a service has in flight."""
WAIT_SECONDS_MAX = 5.0  # before a request is sent: a lease that was checked before may be lost after that
CLOSE_SECONDS_MAX = 1.0  # a server that does not answer the end of TLS does not keep a process alive
CLOSE_LOOK_SECONDS = 0.005
RETRY_SECONDS_MIN = 0.1  # after a 429 that asks for no wait

_encode = msgspec.json.Encoder().encode


class Answer(NamedTuple):
    """The response to a request.

    code: the status code
    body: the body
    retry_after: the header Retry-After, None without one
    where: method and path of the request, for messages
    date: the header Date, by the server's clock; None without one
    """

    code: int
    body: bytes
    retry_after: str | None
    where: str
    date: str | None = None

    def error(self, method: str) -> PvbusError | GoneError:
        return error_of(self.code, self.body, method=method, where=self.where, retry_after=self.retry_after)


def _named(agent: str) -> dict[str, str]:
    """Return the header that names us.

    The API server logs it, and names the manager of written fields after its first part.
    """
    return {"User-Agent": f"{agent}/{__version__}"}


class _Request(NamedTuple):
    method: str
    path: str
    parameters: Mapping[str, str] | None
    headers: Mapping[str, str]
    data: bytes | None

    @property
    def where(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends requests and watches over two pools of connections.

    A request that the server refuses with 429 is sent again after its Retry-After, if that is short, and
    meanwhile fewer requests are in flight. Watches do not count: a server has seats only for their start.
    """

    def __init__(self, connection: Connection) -> None:
        self.reach = Reach(connection.url)
        self.refusals = Refusals()
        self._connection = connection
        self._agent = "pvbus"
        self._user = ""
        self._limit = InflightLimit(CONNECTIONS_MAX)
        self._warnings = Warnings()
        self._sockets = weakref.WeakSet[socket.socket]()
        self._session = self._open_session(CONNECTIONS_MAX)
        self._watching = self._open_session(0)  # watches are long-lived: they must not use up the connections

    def named(self, agent: str, token: str = "") -> "Transport":
        """Return a transport with another User-Agent that shares everything else. Close only one of them.

        token: the bearer token of another user, "" for the same one
        """
        other = copy.copy(self)
        other._agent = agent
        if token:
            other._connection = self._connection.with_token(token)
        return other

    def impersonating(self, user: str) -> "Transport":
        """Return a transport whose requests are made in the name of a user; everything else is shared.

        No groups are sent: the API server gives a ServiceAccount its own, and asking for them would need the
        right to impersonate these groups, too. Source: Kubernetes 1.36, impersonation.go.
        """
        other = copy.copy(self)
        other._user = user
        return other

    def _open_session(self, connections_max: int) -> aiohttp.ClientSession:
        SSLProtocol.max_size = TLS_READ_BYTES
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max, socket_factory=self._open_socket),
            trust_env=False,
            auto_decompress=True,
        )

    async def close(self) -> None:
        await self._session.close()
        await self._watching.close()
        await self._connection.close()
        await self._wait_for_sockets()

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        opened = socket.socket(*address[:3])
        self._sockets.add(opened)
        return opened

    async def _wait_for_sockets(self) -> None:
        """Wait until the loop has closed every socket: aiohttp waits for none whose response was cut off."""
        deadline = asyncio.get_running_loop().time() + CLOSE_SECONDS_MAX
        await asyncio.sleep(0)  # those of aborted connections close in the next round of the loop
        while any(opened.fileno() >= 0 for opened in self._sockets):
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(CLOSE_LOOK_SECONDS)

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
        """Send a request; again after 401 with renewed credentials, and after 429. Raises TransientError."""
        headers, data = {"Accept": accept}, None
        if self._user:
            headers["Impersonate-User"] = self._user
        if body is not None:
            data, headers["Content-Type"] = _encode(body), content
        request = _Request(method, path, parameters, headers, data)
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS_MAX
        while True:
            answer = await self._send_when_admitted(request, deadline)
            if answer.code != 429:
                return answer
            seconds = getattr(answer.error(method), "retry_after_seconds", None)
            if seconds is None or asyncio.get_running_loop().time() + seconds > deadline:
                return answer
            await asyncio.sleep(max(RETRY_SECONDS_MIN, seconds) * random.uniform(1.0, 1.1))

    async def _send_when_admitted(self, request: "_Request", deadline: float) -> Answer:
        """Send a request when the server is expected to have room for it."""
        remaining = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            number = await self._limit.enter(remaining)
        except TimeoutError as exc:
            raise TransientError(
                f"{request.where}: not sent within {WAIT_SECONDS_MAX:g} s: the API server refuses requests "
                f"(429), so only {self._limit.limit} are in flight; check its priority levels"
            ) from exc
        try:
            answer = await self._send_authenticated(request, REQUEST_SECONDS)
            if answer.code == 429:
                self._limit.note_refusal(number)
            else:
                self._limit.note_response()
            return answer
        finally:
            self._limit.leave()

    async def probe(self) -> None:
        """Ask for the server's version, beside the limits; `reach` has the outcome."""
        headers = {"Accept": "application/json"}
        with suppress(TransientError):
            await self._send_authenticated(
                _Request("GET", "/version", None, headers, None), PROBE_SECONDS_MAX
            )

    async def _send_authenticated(self, request: "_Request", seconds: float) -> Answer:
        """Send a request, again after 401 with renewed credentials. Affects: `reach`."""
        try:
            access = await self._connection.access()
            answer = await self._exchange(request, access, seconds)
            if answer.code == 401 and self._connection.reject(access):
                answer = await self._exchange(request, await self._connection.access(), seconds)
        except TransientError as exc:
            self.reach.note_failure(exc)
            raise
        if answer.code == 403:
            self.refusals.note(self._agent, request.method, request.path, user=self._user)
        self.reach.note_response(answer.code, answer.error(request.method) if answer.code >= 400 else None)
        return answer

    async def _exchange(self, request: "_Request", access: Access, seconds: float) -> Answer:
        try:
            async with self._session.request(
                request.method,
                self._connection.url + request.path,
                params=request.parameters,
                data=request.data,
                headers={**request.headers, **_named(self._agent), **access.headers},
                timeout=aiohttp.ClientTimeout(total=seconds),
                **access.options,
            ) as response:
                body = await response.read()
                self._warnings.note(response.headers.getall("Warning", ()), request.where)
                after, date = response.headers.get("Retry-After"), response.headers.get("Date")
                return Answer(response.status, body, after, request.where, date)
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as exc:
            raise lost(request.where, self._connection.url, exc, seconds) from exc

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
            raise self._noted(lost(where, self._connection.url, exc, WATCH_SILENCE_SECONDS)) from exc

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
                    error = error_of(response.status, body, method="GET", where=where, retry_after=after)
                    self.reach.note_response(response.status, error)
                    if response.status == 403:
                        self.refusals.note(self._agent, "GET", path, watches=True)
                    raise error
                self.reach.note_response(response.status)
                self._warnings.note(response.headers.getall("Warning", ()), where)
        except TimeoutError as exc:
            missing = lost(where, self._connection.url, TimeoutError(), WATCH_START_SECONDS)
            raise self._noted(missing) from exc
        return response

    def _noted(self, error: TransientError) -> TransientError:
        """Note a watch without a response, and return its error."""
        self.reach.note_failure(error)
        return error

    def _watch(
        self, path: str, access: Access, parameters: Mapping[str, str], accept: str
    ) -> "aiohttp.client._RequestContextManager":
        return self._watching.get(
            self._connection.url + path,
            params=parameters,
            headers={"Accept": accept, **_named(self._agent), **access.headers},
            timeout=aiohttp.ClientTimeout(total=None, sock_read=WATCH_SILENCE_SECONDS),
            **access.options,
        )
