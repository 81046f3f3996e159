"""Opens, follows and closes a ticket for each task: a receiver of `pvbus run sink`.

    TRACKER_URL=https://api.github.com/repos/OWNER/REPO TRACKER_TOKEN=... python tickets.py 127.0.0.1:8099
    PVBUS_SINK_URL=http://127.0.0.1:8099/ PVBUS_SINK_KINDS=PackageRevision pvbus run sink --bus BUS

The tracker is one with GitHub's API of issues, as Gitea and Forgejo have it. A ticket is found by its label,
and holds the time of the last event that it shows: the program itself stores nothing, so it may be killed and
started again, and an event that comes twice changes nothing. A task that names a ticket gets none from here.
RECEIVER_TOKEN is the token that the sink sends (PVBUS_SINK_TOKEN_FILE).
"""

import hashlib
import hmac
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVENT = "dev.pvbus.condition.changed.v1"
BODY_BYTES_MAX = 1024 * 1024
WAITING = ("open", "proposed")
_SHOWN = re.compile(r"<!-- pvbus (\S+) -->")


class Tracker:
    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url.rstrip("/"), token

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def show(self, event: dict[str, Any]) -> None:
        """Make the ticket of an event's condition say what the event says."""
        task, time = event.get("task") or {}, event["time"]
        is_open = task.get("state") in WAITING
        label = label_of(event)
        found = self.call("GET", f"/issues?state=all&labels={urllib.parse.quote(label)}")
        if not found:
            if is_open and not task.get("ticket"):
                ticket = {"title": title_of(event), "body": body_of(event), "labels": [label]}
                self.call("POST", "/issues", ticket)
            return
        ticket = found[0]
        shown = _SHOWN.search(ticket.get("body") or "")
        if shown is not None and shown[1] >= time:
            return  # the ticket shows a later event: this one was sent again
        path = f"/issues/{ticket['number']}"
        if not is_open and ticket["state"] == "open":
            self.call("POST", f"{path}/comments", {"body": end_of(event)})
        state = "open" if is_open else "closed"
        body = body_of(event) if is_open else re.sub(_SHOWN, f"<!-- pvbus {time} -->", ticket["body"])
        self.call("PATCH", path, {"state": state, "body": body})


def label_of(event: dict[str, Any]) -> str:
    """Return the label of a condition: of one object, also after another one got its name."""
    names = (event["kind"], event["namespace"], event["name"], event["uid"], event["condition"]["type"])
    return f"pvbus-{hashlib.sha256('|'.join(names).encode()).hexdigest()[:20]}"


def title_of(event: dict[str, Any]) -> str:
    return f"{event['condition']['type']}: {event['namespace']}/{event['name']}"


def body_of(event: dict[str, Any]) -> str:
    task, type_ = event["task"], event["condition"]["type"]
    lines = [task.get("question") or event["condition"].get("message", ""), ""]
    lines += [f"Owner: {task['owner']}"] if task.get("owner") else []
    lines += [f"Due: {task['due']}"] if task.get("due") else []
    lines += [f"It blocks: {', '.join(task['blocks'])}"] if task.get("blocks") else []
    if task["state"] == "proposed":
        lines.append("The revision is proposed: reject it, so that the answer can be given.")
    command = f"pvbus task answer {event['namespace']}/{event['name']} {type_} --status True"
    return "\n".join([*lines, "", f"    {command}", "", f"<!-- pvbus {event['time']} -->"])


def end_of(event: dict[str, Any]) -> str:
    task, condition = event.get("task") or {}, event["condition"]
    if task.get("state") == "answered":
        said = f": {condition['message']}" if condition.get("message") else ""
        return f"{task.get('answeredBy') or 'Somebody'} answered {condition['status']}{said}"
    if task.get("state") == "lapsed":
        return "The revision was published without an answer."
    return condition.get("message") or "The task is no more."


class Receiver(BaseHTTPRequestHandler):
    tracker: Tracker
    token = ""

    def do_POST(self) -> None:
        sent = self.headers.get("Authorization", "")
        if self.token and not hmac.compare_digest(sent, f"Bearer {self.token}"):
            return self.answer(401, "the token is another one")
        size = int(self.headers.get("Content-Length") or 0)
        if size > BODY_BYTES_MAX:
            return self.answer(413, "that is no event")
        try:
            event = json.loads(self.rfile.read(size))
            if self.headers.get("ce-type") == EVENT and event["kind"] == "PackageRevision":
                self.tracker.show(event)
        except (ValueError, KeyError, TypeError) as error:
            return self.answer(400, f"not an event: {error!r}")
        except OSError as error:
            return self.answer(503, f"the tracker: {error}")  # the sink tries again
        return self.answer(204, "")

    def answer(self, status: int, words: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(words.encode())))
        self.end_headers()
        self.wfile.write(words.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing of requests: the sink does."""


def server(address: str, tracker: Tracker, token: str) -> ThreadingHTTPServer:
    host, _, port = address.rpartition(":")
    made = type("Handler", (Receiver,), {"tracker": tracker, "token": token})
    return ThreadingHTTPServer((host, int(port)), made)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: TRACKER_URL=... TRACKER_TOKEN=... {sys.argv[0]} HOST:PORT")
    there = Tracker(os.environ["TRACKER_URL"], os.environ.get("TRACKER_TOKEN", ""))
    server(sys.argv[1], there, os.environ.get("RECEIVER_TOKEN", "")).serve_forever()
