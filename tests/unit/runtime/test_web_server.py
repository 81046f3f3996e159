"""The page's server: who is let in, what it answers, and what a page that reconnects gets."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import jsonschema  # type: ignore[import-untyped]
import pytest
from yarl import URL

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import TransientError
from pvbus.core.kernel.keys import Key
from pvbus.ports.bus import Bus
from pvbus.runtime.web import server as module
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.server import FILES, Address, Hints, PageServer
from tests.tools.bustables import PARTITIONS, Row, write_tables
from tests.tools.fleetrows import VARIANT, conflict, event, fleet, in_conflict, task, variant

TOKEN = "a-token-of-the-test-0123456789"
HINTS = Hints(" --data d --bus b", " --data d")
DATA = (
    *("/", "/page.css", "/page.js", "/api/fleet", "/api/events", "/api/explain", "/api/removals"),
    *("/api/conflicts", "/api/v1/variants"),
)


class Page:
    """A server with the rows of a bus's file, and a client that has not signed in."""

    def __init__(self, server: PageServer, feed: Feed, client: aiohttp.ClientSession) -> None:
        self.server = server
        self.feed = feed
        self.client = client
        self.base = server.url.partition("/?")[0]

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
        url = URL(self.base + path, encoded=True)
        headers = {"Accept-Encoding": "identity", **headers}
        async with self.client.request(method, url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.read(), answer.headers

    async def sign_in(self) -> None:
        assert (await self.get(f"/?token={TOKEN}"))[0] == 200

    async def fleet(self) -> dict[str, Any]:
        status, body, _ = await self.get("/api/fleet")
        assert status == 200
        document: dict[str, Any] = json.loads(body)
        return document

    async def until_read(self) -> dict[str, Any]:
        await self.fleet()  # the first request starts the reading
        while not self.feed.restored:
            await self.feed.wait_for_change(1)
        return await self.fleet()

    @asynccontextmanager
    async def events(self, since: str = "", **headers: str) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        url = f"{self.base}/api/events?since={since}"
        async with self.client.get(url, headers=headers) as answer:
            assert answer.status == 200

            async def following() -> Any:
                while not (line := await answer.content.readline()).startswith(b"data: "):
                    assert line, "the stream has ended"
                return json.loads(line.removeprefix(b"data: "))

            yield following


async def _explain(key: Key, is_set: bool) -> dict[str, Any]:
    if key.name == "away":
        raise TransientError("the broker is down")
    return {"known": True, "lines": [f"{key} {is_set}"], "conditions": []}


@asynccontextmanager
async def _page(bus: Bus, names: tuple[str, ...] = ()) -> AsyncIterator[Page]:
    feed = Feed(bus, PARTITIONS)
    jar = aiohttp.CookieJar(unsafe=True)  # of an address that is a number
    async with (
        PageServer(feed, _explain, TOKEN, Address(names=names), HINTS) as server,
        aiohttp.ClientSession(cookie_jar=jar, auto_decompress=False) as client,
    ):
        reading = asyncio.create_task(feed.run())
        try:
            yield Page(server, feed, client)
        finally:
            reading.cancel()
            await asyncio.wait({reading})


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    path = tmp_path / "bus.db"
    await asyncio.to_thread(write_tables, path, list(fleet(120)))
    return path


@pytest.fixture
async def page(file: Path) -> AsyncIterator[Page]:
    bus = await SqliteBus.open(file)
    async with _page(bus) as found:
        yield found
    await bus.close()


async def _write(file: Path, *rows: Row) -> None:
    await asyncio.to_thread(write_tables, file, rows)


@pytest.mark.parametrize("path", DATA)
async def test_without_the_cookie_nothing_is_shown(page: Page, path: str) -> None:
    """Every path, the script's and the style's, too, asks for the address with the token."""
    status, body, _ = await page.get(path)
    assert status == 401
    assert b"token" in body
    assert b"web-edge" not in body
    assert not page.feed.health.restored  # and nothing was read


async def test_the_token_becomes_a_cookie(page: Page) -> None:
    """Of the browser's session: no script can read it, no other site sends it, and it is not the token."""
    _, body, headers = await page.get(f"/?token={TOKEN}")
    cookie = headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert TOKEN.encode() not in body
    assert cookie.startswith(f"pvbus-{page.server.port}=")
    assert (await page.get("/"))[0] == 200


@pytest.mark.parametrize(
    "path", ["/?token=", "/?token=wrong", f"/?token={TOKEN}x", f"/page.js?token={TOKEN}"]
)
async def test_a_wrong_token_opens_nothing(page: Page, path: str) -> None:
    """Nor does the right one in another path."""
    status, _, headers = await page.get(path)
    assert status in (401, 403)
    assert "Set-Cookie" not in headers
    assert (await page.get("/", Cookie=f"pvbus-{page.server.port}={TOKEN}"))[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:1"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost.evil.example:80"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost:8080"}, 403),
        ({"Host": "localhost", "Origin": "http://evil.example"}, 403),
        ({"Host": "localhost", "Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)
async def test_host_and_origin(page: Page, headers: dict[str, str], status: int) -> None:
    """A foreign name that resolves to this machine is refused, and so is a request of another origin."""
    await page.sign_in()
    assert (await page.get("/api/fleet", **headers))[0] == status


async def test_a_named_host_is_answered(file: Path) -> None:
    """A proxy's name, which a setting gives, in any case; its page is what the address has."""
    bus = await SqliteBus.open(file)
    async with _page(bus, ("Fleet.Example",)) as page:
        assert page.server.url.startswith("http://Fleet.Example:")
        page.base = f"http://127.0.0.1:{page.server.port}"
        await page.sign_in()
        assert (await page.get("/", Host="fleet.example"))[0] == 200
        assert (await page.get("/", Host="other.example"))[0] == 403
    await bus.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_nothing_can_be_written(page: Page, method: str) -> None:
    await page.sign_in()
    for path in ("/", "/api/removals"):
        assert (await page.get(path, method))[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        *("/../server.py", "/static/page.js", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd"),
        *("//etc/passwd", "/page.js/../../gate.py", "/page.js%00", "/index.html", "/api/", "/api/fleet/x"),
    ],
)
async def test_only_the_paths_of_the_table_exist(page: Page, path: str) -> None:
    """No path reaches the file system."""
    await page.sign_in()
    status, body, _ = await page.get(path)
    assert status == 404
    assert b"import" not in body
    assert b"root:" not in body


async def test_every_answer_has_the_headers(page: Page) -> None:
    """Nothing but our own files may run, be framed, be guessed or be stored by others."""
    answers = [await page.get("/api/fleet"), await page.get("/", Host="evil.example")]
    await page.sign_in()
    answers += [await page.get(path) for path in (*FILES, "/api/fleet", "/none", "/api/explain")]
    for _, _, headers in answers:
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "private, no-cache"
    async with page.client.get(f"{page.base}/api/events") as events:
        assert events.headers["Content-Security-Policy"] == answers[0][2]["Content-Security-Policy"]


async def test_the_page_has_nothing_inline_and_nothing_foreign() -> None:
    """So that the policy can forbid both; and it never makes HTML of text."""
    texts = {path: gzip.decompress(packed).decode() for path, (_, packed, _) in module._read_files().items()}
    for text in texts.values():
        assert "http://" not in text
        assert "https://" not in text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert word not in texts["/page.js"]
    assert "<style" not in texts["/"]
    assert "style=" not in texts["/"]


async def test_the_first_load_is_packed_and_tagged(page: Page) -> None:
    """A browser that has the fleet gets 304, until something changes; one without gzip gets it plain."""
    await page.sign_in()
    document = await page.until_read()
    assert (len(document["variants"]), len(document["sets"])) == (120, 2)
    _, packed, headers = await page.get("/api/fleet", **{"Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(packed)) == document
    tag = headers["ETag"]
    status, body, _ = await page.get("/api/fleet", **{"If-None-Match": tag})
    assert (status, body) == (304, b"")
    page.feed.model.load("pvbus.variants", 0, "default/new", variant("default/new")[2])  # type: ignore[arg-type]
    page.feed.model.publish()
    assert (await page.get("/api/fleet", **{"If-None-Match": tag}))[0] == 200


async def test_a_page_gets_each_change(page: Page, file: Path) -> None:
    """What is written to the bus arrives as the rows that changed."""
    await page.sign_in()
    document = await page.until_read()
    async with page.events(document["version"]) as following:
        first = await following()
        assert "variants" not in first
        assert first["status"]["restored"] == 1.0
        name = document["variants"][0][0]
        await _write(file, event(VARIANT, name, "Stalled", "True", "NoMatch"))
        while "variants" not in (news := await following()):
            pass
        assert [row[0] for row in news["variants"]] == [name]
        assert news["texts"][news["variants"][0][2]] == "stalled"


async def test_a_page_that_reconnects_gets_what_it_missed_or_the_whole(page: Page, file: Path) -> None:
    """By its last version; one of another start of the server, or none, is told to load."""
    await page.sign_in()
    version = (await page.until_read())["version"]
    await _write(file, variant("default/new"))
    while (await page.fleet())["version"] == version:
        await page.feed.wait_for_change(1)
    for headers, since in (({}, version), ({"Last-Event-ID": version}, "stale-1")):
        async with page.events(since, **headers) as following:
            news = await following()
            assert [row[0] for row in news["variants"]] == ["default/new"]
    epoch = version.rpartition("-")[0]
    for since in ("", "other-1", f"{epoch}-", f"{epoch}-x", f"{epoch}-{'9' * 30}", f"{epoch}-99"):
        async with page.events(since) as following:
            assert (await following())["reload"]


async def test_a_bus_that_is_not_read_is_said(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page hears since when and why, and that it is over."""
    await page.sign_in()
    await page.until_read()
    follow = page.feed.note_health
    async with page.events() as following:
        await following()
        follow("no broker answers", 1.0)
        assert (await following())["status"]["problem"] == "no broker answers"
        while (await following())["status"]["problem"]:
            pass


async def test_a_bus_without_topics_is_waited_for(tmp_path: Path) -> None:
    """A page that starts before the services says what it waits for, and then shows the fleet."""
    bus = await SqliteBus.open(tmp_path / "bus.db")
    async with _page(bus) as page:
        await page.sign_in()
        async with page.events() as following:
            while not (status := (await following())["status"])["problem"]:
                pass
            assert "are the services running" in status["problem"]
            await _write(tmp_path / "bus.db", variant("default/a"))
            assert len((await page.until_read())["variants"]) == 1
    await bus.close()


async def test_a_record_that_nobody_can_read_is_left_out(page: Page, file: Path) -> None:
    """The others are shown."""
    await _write(file, ("pvbus.variants", "default/broken", b"{"), variant("default/whole"))
    await page.sign_in()
    names = [row[0] for row in (await page.until_read())["variants"]]
    assert "default/whole" in names
    assert "default/broken" not in names


async def test_too_many_pages_are_refused(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGES_MAX", 1)
    await page.sign_in()
    async with page.events() as following:
        await following()
        assert (await page.get("/api/events"))[0] == 503


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("kind=variant&name=default/a", 200),
        ("kind=set&name=default/a", 200),
        ("kind=variant&name=default/away", 503),
        ("kind=variant&name=default", 400),
        ("kind=variant&name=default/a/b", 400),
        ("kind=other&name=default/a", 400),
        ("name=default/a", 400),
        ("", 400),
    ],
)
async def test_explain(page: Page, query: str, status: int) -> None:
    """One variant or set at a time; a bus that does not answer is said."""
    await page.sign_in()
    assert (await page.get(f"/api/explain?{query}"))[0] == status


async def test_held_removals_have_their_commands(page: Page) -> None:
    """The commands have the options of this installation."""
    await page.sign_in()
    await page.until_read()
    (held,) = json.loads((await page.get("/api/removals"))[1])["held"]
    assert held["count"] == len(held["variants"]) == 2
    assert held["show"] == "pvbus confirm default/web --show --data d --bus b"
    assert held["confirm"] == "pvbus confirm default/web --data d --bus b"
    assert held["annotate"].startswith("kubectl annotate packagevariantset -n default web pvbus.dev/confirm")


async def test_commands_for_the_api_server_have_no_option_of_the_bus(page: Page) -> None:
    """The page adds these to commands of rollouts and tasks, and judges due times by the server's clock."""
    await page.sign_in()
    await page.until_read()
    async with page.events() as following:
        status = (await following())["status"]
    assert status["hints"] == " --data d"
    assert abs(status["now"] - time.time()) < 60


async def test_a_task_is_sent_within_the_answer_that_has_the_rest(page: Page, file: Path) -> None:
    """A page that is open hears of a question, and of its answer; one that loads has it, too."""
    await page.sign_in()
    version = (await page.until_read())["version"]
    asked = task("default/a", "draft", "Licensed", "Is it?")
    async with page.events(version) as following:
        await following()
        await _write(file, asked)
        while not (message := await following()).get("tasks"):
            pass
        assert [each[0] for each in message["tasks"]] == ["default/draft|Licensed"]
        assert [each[0] for each in (await page.fleet())["tasks"]] == ["default/draft|Licensed"]
        await _write(file, task("default/a", "draft", "Licensed", "Is it?", state="answered", status="True"))
        while not (message := await following()).get("tasksGone"):
            pass
    assert message["tasksGone"] == ["default/draft|Licensed"]
    assert (await page.fleet())["tasks"] == []


async def test_a_program_lists_the_fleet_with_the_token(page: Page) -> None:
    """Pages follow each other by their tokens, and have what the model has; nothing else takes the token."""
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert (await page.get("/api/v1/variants", **bearer))[0] == 503  # the bus is being read
    assert (await page.get("/api/fleet", **bearer))[0] == 401
    assert (await page.get("/api/v1/variants", Authorization="Bearer another"))[0] == 401
    await page.sign_in()
    await page.until_read()
    names, path = [], "/api/v1/variants?limit=50&sortBy=state"
    token = ""
    for _ in range(4):
        status, body, _ = await page.get(f"{path}{f'&continue={token}' if token else ''}", **bearer)
        answer = json.loads(body)
        assert (status, answer["stale"]) == (200, "")
        names += [item["name"] for item in answer["items"]]
        if not (token := answer["continue"].replace("=", "%3D")):
            break
    assert len(set(names)) == len(names) == 120


@pytest.mark.parametrize("kind", ["variants", "targets", "conflicts", "removals"])
async def test_answers_are_as_the_openapi_document_says(file: Path, page: Page, kind: str) -> None:
    """Each answer has the fields, types and states that programs are promised; bad queries are explained."""
    await _write(file, *in_conflict("default/web-edge-asia-asia-00002", [conflict("spec.replicas", 1, 2)]))
    await page.sign_in()
    await page.until_read()
    document = json.loads((Path(__file__).parents[3] / "schemas/openapi/fleet.json").read_text())
    operation = document["paths"][f"/api/v1/{kind}"]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    for query in ("", "?labelSelector=region%3Dasia&state=ready,removing", "?countBy=region,state"):
        status, body, _ = await page.get(f"/api/v1/{kind}{query}")
        assert (status, list(validator.iter_errors(json.loads(body)))) == (200, [])
    assert json.loads((await page.get(f"/api/v1/{kind}"))[1])["items"]
    for query in ("?state=reddy", "?labelSelector=a+in", "?limit=x", "?limit=0", "?continue=x", "?watch=1"):
        status, body, _ = await page.get(f"/api/v1/{kind}{query}")
        assert (status, [*json.loads(body)]) == (400, ["error"])
    assert (await page.get("/api/v1/others"))[0] == 400


async def test_equal_conflicts_are_one_row_with_its_commands(file: Path, page: Page) -> None:
    """The inbox has a row for each group, the largest first, and the commands that settle it."""
    names = [f"default/web-edge-asia-asia-{n:05}" for n in (2, 6)]
    same, other = conflict("spec.replicas", 1, 2), conflict("spec.paused", True, False)
    await _write(file, *in_conflict(names[0], [same, other]), *in_conflict(names[1], [same]))
    await page.sign_in()
    assert (await page.until_read())["conflicts"][0] == 2
    groups = json.loads((await page.get("/api/conflicts"))[1])["groups"]
    assert [(group["count"], group["values"]) for group in groups] == [
        (2, {"local": 1, "upstream": 2}),
        (1, {"local": True, "upstream": False}),
    ]
    assert groups[0]["variants"] == names
    assert groups[0]["commands"][0].startswith("pvbus conflicts take local ")
