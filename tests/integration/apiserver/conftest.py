"""A server in memory with one custom kind, and a client with its token."""

from collections.abc import AsyncIterator

import aiohttp
import pytest

from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.client import Api, crd


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    server = ApiServer(None, crds=[crd()], tls=False)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    headers = {"Authorization": f"Bearer {server.token}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield Api(session, server.url)
