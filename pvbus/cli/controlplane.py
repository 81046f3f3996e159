"""The embedded control plane: API server and package store, in this process or in a child process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pvbus.cli.children import ChildProcess
from pvbus.cli.functions import functions_of
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, PACKAGE_REVISION
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages.render import render
from pvbus.controlplane.packages.reporting import REPOSITORY
from pvbus.controlplane.packages.settings import StoreOptions
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.crds import crds
from pvbus.core.errors import PermanentError
from pvbus.runtime.process.settings import ApiServerConfig, LogLevel

IN_USE_SECONDS = 15.0
"""How long the API server's process waits for a previous one, whose parent was killed, to end."""


class Address(NamedTuple):
    url: str
    kubeconfig: Path


@asynccontextmanager
async def control_plane(
    data: Path, port: int, config: ApiServerConfig, *, advertise: str = ""
) -> AsyncIterator[Address]:
    """Serve until the block ends. Raises PermanentError: data in use or damaged, port in use."""
    server = ApiServer(data, port, crds=crds(), advertise=advertise)
    registry = functions_of(config)
    options = StoreOptions(
        fetch_seconds=config.fetch_seconds, poll_seconds=config.poll_seconds, functions=registry.digest
    )
    store = PackageStore(server.objects, data, render=partial(render, registry=registry), options=options)
    server.install_hooks(PACKAGE_REVISION, store.package_revisions)
    server.install_hooks(REPOSITORY, store.repositories)
    server.install_virtual(PACKAGE_RESOURCES, store.resources)
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
    """Like `control_plane`, but wait a while for another process to release the data folder."""
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


class ControlPlaneProcess(ChildProcess):
    """`pvbus apiserver` as a child: it uses another core while the services run in this process."""

    def __init__(
        self,
        data: Path,
        port: int,
        log_level: LogLevel = "warning",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """settings: environment variables."""
        arguments = ("apiserver", "--data", str(data), "--port", str(port))
        own = {**(settings or {}), "PVBUS_LOG_LEVEL": log_level}
        super().__init__("the API server's process", *arguments, settings=own)

    @property
    def address(self) -> Address:
        return Address(self.reported["url"], Path(self.reported["kubeconfig"]))
