"""`pvbus run`: services of `pvbus up`, as a separate process."""

import asyncio
import sys

import click
import msgspec

from pvbus.cli.children import child
from pvbus.core.topics import SERVICES
from pvbus.runtime.process.hosting import hosted, serve
from pvbus.runtime.process.settings import ServicesConfig, load_config
from pvbus.telemetry import logs


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
