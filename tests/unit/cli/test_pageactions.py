"""What people do on the page: as their own users, once, and as they saw it; and what is refused to whom."""

import asyncio
import copy
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.cli.main import run
from pvbus.cli.pageactions import Action, AnyAction
from pvbus.cli.pageusers import PageUsers
from pvbus.core.errors import PermanentError, RejectedError
from pvbus.core.kernel.keys import CONFIRM_DELETION, OVERRIDE_QUARANTINE
from pvbus.core.kernel.records import SETRESULTS, SetResult
from pvbus.core.variants.revisions.signatures import signed_digest
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.web.feed import Feed
from pvbus.runtime.web.gate import write_problem
from pvbus.runtime.web.server import Address, Hints, PageServer
from pvbus.runtime.web.sessions import IDLE_SECONDS_MAX, SESSION_HEADER, Sessions
from tests.tools.bustables import PARTITIONS, write_tables
from tests.unit.cli import test_confirm, test_proposals, test_rollout_orders, test_task

LINK = "a-token-of-the-test-0123456789"
ANN, BOB, GONE = "token-of-ann-1234", "token-of-bob-1234", "token-of-nobody-1"
HINTS = Hints(" --data d --bus b", " --data d")
REVIEW = Resource("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False)
SET, VARIANT = (Kind("config.porch.kpt.dev", f"PackageVariant{end}") for end in ("Set", ""))
REVISION = Kind("porch.kpt.dev", "PackageRevision")
POLICY = Kind("promotion.pvbus.dev", "RolloutPolicy")
STOP, QUARANTINE = (Kind("promotion.pvbus.dev", kind) for kind in ("RolloutStop", "Quarantine"))
HELD_BY_WEB = (SETRESULTS, "default/web", SetResult(uid="set", generation=1, hold=test_confirm.HOLD))
DRAFT = "default/edge.a.packagevariant-1"


EXAMPLES = {
    "kind": "variant",
    "name": "default/a",
    "move": "propose",
    "revision": "default/r",
    "type": "T",
    "status": "True",
    "group": "g",
    "side": "local",
    "field": "f",
    "resolution": "ab",
    "order": "pause",
    "entry": "1",
}


class Account(test_task.Store):
    """The API server as one user: ann may do everything, bob may only read, others are unknown."""

    token = ""

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        if self.token not in (ANN, BOB):
            raise RejectedError("GET /apis: 401 Unauthorized: Unauthorized")
        return await super().resource(kind, version=version)

    async def create(self, resource: Resource, obj: Object, **more: Any) -> Object:
        if resource != REVIEW:
            return await super().create(resource, obj, **more)
        return {"status": {"userInfo": {"username": "ann" if self.token == ANN else "bob"}}}

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        if obj["metadata"]["name"] == "edge.web.v1":
            return await super().update(resource, obj, subresource=subresource)
        return await MemoryCluster.update(self, resource, obj, subresource=subresource)

    def named(self, agent: str) -> "Account":
        return self

    async def close(self) -> None:
        self.token = ""

    def refuse(self, verb: str, obj: Object) -> None:
        if self.token != ANN:
            name = obj["metadata"]["name"]
            text = f'x "{name}" is forbidden: User "bob" cannot {verb}'
            raise PermanentError(f"PATCH /apis/x: 403 Forbidden: {text}", reason="Forbidden")


def objects() -> list[Object]:
    found = test_proposals.objects()
    for obj in found:
        obj["metadata"].setdefault("uid", obj["metadata"]["name"])
        if obj["kind"] == VARIANT.kind:
            obj["spec"] = {"downstream": {"repo": "edge", "package": obj["metadata"]["name"]}}
    policy = {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "RolloutPolicy",
        "metadata": {"name": "web", "namespace": "default", "uid": "p"},
        "spec": {"revisions": {"all": True}, "approval": "Always", "waves": test_rollout_orders.WAVES},
        "status": {"phase": "Rolling", "attempt": 3, "wave": 1, "targets": test_rollout_orders.COUNTS},
    }
    stop = {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": STOP.kind,
        "metadata": {"name": "fleet", "namespace": "default", "uid": "s"},
        "spec": {"entries": [{"name": "1", "reason": "payments", "by": "eve"}, {"name": "2", "reason": "z"}]},
    }
    return [*found, policy, stop, test_task.asking(test_task.revision())]


class Page:
    """A page with an API server; `do` looks, and does what it saw."""

    def __init__(self, server: PageServer, cluster: Account, client: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.client = client
        self.base = server.url.partition("/?")[0]
        self.session = ""

    async def send(
        self, path: str, body: Any = None, method: str = "POST", **headers: str | None
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Origin": self.base, "Content-Type": "application/json", SESSION_HEADER: self.session}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[misc]
        sending = {name: value for name, value in given.items() if value is not None}
        async with self.client.request(method, self.base + path, data=data, headers=sending) as answer:
            text = await answer.text()
            assert "token-of" not in text, "no answer repeats a token"
            return answer.status, json.loads(text) if text.startswith("{") else text

    async def sign_in(self, token: str) -> tuple[int, Any]:
        status, answer = await self.send("/api/session", {"token": token})
        if status == 200:
            self.session = answer["session"]
        return status, answer

    async def do(self, request: dict[str, Any], **more: Any) -> Any:
        status, look = await self.send("/api/look", request)
        assert status == 200, look
        if "question" not in look:
            return look
        status, done = await self.send("/api/act", {**request, "seen": look["seen"], **more})
        assert status == 200, done
        return done

    def peek(self, kind: Kind, name: str) -> Any:
        return self.cluster.peek(kind, "default", name)

    def annotations(self, kind: Kind, name: str) -> dict[str, str]:
        found: dict[str, str] = self.peek(kind, name)["metadata"].get("annotations") or {}
        return found


@pytest.fixture
async def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Page]:
    async with serving(tmp_path, monkeypatch) as found:
        yield found


@asynccontextmanager
async def serving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool = True
) -> AsyncIterator[Page]:
    cluster = Account(objects(), now=lambda: "2026-01-01T00:00:00Z")
    stops = Resource(STOP.group, "v1alpha1", STOP.kind, "rolloutstops", namespaced=True)
    for resource in (REVIEW, test_rollout_orders.POLICIES, stops):
        cluster.serve(resource)

    async def connect(token: str, kubeconfig: Path, context: str | None) -> Account:
        account = copy.copy(cluster)
        account.token = token
        account.before_write = account.refuse
        return account

    monkeypatch.setattr(HttpCluster, "connect_as", connect)
    rows = [HELD_BY_WEB, *test_confirm.HELD[1:]]
    await asyncio.to_thread(write_tables, folder / "bus.db", rows)
    bus = await SqliteBus.open(folder / "bus.db")
    feed = Feed(bus, PARTITIONS)
    users = PageUsers(folder / "kubeconfig", None, bus, feed, HINTS)
    sign_in = users.sign_in if is_open else None
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        PageServer(feed, None, LINK, Address(), HINTS, sign_in) as server,  # type: ignore[arg-type]
        aiohttp.ClientSession(cookie_jar=jar) as client,
    ):
        found = Page(server, cluster, client)
        async with client.get(server.url) as answer:
            assert answer.status == 200
        yield found
    await bus.close()


# request, what is typed besides, the words of the result, the command
ACTIONS: list[tuple[dict[str, Any], dict[str, str], str, str]] = [
    (
        {"action": "hold", "kind": "variant", "name": "default/a"},
        {"reason": "fair; rm -rf /"},
        "is on hold (fair; rm -rf /)",
        "pvbus hold default/a --reason 'fair; rm -rf /' --data d",
    ),
    (
        {"action": "unhold", "kind": "set", "name": "default/web"},
        {},
        "was not on hold",
        "pvbus unhold --set default/web --data d",
    ),
    (
        {"action": "retry", "kind": "set", "name": "default/web", "failing": False},
        {},
        "asked for another try of 3 variants",
        "pvbus retry --set default/web --data d",
    ),
    (
        {"action": "move", "move": "propose", "kind": "variant", "name": "default/a"},
        {},
        "proposed 1 of 1 drafts of default/a",
        "pvbus propose pv/default/a --data d",
    ),
    (
        {
            "action": "move",
            "move": "propose",
            "kind": "set",
            "name": "default/web",
            "selector": "region=europe",
        },
        {},
        "proposed 1 of 1 drafts of default/web",
        "pvbus propose --set default/web -l region=europe --data d",
    ),
    (
        {"action": "answer", "revision": "default/edge.web.v1", "type": "Certified", "status": "True"},
        {"message": "yes"},
        "Certified is True (by bob at",  # who it was is the store's to record
        "pvbus task answer default/edge.web.v1 Certified --status True --message yes --data d",
    ),
    (
        {"action": "confirm", "name": "default/web"},
        {"typed": "30"},
        "30 deletions confirmed",
        "pvbus confirm default/web --data d --bus b",
    ),
    (
        {"action": "rollout", "name": "default/web", "order": "abort"},
        {},
        "attempt 3 is aborted",
        "pvbus rollout abort default/web --data d",
    ),
    (
        {"action": "rollout", "name": "default/web", "order": "promote"},
        {"reason": "the fix is urgent"},
        "attempt 3 approves the rest at once, in denied times, too: the fix is urgent",
        "pvbus rollout promote default/web --reason 'the fix is urgent' --data d",
    ),
    (
        {"action": "rollout", "name": "default/web", "order": "promote"},
        {},
        "attempt 3 approves the rest at once, but not in denied times",
        "pvbus rollout promote default/web --data d",
    ),
    (
        {"action": "lift", "name": "default/fleet", "entry": "1"},
        {"reason": "they are back"},
        "lifted; rollouts stay stopped by somebody: z",
        "pvbus rollout lift default/fleet 1 --reason 'they are back' --data d",
    ),
]


@pytest.mark.parametrize(("request_", "more", "words", "command"), ACTIONS, ids=lambda each: str(each)[:40])
async def test_each_action_is_done_for_who_may_and_says_its_command(
    page: Page, request_: dict[str, Any], more: dict[str, str], words: str, command: str
) -> None:
    """The question writes nothing; the answer writes; the command is the one that a shell takes."""
    await page.sign_in(ANN)
    before = len(page.cluster.writes)
    status, look = await page.send("/api/look", request_)
    assert (status, len(page.cluster.writes)) == (200, before)
    assert look["question"].endswith(("?", "."))
    done = await page.do(request_, **more)
    assert words in " ".join(done["lines"])
    assert (done["ok"], done["command"]) == (True, command)


@pytest.mark.parametrize(("request_", "more", "words", "command"), ACTIONS, ids=lambda each: str(each)[:40])
async def test_who_may_not_is_refused_by_the_api_server_in_words(
    page: Page, request_: dict[str, Any], more: dict[str, str], words: str, command: str
) -> None:
    await page.sign_in(BOB)
    done = await page.do(request_, **more)
    if request_["action"] == "unhold":
        return  # it had nothing to write
    assert not done["ok"], done
    assert "forbidden" in " ".join(done["lines"])
    assert page.cluster.writes == []


async def test_what_is_confirmed_is_what_was_seen(page: Page) -> None:
    """A draft that is proposed meanwhile, another number, another question: nothing is done."""
    await page.sign_in(ANN)
    held = {"action": "confirm", "name": "default/web"}
    status, refused = await page.send("/api/act", {**held, "seen": "c0ffee12", "typed": "29"})
    assert (status, refused["ok"]) == (200, False)
    assert "type the number 30" in refused["lines"][0]
    for stale in ("", "c0ffee13"):
        status, refused = await page.send("/api/act", {**held, "seen": stale, "typed": "30"})
        assert "changed meanwhile" in refused["lines"][0]
    move = {"action": "move", "move": "propose", "kind": "set", "name": "default/web"}
    _, look = await page.send("/api/look", move)
    assert look["question"] == "Propose 2 drafts of default/web (1 more are refused)?"
    assert "default/b: refused: 1 conflict" in look["lines"][0]
    await page.do({**move, "selector": "region=europe"})
    _, refused = await page.send("/api/act", {**move, "seen": look["seen"]})
    assert "changed meanwhile" in refused["lines"][0]
    assert page.peek(REVISION, "edge.a.packagevariant-1")["spec"]["lifecycle"] == "Draft"
    assert CONFIRM_DELETION not in page.annotations(SET, "web")


async def test_an_answer_is_of_the_files_that_the_page_has_shown(page: Page) -> None:
    await page.sign_in(ANN)
    page.cluster.put(test_task.files("size: 2"))
    answer = {"action": "answer", "revision": "default/edge.web.v1", "type": "Certified", "status": "True"}
    shown, stored = (signed_digest({"app.yaml": f"size: {size}"}) for size in (1, 2))
    status, refused = await page.send("/api/look", {**answer, "content": shown})
    assert (status, refused["ok"]) == (200, False)
    assert f"their content is {stored}, and no longer {shown}" in refused["lines"][0]
    _, look = await page.send("/api/look", {**answer, "content": stored})
    page.cluster.put(test_task.files("size: 1"))
    _, refused = await page.send("/api/act", {**answer, "content": stored, "seen": look["seen"]})
    assert f"their content is {shown}, and no longer {stored}" in refused["lines"][0]
    assert page.cluster.writes == []
    assert (await page.do({**answer, "content": shown}))["ok"]


async def test_what_a_stop_keeps_goes_out_with_a_reason_alone(page: Page) -> None:
    """The question says what keeps it; the revision has who passed that, and why; nothing else passes."""
    await page.sign_in(ANN)
    await page.do({"action": "move", "move": "propose", "kind": "variant", "name": "default/a"})
    approve = {"action": "move", "move": "approve", "kind": "variant", "name": "default/a"}
    refusal = await page.do(approve)
    assert "all rollouts are stopped: eve: payments" in refusal["lines"][0]
    _, refused = await page.send("/api/look", {**approve, "override": "a fix"})
    assert "a reason is for what a quarantine or a stop keeps" in refused["lines"][0]
    request = {**approve, "overrides": True}
    _, look = await page.send("/api/look", request)
    assert "all rollouts are stopped: eve: payments" in look["lines"][0]
    assert look["command"] == "pvbus approve pv/default/a --override REASON --data d"
    done = await page.do(request)
    assert "say why it goes out all the same" in done["lines"][0]
    assert page.peek(REVISION, "edge.a.packagevariant-1")["spec"]["lifecycle"] == "Proposed"
    done = await page.do(request, override="a fix")
    assert done["command"] == "pvbus approve pv/default/a --override 'a fix' --data d"
    revision = page.peek(REVISION, "edge.a.packagevariant-1")
    assert revision["spec"]["lifecycle"] == "Published"
    assert "ann at 20" in revision["metadata"]["annotations"][OVERRIDE_QUARANTINE]
    assert ": a fix (in spite of FleetStopped" in revision["metadata"]["annotations"][OVERRIDE_QUARANTINE]


async def test_what_a_quarantine_keeps_goes_out_with_a_reason_alone(page: Page) -> None:
    """It is neither proposed nor approved without; the revision has who passed it, and why."""
    page.cluster.remove(STOP, "default", "fleet")
    page.cluster.serve(
        Resource(QUARANTINE.group, "v1alpha1", QUARANTINE.kind, "quarantines", namespaced=True)
    )
    upstream = {"repo": "blueprints", "package": "web", "revision": 6}
    found = page.peek(VARIANT, "a")
    page.cluster.put({**found, "spec": {**found["spec"], "upstream": upstream}})
    found = page.peek(REVISION, "edge.a.packagevariant-1")
    lock = {"git": {"directory": "web", "ref": "web/v6"}}
    page.cluster.put({**found, "status": {"upstreamLock": lock}})
    spec = {"upstreams": [{"revision": "blueprints/web@v6"}]}
    meta = {"name": "web-v6", "namespace": "default"}
    page.cluster.put(
        {
            "apiVersion": f"{QUARANTINE.group}/v1alpha1",
            "kind": QUARANTINE.kind,
            "metadata": meta,
            "spec": spec,
        }
    )
    await page.sign_in(ANN)
    for move, before, after in (("propose", "Draft", "Proposed"), ("approve", "Proposed", "Published")):
        request = {"action": "move", "move": move, "kind": "variant", "name": "default/a"}
        assert "web-v6" in (await page.do(request))["lines"][0]
        await page.do({**request, "overrides": True}, override=" ")
        assert page.peek(REVISION, "edge.a.packagevariant-1")["spec"]["lifecycle"] == before
        await page.do({**request, "overrides": True}, override=f"to {move}")
        revision = page.peek(REVISION, "edge.a.packagevariant-1")
        assert revision["spec"]["lifecycle"] == after
        noted = revision["metadata"]["annotations"][OVERRIDE_QUARANTINE]
        assert re.match(rf"ann at 20\S+: to {move} \(in spite of Quarantined: ", noted), noted


async def test_a_lift_is_of_the_entry_that_was_seen(page: Page) -> None:
    """Without a reason nothing is done, and what is lifted already needs nothing."""
    await page.sign_in(ANN)
    lift = {"action": "lift", "name": "default/fleet", "entry": "2"}
    assert "say why the stop ends" in (await page.do(lift, reason=" "))["lines"][0]
    assert (await page.do(lift, reason="over"))["ok"]
    entries = page.peek(STOP, "fleet")["spec"]["entries"]
    assert [(each["name"], each.get("lifted", {}).get("by")) for each in entries] == [
        ("1", None),
        ("2", "ann"),
    ]
    assert "has no entry 2 any more" in (await page.do(lift))["lines"][0]


async def test_nothing_to_do_is_said_at_once(page: Page) -> None:
    await page.sign_in(ANN)
    look = await page.do({"action": "move", "move": "approve", "kind": "variant", "name": "default/a"})
    assert look["lines"][0].startswith("1 draft not proposed: pvbus propose pv/default/a")


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        ("/api/act", {SESSION_HEADER: None}, 401, "not signed in"),
        ("/api/act", {SESSION_HEADER: "x" * 43}, 401, "not signed in"),
        ("/api/look", {SESSION_HEADER: ANN}, 401, "not signed in"),  # the token is no session
        ("/api/act", {"Origin": None}, 403, "must name its origin"),
        ("/api/act", {"Origin": "http://evil.example"}, 403, "other origins"),
        ("/api/act", {"Origin": "http://127.0.0.1:1"}, 403, "other origins"),
        ("/api/act", {"Origin": "null"}, 403, "other origins"),
        ("/api/act", {"Sec_Fetch_Site": "same-site"}, 403, "other sites"),
        ("/api/act", {"Content_Type": "text/plain"}, 403, "must be JSON"),
        ("/api/act", {"Content_Type": None}, 403, "must be JSON"),
        ("/api/session", {"Origin": None}, 403, "must name its origin"),
        ("/api/session", {"Content_Type": "application/x-www-form-urlencoded"}, 403, "must be JSON"),
    ],
)
async def test_forged_requests_do_nothing(
    page: Page, path: str, headers: dict[str, str], status: int, words: str
) -> None:
    """Without the session's header, from another origin, or as a form: refused before it is read."""
    await page.sign_in(ANN)
    body = {"action": "hold", "kind": "variant", "name": "default/a"}
    if headers.get("Content_Type", "") is None:
        headers = {**headers, "Content_Type": ""}
    found, answer = await page.send(path, {"token": ANN} if path == "/api/session" else body, **headers)
    assert (found, words in str(answer)) == (status, True), answer
    assert page.cluster.writes == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"\xff\xfe", 400),
        (b"[" * 60_000, 400),
        (b'{"action":"hold"}', 400),
        (b'{"action":"delete","kind":"set","name":"default/web"}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/a","force":true}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/a/b"}', 400),
        (b'{"action":"hold","kind":"variant","name":"../../secrets/x"}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/a\\n"}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/<img src=x>"}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/a","reason":"' + b"x" * 501 + b'"}', 400),
        (b'{"action":"hold","kind":"variant","name":"default/a","reason":"' + b"x" * 70_000 + b'"}', 413),
        (b'{"action":"move","move":"publish","kind":"variant","name":"default/a"}', 400),
        (b'{"action":"undo","resolution":"$(reboot)"}', 400),
    ],
)
async def test_what_is_no_action_is_refused(page: Page, body: bytes, status: int) -> None:
    """Hostile names, unknown fields and enormous bodies reach neither the API server nor a command."""
    await page.sign_in(ANN)
    for path in ("/api/look", "/api/act"):
        assert (await page.send(path, body))[0] == status
    assert page.cluster.writes == []


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        (GONE, 403, "does not know this token"),
        ("", 403, "no token"),
        ("a b", 403, "no token"),
        ("token-1234\r\nImpersonate-User: root", 403, "no token"),
        ("t" * 20_000, 403, "no token"),
        ("t" * 70_000, 413, ""),
        ("t\u00fcken-1234", 403, "no token"),
    ],
)
async def test_a_token_that_nobody_has_signs_nobody_in(
    page: Page, token: str, status: int, words: str
) -> None:
    found, answer = await page.send("/api/session", {"token": token})
    assert (found, words in str(answer)) == (status, True)


async def test_a_session_alone_shows_and_does_nothing(page: Page) -> None:
    """Who acts has the page's own token, too."""
    await page.sign_in(ANN)
    page.client.cookie_jar.clear()
    for path in ("/api/session", "/api/act"):
        assert (await page.send(path, {"token": ANN}))[0] == 401


async def test_a_session_ends(page: Page) -> None:
    """At sign-out, and when the API server does not take its token any more; one person is not another."""
    await page.sign_in(ANN)
    ann = page.session
    await page.sign_in(BOB)
    assert (await page.send("/api/session", b"", "GET"))[1]["user"] == "bob"
    page.session = ann
    assert (await page.send("/api/session", b"", "GET"))[1]["user"] == "ann"
    await page.send("/api/session", b"", "DELETE")
    assert (await page.send("/api/session", b"", "GET"))[1]["user"] == ""
    hold = {"action": "hold", "kind": "variant", "name": "default/a"}
    assert (await page.send("/api/act", hold))[0] == 401
    assert page.cluster.writes == []


async def test_an_hour_without_an_action_ends_a_session() -> None:
    """And the token with it."""
    now, closed = [0.0], []

    class Person:
        name = "ann"

        async def act(self, body: bytes, *, is_question: bool) -> dict[str, Any]:
            return {}

        async def detail(self, name: str) -> dict[str, Any]:
            return {}

        async def history(self, kind: str, name: str) -> dict[str, Any]:
            return {}

        async def list_settled(self) -> dict[str, Any]:
            return {}

        async def close(self) -> None:
            closed.append(self.name)

    async def sign_in(token: str) -> Person:
        return Person()

    sessions = Sessions(sign_in, lambda: now[0])
    first, _ = await sessions.begin(ANN)
    now[0] = IDLE_SECONDS_MAX
    await sessions.run(first, lambda user: user.detail(""))
    now[0] = 2 * IDLE_SECONDS_MAX
    assert sessions.name_of(first) == "ann"
    now[0] += 1
    assert sessions.name_of(first) == ""
    await sessions.begin(ANN)
    assert closed == ["ann"]


async def test_a_page_that_only_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It signs nobody in, and says how one can act."""
    async with serving(tmp_path, monkeypatch, is_open=False) as page:
        assert (await page.send("/api/session", b"", "GET"))[1]["open"] is False
        for path in ("/api/session", "/api/look", "/api/act"):
            status, answer = await page.send(path, {"token": ANN})
            assert (status, "PVBUS_WEB_MODE" in answer["error"]) == (403, True)


@pytest.mark.parametrize(
    ("origin", "is_fine"),
    [
        ("http://localhost:1", True),
        ("http://127.0.0.1", True),
        ("http://[::1]:80", True),
        ("https://fleet.example", True),
        ("http://fleet.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_a_token_does_not_travel_without_tls(origin: str, is_fine: bool) -> None:
    """Over plain HTTP only on this machine."""
    problem = write_problem({"Origin": origin, "Content-Type": "application/json"})
    assert (problem == "") is is_fine


def test_every_action_is_a_command_of_pvbus(capsys: pytest.CaptureFixture[str]) -> None:
    """Its words begin with those of a command, and the command has its options."""
    for each in AnyAction.__args__:
        fields = {
            field.name: EXAMPLES[field.name] for field in msgspec.structs.fields(each) if field.required
        }
        action: Action = each(**fields)
        words = action.words()
        assert run([*words[: 2 if words[0] in ("task", "conflicts", "rollout") else 1], "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(word in shown for word in words if word.startswith("-"))


async def test_details_are_read_as_the_person_who_asks(page: Page) -> None:
    """Nobody without a session; what cannot be compared is said in words."""
    path = "/api/detail?name=default/a"
    assert (await page.send(path, b"", "GET"))[0] == 401
    await page.sign_in(BOB)
    status, found = await page.send(path, b"", "GET")
    assert (status, [each["name"] for each in found["revisions"]]) == (200, ["edge.a.packagevariant-1"])
    assert (found["events"], found["published"]) == ({"rows": []}, {"files": []})
    assert "none recorded" in found["upstream"]["error"]
    status, answer = await page.send("/api/detail?name=default/none", b"", "GET")
    assert (status, "there is no PackageVariant default/none" in answer["error"]) == (400, True)
