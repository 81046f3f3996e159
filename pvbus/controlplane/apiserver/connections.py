"""The HTTP connections of one server: how many, whose, and how long each may take.

A connection belongs to nobody until a request on it is authenticated. Those of nobody are limited together,
and those of a user are limited, so that neither takes the room of others: a new one replaces the oldest idle
one of the peer or the user with the most. `shares` limits what is done on them.

Each wait for a client ends: for the head of a request, for its body, for the next request, for a reader of
an answer. If an answer can still be sent, it is 408 with a Status.
"""

import asyncio
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from pvbus.adapters.httpserver import QuietConnection, QuietServer, fault_of
from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.entries import encode
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import User
from pvbus.controlplane.apiserver.shares import too_many
from pvbus.telemetry.structured import structlog

CONNECTIONS_MAX = 14_000
"""10,000 watches of users and 2,000 of services, with some room for other requests. Each connection costs
about 100 kB with TLS."""

DESCRIPTORS_LEFT = 64
"""Descriptors that are for no connection: files, programs of git. A quarter is, if that is more."""

STRANGERS_PART = 8
"""One in so many connections may be nobody's yet: 1,750. Too few, and clients that come at once lose their
connections before they have sent a head."""

STRANGERS_MIN = 16

USER_PART = 10
"""One in so many connections may be of one user: 1,400, for 1,000 watches and what goes with them."""

HEAD_SECONDS = 20.0
"""How long the first head may take from the connection on, and any other from its first byte on."""

IDLE_SECONDS = 90.0
"""A connection without a request is closed after this time, as kube-apiserver does."""

BODY_SECONDS = 60.0
"""How long a body may take to arrive: 6 MB over a slow tunnel."""

BODY_IDLE_SECONDS = 10.0
"""How long a body may pause."""

SEND_SECONDS = 30.0
SEND_BYTES_PER_SECOND = 100 * 1024
"""An answer may take this time plus its size at this rate; a slower reader is disconnected."""

CLOSE_SECONDS = 5.0
"""How long the rest of an answer may take to leave a connection that is closed."""

SWEEP_SECONDS = 1.0
"""How often all of this is looked at: ten thousand connections take 2 ms."""

LARGE_BYTES = 64 * 1024
"""An answer up to this size fits the buffers, and is sent at once."""

_log = structlog.get_logger(__name__)


def connections_max() -> int:
    """Return the limit of connections, which leaves some of the descriptors that the process may open."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    left = max(DESCRIPTORS_LEFT, descriptors // 4)
    return min(CONNECTIONS_MAX, max(16, descriptors - left))


class Connections(QuietServer):
    """aiohttp's server with limits of connections.

    Each open connection is in one group: in `_strangers` by the address of its peer, or in `_owned` by the
    user of its first request. A group is in the order of arrival, so its oldest idle connection is the first
    that is not busy. A limit that is exceeded costs one idle connection: of the user whose limit it is, else
    of the largest group. A connection with a request is never closed for another one.

    busy: the connections that have a request
    """

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, keepalive_timeout=_NEVER, lingering_time=CLOSE_SECONDS, **options)
        self.busy: set[_Connection] = set()
        self._open: set[_Connection] = set()
        self._strangers: dict[str, dict[_Connection, None]] = {}
        self._owned: dict[str, dict[_Connection, None]] = {}

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        assert isinstance(handler, _Connection)
        limit = connections_max()
        super().connection_made(handler, transport)
        handler.peer = (transport.get_extra_info("peername") or ("",))[0]
        self._open.add(handler)
        self._strangers.setdefault(handler.peer, {})[handler] = None
        if sum(map(len, self._strangers.values())) > max(STRANGERS_MIN, limit // STRANGERS_PART):
            self._end_idle_of(self._strangers, handler)
        if len(self._open) > limit and not self.make_room(handler):
            handler.close()
            self._drop(handler)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        assert isinstance(handler, _Connection)
        super().connection_lost(handler, exc)
        self._open.discard(handler)
        self._forget(handler)
        handler.when_lost()

    def recognize(self, handler: RequestHandler | None, user: User) -> None:
        """Note whose connection it is. Raises StatusError (429) if that user has too many."""
        if not isinstance(handler, _Connection) or handler.user == user.name or handler.transport is None:
            return
        self._forget(handler)
        handler.user = user.name
        mine = self._owned.setdefault(user.name, {})
        mine[handler] = None
        limit = max(4, connections_max() // USER_PART)
        if len(mine) > limit and not self._end_idle(mine, handler):
            raise too_many(f'user "{user.name}" has {limit} connections already')

    def make_room(self, but: "_Connection | None" = None) -> bool:
        """Close an idle connection: nobody's first, then one of the user with the most.

        but: a connection that stays
        """
        return self._end_idle_of(self._strangers, but) or self._end_idle_of(self._owned, but)

    def _end_idle_of(
        self, groups: dict[str, "dict[_Connection, None]"], but: "_Connection | None" = None
    ) -> bool:
        largest = sorted(groups.values(), key=len, reverse=True)
        return any(self._end_idle(group, but) for group in largest)

    def _end_idle(self, group: "dict[_Connection, None]", but: "_Connection | None") -> bool:
        """Close the oldest connection that has no request."""
        idle = next((held for held in group if held not in self.busy and held is not but), None)
        if idle is None:
            return False
        self._drop(idle)
        return True

    def _drop(self, handler: "_Connection") -> None:
        self._open.discard(handler)
        self._forget(handler)
        transport = self._connections.pop(handler, None)
        if transport is not None:
            transport.abort()

    def _forget(self, handler: "_Connection") -> None:
        for groups, name in ((self._strangers, handler.peer), (self._owned, handler.user)):
            group = groups.get(name)
            if group is not None and handler in group:
                del group[handler]
                if not group:
                    del groups[name]

    @contextmanager
    def handling(self, handler: RequestHandler | None) -> Iterator[None]:
        """Note in the block that a connection has a request."""
        assert isinstance(handler, _Connection)
        self.busy.add(handler)
        handler.waits_since = None
        try:
            yield
        finally:
            self.busy.discard(handler)
            handler.await_head()

    def end_with(self, handler: RequestHandler | None, task: asyncio.Task[Any]) -> None:
        """Cancel a task, which a connection's request waits for, when the connection is lost."""
        if isinstance(handler, _Connection):
            handler.when_lost = task.cancel

    async def sweep_forever(self) -> None:
        """End what takes too long."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            for handler, transport in list(self._connections.items()):
                assert isinstance(handler, _Connection)
                if not handler.is_overdue(now, is_closing=transport.is_closing()):
                    continue
                if transport.is_closing():
                    transport.abort()
                    continue
                if handler.has_bytes:
                    transport.write(_late_head())
                handler.force_close()


_NEVER = 10.0**6
"""Seconds: aiohttp's own timeout of idle connections, which says nothing to clients, is not used."""


def _nothing() -> None:
    return None


class _Connection(QuietConnection):
    """Answers invalid HTTP and slow heads with a Status.

    peer: the address of the client
    user: whose connection it is, "" before a request was authenticated
    waits_since: when it began to wait for a head, by the loop's clock; None while there is a request
    has_bytes: whether part of that head is there
    has_served: whether it had a request
    closing_since: when it began to close, by the loop's clock; None while it is open
    when_lost: called at its end
    """

    __slots__ = ("closing_since", "has_bytes", "has_served", "peer", "user", "waits_since", "when_lost")

    def __init__(self, manager: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self.peer = ""
        self.user = ""
        self.has_bytes = False
        self.has_served = False
        self.waits_since: float | None = self._loop.time()
        self.closing_since: float | None = None
        self.when_lost: Callable[[], object] = _nothing

    def data_received(self, data: bytes) -> None:
        if self.waits_since is not None and not self.has_bytes:
            self.has_bytes = True
            if self.has_served:
                self.waits_since = self._loop.time()
        super().data_received(data)

    def await_head(self) -> None:
        """Begin to wait for the next request."""
        self.has_served, self.has_bytes = True, False
        self.waits_since = self._loop.time()

    def is_overdue(self, now: float, *, is_closing: bool) -> bool:
        """Return whether the client took too long for its next step."""
        if is_closing:
            self.closing_since = self.closing_since or now
            return now - self.closing_since > CLOSE_SECONDS
        if self.waits_since is None:
            return False
        limit = IDLE_SECONDS if self.has_served and not self.has_bytes else HEAD_SECONDS
        return now - self.waits_since > limit

    def refuse(self, fault: str) -> web.Response:
        return refusal(StatusError(400, "BadRequest", f"the request is not valid HTTP: {fault}"))


def _late_head() -> bytes:
    """Return the bytes of the answer to a head that did not come, after which the connection is closed."""
    text = f"the head of the request did not arrive within {HEAD_SECONDS:.0f} seconds"
    body = encode(status.body(StatusError(408, "Timeout", text)))
    head = "HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def refusal(error: StatusError) -> web.Response:
    """Return the response for an error."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    return web.Response(body=encode(status.body(error)), status=error.code, headers=headers)


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the body. Raises StatusError: 408 too slow, 413 too large, 400 incomplete."""
    if (request.content_length or 0) > limit:
        raise status.too_large(limit)
    body = bytearray()
    clock = asyncio.get_running_loop().time
    deadline = clock() + BODY_SECONDS
    try:
        while not request.content.at_eof():
            async with asyncio.timeout(min(BODY_IDLE_SECONDS, deadline - clock())):
                body += await request.content.readany()
            if len(body) > limit:
                raise status.too_large(limit)
    except TimeoutError as exc:
        text = (
            f"the body of the request did not arrive: it may pause for {BODY_IDLE_SECONDS:.0f} seconds, and "
            f"take {BODY_SECONDS:.0f}"
        )
        raise StatusError(408, "Timeout", text) from exc
    except (web.RequestPayloadError, HttpProcessingError) as exc:
        raise status.bad_request(f"the body of the request is damaged: {fault_of(exc)}") from exc
    return bytes(body)


async def send(request: web.BaseRequest, response: web.Response) -> None:
    """Send an answer in limited time. Raises ConnectionError if its reader is too slow."""
    size = len(response.body) if isinstance(response.body, bytes) else 0
    await response.prepare(request)
    try:
        async with asyncio.timeout(SEND_SECONDS + size / SEND_BYTES_PER_SECOND):
            await response.write_eof()
    except TimeoutError as exc:
        abort(request)
        raise ConnectionResetError("the reader of an answer is too slow") from exc


def abort(request: web.BaseRequest) -> None:
    """Close a connection at once, and discard unsent data."""
    if request.transport is not None:
        request.transport.abort()
