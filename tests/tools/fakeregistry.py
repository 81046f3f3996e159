"""A registry in memory that misbehaves on demand."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from aiohttp import web

from tests.tools.images import Built, digest_of
from tests.unit.adapters.http_servers import serving

Answer = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class FakeRegistry:
    """Serves images to everybody. faults: asked first, in order; one that returns None has no say."""

    def __init__(self) -> None:
        self.address = ""
        self.manifests: dict[str, tuple[bytes, str]] = {}
        self.blobs: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.page = 1000
        self.faults: list[Answer] = []
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and authorization of each request."""

    def source(self, repository: str = "team/network") -> str:
        return f"{self.address}/{repository}"

    def add(self, image: Built, *tags: str) -> str:
        self.manifests[image.digest] = (image.manifest, image.type)
        self.blobs |= image.blobs
        self.tags |= dict.fromkeys(tags, image.digest)
        return image.digest

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, request.headers.get("Authorization", "")))
        for fault in self.faults:
            answer = await fault(request)
            if answer is not None:
                return answer
        _, _, rest = request.path.partition("/v2/")
        if rest.endswith("/tags/list"):
            return self._list(request)
        name = rest.rpartition("/")[2]
        if "/manifests/" in rest:
            digest = self.tags.get(name, name)
            body, type_ = self.manifests.get(digest, (None, ""))
            headers = {"Docker-Content-Digest": digest}
        else:
            body, type_, headers = self.blobs.get(name), "application/octet-stream", {}
        if body is None:
            return refusal(404, "MANIFEST_UNKNOWN")
        return web.Response(body=body, content_type=type_, headers=headers)

    def _list(self, request: web.Request) -> web.Response:
        names = sorted(self.tags)
        begin = names.index(request.query["last"]) + 1 if "last" in request.query else 0
        part = names[begin : begin + self.page]
        headers = {}
        if begin + self.page < len(names):
            headers["Link"] = f'<{request.path}?last={part[-1]}&n={self.page}>; rel="next"'
        return web.json_response({"name": "x", "tags": part}, headers=headers)


def refusal(code: int, word: str, **headers: str) -> web.Response:
    text = json.dumps({"errors": [{"code": word, "message": "no"}]})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=code, text=text, content_type="application/json", headers=named)


@asynccontextmanager
async def fake_registry() -> AsyncIterator[FakeRegistry]:
    registry = FakeRegistry()
    async with serving(registry) as url:
        registry.address = urlsplit(url).netloc
        yield registry


def failing(part: str, *answers: web.Response | None) -> Answer:
    """Give these answers, one after another, to requests whose path has a part; None serves as usual."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse | None:
        return left.pop(0) if part in request.path and left else None

    return answer


def always(part: str, code: int, word: str, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse | None:
        return refusal(code, word, **headers) if part in request.path else None

    return answer


def cut(part: str, data: bytes, sent: int) -> Answer:
    """Close the connection after some bytes of the data."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if part not in request.path:
            return None
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:sent])
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


def endless(part: str, chunk: bytes, pause_seconds: float = 0.0) -> Answer:
    """Send a chunk for ever, without a length."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if part not in request.path:
            return None
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(chunk)
            await asyncio.sleep(pause_seconds)

    return answer


def substituted(part: str, data: bytes) -> Answer:
    """Serve other bytes."""

    async def answer(request: web.Request) -> web.StreamResponse | None:
        if part not in request.path:
            return None
        return web.Response(body=data, headers={"Docker-Content-Digest": digest_of(data)})

    return answer
