"""The embedded control plane in this process: API server and package store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from pvbus.cli.controlplaneprocess import Address
from pvbus.cli.functions import functions_of, store_options
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, PACKAGE_REVISION
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages.install_hooks import PACKAGE_INSTALL, PackageInstallHooks
from pvbus.controlplane.packages.render import render
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.crds import crds
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.runtime.process.settings import ApiServerConfig

IN_USE_SECONDS = 15.0
"""How long the API server's process waits for a previous one, whose parent was killed, to end."""


@asynccontextmanager
async def control_plane(
    data: Path,
    port: int,
    config: ApiServerConfig,
    *,
    advertise: str = "",
    namespaces: tuple[str, ...] = (),
    accounts: Path | None = None,
) -> AsyncIterator[Address]:
    """Serve until the block ends.

    advertise: name or address by which other machines reach this one; "" serves this machine only
    namespaces: the namespaces that the services are limited to; () if they are not
    accounts: a folder for a kubeconfig of each service alone, None for none
    Raises PermanentError: data in use or damaged, port in use.
    """
    server = ApiServer(data, port, crds=crds(), advertise=advertise, namespaces=namespaces, accounts=accounts)
    registry = functions_of(config)
    options = store_options(config, registry)
    store = PackageStore(server.objects, data, render=partial(render, registry=registry), options=options)
    server.install_hooks(PACKAGE_REVISION, store.package_revisions)
    server.install_hooks(REPOSITORY, store.repositories)
    server.install_hooks(PACKAGE_INSTALL, PackageInstallHooks(server.objects))
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
async def patient_control_plane(
    data: Path, port: int, config: ApiServerConfig, namespaces: tuple[str, ...] = ()
) -> AsyncIterator[Address]:
    """Like `control_plane`, but wait a while for another process to release the data folder."""
    deadline = asyncio.get_running_loop().time() + IN_USE_SECONDS
    async with contextlib.AsyncExitStack() as stack:
        while True:
            try:
                address = await stack.enter_async_context(
                    control_plane(data, port, config, namespaces=namespaces)
                )
                break
            except PermanentError as exc:
                if exc.reason != "DataInUse" or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.1)
        yield address
