"""Calls of the API, and the two servers that they are sent to.

A call may name what only a server knows, as `<uid:gadgets/a>`, `<rv:gadgets/a>`, `<rv:gadgets>` (of the last
list), `<continue:gadgets>` and `<made:0>` (the first generated name). Each server fills in its own.
"""

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

ANSWER_SECONDS_MAX = 20.0
WATCH_SECONDS_MAX = 10.0
_SYMBOL = re.compile(r"<(uid|rv|continue|made):([^>]*)>")
_NO_UID = "00000000-0000-4000-8000-000000000000"

Json = Any


class Call(NamedTuple):
    """One request. path: with `{ns}` for the round's namespace. body: JSON, a text, or None.

    until: for a watch, the name of the object whose event ends it.
    """

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Json = None
    media: str = "application/json"
    agent: str = "tester/1.0"
    until: str = ""

    @property
    def plural(self) -> str:
        parts = self.path.split("/")
        at = parts.index("{ns}") + 1 if "{ns}" in parts else (3 if parts[1] == "api" else 4)
        return parts[at] if len(parts) > at else "namespaces"

    def shown(self) -> str:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        asked = "&".join(f"{name}={value}" for name, value in self.query)
        media = f" [{self.media}]" if self.method == "PATCH" else ""
        return f"{self.method} {self.path}{'?' if asked else ''}{asked}{media} {text if self.body else ''}"


class Answer(NamedTuple):
    """code, and the decoded body; the events of a watch are a list of them."""

    code: int
    body: Json


class Server:
    """One server, with what it has answered so far in this round."""

    def __init__(self, url: str, headers: Mapping[str, str], context: ssl.SSLContext | None) -> None:
        self._address = urlsplit(url)
        self._headers = dict(headers)
        self._context = context
        self._connection: http.client.HTTPConnection | None = None
        self.forget("")

    def forget(self, namespace: str) -> None:
        """Begin a round in a namespace."""
        self.namespace = namespace
        self.known: dict[tuple[str, str], str] = {}
        self.made: list[str] = []

    def send(self, call: Call) -> Answer:
        """Send a call, and remember what later calls may name. Raises OSError."""
        path = quote(self._filled(call.path.replace("{ns}", self.namespace)), safe="/<>")
        filled = [(name, self._filled(value).replace("{ns}", self.namespace)) for name, value in call.query]
        query = urlencode(filled)
        body = call.body
        if body is not None:
            body = self._filled(body if isinstance(body, str) else json.dumps(body))
            body = body.replace("{ns}", self.namespace).encode()
        headers = {**self._headers, "Content-Type": call.media, "User-Agent": call.agent}
        answer = self._ask(call, f"{path}?{query}" if query else path, body, headers)
        self._remember(call, answer)
        return answer

    def _ask(self, call: Call, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        for attempt in range(2):
            connection = self._connected()
            try:
                connection.request(call.method, path, body, dict(headers))
                response = connection.getresponse()
                if call.until and response.status == 200:
                    return Answer(200, self._events(response, self._filled(call.until)))
                content = response.read()
                return Answer(response.status, _decoded(content))
            except (http.client.HTTPException, ConnectionError):
                self.close()
                if attempt:
                    raise
        raise AssertionError

    def _events(self, response: http.client.HTTPResponse, until: str) -> list[Json]:
        """Read the events of a watch up to that of one object."""
        events = []
        deadline = time.monotonic() + WATCH_SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                line = response.readline()
            except TimeoutError:
                break
            if not line:
                break
            event = json.loads(line)
            if event["type"] != "BOOKMARK":
                events.append(event)
            if event["type"] == "ERROR" or event["object"]["metadata"].get("name") == until:
                break
        self.close()  # the answer has no end
        return events

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            host, port = self._address.hostname or "", self._address.port
            self._connection = (
                http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS_MAX, context=self._context)
                if self._address.scheme == "https"
                else http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS_MAX)
            )
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _filled(self, text: str) -> str:
        def known(match: re.Match[str]) -> str:
            kind, what = match.groups()
            if kind == "made":
                at = int(what)
                return self.made[at] if at < len(self.made) else "not-made"
            return self.known.get((kind, what), _NO_UID if kind == "uid" else "1")

        return _SYMBOL.sub(known, text) if "<" in text else text

    def _remember(self, call: Call, answer: Answer) -> None:
        body = answer.body
        if answer.code >= 300 or not isinstance(body, dict):
            return
        metadata = body.get("metadata") or {}
        if "items" in body:
            self.known["rv", call.plural] = metadata.get("resourceVersion", "")
            self.known["continue", call.plural] = metadata.get("continue", "")
        if not metadata.get("uid"):
            return
        name = metadata["name"].replace(self.namespace, "{ns}")
        if call.method == "POST" and metadata.get("generateName") and metadata["name"] not in self.made:
            self.made.append(metadata["name"])
        dry = ("dryRun", "All") in call.query
        if not dry:
            self.known["uid", f"{call.plural}/{name}"] = metadata["uid"]
            self.known["rv", f"{call.plural}/{name}"] = metadata["resourceVersion"]


def _decoded(content: bytes) -> Json:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


Both = Callable[[Call], tuple[Answer, Answer]]
