"""The example that has a ticket for each task, between the sink's events and a stub of a tracker."""

import json
import re
import runpy
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.cli.command import REPOSITORY

PROGRAM = REPOSITORY / "examples" / "tickets" / "tickets.py"
EXAMPLE = REPOSITORY / "schemas" / "examples" / "v1" / "ConditionEvent-task.json"
TOKEN = "the sink's"


class Tracker:
    """A tracker with GitHub's API of issues. fails: whether it answers 502."""

    def __init__(self) -> None:
        self.issues: list[dict[str, Any]] = []
        self.comments: list[str] = []
        self.writes = 0
        self.fails = False

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if self.fails:
            return 502, {}
        parts = urlsplit(path)
        if method == "GET":
            (label,) = parse_qs(parts.query)["labels"]
            return 200, [issue for issue in self.issues if label in issue["labels"]]
        self.writes += 1
        if parts.path == "/issues":
            self.issues.append({"number": len(self.issues) + 1, "state": "open", **body})
            return 201, self.issues[-1]
        number = re.match(r"/issues/(\d+)", parts.path)
        assert number is not None
        issue = self.issues[int(number[1]) - 1]
        if parts.path.endswith("/comments"):
            self.comments.append(body["body"])
        else:
            issue.update(body)
        return 200, issue


@contextmanager
def serving(server: ThreadingHTTPServer) -> Iterator[str]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Desk:
    """The receiver and its tracker."""

    def __init__(self, tracker: Tracker, url: str) -> None:
        self.tracker, self.url = tracker, url

    def send(self, event: dict[str, Any] | bytes, *, token: str = TOKEN) -> int:
        data = event if isinstance(event, bytes) else json.dumps(event).encode()
        headers = {"ce-type": "dev.pvbus.condition.changed.v1", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(self.url, data, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code


@pytest.fixture
def desk() -> Iterator[Desk]:
    tracker = Tracker()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = tracker.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    for method in ("GET", "POST", "PATCH"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    example = runpy.run_path(str(PROGRAM))
    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as there:
        receiver = example["server"]("127.0.0.1:0", example["Tracker"](there, ""), TOKEN)
        with serving(receiver) as url:
            yield Desk(tracker, url)


def event(second: int, state: str | None, **task: Any) -> dict[str, Any]:
    """Return an event of a task, None for the last one of its condition."""
    made: dict[str, Any] = json.loads(EXAMPLE.read_text())
    made.pop("last")
    made["time"] = f"2026-02-03T04:05:{second:02}.000Z"
    made["task"] = {**made["task"], "ticket": "", "state": state, **task}
    if state != "answered":
        made["condition"] |= {"status": "Unknown", "message": "Is the site licensed?"}
        del made["task"]["answeredBy"], made["task"]["answeredAt"]
    if state is None:
        made["condition"]["message"] = "the package revision was deleted"
        made["last"] = True
        del made["task"]
    return made


def test_a_ticket_is_opened_followed_and_closed(desk: Desk) -> None:
    assert desk.send(event(1, "open")) == 204
    (issue,) = desk.tracker.issues
    assert issue["title"] == "Certified: default/edge.web.packagevariant-2"
    for words in ("Is the site licensed?", "Owner: ann", "Due: 2026-03-01", "pvbus task answer default/edge"):
        assert words in issue["body"]
    assert desk.send(event(2, "open", owner="bob")) == 204
    assert "Owner: bob" in issue["body"]
    assert desk.send(event(3, "proposed")) == 204
    assert "reject it" in issue["body"]
    assert (issue["state"], desk.tracker.comments) == ("open", [])
    assert desk.send(event(4, "answered")) == 204
    assert (issue["state"], desk.tracker.comments) == ("closed", ["carol answered True: until 2030"])
    assert desk.send(event(5, "open", question="Still?")) == 204
    assert (issue["state"], len(desk.tracker.issues)) == ("open", 1)
    assert desk.send(event(6, None)) == 204
    assert (issue["state"], desk.tracker.comments[1:]) == ("closed", ["the package revision was deleted"])


def test_events_that_come_again_change_nothing(desk: Desk) -> None:
    events = [event(1, "open"), event(2, "proposed"), event(3, "answered")]
    for each in events:
        desk.send(each)
    before = (desk.tracker.writes, json.dumps(desk.tracker.issues))
    for each in events:
        assert desk.send(each) == 204
    assert (desk.tracker.writes, json.dumps(desk.tracker.issues)) == before


def test_each_condition_of_each_object_has_its_own_ticket(desk: Desk) -> None:
    other_type, recreated = event(1, "open"), event(1, "open")
    other_type["condition"]["type"] = "Licensed"
    recreated["uid"] = "another"
    for each in (event(1, "open"), other_type, recreated):
        desk.send(each)
    assert len(desk.tracker.issues) == 3


def test_what_has_a_ticket_or_is_no_task_gets_none(desk: Desk) -> None:
    ready = event(1, None)
    ready["kind"] = "PackageVariant"
    for each in (event(1, "open", ticket="NET-42"), event(2, "lapsed"), event(3, None), ready):
        assert desk.send(each) == 204
    assert desk.tracker.issues == []


def test_the_sink_hears_what_it_should_do(desk: Desk) -> None:
    """503 is tried again, 401 waits for the right token, 400 is a dead letter."""
    assert desk.send(event(1, "open"), token="of somebody") == 401
    assert desk.send(b"{") == 400
    assert desk.send({"kind": "PackageRevision"}) == 400
    desk.tracker.fails = True
    assert desk.send(event(1, "open")) == 503
    desk.tracker.fails = False
    assert desk.send(event(1, "open")) == 204
    assert len(desk.tracker.issues) == 1
