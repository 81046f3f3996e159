"""The HTTP connections of one server, and the limits for all of them together.

Connections, watches, and the bytes of request bodies and of large answers in progress are limited. A new
connection replaces an idle one, so that a client with thousands of idle connections does not lock out others.
"""

import asyncio
import resource
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.entries import encode
from pvbus.controlplane.apiserver.hooks import StatusError

CONNECTIONS_MAX = 2000
"""Five services and some kubectl take about 100. Each connection costs about 100 kB with TLS."""

WATCHES_MAX = 1000
"""Each uses a connection and a task; the five services have about 50."""

BODIES_BYTES_MAX = 128 * 1024 * 1024
"""Bodies being handled at once, 20 of the largest. Further requests get 429, with Retry-After: 1."""

ANSWERS_BYTES_MAX = 256 * 1024 * 1024
"""Large answers that are being sent: a list of 10,000 variants has 20 MB. They stay in memory until they are
sent."""

IDLE_SECONDS = 90.0
"""A connection without a complete request head is closed after this time."""

BODY_SECONDS = 60.0
"""How long a body may take to arrive: 6 MB over a slow tunnel."""

SEND_SECONDS = 30.0
SEND_BYTES_PER_SECOND = 100 * 1024
"""A large answer may take this time plus its size at this rate; a slower reader is disconnected."""

LARGE_BYTES = 64 * 1024
"""An answer up to this size fits the buffers, and is sent at once."""


def connections_max() -> int:
    """Return the limit of connections: at most about half of the descriptors that the process may open."""
    return min(CONNECTIONS_MAX, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


def backlog() -> int:
    """Return how many connections may wait to be accepted: a quarter of the limit.

    asyncio accepts so many at once, before they are counted, and may do so twice before the first connections
    above the limit are closed: with a larger backlog it could run out of descriptors.
    """
    return max(4, connections_max() // 4)


class Limits:
    """Counts the watches, and the bytes of bodies and large answers, in progress."""

    def __init__(self) -> None:
        self.watches = 0
        self.body_bytes = 0
        self.answer_bytes = 0

    def take_watch(self) -> None:
        """Count a watch, which the caller must give back. Raises StatusError (429)."""
        if self.watches >= WATCHES_MAX:
            raise _too_many(f"there are {WATCHES_MAX} watches already")
        self.watches += 1

    def take_body(self, size: int) -> None:
        """Count a body's bytes, which the caller must give back. Raises StatusError (429)."""
        if self.body_bytes and self.body_bytes + size > BODIES_BYTES_MAX:
            raise _too_many(f"requests with {self.body_bytes} bytes of body are being handled already")
        self.body_bytes += size

    def take_answer(self, size: int) -> None:
        """Count an answer's bytes, which the caller must give back. Raises StatusError (429)."""
        if self.answer_bytes and self.answer_bytes + size > ANSWERS_BYTES_MAX:
            raise _too_many(f"answers of {self.answer_bytes} bytes are being sent already")
        self.answer_bytes += size


def _too_many(why: str) -> StatusError:
    text = f"too many requests, please try again later: {why}"
    return StatusError(429, "TooManyRequests", text, retry_after_seconds=1)


class Connections(web.Server):
    """aiohttp's server with a limit of connections. `busy` holds the connections that handle a request."""

    def __init__(self, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self.busy: set[Any] = set()

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        if len(self._connections) >= connections_max():
            idle = next((held for held in self._connections if held not in self.busy), None)
            if idle is None:
                handler.close()
                transport.abort()
                return
            self._connections.pop(idle).abort()
        super().connection_made(handler, transport)


class _Connection(RequestHandler):
    """Answers invalid HTTP with a Status, like any other error, and without a trace in the log."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if not isinstance(exc, HttpProcessingError) or request.writer.output_size:
            return super().handle_error(request, status, exc, message)
        why = " ".join(exc.message.split())[:200]
        response = refusal(StatusError(400, "BadRequest", f"the request is not valid HTTP: {why}"))
        response.force_close()
        return response


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
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError as exc:
        text = f"the body of the request did not arrive within {BODY_SECONDS:.0f} seconds"
        raise StatusError(408, "Timeout", text) from exc
    except web.HTTPRequestEntityTooLarge as exc:
        raise status.too_large(limit) from exc
    except (web.RequestPayloadError, HttpProcessingError) as exc:
        raise status.bad_request(f"the body of the request is damaged: {exc}") from exc
    if len(body) > limit:
        raise status.too_large(limit)
    return body


async def send(request: web.BaseRequest, response: web.Response) -> None:
    """Send a large answer in limited time. Raises ConnectionError if its reader is too slow."""
    size = len(response.body) if isinstance(response.body, bytes) else 0
    await response.prepare(request)
    try:
        async with asyncio.timeout(SEND_SECONDS + size / SEND_BYTES_PER_SECOND):
            await response.write_eof()
    except TimeoutError as exc:
        abort(request)
        raise ConnectionResetError("the reader of a large answer is too slow") from exc


def abort(request: web.BaseRequest) -> None:
    """Close a connection at once, and discard unsent data."""
    if request.transport is not None:
        request.transport.abort()
