"""`pvbus apiserver`: API server and package store of `pvbus up`, as a separate process."""

import asyncio
import shlex
import sys
from pathlib import Path

import click

from pvbus.cli.children import child
from pvbus.cli.controlplane import control_plane, patient_control_plane
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.cli.functions import isolation_problem
from pvbus.controlplane.packages import programs
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ApiServerConfig, split_names
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.telemetry.loopwatch import run_watched


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
