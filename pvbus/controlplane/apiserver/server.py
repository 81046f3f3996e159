"""The embedded API server: an HTTPS listener, on loopback by default, in front of a store.

One handler serves every path: at the request rates of a fan-out, a routing table and middlewares would cost
more than the requests themselves. It authenticates, reads the body, calls the right module, and turns every
error into a metav1.Status.
"""

import asyncio
import contextlib
import hmac
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import structlog
import yaml
from aiohttp import web
from multidict import CIMultiDict

from pvbus.controlplane.apiserver import requests as rq
from pvbus.controlplane.apiserver import status, watching
from pvbus.controlplane.apiserver.bodies import BODY_BYTES_MAX, PACKAGE_BODY_BYTES_MAX
from pvbus.controlplane.apiserver.builtin import BUILTIN_KINDS
from pvbus.controlplane.apiserver.connections import (
    IDLE_SECONDS,
    LARGE_BYTES,
    Connections,
    Limits,
    abort,
    backlog,
    read_body,
    refusal,
    send,
)
from pvbus.controlplane.apiserver.crds import Definitions
from pvbus.controlplane.apiserver.datafolder import DataFolder
from pvbus.controlplane.apiserver.documents import OPEN_PATHS, Documents
from pvbus.controlplane.apiserver.entries import decode
from pvbus.controlplane.apiserver.garbage import Collector
from pvbus.controlplane.apiserver.hooks import KindHooks, StatusError, VirtualKind
from pvbus.controlplane.apiserver.namespaces import Cleaner, create_initial
from pvbus.controlplane.apiserver.objects import StoredObjects
from pvbus.controlplane.apiserver.registry import CRD, NAMESPACE, PACKAGE_RESOURCES, Registry
from pvbus.controlplane.apiserver.requests import check_head, media_type
from pvbus.controlplane.apiserver.resources import Answer, Call, Resources
from pvbus.controlplane.apiserver.store import Store, StoreError
from pvbus.controlplane.apiserver.strategies import BUILTIN
from pvbus.controlplane.apiserver.writes import Writer
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind, Object

HOST = "127.0.0.1"
ANY_HOST = "0.0.0.0"  # every interface, if `advertise` is set
USER = "pvbus-admin"
LINE_BYTES_MAX = 64 * 1024
"""Longest request line: label selectors over hundreds of names are part of it."""

SLOW_WATCHER_SECONDS = 30.0
"""A watcher that reads nothing for so long is closed; until then it costs one chunk."""

_log = structlog.get_logger(__name__)


class ApiServer:
    """A Kubernetes API in this process. Create it, install hooks, `start`, use it, `stop`."""

    def __init__(
        self,
        data: Path | None,
        port: int = 0,
        *,
        crds: Sequence[Object] = (),
        tls: bool = True,
        advertise: str = "",
    ) -> None:
        """data: the data folder, None for memory. port 0: any free port, which is saved in `data`.

        crds: CustomResourceDefinitions to create at the start; existing ones get their spec. advertise: name
        or address by which other machines reach this one; "" serves this machine only.
        """
        self.objects = StoredObjects()
        self._folder = DataFolder(data)
        self._asked_port = port
        self._hooks: dict[Kind, KindHooks] = {}
        self._virtual: dict[Kind, VirtualKind] = {}
        self._crds = crds
        self._tls = tls
        self._advertise = advertise
        self._background: list[asyncio.Task[None]] = []
        self._watchers: set[asyncio.Task[Any]] = set()
        self._runner: web.ServerRunner | None = None
        self._store: Store | None = None
        self.url = ""

    def install_hooks(self, kind: Kind, hooks: KindHooks) -> None:
        """Add behaviour to a stored kind. Call before `start`."""
        self._hooks[kind] = hooks

    def install_virtual(self, kind: Kind, virtual: VirtualKind) -> None:
        """Serve a kind that is not stored. Call before `start`."""
        self._virtual[kind] = virtual

    @property
    def token(self) -> str:
        return self._folder.token

    @property
    def kubeconfig_path(self) -> Path:
        return self._folder.kubeconfig

    async def start(self) -> None:
        """Open the data and serve. Raises PermanentError: data in use or damaged, disk full, port in use."""
        self._folder.open()
        try:
            await self._open()
            await self._listen()
        except StoreError as exc:
            await self.stop()
            raise PermanentError(str(exc), reason="DiskFull") from exc
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        self._store = store = Store(self._folder.database)
        self._registry = registry = Registry(BUILTIN_KINDS)
        strategies = {**BUILTIN, CRD: Definitions(registry).strategy}
        writer = Writer(store, registry, strategies, self._hooks)
        cleaner = Cleaner(store, registry, writer)
        collector = Collector(store, registry, writer)
        self._resources = Resources(store, registry, writer, self._virtual)
        self.objects.bind(store)
        store.start()
        await create_initial(store, strategies[NAMESPACE])
        cleaner.begin()
        for crd in self._crds:
            await _install(writer, registry, crd)
        collector.begin()
        self._background = [
            asyncio.create_task(cleaner.work.run(), name="apiserver-cleaner"),
            asyncio.create_task(collector.work.run(), name="apiserver-garbage"),
            asyncio.create_task(store.expire_forever(), name="apiserver-expiry"),
        ]

    async def _listen(self) -> None:
        certificates = self._folder.certificates(self._advertise) if self._tls else None
        self._limits = Limits()
        self._connections = Connections(
            self._handle,
            request_factory=_request,
            access_log=None,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            keepalive_timeout=IDLE_SECONDS,
            auto_decompress=False,
        )
        self._runner = web.ServerRunner(self._connections, shutdown_timeout=2.0)
        await self._runner.setup()
        asked = self._asked_port or self._folder.kept_port()
        host = ANY_HOST if self._advertise else HOST
        context = certificates.context if certificates else None
        site = web.TCPSite(self._runner, host, asked, ssl_context=context, backlog=backlog())
        try:
            await site.start()
        except OSError as exc:
            raise PermanentError(
                f"port {asked} on {host} is in use: stop the program that has it, or choose another one "
                "with --port (0 takes any free one once "
                f"{self._folder.port_file} is removed)",
                reason="PortInUse",
            ) from exc
        port = self._runner.addresses[0][1]
        address = f"{self._advertise or HOST}:{port}"
        self.url = f"{'https' if self._tls else 'http'}://{address}"
        self._documents = Documents(self._registry, address)
        self._folder.keep_port(port)
        self._folder.write_kubeconfig(self.url, authority=certificates.authority if certificates else None)
        self._expected = f"Bearer {self.token}".encode()
        self._names = frozenset({"localhost", *([self._advertise.lower()] if self._advertise else ())})

    async def stop(self) -> None:
        """Close connections, commit queued writes, release the data folder."""
        for task in (*self._watchers, *self._background):
            task.cancel()
        await asyncio.gather(*self._watchers, *self._background, return_exceptions=True)
        self._background = []
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._store is not None:
            await self._store.stop()
            self._store = None
        self._folder.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        self._connections.busy.add(connection)
        try:
            response = await self._answer(request)
            if isinstance(response, web.Response) and (response.content_length or 0) > LARGE_BYTES:
                return await self._send(request, response)
            return response
        finally:
            self._connections.busy.discard(connection)

    async def _send(self, request: web.BaseRequest, response: web.Response) -> web.Response:
        size = response.content_length or 0
        try:
            self._limits.take_answer(size)
        except StatusError as exc:
            return refusal(exc)
        try:
            await send(request, response)
        finally:
            self._limits.answer_bytes -= size
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._serve(request)
        except StatusError as exc:
            await self._make_readable(request, exc)
            return refusal(exc)
        except StoreError as exc:
            return refusal(StatusError(500, "InternalError", f"Internal error occurred: {exc}"))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as exc:
            # A bug in one request is answered and logged; other requests are not affected.
            # The trace is logged as text: formatters that print local variables would print the token.
            trace = "".join(traceback.format_exception(exc))
            _log.error("request failed", method=request.method, path=request.raw_path, trace=trace)
            text = f"Internal error occurred: {type(exc).__name__}: {exc}"
            return refusal(StatusError(500, "InternalError", text))

    async def _make_readable(self, request: web.BaseRequest, error: StatusError) -> None:
        """Wait until the conflicting write is readable: the client reads the object next."""
        if error.code in _JUDGED_BY_OTHERS and request.method != "GET" and self._store is not None:
            with contextlib.suppress(StoreError):  # then the conflicting write has failed, too
                await self._store.durable()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path, _, query = request.raw_path.partition("?")
        headers = request.headers
        if path not in OPEN_PATHS:
            check_head(request.raw_path, headers, self._names, "https" if self._tls else "http")
            given = headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, self._expected):
                raise StatusError(401, "Unauthorized", "Unauthorized")
        target = rq.parse_path(path)
        accept = headers.get("Accept", "")
        if target is None or (request.method == "POST" and not self._is_served(target)):
            return await self._document(request, path, accept)
        if not request.body_exists:
            return await self._call(request, target, query, accept, b"")
        limit = _body_limit(target)
        size = min(request.content_length or limit, limit)
        self._limits.take_body(size)
        try:
            return await self._call(request, target, query, accept, await read_body(request, limit))
        finally:
            self._limits.body_bytes -= size

    async def _call(
        self, request: web.BaseRequest, target: rq.Target, query: str, accept: str, body: bytes
    ) -> web.StreamResponse:
        media = media_type(request.headers)
        wanted = rq.wanted(accept)
        call = Call(request.method, target, rq.parse_query(query), wanted, media, body, USER)
        answer = await self._resources.answer(call)
        if isinstance(answer, Answer):
            return _response(answer, wanted)
        self._limits.take_watch()
        try:
            return await self._watch(request, answer)
        finally:
            self._limits.watches -= 1

    def _is_served(self, target: rq.Target) -> bool:
        return self._registry.endpoint(target.group, target.version, target.plural) is not None

    async def _document(self, request: web.BaseRequest, path: str, accept: str) -> web.Response:
        document = None
        if request.method in ("GET", "HEAD"):
            document = self._documents.get(path, accept)
        elif request.method == "POST":
            media = media_type(request.headers)
            body = await read_body(request, BODY_BYTES_MAX)
            document = self._documents.review(path, body, media, USER)
        if document is None:
            raise status.no_such_path()
        headers = {"Content-Type": document.media}
        return web.Response(body=document.body, status=document.code, headers=headers)

    async def _watch(self, request: web.BaseRequest, plan: watching.WatchPlan) -> web.StreamResponse:
        assert self._store is not None
        response = web.StreamResponse(headers=_JSON)
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._watchers.add(task)
        try:
            async for chunk in watching.stream(self._store, self._registry, plan):
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
        body = yaml.safe_dump(decode(body), sort_keys=False, allow_unicode=True).encode()
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


async def _install(writer: Writer, registry: Registry, crd: Object) -> None:
    """Create a CustomResourceDefinition, or update the spec of an existing one."""
    endpoint = registry.storage(CRD)
    assert endpoint is not None
    options = rq.Options(USER, [])
    try:
        await writer.create(endpoint, dict(crd), None, options)
    except StatusError as exc:
        if exc.reason != "AlreadyExists":
            raise
        key = ("", crd["metadata"]["name"])
        await writer.update(endpoint, key, lambda old: {**old, "spec": crd["spec"]}, options)
