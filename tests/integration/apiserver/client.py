"""A plain HTTP client of the server under test, and the kind most tests write."""

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from pvbus.controlplane.apiserver.server import ApiServer

CORE = "/api/v1"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
ALL_WIDGETS = "/apis/example.com/v1/widgets"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_SPEC = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 0},
        "color": {"type": "string", "default": "blue", "enum": ["blue", "red"]},
        "note": {"type": "string"},
    },
}


def crd(plural: str = "widgets", kind: str = "Widget", **spec: Any) -> dict[str, Any]:
    """Return a CustomResourceDefinition of example.com with a spec, a status and one column."""
    schema = {
        "type": "object",
        "properties": {
            "spec": _SPEC,
            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind, "singular": kind.lower()},
            "versions": [version],
            **spec,
        },
    }


def widget(name: str = "", *, size: Any = 1, spec: Mapping[str, Any] | None = None, **metadata: Any) -> Any:
    named = {"name": name} if name else {}
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {**named, **metadata},
        "spec": {"size": size, **(spec or {})},
    }


def config_map(name: str, *, data: Mapping[str, str] | None = None, **metadata: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": dict(data or {}),
    }


def owner(obj: Any, *, block: bool = False) -> dict[str, Any]:
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }


class Reply(NamedTuple):
    code: int
    body: Any
    headers: Mapping[str, str]
    warnings: tuple[str, ...]


class Api:
    """One connection pool to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        accept: str = "",
        token: str | None = None,
    ) -> Reply:
        """Send a request; bytes and text go as they are, anything else as JSON."""
        headers = {"Content-Type": media} if body is not None else {}
        if accept:
            headers["Accept"] = accept
        if token is not None:
            headers["Authorization"] = token
        data: Any = body if isinstance(body, bytes | str | None) else json.dumps(body)
        if data is not None:
            data = io.BytesIO(data.encode() if isinstance(data, str) else data)
        async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
            raw = await answer.read()
            is_json = answer.content_type == "application/json"
            warnings = tuple(answer.headers.getall("Warning", []))
            return Reply(answer.status, json.loads(raw) if is_json else raw, answer.headers, warnings)

    async def get(self, path: str, **options: Any) -> Any:
        reply = await self.call("GET", path, **options)
        assert reply.code == 200, reply.body
        return reply.body

    async def create(self, path: str, body: Any) -> Any:
        reply = await self.call("POST", path, body)
        assert reply.code == 201, reply.body
        return reply.body

    async def patch(self, path: str, body: Any) -> Any:
        reply = await self.call("PATCH", path, body, media="application/merge-patch+json")
        assert reply.code == 200, reply.body
        return reply.body

    async def delete(self, path: str, body: Any = None) -> Any:
        reply = await self.call("DELETE", path, body)
        assert reply.code == 200, reply.body
        return reply.body

    async def code(self, path: str) -> int:
        return (await self.call("GET", path)).code

    @asynccontextmanager
    async def watch(self, path: str, *, accept: str = "") -> AsyncIterator["Watch"]:
        """Open a watch; the path holds its query."""
        headers = {"Accept": accept} if accept else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=60)
        async with self._session.get(self.url + path, headers=headers, timeout=timeout) as answer:
            assert answer.status == 200, await answer.text()
            yield Watch(answer)


@asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[Api]:
    """Run a server, and give a client that has its token."""
    await server.start()
    try:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {server.token}"}) as session:
            yield Api(session, server.url)
    finally:
        await server.stop()


class Watch:
    """The events of one watch, in order."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def next(self, seconds: float = 20.0) -> Any:
        """Return the next event, None at the end of the stream."""
        line = await self.line(seconds)
        return json.loads(line) if line else None

    async def line(self, seconds: float = 20.0) -> bytes:
        """Return the next line as it was sent."""
        async with asyncio.timeout(seconds):
            return await self._answer.content.readuntil(b"\n")

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"]["name"]) for event in events]


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < deadline, "this did not become true in time"
        await asyncio.sleep(0.02)
