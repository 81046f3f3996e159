"""A proxy before an API server that lets one account do what its rights say, as Kubernetes' RBAC does.

It notes each request, answers 403 to those that no right permits, and passes the others on with the
credentials of the server behind. Discovery is for everybody. Lists of Porch's aggregated API lose their
resourceVersion, as Porch's own server gives none.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from aiohttp.typedefs import Handler

from pvbus.adapters.kubernetes.access import request_of
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.core.api.variants import PORCH_GROUP
from pvbus.core.kernel.rights import Request

DROPPED = {"Content-Length", "Transfer-Encoding", "Content-Encoding", "Connection"}
"""Headers of an answer that hold for one connection only."""


class Authorizer:
    """What one account may do, what it asked for, and what was refused.

    namespaced: whether rights are for the namespaces that they name; if not, for all.
    """

    def __init__(self, permitted: Iterable[Request], *, namespaced: bool = False) -> None:
        self.permitted = frozenset(permitted)
        self.namespaced = namespaced
        self.seen: set[Request] = set()
        self.refused: set[Request] = set()

    def permits(self, request: Request | None) -> bool:
        if request is None:
            return True
        if not self.namespaced:
            request = request._replace(namespace="")
        self.seen.add(request)
        if request in self.permitted:
            return True
        self.refused.add(request)
        return False


def _forbidden(request: Request) -> web.Response:
    message = f'forbidden: cannot {request.verb} resource "{request.resource}" in API group "{request.group}"'
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden"}
    return web.json_response({**status, "message": message, "code": 403}, status=403)


@asynccontextmanager
async def authorizing(kubeconfig: Path, authorizer: Authorizer, folder: Path) -> AsyncIterator[Path]:
    """Serve the API server of a kubeconfig to one account; yield the account's own kubeconfig."""
    connection = await Connection.load(kubeconfig)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=True) as session:

        async def handle(incoming: web.Request) -> web.StreamResponse:
            request = request_of(
                incoming.method, incoming.path, watches=incoming.query.get("watch") == "true"
            )
            if not authorizer.permits(request):
                assert request is not None
                return _forbidden(request)
            return await _pass_on(incoming, request, session, connection)

        runner = web.AppRunner(application(handle), access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield kubeconfig_at(folder, runner.addresses[0][1])
        finally:
            await runner.cleanup()


def application(handle: Handler) -> web.Application:
    """Return a server that gives each request to one handler."""
    application = web.Application(client_max_size=1 << 26)
    application.router.add_route("*", "/{path:.*}", handle)
    return application


async def _pass_on(
    incoming: web.Request, request: Request | None, session: aiohttp.ClientSession, connection: Connection
) -> web.StreamResponse:
    headers = {
        name: incoming.headers[name] for name in ("Accept", "Content-Type") if name in incoming.headers
    }
    access = await connection.access()
    async with session.request(
        incoming.method,
        connection.url + incoming.raw_path,
        data=await incoming.read(),
        headers={**headers, **access.headers},
        **access.options,
    ) as answer:
        passed = {name: value for name, value in answer.headers.items() if name not in DROPPED}
        if request is not None and request[:2] == ("list", PORCH_GROUP) and answer.status == 200:
            listing = json.loads(await answer.read())
            listing["metadata"].pop("resourceVersion", None)
            return web.json_response(listing)
        outgoing = web.StreamResponse(status=answer.status, headers=passed)
        await outgoing.prepare(incoming)
        with contextlib.suppress(aiohttp.ClientConnectionResetError):  # the client has ended its watch
            async for chunk in answer.content.iter_any():
                await outgoing.write(chunk)
            await outgoing.write_eof()
        return outgoing


def kubeconfig_at(folder: Path, port: int) -> Path:
    """Write the kubeconfig of a proxy on this machine, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "one", "user": {}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
        "current-context": "one",
    }
    file.write_text(yaml.safe_dump(document))
    return file
