"""`pvbus apiserver` and `pvbus run`: the parts of `pvbus up`, as separate processes."""

import asyncio
import shlex
import sys
from pathlib import Path

import click
import msgspec

from pvbus.cli.children import child
from pvbus.cli.controlplane import control_plane, patient_control_plane
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.cli.functions import isolation_problem
from pvbus.core.topics import SERVICES
from pvbus.runtime.process.hosting import hosted, serve, stop_on_signals
from pvbus.runtime.process.settings import ApiServerConfig, ServicesConfig, load_config
from pvbus.telemetry import logs


@click.command(short_help="Serve the Kubernetes API and packages alone.")
@click.option("--data", default=DEFAULT, show_default=True, help="Folder that holds everything.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: a free one, kept for the folder.")
@click.option("--advertise", default="", metavar="NAME",
              help="Serve other machines, too; they reach this one by this DNS name or address.")  # fmt: skip
@click.option("--child", "is_child", is_flag=True, hidden=True)
def apiserver(data: str, port: int, advertise: str, is_child: bool) -> None:
    """Serve the Kubernetes API and the package store, without the services.

    \b
    Examples:
      pvbus apiserver --data .pvbus
      pvbus apiserver --data /data --port 6443 --advertise apiserver
      pvbus run ingest unroll render inject conditions \\
          --bus sqlite:.pvbus/bus.db --kubeconfig .pvbus/kubeconfig

    Only this machine is served, if there is no --advertise. Who has the token, in the kubeconfig of the
    data folder, may do everything. `pvbus up` does both at once.
    """
    config = load_config(ApiServerConfig)
    logs.configure(config.log_level, config.log_format)
    paths = DataPaths(Path(data))
    if is_child:
        sys.exit(asyncio.run(_serve_child(paths, port, config)))
    paths.make()
    asyncio.run(_serve(paths, port, config, advertise))


async def _serve(paths: DataPaths, port: int, config: ApiServerConfig, advertise: str) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop) as begun:
        async with control_plane(paths.root, port, config, advertise=advertise) as address:
            begun()
            if problem := isolation_problem(config):
                click.echo(problem, err=True)
            click.echo(f"API server: {address.url}")
            click.echo(f"export KUBECONFIG={shlex.quote(str(address.kubeconfig))}")
            await stop.wait()


async def _serve_child(paths: DataPaths, port: int, config: ApiServerConfig) -> int:
    async with child() as parent, patient_control_plane(paths.root, port, config) as address:
        parent.tell(url=address.url, kubeconfig=str(address.kubeconfig))
        await parent.stop.wait()
    return parent.code


@click.command(short_help="Run services alone, until told to end.")
@click.argument("services", nargs=-1, required=True, type=click.Choice(SERVICES), metavar="SERVICE...")
@click.option("--bus", metavar="URL", help="sqlite:PATH, or kafka://HOST:PORT[,HOST:PORT...][/PREFIX] "
              "[PVBUS_BUS; default sqlite:.pvbus/bus.db]")  # fmt: skip
@click.option("--kubeconfig", help="File with the API server's address [PVBUS_KUBECONFIG].")
@click.option("--context", help="Of the kubeconfig; the current one if not given [PVBUS_CONTEXT].")
@click.option("--health-port", type=click.IntRange(0, 65535), help="For /metrics, /healthz, /readyz "
              "and /state [PVBUS_HEALTH_PORT; default any free one].")  # fmt: skip
@click.option("--child", "is_child", is_flag=True, hidden=True)
def run(services: tuple[str, ...], is_child: bool, **given: str | int | None) -> None:
    """Run services in this process until it is told to end.

    SERVICE is ingest, unroll, render, inject or conditions. Any number of processes may run the same
    service on one bus; each takes its share. SIGTERM and Ctrl-C let it finish what it holds. Its log, on
    standard error, tells the address of /metrics, /healthz, /readyz and /state.

    Everything else is a setting, PVBUS_*, a Kafka's TLS and login, too: `python -m services.render --help`
    lists them.

    \b
    Examples:
      pvbus run render --bus sqlite:.pvbus/bus.db --kubeconfig .pvbus/kubeconfig
      pvbus run ingest unroll render inject conditions --kubeconfig ~/.kube/config
      pvbus run render --bus kafka://kafka-0:9092,kafka-1:9092/blue --health-port 9090
    """
    config = load_config(ServicesConfig)
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(config, **chosen)
    names = list(dict.fromkeys(services))
    if is_child:
        sys.exit(asyncio.run(_run_child(names, config)))
    asyncio.run(serve(names, config))


async def _run_child(names: list[str], config: ServicesConfig) -> int:
    logs.configure(config.log_level, config.log_format)
    async with child() as parent, hosted(names, config) as host:
        parent.tell(url=host.health_url)
        await host.run(parent.stop)
    return parent.code
