"""Serves the fleet's page over HTTP or HTTPS: its files, the model, its changes as server-sent events, lists
for programs, the explanation of one object, and what people do as their own users at the API server. Every
path is in one table, and no path is one of the file system."""

import asyncio
import gzip
import hashlib
import html
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web

from pvbus.adapters.httpserver import QuietRunner
from pvbus.adapters.servingtls import ServingTls
from pvbus.core.errors import PvbusError, TransientError, UsageError
from pvbus.core.kernel.keys import Key
from pvbus.core.variants.conditions.sets import confirm_command
from pvbus.core.web.conflicts import found_in, groups_of, values_of
from pvbus.core.web.document import changes, whole
from pvbus.core.web.model import Model
from pvbus.runtime.web.api import API_PATH, answer_of, asked_of
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.gate import Gate, write_problem
from pvbus.runtime.web.sessions import SESSION_HEADER, Sessions, SignedOutError, SignIn, User

BEAT_SECONDS = 5.0
"""The time between two messages to a page when nothing changes; a page that hears nothing for three of them
is stale."""

PAGES_MAX = 64  # open at once; each costs a socket and, in a storm, ten messages a second
WRITE_SECONDS_MAX = 30.0  # a page that does not read for so long comes again by itself
EXPLAIN_SECONDS_MAX = 20.0
EXPLAIN_PARALLEL_MAX = 2  # each reads parts of several topics
CONFLICTS_MAX = 200  # groups in an answer, the largest ones; `pvbus conflicts list` has them all
HELD_NAMES_MAX = 1_000  # of one set, in an answer; `pvbus confirm --show` has them all

FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/work.js": ("work.js", "text/javascript"),
    "/bulk.js": ("bulk.js", "text/javascript"),
    "/needs.js": ("needs.js", "text/javascript"),
    "/detail.js": ("detail.js", "text/javascript"),
}
SESSION, ACT, LOOK = "/api/session", "/api/act", "/api/look"
WRITES: Mapping[str, tuple[str, ...]] = {SESSION: ("POST", "DELETE"), ACT: ("POST",), LOOK: ("POST",)}
"""The paths that take more than GET, and what they take."""
BODY_BYTES_MAX = 64 * 1024  # a token has 16 kB at most, an action a few texts
SIGN_IN = """<!doctype html><html lang="en"><meta charset="utf-8"><title>pvbus</title>\
<meta http-equiv="refresh" content="0; url=/"><p><a href="/">The fleet</a>"""
"""The answer to the address with the token. A redirect would not do: after a click in another site's page the
browser would follow it without the cookie."""

REFUSED = """<!doctype html><html lang="en"><meta charset="utf-8"><title>pvbus</title><h1>pvbus</h1><p>{}"""
NO_SESSION = (
    "Open the address with the token that pvbus printed at its start (web page: ...). It is the same "
    "after a restart."
)

READ_ONLY = (
    "this page only shows: people act on it where it has an API server (pvbus up, or pvbus run web "
    "--kubeconfig FILE), and PVBUS_WEB_MODE is not read-only"
)

Explain = Callable[[Key, bool], Awaitable[dict[str, Any]]]
"""Returns the explanation of a variant, or of a set (True), as `pvbus explain` gives it from the bus:
`known`, `lines` (text), `conditions`, and the `command` that says more."""


class Address(NamedTuple):
    """Where the page is served.

    host: the address to listen at
    port: the port to listen at; 0 takes any free one
    names: further host names, as in `Gate`
    tls: the certificate, None for plain HTTP
    """

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    tls: ServingTls | None = None


class Hints(NamedTuple):
    """The options that commands need for this installation.

    bus: the options of commands that read the bus
    cluster: the options of commands that only ask the API server, which have no `--bus`
    tokens: commands that print a token to sign in with
    """

    bus: str = ""
    cluster: str = ""
    tokens: tuple[str, ...] = ()


NO_HINTS = Hints()


class _SignIn(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class PageServer:
    """Serves within an async context, in which `url` (with the token) and `port` are set."""

    def __init__(
        self,
        feed: Feed,
        explain: Explain,
        token: str,
        address: Address,
        hints: Hints = NO_HINTS,
        sign_in: SignIn | None = None,
    ) -> None:
        """Serve nothing yet. sign_in: None for a page that only shows"""
        self._feed = feed
        self._sessions = Sessions(sign_in)
        self._explain = explain
        self._token = token
        self._address = address
        self._hints = hints
        self._files = _read_files()
        self._pages = 0
        self._explaining = asyncio.Semaphore(EXPLAIN_PARALLEL_MAX)
        self._packed: tuple[str, bytes] = ("", b"")
        self._gate = Gate(token, 0)
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.port = 0

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._guard], client_max_size=BODY_BYTES_MAX)
        for path in FILES:
            application.router.add_get(path, self._file)
        application.router.add_get("/favicon.ico", _nothing)
        application.router.add_get("/api/fleet", self._fleet)
        application.router.add_get("/api/events", self._events)
        application.router.add_get("/api/explain", self._answer_explain)
        application.router.add_get("/api/removals", self._removals)
        application.router.add_get("/api/conflicts", self._conflicts)
        application.router.add_get(f"{API_PATH}/{{kind}}", self._list)
        application.router.add_get(SESSION, self._show_session)
        application.router.add_post(SESSION, self._begin_session)
        application.router.add_delete(SESSION, self._end_session)
        application.router.add_get("/api/detail", self._detail)
        application.router.add_get("/api/history", self._history)
        application.router.add_get("/api/settled", self._show_settled)
        application.router.add_post(LOOK, self._act)
        application.router.add_post(ACT, self._act)
        self._runner = QuietRunner(application, shutdown_timeout=0.5)
        host, port, names, tls = self._address
        _, self.port = await self._runner.listen(
            host, port, serves="the web page", setting="PVBUS_WEB_PORT", tls=tls.context if tls else None
        )
        self._gate = Gate(self._token, self.port, names, is_tls=tls is not None)
        shown = f"[{host}]" if ":" in host else host
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{names[0] if names else shown}:{self.port}/?token={self._token}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._sessions.close()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer a request that the gate refuses; add the headers of every answer."""
        response: web.StreamResponse | None = self._refusal(request)
        if response is None:
            self._feed.start()
            try:
                response = await handler(request)
            except web.HTTPException as exc:
                response = _refused(exc.status, exc.reason)
        if not response.prepared:
            response.headers.update(
                {**self._gate.headers(request.headers.get("Host", "")), **response.headers}
            )
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if problem := self._gate.problem(request.headers):
            return _refused(403, problem)
        if request.method not in ("GET", "HEAD", *WRITES.get(request.path, ())):
            return _refused(405, "this is only read")
        token = request.query.get("token")
        if request.path == "/" and token is not None:
            if not self._gate.opens(token):
                return _refused(403, f"This is not the token. {NO_SESSION}")
            response = web.Response(text=SIGN_IN, content_type="text/html")
            cookie, is_tls = self._gate.cookie, self._gate.is_tls
            response.set_cookie(
                cookie, self._gate.session, httponly=True, samesite="Strict", path="/", secure=is_tls
            )
            return response
        if not (self._gate.knows(request.cookies) or self._has_bearer(request)):
            return _refused(401, NO_SESSION)
        if request.method not in ("GET", "HEAD"):
            problem = write_problem(request.headers) or ("" if self._sessions.is_open else READ_ONLY)
            return _problem(403, problem) if problem else None
        return None

    def _has_bearer(self, request: web.Request) -> bool:
        """Return whether a program sends the token with a request for a list."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        is_list = request.path.startswith(f"{API_PATH}/")
        return is_list and scheme.lower() == "bearer" and self._gate.opens(token.strip())

    async def _file(self, request: web.Request) -> web.Response:
        return self._tagged(request, *self._files[request.path])

    def _tagged(self, request: web.Request, tag: str, packed: bytes, content_type: str) -> web.Response:
        """Answer with packed content, or 304 if the browser has it."""
        headers = {"ETag": f'"{tag}"', "Vary": "Accept-Encoding"}
        if any(each.value in (tag, "*") for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
        else:
            packed = gzip.decompress(packed)
        return web.Response(body=packed, headers=headers, content_type=content_type, charset="utf-8")

    # ------------------------------------------------------------ the model

    async def _fleet(self, request: web.Request) -> web.Response:
        if not self._feed.restored:
            return _json({**whole(Model(1), time.time()), "version": self._version(0)})
        tag = self._version(self._feed.model.version)
        if self._packed[0] != tag:
            body = msgspec.json.encode({**whole(self._feed.model, time.time()), "version": tag})
            self._packed = (tag, await asyncio.to_thread(gzip.compress, body, 4))
        packed_tag, packed = self._packed
        return self._tagged(request, packed_tag, packed, "application/json")

    def _version(self, number: int) -> str:
        return f"{self._feed.epoch}-{number}"

    def _status(self) -> dict[str, Any]:
        health = self._feed.health
        incomplete = [each._asdict() for each in self._feed.model.incomplete()] if self._feed.restored else []
        return {
            **health._asdict(),
            "incomplete": incomplete,
            "hints": self._hints.cluster,
            "now": time.time(),
        }

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send what changed since the version that the page has, then each change, and a beat in between."""
        if self._pages >= PAGES_MAX:
            return _refused(503, f"{PAGES_MAX} pages are open: close some")
        given = request.headers.get("Last-Event-ID") or request.query.get("since", "")
        own = self._gate.headers(request.headers.get("Host", ""))
        response = web.StreamResponse(headers={**own, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        self._pages += 1
        try:
            await self._send_changes(response, self._number(given))
        except (ConnectionError, TimeoutError):
            pass  # the page is gone, or will come again
        finally:
            self._pages -= 1
        return response

    def _number(self, version: str) -> int:
        """Return the number of a version, -1 for one of another epoch, or none."""
        epoch, _, number = version.rpartition("-")
        return int(number) if epoch == self._feed.epoch and number.isdecimal() and len(number) < 16 else -1

    async def _send_changes(self, response: web.StreamResponse, since: int) -> None:
        while True:
            model = self._feed.model
            version = model.version
            message: dict[str, Any] = {"status": self._status()}
            if version != since and self._feed.restored:
                news = changes(model, since, time.time()) if since > 0 else None
                message.update(news if news is not None else {"reload": True})
                since = version
            message["version"] = self._version(max(since, 0))
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                body = msgspec.json.encode(message)
                await response.write(b"id: %s\ndata: %s\n\n" % (message["version"].encode(), body))
            if version == model.version:
                await self._feed.wait_for_change(BEAT_SECONDS)

    # ------------------------------------------------------------ what people do

    async def _show_session(self, request: web.Request) -> web.Response:
        user = self._sessions.name_of(request.headers.get(SESSION_HEADER, ""))
        return _json({"open": self._sessions.is_open, "user": user, "tokens": self._hints.tokens})

    async def _begin_session(self, request: web.Request) -> web.Response:
        try:
            token = msgspec.json.decode(await request.read(), type=_SignIn).token
            session, user = await self._sessions.begin(token.strip())
            return _json({"session": session, "user": user})
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return _problem(400, "send a token")
        except UsageError as exc:
            return _problem(403, str(exc))
        except PvbusError as exc:
            return _problem(503, str(exc))

    async def _end_session(self, request: web.Request) -> web.Response:
        await self._sessions.end(request.headers.get(SESSION_HEADER, ""))
        return _json({})

    async def _act(self, request: web.Request) -> web.Response:
        """Do something as the person who is signed in, or say what it would be."""
        is_question = request.path == LOOK

        async def act(user: User) -> dict[str, Any]:
            return await user.act(await request.read(), is_question=is_question)

        return await self._run(request, act)

    async def _detail(self, request: web.Request) -> web.Response:
        """Answer with what the person who is signed in may read of a variant."""
        return await self._run(request, lambda user: user.detail(request.query.get("name", "")))

    async def _history(self, request: web.Request) -> web.Response:
        """Answer with the former specs of a set or a policy, for the person who is signed in."""
        kind, name = (request.query.get(key, "") for key in ("kind", "name"))
        return await self._run(request, lambda user: user.history(kind, name))

    async def _show_settled(self, request: web.Request) -> web.Response:
        return await self._run(request, lambda user: user.list_settled())

    async def _run(
        self, request: web.Request, work: Callable[[User], Awaitable[dict[str, Any]]]
    ) -> web.Response:
        session = request.headers.get(SESSION_HEADER, "")
        if not self._sessions.name_of(session):
            return _problem(401, "you are not signed in")
        try:
            return _json(await self._sessions.run(session, work))
        except SignedOutError as exc:
            return _problem(401, str(exc))
        except UsageError as exc:
            return _problem(400, str(exc))
        except PvbusError as exc:
            return _problem(503, str(exc))

    # ------------------------------------------------------------ one object

    async def _answer_explain(self, request: web.Request) -> web.Response:
        key = Key.parse(request.query.get("name", ""))
        kind = request.query.get("kind")
        if kind not in ("variant", "set") or not all(key) or "/" in key.name:
            return _refused(400, "give kind=variant or kind=set, and name=NAMESPACE/NAME")
        try:
            async with asyncio.timeout(EXPLAIN_SECONDS_MAX), self._explaining:
                return _json(await self._explain(key, kind == "set"))
        except TimeoutError:
            return _refused(503, f"the bus gave no answer within {EXPLAIN_SECONDS_MAX:.0f} s: try again")
        except TransientError as exc:
            return _refused(503, f"the bus does not answer: {exc}")
        except PvbusError as exc:
            return _refused(500, str(exc))

    async def _list(self, request: web.Request) -> web.Response:
        """Answer a program with a page of a list, or with counts: see `pvbus.core.web.listing`."""
        if not self._feed.restored:
            return _problem(503, f"the bus is being read: {self._feed.health.restored:.0%}; ask again")
        try:
            asked = asked_of(request.match_info["kind"], request.query)
            return _json({**answer_of(self._feed.model, asked), "stale": self._feed.health.problem})
        except UsageError as exc:
            return _problem(400, str(exc))

    async def _conflicts(self, request: web.Request) -> web.Response:
        """List the conflicts of upgrades, equal ones together, with the commands that settle them."""
        groups = groups_of(found_in(self._feed.model.conflicts.items()))
        shown = [
            {
                "id": group.id,
                "where": group.words,
                "values": values_of(group.example),
                "count": len({member.revision for member in group.members}),
                "variants": sorted({member.variant for member in group.members})[:HELD_NAMES_MAX],
                "commands": [
                    f"pvbus conflicts take {side} {group.id} -A{self._hints.bus}"
                    for side in ("local", "upstream")
                ],
            }
            for group in groups[:CONFLICTS_MAX]
        ]
        return _json({"groups": shown, "more": max(len(groups) - CONFLICTS_MAX, 0)})

    async def _removals(self, request: web.Request) -> web.Response:
        """List the sets with held removals, and the commands that show and confirm them."""
        found = []
        for name, held in self._feed.model.held().items():
            row = self._feed.model.sets.get(name)
            hold = row.hold if row is not None else None
            key, token = Key.parse(name), hold.token if hold is not None else ""
            found.append(
                {
                    "set": name,
                    "count": hold.count if hold is not None and token else len(held),
                    "variants": held[:HELD_NAMES_MAX],
                    "show": f"pvbus confirm {name} --show{self._hints.bus}",
                    "confirm": f"pvbus confirm {name}{self._hints.bus}" if token else "",
                    "annotate": confirm_command(key, token) if token else "",
                }
            )
        return _json({"held": found})


async def _nothing(request: web.Request) -> web.Response:
    return web.Response(status=204)


def _read_files() -> dict[str, tuple[str, bytes, str]]:
    """Return tag, packed content and type by path."""
    found = {}
    for path, (name, content_type) in FILES.items():
        content = (files("pvbus.runtime.web") / "static" / name).read_bytes()
        packed = gzip.compress(content, mtime=0)
        found[path] = (hashlib.sha256(content).hexdigest()[:16], packed, content_type)
    return found


def _json(document: Mapping[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


def _problem(status: int, message: str) -> web.Response:
    body = msgspec.json.encode({"error": message})
    return web.Response(status=status, body=body, content_type="application/json")


def _refused(status: int, message: str) -> web.Response:
    text = REFUSED.format(html.escape(message))
    headers = {"Allow": "GET, HEAD"} if status == 405 else None
    return web.Response(status=status, text=text, content_type="text/html", headers=headers)
