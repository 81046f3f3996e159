"""What comes back from an API server, or from something in between, over a real socket."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from pvbus.adapters.kubernetes import transport as adapter
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.library import Configuration
from pvbus.core.errors import PermanentError, TransientError
from pvbus.ports.cluster import GoneError, Kind, Resource, SilentError

SITES = Resource("example.org", "v1", "Site", "sites", True)
PATH = "GET /apis/example.org/v1/sites"
HTML = b"<html><body>\n<h1>Sign in</h1>\n</body></html>\n"
SITE = {"apiVersion": "example.org/v1", "kind": "Site", "metadata": {"name": "a", "resourceVersion": "7"}}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def encoded(value: Any) -> bytes:
    return msgspec.json.encode(value)


def answering(body: bytes, *, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=body, status=status, headers=headers, content_type="application/json")

    return handle


async def hanging(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    return web.Response()


async def silent(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(60)
    return response


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[HttpCluster]:
    """Serve every path by one handler, and yield a cluster that talks to it."""
    server = web.Server(handler)  # type: ignore[arg-type]  # what it is called with is a Request
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    cluster = HttpCluster(Connection(Configuration(host=f"http://{host}:{port}")))
    try:
        yield cluster
    finally:
        await cluster.close()
        await runner.cleanup()


async def failure(handler: Handler, call: Callable[[HttpCluster], Awaitable[object]]) -> Exception:
    async with served(handler) as cluster:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is what is asked
            await call(cluster)
        return caught.value


async def watched(cluster: HttpCluster) -> list[str]:
    return [event.type async for event in cluster.watch(SITES, "1", metadata_only=True)]


async def listed(cluster: HttpCluster) -> object:
    return await cluster.list(SITES)


async def got(cluster: HttpCluster) -> object:
    return await cluster.get(SITES, "default", "a")


async def deleted(cluster: HttpCluster) -> object:
    return await cluster.delete(SITES, "default", "a")


async def discovered(cluster: HttpCluster) -> object:
    return await cluster.versions(Kind("example.org", "Site"))


FOREIGN = [
    (listed, HTML, "a sign-in page"),
    (listed, b"", "nothing at all"),
    (listed, b"[]", "JSON of another kind"),
    (listed, b"{}", "an empty object: it is no empty list"),
    (listed, b'{"kind":"SiteList","items":{}}', "items that are no list"),
    (listed, b'{"kind":"SiteList","items":[{}]}', "items that are no objects"),
    (listed, b"[" * 100_000, "deep nesting"),
    (got, HTML, "a sign-in page"),
    (got, b"{}", "an empty object"),
    (got, encoded({**SITE, "metadata": {"name": "b"}}), "another object"),
    (discovered, HTML, "a sign-in page"),
    (discovered, b"{}", "an empty object: it does not say that nothing is served"),
    (deleted, HTML, "a sign-in page"),
    (watched, HTML, "a sign-in page"),
    (watched, b"<html>", "a page without an end of line"),
    (watched, b"[]\n", "JSON of another kind"),
    (watched, b'{"type":"ADDED"}\n', "an event without an object"),
    (watched, b'{"type":"ADDED","object":{"metadata":{}}}\n', "an object without a name"),
    (watched, b'{"type":"NEWS","object":{"metadata":{"name":"a"}}}\n', "an event of no type"),
    (watched, encoded({"type": "ADDED", "object": SITE})[:-5], "an event that is cut off"),
    (watched, b'{"type":"ERROR","object":{"code":"x"}}\n', "an error without a code"),
    (watched, b"[" * 100_000 + b"\n", "deep nesting"),
]


@pytest.mark.parametrize(("call", "body", "why"), FOREIGN)
async def test_what_is_no_answer_of_an_api_server_says_nothing(
    call: Callable[[HttpCluster], Awaitable[object]], body: bytes, why: str
) -> None:
    """It is tried again: absence, and whether a kind is served, are the API server's to say."""
    error = await failure(answering(body), call)
    assert type(error) is TransientError, why
    assert " /apis/example.org" in str(error), why


NOT_FOUND = {"kind": "Status", "reason": "NotFound", "message": "x", "code": 404}
ABSENCE = [
    ({**NOT_FOUND, "details": {"name": "a", "group": "example.org", "kind": "sites"}}, True, "this object"),
    ({**NOT_FOUND, "details": {"name": "a"}}, True, "a server of few words"),
    ({**NOT_FOUND, "details": {"name": "b", "kind": "sites"}}, False, "another object"),
    ({**NOT_FOUND, "details": {"name": "a", "kind": "namespaces"}}, False, "an object of another kind"),
    (NOT_FOUND, False, "the kind is not served"),
    ({"message": "no healthy upstream"}, False, "a proxy that has lost its server"),
    ("404 page not found", False, "a server without this path"),
]


@pytest.mark.parametrize(("status", "is_absent", "why"), ABSENCE)
async def test_a_404_is_absence_if_it_names_the_object(status: Any, is_absent: bool, why: str) -> None:
    body = status.encode() if isinstance(status, str) else encoded(status)
    async with served(answering(body, status=404)) as cluster:
        if is_absent:
            assert await got(cluster) is None, why
            assert not await cluster.delete(SITES, "default", "a"), why
        else:
            with pytest.raises(PermanentError, match=r"^GET .*/namespaces/default/sites/a: 404 "):
                await got(cluster)
            with pytest.raises(PermanentError, match=r"^DELETE .*/namespaces/default/sites/a: 404 "):
                await cluster.delete(SITES, "default", "a")


async def test_a_watch_shows_events_and_bookmarks() -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    lines = [encoded({"type": kind, "object": SITE}) for kind in ("ADDED", "MODIFIED", "DELETED")]
    async with served(answering(b"\n".join([*lines, encoded(bookmark), b""]))) as cluster:
        assert await watched(cluster) == ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


async def test_an_error_in_a_watch_is_the_error_of_its_code() -> None:
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}
    assert type(await failure(answering(encoded(gone) + b"\n"), watched)) is GoneError


async def test_a_watch_that_does_not_begin_is_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen server accepts connections and says nothing: this is not silence of a quiet kind."""
    monkeypatch.setattr(adapter, "WATCH_START_SECONDS", 0.1)
    error = await failure(hanging, watched)
    assert type(error) is TransientError
    assert re.match(rf"{PATH} \(watch\): no answer from http://127.0.0.1:\d+ within 0.1 s; ", str(error))


async def test_a_watch_that_falls_silent_has_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "WATCH_SILENCE_SECONDS", 0.1)
    error = await failure(silent, watched)
    assert type(error) is SilentError
    assert str(error) == f"{PATH} (watch): nothing came for 0.1 s"


async def test_a_request_without_an_answer_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "REQUEST_SECONDS", 0.1)
    said = rf"{PATH}: no answer from http://127.0.0.1:\d+ within 0.1 s; check that it is not overloaded"
    assert re.match(said, str(await failure(hanging, listed)))


async def test_a_connection_that_ends_has_a_reason() -> None:
    async def closing(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    for call, where in ((listed, PATH), (watched, f"{PATH} (watch)")):
        error = await failure(closing, call)
        assert type(error) is TransientError
        assert str(error).startswith(f"{where}: the connection to http://127.0.0.1:")
        assert str(error).endswith("; it may be restarting")


async def test_a_refusal_names_the_request_and_the_cause() -> None:
    status = {"kind": "Status", "reason": "Forbidden", "message": "sites is forbidden: no right"}
    error = await failure(answering(encoded(status), status=403), listed)
    assert isinstance(error, PermanentError)
    assert str(error) == f"{PATH}: 403 Forbidden: sites is forbidden: no right"


@pytest.mark.parametrize("call", [listed, watched, got])
@pytest.mark.parametrize(
    ("header", "seconds"), [("7", (7, 7)), ("86400", (300, 300)), ("date", (25, 30)), ("soon", None)]
)
async def test_retry_after_is_read_from_every_answer(
    call: Callable[[HttpCluster], Awaitable[object]], header: str, seconds: tuple[int, int] | None
) -> None:
    """Seconds or a date, and never more than five minutes."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    handler = answering(b"{}", status=429, **{"Retry-After": date if header == "date" else header})
    error = await failure(handler, call)
    assert isinstance(error, TransientError)
    after = error.retry_after_seconds
    if seconds is None:
        assert after is None
    else:
        assert after is not None
        assert seconds[0] <= after <= seconds[1]


async def test_names_of_requests_do_not_leave_their_path() -> None:
    """Whoever can write to the bus chooses them."""
    seen: list[str] = []

    async def noting(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.Response(status=404)

    async with served(noting) as cluster:
        assert await cluster.versions(Kind("a/../../api", "Secret")) == ()
        with pytest.raises(PermanentError):
            await cluster.get(SITES, "default", "../../../../api/v1/secrets?x=y")
        assert seen == [
            "/apis/a%2F..%2F..%2Fapi",
            "/apis/example.org/v1/namespaces/default/sites/..%2F..%2F..%2F..%2Fapi%2Fv1%2Fsecrets%3Fx=y",
        ]
        for group in ("..", "."):
            with pytest.raises(PermanentError, match="cannot be part of a path"):
                await cluster.versions(Kind(group, "Secret"))


async def test_many_watches_leave_connections_for_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "CONNECTIONS_MAX", 2)

    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await silent(request)
        return await answering(b'{"kind":"SiteList","metadata":{"resourceVersion":"1"}}')(request)

    async with served(handle) as cluster:
        watches = [asyncio.create_task(watched(cluster)) for _ in range(5)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            assert (await cluster.list(SITES)).resource_version == "1"
        for watch in watches:
            watch.cancel()
        await asyncio.wait(watches)


async def test_content_that_was_not_asked_for_is_dropped() -> None:
    """A server that knows no PartialObjectMetadata sends whole objects: a Secret's content stays out."""
    secret = {**SITE, "data": {"password": "x"}, "spec": {}}
    accepted: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        accepted.append(request.headers["Accept"])
        if "watch" in request.query:
            return await answering(encoded({"type": "ADDED", "object": secret}) + b"\n")(request)
        items = {"kind": "SiteList", "metadata": {"resourceVersion": "1"}, "items": [secret]}
        return await answering(encoded(items))(request)

    async with served(handle) as cluster:
        assert (await cluster.list(SITES, metadata_only=True)).items == [SITE]
        assert [event.object async for event in cluster.watch(SITES, "1", metadata_only=True)] == [SITE]
        assert (await cluster.list(SITES)).items == [secret]
        assert [event.object async for event in cluster.watch(SITES, "1")] == [secret]
    form = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
    assert accepted == [form.format("List"), form.format(""), "application/json", "application/json"]


async def test_a_warning_of_the_server_is_logged_once() -> None:
    """Deprecated versions and policies warn in a header of each response."""
    texts = (
        '299 - "v1alpha1 is deprecated"',
        '299 - "say \\"please\\"", 299 kube "two"',
        "199 - old",
        "garbage",
    )

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await answering(b'{"kind":"SiteList","metadata":{}}')(request)
        for text in texts:
            response.headers.add("Warning", text)
        return response

    with capture_logs() as logged:
        async with served(handle) as cluster:
            for _ in range(3):
                await cluster.list(SITES)
    warnings = [entry["warning"] for entry in logged]
    assert warnings == ["v1alpha1 is deprecated", 'say "please"', "two"]
    assert {entry["request"] for entry in logged} == {PATH}


async def test_an_object_of_a_list_has_the_type_that_the_list_says() -> None:
    """kube-apiserver leaves it out of the items of its own kinds, such as definitions."""
    bare = {"metadata": {"name": "b"}}
    page = {"apiVersion": "example.org/v1", "kind": "SiteList", "items": [SITE, bare]}
    async with served(answering(encoded(page))) as cluster:
        listing = await cluster.list(SITES)
    assert listing.items == [SITE, {"apiVersion": "example.org/v1", "kind": "Site", **bare}]
