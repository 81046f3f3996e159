"""A proxy before an API server that does to requests what networks and busy servers do.

Each fault is armed once and taken by the next request that it fits, so a plan decides how many there are.
Watches that are open are struck at once. Every write is noted with the answer of the server behind, also
where the client never hears of it: the log is that of a witness.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from pvbus.adapters.kubernetes.access import request_of
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.kernel.rights import Request
from tests.tools.authorizer import DROPPED, application, kubeconfig_at

READING = ("get", "list", "watch")
LATE_SECONDS = (0.5, 8.0)
RETRY_AFTER_SECONDS = (1, 3)
PASSED_HEADERS = ("Accept", "Content-Type", "User-Agent")


class ApiFault(StrEnum):
    """What the proxy does to one request or one open watch."""

    CONFLICT = "409 Conflict"
    EXPIRED = "410 Gone"
    TOO_MANY = "429 with Retry-After"
    SERVER_ERROR = "5xx"
    LATE = "late answer"
    LOST = "answer lost after commit"
    CUT = "connection cut"
    WATCH_CUT = "watch cut"


class Write(NamedTuple):
    """A write that a service sent, and what became of it.

    agent: the service. received, answered: seconds since the epoch; when the proxy had the request, and the
    answer of the server behind. code: of that answer; 0 where none came, as the server was away, or where the
    request was not passed on (`is_passed`).
    """

    agent: str
    request: Request
    namespace: str
    name: str
    received: float
    answered: float
    code: int
    is_passed: bool

    @property
    def is_accepted(self) -> bool:
        return 200 <= self.code < 300


class _Watch:
    """An open watch. struck: it has to end, by the error 410 as its last line if `is_expired`."""

    def __init__(self, path: str, transport: asyncio.BaseTransport | None) -> None:
        self.path = path
        self._transport = transport
        self.struck = asyncio.Event()
        self.is_expired = False

    def strike(self, fault: ApiFault) -> None:
        self.is_expired = fault is ApiFault.EXPIRED
        if not self.is_expired and isinstance(self._transport, asyncio.Transport):
            self._transport.abort()
        self.struck.set()


class FaultyApi:
    """The proxy. struck: time, fault and request, in order; without armed faults that no request has met."""

    def __init__(self, seed: int) -> None:
        self.struck: list[tuple[float, ApiFault, str]] = []
        self.requests: Counter[str] = Counter()
        self.writes: list[Write] = []
        self.kubeconfig = Path()
        self._armed: list[ApiFault] = []
        self._watches: set[_Watch] = set()
        self._rng = random.Random(seed)

    @property
    def counts(self) -> Counter[ApiFault]:
        return Counter(fault for _, fault, _ in self.struck)

    def _strikes(self, fault: ApiFault, request: str) -> None:
        self.struck.append((time.time(), fault, request))

    def arm(self, fault: ApiFault) -> None:
        """Strike an open watch now, or the next request that the fault fits."""
        if fault in (ApiFault.WATCH_CUT, ApiFault.EXPIRED) and self._watches:
            watch = self._rng.choice(sorted(self._watches, key=id))
            self._watches.discard(watch)
            self._strikes(fault, watch.path)
            watch.strike(fault)
        else:
            self._armed.append(fault)

    def disarm(self) -> None:
        self._armed.clear()

    def take(self, request: Request | None) -> ApiFault | None:
        """Return the first armed fault that fits a request, and count it."""
        for number, fault in enumerate(self._armed):
            if _fits(fault, request):
                self._strikes(fault, " ".join(request or ()))
                return self._armed.pop(number)
        return None

    # ------------------------------------------------------------ requests

    async def handle(
        self, incoming: web.Request, session: aiohttp.ClientSession, connection: Connection
    ) -> web.StreamResponse:
        watches = incoming.query.get("watch") in ("true", "1")
        request = request_of(incoming.method, incoming.path, watches=watches)
        self.requests[request.verb if request is not None else "discovery"] += 1
        received, body, fault = time.time(), await incoming.read(), self.take(request)
        if fault is ApiFault.CUT:
            self._note(incoming, request, received, 0, body, is_passed=False)
            return _abort(incoming)
        refusal = self._refusal(fault)
        if refusal is not None:
            self._note(incoming, request, received, 0, body, is_passed=False)
            return refusal
        code = 0
        try:
            async with session.request(
                incoming.method,
                connection.url + incoming.raw_path,
                data=body or None,  # an empty body would get a content type
                **await _credentials(incoming, connection),
            ) as answer:
                code = answer.status
                if watches and code == 200:
                    return await self._stream(incoming, answer)
                content = await answer.read()
                self._note(incoming, request, received, code, body)
                return await self._respond(incoming, answer, content, fault)
        except (aiohttp.ClientError, OSError):
            if not code:
                self._note(incoming, request, received, 0, body)
            return _abort(incoming)

    def _refusal(self, fault: ApiFault | None) -> web.Response | None:
        match fault:
            case ApiFault.CONFLICT:
                return _status(409, "Conflict", "the object has been modified; please apply your changes")
            case ApiFault.EXPIRED:
                return _status(410, "Expired", "too old resource version")
            case ApiFault.TOO_MANY:
                seconds = self._rng.randint(*RETRY_AFTER_SECONDS)
                answer = _status(429, "TooManyRequests", "too many requests, please try again later")
                answer.headers["Retry-After"] = str(seconds)
                return answer
            case ApiFault.SERVER_ERROR:
                code, reason = self._rng.choice(
                    ((500, "InternalError"), (503, "ServiceUnavailable"), (504, "Timeout"))
                )
                return _status(code, reason, "the server could not answer")
        return None

    async def _respond(
        self, incoming: web.Request, answer: aiohttp.ClientResponse, content: bytes, fault: ApiFault | None
    ) -> web.StreamResponse:
        if fault is ApiFault.LOST:
            return _abort(incoming)
        if fault is ApiFault.LATE:
            await asyncio.sleep(self._rng.uniform(*LATE_SECONDS))
        headers = {name: value for name, value in answer.headers.items() if name not in DROPPED}
        return web.Response(status=answer.status, headers=headers, body=content)

    async def _stream(self, incoming: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Pass a watch on, whole lines only, until one side ends it or a fault strikes."""
        outgoing = web.StreamResponse(headers={"Content-Type": "application/json"})
        await outgoing.prepare(incoming)
        watch = _Watch(incoming.path, incoming.transport)
        self._watches.add(watch)
        try:
            async with asyncio.TaskGroup() as tasks:
                pump = tasks.create_task(_pump(answer, outgoing))
                strike = tasks.create_task(watch.struck.wait())
                await asyncio.wait({pump, strike}, return_when=asyncio.FIRST_COMPLETED)
                pump.cancel()
                strike.cancel()
            if watch.is_expired:
                error = json.dumps(
                    {"type": "ERROR", "object": _document(410, "Expired", "too old resource version")}
                )
                with contextlib.suppress(aiohttp.ClientConnectionResetError):
                    await outgoing.write(error.encode() + b"\n")
        finally:
            self._watches.discard(watch)
        return outgoing

    def _note(
        self,
        incoming: web.Request,
        request: Request | None,
        received: float,
        code: int,
        body: bytes,
        *,
        is_passed: bool = True,
    ) -> None:
        if request is None or request.verb in READING:
            return
        namespace, name = _named(incoming.path)
        if not name and body:
            name = json.loads(body).get("metadata", {}).get("name", "")
        agent = incoming.headers.get("User-Agent", "").partition("/")[0].removeprefix("pvbus-")
        self.writes.append(Write(agent, request, namespace, name, received, time.time(), code, is_passed))


def _fits(fault: ApiFault, request: Request | None) -> bool:
    if request is None:
        return False
    is_write = request.verb not in READING
    match fault:
        case ApiFault.CONFLICT:
            return request.verb in ("update", "patch", "delete")
        case ApiFault.EXPIRED | ApiFault.WATCH_CUT:
            return request.verb == "watch"
        case ApiFault.LOST:
            return is_write
        case ApiFault.LATE:
            return request.verb != "watch"
    return True


async def _credentials(incoming: web.Request, connection: Connection) -> dict[str, Any]:
    headers = {name: incoming.headers[name] for name in PASSED_HEADERS if name in incoming.headers}
    access = await connection.access()
    return {"headers": {**headers, **access.headers}, **access.options}


async def _pump(answer: aiohttp.ClientResponse, outgoing: web.StreamResponse) -> None:
    rest = b""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for chunk in answer.content.iter_any():
            lines, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                await outgoing.write(lines + end)


def _abort(incoming: web.Request) -> web.Response:
    """Reset the client's connection: it gets nothing, whatever is returned here."""
    if incoming.transport is not None:
        incoming.transport.abort()
    return web.Response(status=500)


def _document(code: int, reason: str, message: str) -> dict[str, Any]:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return {**status, "reason": reason, "message": message, "code": code}


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_document(code, reason, message), status=code)


def _named(path: str) -> tuple[str, str]:
    """Return namespace and name of a request's object; "" where there is none."""
    match path.strip("/").split("/"):
        case ["apis", _, _, "namespaces", namespace, _, *rest] | [
            "api",
            _,
            "namespaces",
            namespace,
            _,
            *rest,
        ]:
            return namespace, rest[0] if rest else ""
        case ["apis", _, _, _, name, *_] | ["api", _, _, name, *_]:
            return "", name
    return "", ""


@asynccontextmanager
async def faulty_api(kubeconfig: Path, folder: Path, seed: int) -> AsyncIterator[FaultyApi]:
    """Serve the API server of a kubeconfig; `kubeconfig` of what is yielded is the way through the proxy.

    The server behind may be killed and come back at the same address.
    """
    connection = await Connection.load(kubeconfig)
    made = FaultyApi(seed)
    timeout = aiohttp.ClientTimeout(total=None, connect=10.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=True) as session:

        async def handle(incoming: web.Request) -> web.StreamResponse:
            return await made.handle(incoming, session, connection)

        runner = web.AppRunner(application(handle), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            made.kubeconfig = kubeconfig_at(folder, runner.addresses[0][1])
            yield made
        finally:
            await runner.cleanup()
