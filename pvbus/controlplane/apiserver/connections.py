"""The HTTP connections of one server, and how much all of them together may hold.

Everything here has a bound: connections, watches, and the bytes of bodies that are being handled. An idle
connection gives way to a new one, so that whoever opens thousands and says nothing locks nobody out.
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
"""Each holds a connection and a task; the five services have about 50."""

BODIES_BYTES_MAX = 128 * 1024 * 1024
"""Bodies being handled at once, 20 of the largest. What comes beyond is asked to come again in a second."""

ANSWERS_BYTES_MAX = 256 * 1024 * 1024
"""Large answers that are being sent: a list of 10,000 variants has 20 MB. They are in memory until their
readers have taken them."""

IDLE_SECONDS = 90.0
"""A connection without a request, or whose request's head has not arrived, is closed after this time."""

BODY_SECONDS = 60.0
"""How long a body may take to arrive: 6 MB over a slow tunnel."""

SEND_SECONDS = 30.0
SEND_BYTES_PER_SECOND = 100 * 1024
"""A large answer may take this time, and at this rate; a reader that is slower is cut off."""

LARGE_BYTES = 64 * 1024
"""Up to this size an answer fits the buffers, and is out of hand at once."""


def connections_max() -> int:
    """Return the limit of connections: half of what the process may open leaves room for everything else."""
    return min(CONNECTIONS_MAX, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2))


def backlog() -> int:
    """Return how many connections may wait to be accepted. asyncio accepts so many at once, before the
    limit of connections is looked at: with few descriptors they would run out."""
    return 512


class Limits:
    """Counts what is held at the moment."""

    def __init__(self) -> None:
        self.watches = 0
        self.body_bytes = 0
        self.answer_bytes = 0

    def take_watch(self) -> None:
        """Raises StatusError (429). What is taken is to be given back."""
        if self.watches >= WATCHES_MAX:
            raise _too_many(f"there are {WATCHES_MAX} watches already")
        self.watches += 1

    def take_body(self, size: int) -> None:
        """Raises StatusError (429). What is taken is to be given back."""
        if self.body_bytes and self.body_bytes + size > BODIES_BYTES_MAX:
            raise _too_many(f"requests with {self.body_bytes} bytes of body are being handled already")
        self.body_bytes += size

    def take_answer(self, size: int) -> None:
        """Raises StatusError (429). What is taken is to be given back."""
        if self.answer_bytes and self.answer_bytes + size > ANSWERS_BYTES_MAX:
            raise _too_many(f"answers of {self.answer_bytes} bytes are being sent already")
        self.answer_bytes += size


def _too_many(why: str) -> StatusError:
    text = f"too many requests, please try again later: {why}"
    return StatusError(429, "TooManyRequests", text, retry_after_seconds=1)


class Connections(web.Server):
    """aiohttp's server with a limit of connections. `busy` holds those that handle a request."""

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
    """Answers what is not HTTP with a Status, like everything else, and without a trace in the log."""

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
    """Return the answer that says why not."""
    headers = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
    if error.retry_after_seconds is not None:
        headers["Retry-After"] = str(error.retry_after_seconds)
    return web.Response(body=encode(status.body(error)), status=error.code, headers=headers)


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """Return the body. Raises StatusError: 408 it takes too long, 413 it is too large, 400 it breaks off."""
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
    """Send a large answer now, in limited time. Raises ConnectionError when its reader is too slow."""
    size = len(response.body) if isinstance(response.body, bytes) else 0
    await response.prepare(request)
    try:
        async with asyncio.timeout(SEND_SECONDS + size / SEND_BYTES_PER_SECOND):
            await response.write_eof()
    except TimeoutError as exc:
        abort(request)
        raise ConnectionResetError("the reader of a large answer is too slow") from exc


def abort(request: web.BaseRequest) -> None:
    """Close a connection at once, without waiting for what it has not read."""
    if request.transport is not None:
        request.transport.abort()
