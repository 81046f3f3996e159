"""The client of Prometheus: what it sends, and what it makes of a server that misbehaves."""

import asyncio
import gzip
import json
import ssl
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pvbus.adapters.prometheus.client import ANSWER_BYTES_MAX, Prometheus
from pvbus.core.errors import PermanentError, PvbusError, TransientError, UsageError
from pvbus.core.kernel.effects import Range, Sample
from tests.unit.adapters.http_servers import ELSEWHERE, Handler, issue, server_context, serving

HOUR_SECONDS = 3600.0


def matrix(*series: list[Any], **fields: Any) -> dict[str, Any]:
    result = [{"metric": {"job": "web"}, "values": values} for values in series]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}, **fields}


def refusal(code: int, kind: str, text: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": kind, "error": text}, status=code)


GOOD = matrix([[100, "0.5"], [101.5, "NaN"]])


async def ask(handler: Handler, *, seconds_max: float = 10.0, **options: Any) -> Range:
    async with serving(handler, options.pop("tls", None)) as url:
        return await asked(url, seconds_max=seconds_max, **options)


async def asked(url: str, **options: Any) -> Range:
    client = Prometheus(url, **options)
    try:
        return await client.query("sum(errors)", start=100, end=101.5, step_seconds=1.5)
    finally:
        await client.close()


def answering(document: Any, **options: Any) -> Handler:
    async def handle(_: web.Request) -> web.Response:
        if isinstance(document, web.Response):
            return document
        return web.json_response(document, **options)

    return handle


async def test_samples_are_those_of_the_answer() -> None:
    forms = []

    async def handle(request: web.Request) -> web.Response:
        forms.append((request.method, request.path, dict(await request.post()), dict(request.headers)))
        return web.json_response(matrix([[100, "0.5"], [101.5, "+Inf"]], [[100, "-1e3"]]))

    found = await ask(handle)
    assert found.series == (
        (Sample(100, 0.5), Sample(101.5, float("inf"))),
        (Sample(100, -1000.0),),
    )
    assert abs(found.skew_seconds) < 60
    ((method, path, form, headers),) = forms
    assert (method, path) == ("POST", "/api/v1/query_range")
    wanted = {"query": "sum(errors)", "start": "100.000", "end": "101.500", "step": "1.500", "timeout": "10s"}
    assert form == wanted
    assert "Authorization" not in headers


PACKED = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
PAGE = web.Response(text="<html>please log in</html>", content_type="text/html")
WRONG: list[tuple[str, Any, type[PvbusError], str]] = [
    ("a bad query", refusal(400, "bad_data", "parse error: unexpected end"), PermanentError, "parse error"),
    ("too many samples", refusal(422, "execution", "query processing"), PermanentError, "refuses the query"),
    ("a timeout there", refusal(503, "timeout", "query timed out"), TransientError, "503: query timed out"),
    ("an error there", web.Response(status=500, text="oops"), TransientError, "answers 500: oops"),
    ("a limit", web.Response(status=429, text="slow down"), TransientError, "answers 429: slow down"),
    ("no token", web.Response(status=401), TransientError, "PVBUS_PROMETHEUS_TOKEN_FILE"),
    ("no right", web.Response(status=403), TransientError, "PVBUS_PROMETHEUS_TOKEN_FILE"),
    ("another address", web.Response(status=404), PermanentError, "has no query API (404)"),
    (
        "a proxy's 400",
        web.Response(status=400, text="bad gateway"),
        TransientError,
        "answers 400: bad gateway",
    ),
    ("a login page", PAGE, TransientError, "it is text/html"),
    (
        "a page as JSON",
        web.Response(text="<html>", content_type="application/json"),
        TransientError,
        "<html>",
    ),
    ("an empty body", web.Response(content_type="application/json"), TransientError, "not one of Prometheus"),
    ("JSON in a text", web.Response(text=json.dumps(GOOD)), TransientError, "it is text/plain"),
    ("a list", [], TransientError, "not one of Prometheus"),
    ("another status", {**GOOD, "status": "error"}, TransientError, "not one of Prometheus"),
    ("a vector", {"status": "success", "data": {"resultType": "vector"}}, TransientError, "not one of"),
    ("a word for a number", matrix([[1, "many"]]), TransientError, "not one of Prometheus"),
    ("a number for a text", matrix([[1, 2]]), TransientError, "not one of Prometheus"),
    (
        "deep brackets",
        web.Response(text="[" * 9999, content_type="application/json"),
        TransientError,
        "not one",
    ),
    (
        "a packed answer",
        web.Response(body=gzip.compress(b" " * 9_000_000), headers=PACKED),
        TransientError,
        "not one of Prometheus",
    ),
    ("a huge answer", web.Response(body=b" " * (ANSWER_BYTES_MAX + 1)), PermanentError, "a single value"),
    (
        "a redirect",
        web.Response(status=302, headers={"Location": "https://sso.example/login"}),
        PermanentError,
        "redirects to https://sso.example/login, which is not followed: set PVBUS_PROMETHEUS_URL",
    ),
]


@pytest.mark.parametrize(
    ("document", "error", "words"), [each[1:] for each in WRONG], ids=[e[0] for e in WRONG]
)
async def test_a_server_that_misbehaves_gives_an_error_that_says_what_to_do(
    document: Any, error: type[PvbusError], words: str
) -> None:
    if isinstance(document, web.Response):
        copy = web.Response(status=document.status, body=document.body, headers=document.headers)
        document = copy  # one can be sent only once
    with pytest.raises(error) as raised:
        await ask(answering(document))
    assert words in str(raised.value)
    assert len(str(raised.value)) < 600


async def test_a_slow_server_is_not_waited_for() -> None:
    """Neither for the headers, nor for a body that never ends."""
    released = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    async def trickling(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while not released.is_set():
            await response.write(b" ")
            await asyncio.sleep(0.02)
        return response

    for handler in (silent, trickling):
        async with serving(handler) as url:
            with pytest.raises(TransientError, match=r"no answer from http://.* within 0.2 s"):
                await asked(url, seconds_max=0.2)
            released.set()
        released.clear()


async def test_no_server_at_all_is_an_error_in_words() -> None:
    async with serving(answering(GOOD)) as url:
        pass
    with pytest.raises(TransientError, match="check that Prometheus runs, and PVBUS_PROMETHEUS_URL"):
        await asked(url)


async def test_a_connection_that_is_cut_is_an_error_in_words() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "900"})
        await response.prepare(request)
        await response.write(b'{"status":')
        assert request.transport is not None
        request.transport.abort()
        return response

    with pytest.raises(TransientError, match="no answer from"):
        await ask(cut)


async def test_an_empty_result_and_warnings_are_answers() -> None:
    assert (await ask(answering(matrix()))).series == ()
    nothing = {"status": "success", "data": {"resultType": "matrix", "result": None}}
    assert (await ask(answering(nothing))).series == ()
    found = await ask(answering(matrix([[1, "2"]], warnings=["a store is away"])))
    assert found.warnings == ("a store is away",)


@pytest.mark.parametrize("ahead", [HOUR_SECONDS, -HOUR_SECONDS])
async def test_the_clock_of_the_server_is_compared(ahead: float) -> None:
    date = formatdate(time.time() + ahead, usegmt=True)
    found = await ask(answering(GOOD, headers={"Date": date}))
    assert found.skew_seconds == pytest.approx(ahead, abs=60)


async def test_a_date_that_is_none_says_nothing() -> None:
    assert (await ask(answering(GOOD, headers={"Date": "soon"}))).skew_seconds == 0.0


async def test_a_token_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    file, seen = tmp_path / "token", list[str]()
    file.write_text("old\n")

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        if seen[-1] != "Bearer new":
            file.write_text("new\n")
            return web.Response(status=401)
        return web.json_response(GOOD)

    await ask(handle, token_file=str(file))
    assert seen == ["Bearer old", "Bearer new"]


async def test_a_token_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="token-of-ours: the token file cannot be read"):
        await ask(answering(GOOD), token_file=str(tmp_path / "token-of-ours"))


async def test_a_redirect_does_not_take_the_token_elsewhere(tmp_path: Path) -> None:
    file, seen = tmp_path / "token", list[str]()
    file.write_text("secret")

    async def thief(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.json_response(GOOD)

    async with serving(thief) as elsewhere:
        response = web.Response(status=307, headers={"Location": f"{elsewhere}/api/v1/query_range"})
        with pytest.raises(PermanentError, match="redirects to"):
            await ask(answering(response), token_file=str(file))
    assert seen == []


async def test_a_certificate_is_checked_by_the_given_authority(tmp_path: Path) -> None:
    ca = issue("ca")
    tls: ssl.SSLContext = server_context(tmp_path, issue("server", ca))
    ca_file, _ = ca.write(tmp_path, "ca")
    async with serving(answering(GOOD), tls) as url:
        assert (await asked(url, ca_file=str(ca_file))).series
        with pytest.raises(TransientError, match="certificate verify failed"):
            await asked(url)


async def test_an_authority_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"PVBUS_PROMETHEUS_CA_FILE: .*No such file"):
        await asked("https://127.0.0.1:9", ca_file=str(tmp_path / "missing"))


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_no_query_goes_to_a_metadata_address(url: str) -> None:
    with pytest.raises(TransientError, match=r"no request goes there|not a canonical IPv4 address"):
        await asked(url)
