"""The embedded control plane: API server and package store, in this process or in one of its own."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pvbus
from pvbus.config import ApiServerConfig
from pvbus.contracts import crds
from pvbus.core.model import CONFIG_GROUP, PORCH_GROUP
from pvbus.embedded.apiserver.server import ApiServer
from pvbus.embedded.packages.functions.registry import FunctionRegistry
from pvbus.embedded.packages.render import render
from pvbus.embedded.packages.settings import StoreOptions
from pvbus.embedded.packages.store import PackageStore
from pvbus.errors import PermanentError
from pvbus.ports.cluster import Kind

REPOSITORY = Kind(CONFIG_GROUP, "Repository")
PACKAGE_REVISION = Kind(PORCH_GROUP, "PackageRevision")
RESOURCES = Kind(PORCH_GROUP, "PackageRevisionResources")
IN_USE_SECONDS = 15.0
"""How long the API server's process waits for its predecessor, whose parent was killed, to end."""

STOP_SECONDS = 15.0


class Address(NamedTuple):
    url: str
    kubeconfig: Path


@asynccontextmanager
async def control_plane(
    data: Path, port: int, config: ApiServerConfig, *, advertise: str = ""
) -> AsyncIterator[Address]:
    """Serve until the block ends. Raises PermanentError: data in use or damaged, port in use."""
    server = ApiServer(data, port, crds=crds(), advertise=advertise)
    registry = FunctionRegistry(dict(config.functions), allow_exec=config.allow_exec)
    options = StoreOptions(fetch_seconds=config.fetch_seconds, poll_seconds=config.poll_seconds)
    store = PackageStore(server.objects, data, render=partial(render, registry=registry), options=options)
    server.install_hooks(PACKAGE_REVISION, store.package_revisions)
    server.install_hooks(REPOSITORY, store.repositories)
    server.install_virtual(RESOURCES, store.resources)
    await server.start()
    try:
        await store.start()
        try:
            yield Address(server.url, server.kubeconfig_path)
        finally:
            await store.stop()
    finally:
        await server.stop()


@asynccontextmanager
async def patient_control_plane(data: Path, port: int, config: ApiServerConfig) -> AsyncIterator[Address]:
    """As `control_plane`, but wait a while for somebody who is about to let go of the data folder."""
    deadline = asyncio.get_running_loop().time() + IN_USE_SECONDS
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                address = await stack.enter_async_context(control_plane(data, port, config))
                break
            except PermanentError as exc:
                if exc.reason != "DataInUse" or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.1)
        yield address


class ControlPlaneProcess:
    """`pvbus apiserver` as a child that ends when this process does, however that happens.

    The child holds the other end of a pipe as its standard input, and serves until that ends. It tells
    by one line of JSON that it serves, or why it cannot.
    """

    def __init__(self, data: Path, port: int) -> None:
        self._command = [
            *(sys.executable, "-P", "-m", "pvbus.cli", "apiserver", "--child"),
            *("--data", str(data), "--port", str(port)),
        ]
        self._process: asyncio.subprocess.Process | None = None
        self.address = Address("", Path())

    async def __aenter__(self) -> Self:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, env=_environment()
        )
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        told: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
        if "url" not in told:
            await self._end()
            raise PermanentError(
                told.get("error") or "the API server's process ended at its start", reason="ApiServer"
            )
        self.address = Address(told["url"], Path(told["kubeconfig"]))
        return self

    async def ended(self) -> int:
        """Return the exit code once the child has ended by itself."""
        assert self._process is not None
        return await self._process.wait()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def _environment() -> dict[str, str]:
    """The child must run this very pvbus, wherever it was started from."""
    places = [str(Path(pvbus.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
