"""`pvbus apiserver` and `pvbus run`: the parts of `pvbus up`, each as a process of its own."""

import asyncio
import json
import shlex
import signal
import sys
from pathlib import Path

import click
import msgspec

from pvbus.cli.controlplane import control_plane, patient_control_plane
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.config import ApiServerConfig, ServicesConfig, load_config
from pvbus.errors import PvbusError
from pvbus.runtime.assembly import SERVICES
from pvbus.runtime.hosting import serve, stop_on_signals
from pvbus.telemetry import logs


@click.command()
@click.option("--data", default=DEFAULT, show_default=True, help="Folder that holds everything.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: a free one, kept for the folder.")
@click.option("--advertise", default="", metavar="NAME",
              help="Serve other machines, too; they reach this one by this DNS name or address.")  # fmt: skip
@click.option("--child", is_flag=True, hidden=True)
def apiserver(data: str, port: int, advertise: str, child: bool) -> None:
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
    logs.configure(config.log_level if not child else "warning", config.log_format)
    paths = DataPaths(Path(data))
    if child:
        sys.exit(asyncio.run(_serve_child(paths, port, config)))
    paths.make()
    asyncio.run(_serve(paths, port, config, advertise))


async def _serve(paths: DataPaths, port: int, config: ApiServerConfig, advertise: str) -> None:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with control_plane(paths.root, port, config, advertise=advertise) as address:
            click.echo(f"API server: {address.url}")
            click.echo(f"export KUBECONFIG={shlex.quote(str(address.kubeconfig))}")
            await stop.wait()


async def _serve_child(paths: DataPaths, port: int, config: ApiServerConfig) -> int:
    """Serve until the parent's end of the standard input goes. Signals of the terminal are the parent's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)

    def parent_ended() -> None:
        loop.remove_reader(sys.stdin.fileno())  # the end of a pipe can be read for ever
        stop.set()

    loop.add_reader(sys.stdin.fileno(), parent_ended)
    try:
        async with patient_control_plane(paths.root, port, config) as address:
            _tell({"url": address.url, "kubeconfig": str(address.kubeconfig)})
            await stop.wait()
    except PvbusError as exc:
        _tell({"error": str(exc)})
        return 1
    return 0


def _tell(message: dict[str, str]) -> None:
    print(json.dumps(message), flush=True)


@click.command()
@click.argument("services", nargs=-1, required=True, type=click.Choice(SERVICES), metavar="SERVICE...")
@click.option("--bus", metavar="URL", help="sqlite:PATH, or kafka://HOST:PORT[,HOST:PORT...][/PREFIX] "
              "[PVBUS_BUS; default sqlite:.pvbus/bus.db]")  # fmt: skip
@click.option("--kubeconfig", help="File with the API server's address [PVBUS_KUBECONFIG].")
@click.option("--context", help="Of the kubeconfig; the current one if not given.")
@click.option("--health-port", type=click.IntRange(0, 65535), help="For /metrics, /healthz, /readyz.")
def run(services: tuple[str, ...], **given: str | int | None) -> None:
    """Run services in this process until it is told to end.

    SERVICE is ingest, unroll, render, inject or conditions. Any number of processes may run the same
    service on one bus; each takes its share.

    \b
    Examples:
      pvbus run render --bus sqlite:.pvbus/bus.db --kubeconfig .pvbus/kubeconfig
      pvbus run ingest unroll render inject conditions --kubeconfig ~/.kube/config
      pvbus run render --bus kafka://kafka-0:9092,kafka-1:9092 --health-port 9090
    """
    config = load_config(ServicesConfig)
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(config, **chosen)
    asyncio.run(serve(list(dict.fromkeys(services)), config))
