"""The HTTP front of an API server: connections, limits, authentication, authorization, answers.

One handler serves every path: at the request rates of a fan-out, a routing table and middlewares would cost
more than the requests themselves. It authenticates, reads the body, calls the right module, and turns every
error into a metav1.Status. The embedded server and the aggregated one each put one in front of their API.
"""

import asyncio
import contextlib
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from aiohttp import web
from multidict import CIMultiDict

from pvbus.controlplane.apiserver import audit, bodies, shares, status, watching
from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver.accepting import (
    BACKLOG,
    Acceptor,
    probe_silent_peers,
    raise_descriptors,
)
from pvbus.controlplane.apiserver.bodies import BODY_BYTES_MAX, PACKAGE_BODY_BYTES_MAX
from pvbus.controlplane.apiserver.connections import (
    CONNECTIONS_MAX,
    LARGE_BYTES,
    Connections,
    abort,
    connections_max,
    read_body,
    refusal,
    send,
)
from pvbus.controlplane.apiserver.documents import OPEN_PATHS, Documents
from pvbus.controlplane.apiserver.entries import decode
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import (
    Attributes,
    Authenticator,
    Authorizer,
    User,
    answering,
    attributes_of,
)
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, Registry
from pvbus.controlplane.apiserver.requests import check_head, media_type
from pvbus.controlplane.apiserver.resources import Answer, Call, Resources
from pvbus.controlplane.apiserver.shares import Limits, payer_of
from pvbus.controlplane.apiserver.store import Store, StoreError, UnavailableError
from pvbus.core.errors import NO_MEMORY, lacks_memory
from pvbus.core.redaction import without_secrets
from pvbus.core.yaml.writer import dump
from pvbus.telemetry.structured import structlog

LINE_BYTES_MAX = 64 * 1024
"""Longest request line: label selectors over hundreds of names are part of it."""

SLOW_WATCHER_SECONDS = 30.0
"""A watcher that reads nothing for so long is closed; until then it costs one chunk."""

UNAVAILABLE = 503

CLIENT_CLOSED = 499
"""The code that is counted for a request whose client went before its answer ended."""

STOP_SECONDS = 2.0
"""How long answers in progress may take once the server stops."""

_log = structlog.get_logger(__name__)


class Api(NamedTuple):
    """The API that a front serves.

    store: the objects
    registry: the served kinds
    resources: the requests to resources
    documents: the requests to everything else
    """

    store: Store
    registry: Registry
    resources: Resources
    documents: Documents


class Reviews(Protocol):
    """Answers questions about rights and identities."""

    def is_review(self, target: rq.Target) -> bool:
        """Return whether a path is that of a review, which is answered and not stored."""
        ...

    def review(self, target: rq.Target, body: bodies.Body, media: str, user: User) -> bytes:
        """Answer a review. Raises StatusError."""
        ...


class Access(NamedTuple):
    """Who is served.

    authenticator: finds out who sends a request
    authorizer: decides whether he may
    reviews: answers questions about rights; None leaves them to another server
    """

    authenticator: Authenticator
    authorizer: Authorizer
    reviews: Reviews | None = None


class Origin(NamedTuple):
    """How a browser may reach the server.

    names: the names in a URL
    scheme: http or https
    """

    names: frozenset[str]
    scheme: str


class Frontend:
    """Serves an API on sockets, from `listen` to `stop`."""

    def __init__(
        self,
        api: Api,
        access: Access,
        origin: Origin | None,
        *,
        on_answer: Callable[[str, int], None] = lambda verb, code: None,
    ) -> None:
        """Serve nothing until `listen`.

        origin: how a browser may reach the server. None lets requests name it as they like, as no browser
            authenticates here.
        on_answer: called with verb and code after each request about a resource
        """
        self._on_answer = on_answer
        self._store, self._registry, self._resources, self._documents = api
        self._authenticator, self._authorizer, self._reviews = access
        self._origin = origin
        self.limits = Limits(_watches_room)
        self._watchers: set[asyncio.Task[Any]] = set()
        self.connections = Connections(
            self._handle,
            request_factory=_request,
            access_log=None,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(self.connections, shutdown_timeout=STOP_SECONDS)
        self._acceptor: Acceptor | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> int:
        """Serve at an address, and return its port. port 0: any free one. Raises OSError.

        host "": every interface, also those of IPv6 if this machine has it.
        """
        raise_descriptors()
        await self._runner.setup()
        both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        probe_silent_peers(listening)
        self._acceptor = Acceptor(listening, self.connections, context)
        self._sweeping = asyncio.create_task(self.connections.sweep_forever(), name="apiserver-sweep")
        return int(listening.getsockname()[1])

    def use(self, context: ssl.SSLContext) -> None:
        """Serve new connections with these certificates. Present connections stay as they are."""
        assert self._acceptor is not None
        self._acceptor.context = context

    async def stop(self) -> None:
        """End watches, and close all connections."""
        if self._acceptor is not None:
            await self._acceptor.stop()
            self._acceptor = None
        ending = [*self._watchers, *([self._sweeping] if self._sweeping else ())]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self._runner.cleanup()
        await self._resources.workers.stop()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        with self.connections.handling(request.protocol):
            response = await self._answer(request)
            if request.body_exists and not request.content.is_eof():
                response.force_close()  # the rest of the body is not read for long
            if isinstance(response, web.Response) and _may_wait(request, response):
                return await self._send(request, response)
            return response

    async def _send(self, request: web.BaseRequest, response: web.Response) -> web.Response:
        payer = request.get(_PAYER, _NOBODY)
        size = response.content_length or 0
        try:
            with self.limits.answers.hold(payer, size):
                await send(request, response)
        except StatusError as exc:
            return refusal(exc)
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except StatusError as exc:
            await self._make_readable(request, exc)
            return refusal(exc)
        except UnavailableError as exc:
            return refusal(StatusError(UNAVAILABLE, "ServiceUnavailable", str(exc), retry_after_seconds=1))
        except StoreError as exc:
            return refusal(StatusError(500, "InternalError", f"Internal error occurred: {exc}"))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as exc:
            if lacks_memory(exc):
                _log.warning(
                    "a request was refused", method=request.method, path=request.path, error=NO_MEMORY
                )
                return refusal(
                    StatusError(UNAVAILABLE, "ServiceUnavailable", NO_MEMORY, retry_after_seconds=1)
                )
            # A bug in one request is answered and logged; other requests are not affected.
            # Its text may come from anywhere, also from what others may not read.
            trace = "".join(traceback.format_exception(exc))
            _log.error("request failed", method=request.method, path=request.path, trace=trace)
            text = f"Internal error occurred: {type(exc).__name__}: {without_secrets(str(exc))}"
            return refusal(StatusError(500, "InternalError", text))

    async def _make_readable(self, request: web.BaseRequest, error: StatusError) -> None:
        """Wait until the conflicting write is readable: the client reads the object next."""
        if error.code in _JUDGED_BY_OTHERS and request.method != "GET":
            with contextlib.suppress(StoreError):  # then the conflicting write has failed, too
                await self._store.durable()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        headers = request.headers
        if path in OPEN_PATHS:
            return self._document(request, path, headers.get("Accept", ""))
        if self._origin is not None:
            check_head(request.raw_path, headers, *self._origin)
        user = await self._authenticator.authenticate(request)
        request[_PAYER] = payer = payer_of(user)
        self.connections.recognize(request.protocol, payer)
        target = rq.parse_path(path)
        if target is None:
            with self.limits.requests.hold(payer):
                await self._authorizer.authorize(user, Attributes(request.method.lower(), path=path))
                return self._document(request, path, headers.get("Accept", ""))
        parameters = rq.parse_query(query)
        attributes = attributes_of(request.method, target, parameters)
        share = self.limits.watches if attributes.verb == "watch" else self.limits.requests
        with share.hold(payer):
            return await self._judge(request, target, parameters, user, attributes)

    async def _judge(
        self,
        request: web.BaseRequest,
        target: rq.Target,
        parameters: Mapping[str, str],
        user: User,
        attributes: Attributes,
    ) -> web.StreamResponse:
        """Answer a request to a resource if its user may make it, and note that."""
        answering(user, attributes, self._authorizer)
        code = 500
        with audit.request() as facts:
            try:
                await self._authorizer.authorize(user, attributes)
                response = await self._take(request, target, parameters, user, attributes.verb in _LISTS)
                code = response.status
            except StatusError as exc:
                code = exc.code
                raise
            except UnavailableError:
                code = UNAVAILABLE
                raise
            except asyncio.CancelledError:
                code = CLIENT_CLOSED
                raise
            finally:
                self._on_answer(attributes.verb, code)
                if audit.is_wanted(attributes):
                    audit.log(user, attributes, code, facts)
        return response

    async def _take(
        self,
        request: web.BaseRequest,
        target: rq.Target,
        query: Mapping[str, str],
        user: User,
        is_list: bool,
    ) -> web.StreamResponse:
        """Read the body of a request, and answer it once it is the user's turn."""
        payer = payer_of(user)
        if not request.body_exists:
            async with self.limits.turns.turn(payer) if is_list else contextlib.nullcontext():
                return await self._call(request, target, query, user, b"")
        limit = _body_limit(target)
        with self.limits.bodies.hold(payer, min(request.content_length or limit, limit)):
            body = await read_body(request, limit)
            is_large = len(body) > LARGE_BYTES or self._resources.changes_large(request.method, target)
            async with self.limits.turns.turn(payer) if is_large or is_list else contextlib.nullcontext():
                return await self._call(request, target, query, user, body)

    async def _call(
        self,
        request: web.BaseRequest,
        target: rq.Target,
        query: Mapping[str, str],
        user: User,
        body: bytes,
    ) -> web.StreamResponse:
        bodies.check_room(len(body))
        media = media_type(request.headers)
        read = await bodies.with_large_read(body, media, self._resources.workers)
        wanted = rq.wanted(request.headers.get("Accept", ""))
        if self._reviews is not None and request.method == "POST" and self._reviews.is_review(target):
            return _response(Answer(201, self._reviews.review(target, read, media, user)), wanted)
        agent = request.headers.get("User-Agent", "")
        call = Call(request.method, target, query, wanted, media, read, user.name, agent)
        if self._resources.creates(call):
            await self._authorizer.authorize(user, attributes_of("POST", target, query))
        answer = await self._resources.answer(call)
        if isinstance(answer, Answer):
            return _response(answer, wanted)
        return await self._watch(request, answer)

    def _document(self, request: web.BaseRequest, path: str, accept: str) -> web.Response:
        document = self._documents.get(path, accept) if request.method in ("GET", "HEAD") else None
        if document is None:
            raise status.no_such_path()
        headers = {"Content-Type": document.media}
        return web.Response(body=document.body, status=document.code, headers=headers)

    async def _watch(self, request: web.BaseRequest, plan: watching.WatchPlan) -> web.StreamResponse:
        response = web.StreamResponse(headers=_JSON)
        response.enable_chunked_encoding()
        await response.prepare(request)
        payer = request.get(_PAYER, _NOBODY).name
        task = asyncio.current_task()
        assert task is not None
        self._watchers.add(task)
        self.connections.end_with(request.protocol, task)
        try:
            async for chunk in watching.stream(self._store, self._registry, plan, payer):
                if request.transport is None or request.transport.is_closing():
                    break
                if chunk:
                    async with asyncio.timeout(SLOW_WATCHER_SECONDS):
                        await response.write(chunk)
            await response.write_eof()
        except TimeoutError:
            abort(request)
        except ConnectionError:
            pass
        finally:
            self._watchers.discard(task)
        return response


_PAYER = web.RequestKey("payer", User)
_NOBODY = User("")
_LISTS = frozenset({"list", "deletecollection"})

_JUDGED_BY_OTHERS = (404, 409)
"""Errors that depend on other writes, which may not be committed and readable yet."""

_JSON = CIMultiDict({"Content-Type": "application/json", "Cache-Control": "no-cache, private"})


def _request(
    message: Any, payload: Any, protocol: Any, writer: Any, task: "asyncio.Task[None]"
) -> web.BaseRequest:
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=PACKAGE_BODY_BYTES_MAX
    )


def _watches_room() -> shares.Room:
    return shares.WATCHES.scaled(connections_max() / CONNECTIONS_MAX)


def _may_wait(request: web.BaseRequest, response: web.Response) -> bool:
    """Return whether an answer may have to wait until its client reads."""
    transport = request.transport
    unsent = 0 if transport is None else transport.get_write_buffer_size()
    return unsent > 0 or (response.content_length or 0) > LARGE_BYTES


def _body_limit(target: rq.Target) -> int:
    packages = target.plural == "packagerevisionresources" and target.group == PACKAGE_RESOURCES.group
    return PACKAGE_BODY_BYTES_MAX if packages else BODY_BYTES_MAX


def _response(answer: Answer, wanted: rq.Wanted) -> web.Response:
    headers = _JSON
    body = answer.body
    if wanted.yaml or answer.warnings:
        headers = _JSON.copy()
        for text in _warnings(answer.warnings):
            headers.add("Warning", f'299 - "{text}"')
    if wanted.yaml:
        if len(body) <= LARGE_BYTES:  # JSON is YAML, too, and a larger one would take seconds to write
            body = dump(decode(body)).encode()
        headers["Content-Type"] = "application/yaml"
    return web.Response(body=body, status=answer.code, headers=headers)


WARNINGS_CHARACTERS_MAX = 4096
"""Limit for all warnings of one answer, as in the real API server: clients refuse longer headers."""


def _warnings(texts: Sequence[str]) -> Iterator[str]:
    """Yield the warnings escaped for header values, as they may contain text from the client."""
    left = WARNINGS_CHARACTERS_MAX
    for text in texts:
        clean = "".join(character if character.isprintable() else "?" for character in text[:left])
        left -= len(clean)
        if left < 0 or not clean:
            return
        yield clean.replace("\\", "\\\\").replace('"', '\\"')
