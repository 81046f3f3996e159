"""The embedded control plane: in `pvbus up`, and by itself in `pvbus apiserver`.

It is the API server and the package store, in one process.
"""

import asyncio
import contextlib
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from pvbus.cli.children import child
from pvbus.cli.controlplaneprocess import Address
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.cli.functions import functions_of, isolation_problem, store_options
from pvbus.controlplane.apiserver.registry import PACKAGE_RESOURCES, PACKAGE_REVISION
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.packages import programs
from pvbus.controlplane.packages.install_hooks import PACKAGE_INSTALL, PackageInstallHooks
from pvbus.controlplane.packages.render import RegistryRender
from pvbus.controlplane.packages.store import PackageStore
from pvbus.core.api.crds import crds
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.objectrows import REPOSITORY
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ApiServerConfig, split_names
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.telemetry.loopwatch import run_watched

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
    store = PackageStore(server.objects, data, render=RegistryRender(registry), options=options)
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


@click.command(short_help="Serve the Kubernetes API and packages alone.")
@click.option("--data", default=DEFAULT, show_default=True, help="Folder that holds everything.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: a free one, kept for the folder.")
@click.option("--advertise", default="", metavar="NAME",
              help="Serve other machines, too; they reach this one by this DNS name or address.")  # fmt: skip
@click.option("--namespaces", metavar="NAME,...", default="", envvar="PVBUS_NAMESPACES",
              help="The services' accounts have their rights in these alone [PVBUS_NAMESPACES].")  # fmt: skip
@click.option("--accounts", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Write FOLDER/SERVICE/kubeconfig, with the account of that service alone.")  # fmt: skip
@click.option("--child", "is_child", is_flag=True, hidden=True)
def apiserver(
    data: str, port: int, advertise: str, namespaces: str, accounts: Path | None, is_child: bool
) -> None:
    """Serve the Kubernetes API and the package store, without the services.

    \b
    Examples:
      pvbus apiserver --data .pvbus
      pvbus apiserver --data /data --port 6443 --advertise apiserver
      pvbus run ingest unroll render inject conditions \\
          --bus sqlite:.pvbus/bus.db --kubeconfig .pvbus/kubeconfig
      pvbus run render --bus sqlite:.pvbus/bus.db \\
          --kubeconfig .pvbus/services.kubeconfig --context pvbus-render

    Only this machine is served, if there is no --advertise. Anyone who has the token, in the kubeconfig of
    the data folder, can do everything; `pvbus user` lets others in. In services.kubeconfig each service has a
    context, with the rights of its own; with --accounts it has a file of its own, to be the only one that a
    container of the service gets. `pvbus up` does both at once.
    """
    config = load_config(ApiServerConfig)
    configure_process(config)
    paths = DataPaths(Path(data))
    if is_child:
        sys.exit(run_watched(_serve_child(paths, port, config, split_names(namespaces))))
    paths.make()
    run_watched(_serve(paths, port, config, advertise, split_names(namespaces), accounts))


async def _serve(
    paths: DataPaths,
    port: int,
    config: ApiServerConfig,
    advertise: str,
    namespaces: tuple[str, ...],
    accounts: Path | None,
) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop, last=programs.kill_all) as begun:
        serving = control_plane(
            paths.root, port, config, advertise=advertise, namespaces=namespaces, accounts=accounts
        )
        async with serving as address:
            begun()
            if problem := isolation_problem(config):
                click.echo(problem, err=True)
            click.echo(f"API server: {address.url}")
            click.echo(f"export KUBECONFIG={shlex.quote(str(address.kubeconfig))}")
            await stop.wait()


async def _serve_child(
    paths: DataPaths, port: int, config: ApiServerConfig, namespaces: tuple[str, ...]
) -> int:
    serving = patient_control_plane(paths.root, port, config, namespaces)
    async with child(programs.kill_all) as parent, serving as address:
        parent.tell(url=address.url, kubeconfig=str(address.kubeconfig))
        await parent.stop.wait()
    return parent.code
