"""`pvbus run`: services of `pvbus up`, as a separate process.

The package store is imported only where it runs: it would be a quarter of the start of every other service.
"""

import sys
from collections.abc import Mapping

import click
import msgspec

from pvbus.cli.children import child
from pvbus.core.errors import UsageError
from pvbus.core.kernel.rights import PACKAGES
from pvbus.core.kernel.topics import ALL_SERVICES, SINK
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.hosting import host_services, serve
from pvbus.runtime.process.settings import (
    PackagesConfig,
    ServiceConfig,
    ServicesConfig,
    SinkConfig,
    WebConfig,
)
from pvbus.telemetry.loopwatch import run_watched

WEB = "web"


@click.command(short_help="Run services alone, until told to end.")
@click.argument(
    "services",
    nargs=-1,
    required=True,
    type=click.Choice((*ALL_SERVICES, PACKAGES, WEB, SINK)),
    metavar="SERVICE...",
)
@click.option("--bus", metavar="URL", help="sqlite:PATH, or kafka://HOST:PORT[,HOST:PORT...][/PREFIX] "
              "[PVBUS_BUS; default sqlite:.pvbus/bus.db]")  # fmt: skip
@click.option("--kubeconfig", help="File with the API server's address [PVBUS_KUBECONFIG].")
@click.option("--context", help="Context in the kubeconfig; the current one if not given [PVBUS_CONTEXT].")
@click.option("--health-port", type=click.IntRange(0, 65535), help="For /metrics, /healthz, /readyz "
              "and /state [PVBUS_HEALTH_PORT; default any free one].")  # fmt: skip
@click.option("--child", "is_child", is_flag=True, hidden=True)
def run(services: tuple[str, ...], is_child: bool, **given: str | int | None) -> None:
    """Run services in this process until it is told to end.

    SERVICE is ingest, unroll, render, inject or conditions. The services promote, rollout and release propose
    drafts that are ready, and approve them by RolloutPolicies; resolve and establish install packages. These
    may be left out. Any number of processes may run the same service on one bus; each takes its share.
    SIGTERM and Ctrl-C let it finish what it holds. Its log, on standard error, tells the address of /metrics,
    /healthz, /readyz and /state.

    SERVICE packages is the package store as an aggregated API of a cluster, which an APIService names. It has
    no bus, and runs in a process of its own.

    SERVICE web is a page for browsers that shows the fleet. It reads the bus, and needs no API server unless
    people act on it as their own users (--kubeconfig). It runs in a process of its own, which prints the
    page's address.

    SERVICE sink posts every change of a condition to the address in PVBUS_SINK_URL, as CloudEvents over HTTP.
    It needs no API server, and runs in processes of its own, of which each takes its share.

    Everything else is a setting, PVBUS_*, a Kafka's TLS and login, too: `python -m services.render --help`
    lists them.

    \b
    Examples:
      pvbus run render --bus sqlite:.pvbus/bus.db --kubeconfig .pvbus/kubeconfig
      pvbus run ingest unroll render inject conditions --kubeconfig ~/.kube/config
      pvbus run render --bus kafka://kafka-0:9092,kafka-1:9092/blue --health-port 9090
      pvbus run promote rollout release --kubeconfig ~/.kube/config
      pvbus run packages --kubeconfig ~/.kube/config
      pvbus run web --bus kafka://kafka-0:9092/blue
      PVBUS_SINK_URL=https://receiver.example.org/events pvbus run sink --bus kafka://kafka-0:9092/blue
    """
    if SINK in services:
        _run_sink(services, given)
        return
    if WEB in services:
        _run_web(services, given)
        return
    if PACKAGES in services:
        _run_packages(services, is_child, given)
        return
    config = load_config(ServicesConfig)
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(config, **chosen)
    names = list(dict.fromkeys(services))
    if is_child:
        sys.exit(run_watched(_run_child(names, config)))
    run_watched(serve(names, config))


def _run_packages(services: tuple[str, ...], is_child: bool, given: Mapping[str, str | int | None]) -> None:
    from pvbus.cli.packagestore import serve_packages

    if set(services) != {PACKAGES}:
        raise UsageError("packages has no bus and runs alone: start the other services as another process")
    if given["bus"] is not None:
        raise UsageError("packages has no bus: omit --bus")
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(load_config(PackagesConfig), **chosen)
    if is_child:
        sys.exit(run_watched(_serve_child(config)))
    run_watched(serve_packages(config))


def _run_web(services: tuple[str, ...], given: Mapping[str, str | int | None]) -> None:
    from pvbus.cli.webpage import serve_web

    if set(services) != {WEB}:
        raise UsageError("web runs alone: start the other services as another process")
    if given["health_port"] is not None:
        raise UsageError("web has no health of its own: omit --health-port")
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(load_config(ServiceConfig), **chosen)
    run_watched(serve_web(config, load_config(WebConfig), click.echo))


def _run_sink(services: tuple[str, ...], given: Mapping[str, str | int | None]) -> None:
    from pvbus.cli.sinkprocess import serve_sink

    if set(services) != {SINK}:
        raise UsageError("sink runs alone: start the other services as another process")
    if useless := [name for name in ("kubeconfig", "context") if given[name] is not None]:
        raise UsageError(f"sink needs no API server: omit --{useless[0]}")
    chosen = {name: value for name, value in given.items() if value is not None}
    config = msgspec.structs.replace(load_config(ServiceConfig), **chosen)
    run_watched(serve_sink(config, load_config(SinkConfig)))


async def _serve_child(config: PackagesConfig) -> int:
    from pvbus.cli.packagestore import packages_hosted
    from pvbus.controlplane.packages import programs

    configure_process(config)
    async with child(programs.kill_all) as parent, packages_hosted(config) as host:
        parent.tell(url=host.health_url, port=str(host.port))
        await host.run(parent.stop)
    return parent.code


async def _run_child(names: list[str], config: ServicesConfig) -> int:
    configure_process(config)
    async with child() as parent, host_services(names, config) as host:
        parent.tell(url=host.health_url)
        await host.run(parent.stop)
    return parent.code
