"""Runs services in one process: bus, installation, cluster, health, signals, orderly shutdown."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from pvbus.adapters.files import PRIVATE_UMASK
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.errors import PermanentError, PvbusError, TransientError, UsageError
from pvbus.core.topics import SERVICES
from pvbus.core.unroll.removal import RemovalLimits
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster
from pvbus.runtime.clock import SystemClock
from pvbus.runtime.failures import causes
from pvbus.runtime.process.apiserver import ApiServerHealth
from pvbus.runtime.process.assembly import Service, build_service, partition_count, run_all
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.health import HealthServer
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.rights import MissingRights
from pvbus.runtime.process.settings import (
    ConditionsConfig,
    ServiceConfig,
    ServicesConfig,
    UnrollConfig,
    load_config,
    settings_text,
)
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.process.state import Observer
from pvbus.telemetry import logs
from pvbus.telemetry.terminal import printable

THRESHOLDS = (50_000, 50, 100)
"""Python's defaults, (700, 10, 10), search for cycles every few variants: this takes a sixth of a service's
CPU, also at start, and finds almost nothing, as tables are plain data. With higher values, the cycles that
exceptions leave would stay for longer."""


def relax_collector() -> None:
    """Set the thresholds of this process."""
    gc.set_threshold(*THRESHOLDS)


BUS_SECONDS_MAX = 60.0
"""How long a start waits for the bus: services and brokers may start together, in any order."""

BUS_RETRY_SECONDS = 1.0

T = TypeVar("T")


class Host(NamedTuple):
    """Services that are ready to run, and their shared resources. bus is for reading only."""

    services: Mapping[str, Service]
    bus: Bus
    cluster: Cluster
    health_url: str
    observer: Observer
    api_server: ApiServerHealth
    rights: MissingRights

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then drain. Raises a failing service's error."""

        async def wait() -> None:
            await stop.wait()
            for service in self.services.values():
                service.stop()

        async with asyncio.TaskGroup() as tasks:
            loops = (wait(), self.api_server.run(), self.rights.run())
            beside = [tasks.create_task(loop) for loop in loops]
            try:
                await run_all(list(self.services.values()))
            finally:
                for task in beside:
                    task.cancel()


@asynccontextmanager
async def hosted(names: Sequence[str], config: ServiceConfig) -> AsyncIterator[Host]:
    """Open all resources of these services. `Host.run` starts them."""
    unknown = [name for name in names if name not in SERVICES]
    if unknown or not names:
        raise UsageError(f"unknown service {', '.join(unknown)!r}: expected some of {', '.join(SERVICES)}")
    relax_collector()
    async with grounded(config) as (bus, cluster, partitions):
        clock = SystemClock()
        buses = {name: bus.peer() for name in names}
        services = {
            name: build_service(
                name,
                buses[name],
                cluster.named(f"pvbus-{name}"),
                clock,
                limits=config.limits if isinstance(config, UnrollConfig) else RemovalLimits(),
                source=config.source if isinstance(config, ConditionsConfig | ServicesConfig) else "",
                partitions=partitions,
            )
            for name in names
        }
        observer = Observer(services, bus, clock)
        api_server = ApiServerHealth(cluster, clock, names)
        rights = MissingRights(cluster, clock, names)
        async with HealthServer(
            observer, api_server, rights, host=config.health_host, port=config.health_port
        ) as health:
            for each in buses.values():
                each.label = health.url
            yield Host(services, bus, cluster, health.url, observer, api_server, rights)


class Ground(NamedTuple):
    """The resources that all services share."""

    bus: Bus
    cluster: HttpCluster
    partitions: int


@asynccontextmanager
async def grounded(config: ServiceConfig) -> AsyncIterator[Ground]:
    """Open bus and cluster; record the installation, or compare with the recorded one."""
    bus = await _in_time(config, lambda: open_bus(config))
    try:
        partitions = partition_count()
        await _in_time(config, lambda: ensure_installation(bus, partitions=partitions))
        kubeconfig = Path(config.kubeconfig) if config.kubeconfig else None
        cluster = await HttpCluster.connect(kubeconfig, config.context or None)
        try:
            yield Ground(bus, cluster, partitions)
        finally:
            await cluster.close()
    finally:
        await bus.close()


async def _in_time(config: ServiceConfig, attempt: Callable[[], Awaitable[T]]) -> T:
    """Retry until the bus answers: after one of its brokers has answered, another may still not."""
    log = logs.get_logger("host")
    deadline = asyncio.get_running_loop().time() + BUS_SECONDS_MAX
    while True:
        try:
            return await attempt()
        except TransientError as exc:
            if asyncio.get_running_loop().time() > deadline:
                raise PermanentError(
                    f"the bus {config.bus} did not answer within {BUS_SECONDS_MAX:.0f} s: {exc}",
                    reason="NoBus",
                ) from exc
            log.warning("the bus does not answer yet", bus=config.bus, error=str(exc))
        await asyncio.sleep(BUS_RETRY_SECONDS)


async def serve(names: Sequence[str], config: ServiceConfig) -> None:
    """Run services until a signal ends them, for `python -m services.<name>` and `pvbus run`."""
    logs.configure(config.log_level, config.log_format)
    log = logs.get_logger("host")
    stop = asyncio.Event()
    with stop_on_signals(stop) as begun:
        async with hosted(names, config) as host:
            begun()
            log.info("started", services=list(names), health=host.health_url)
            await host.run(stop)
    log.info("stopped", services=list(names))


def run_process(name: str, config: type[ServiceConfig], arguments: Sequence[str], about: str) -> int:
    """Run a service's process and return its exit code. Its only argument is --help."""
    if arguments:
        return _answer(name, config, arguments, about)
    os.umask(PRIVATE_UMASK)
    try:
        asyncio.run(serve([name], load_config(config)))
    except* UsageError as exc:
        code = _complain(exc, 2)
    except* PvbusError as exc:
        code = _complain(exc, 1)
    else:
        code = 0
    return code


def _answer(name: str, config: type[ServiceConfig], arguments: Sequence[str], about: str) -> int:
    if set(arguments) <= {"-h", "--help"}:
        print(f"{about.strip()}\n\nSettings, with their defaults:\n\n{settings_text(config)}")
        return 0
    print(
        f"error: unexpected argument {arguments[0]!r}: settings are environment variables "
        f"(see python -m services.{name} --help)",
        file=sys.stderr,
    )
    return 2


def _complain(error: BaseException, code: int) -> int:
    for cause in causes(error):
        print(f"error: {printable(str(cause))}", file=sys.stderr)
    return code
