"""Runs services in one process: bus, installation, cluster, health, signals, orderly shutdown."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.prometheus.client import Prometheus
from pvbus.core.errors import PermanentError, PvbusError, TransientError, UsageError
from pvbus.core.kernel.backoff import spread
from pvbus.core.kernel.rights import ALL_RIGHTS
from pvbus.core.kernel.topics import ALL_SERVICES
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster
from pvbus.ports.monitoring import Monitoring
from pvbus.runtime.backoff import uniform
from pvbus.runtime.failures import causes
from pvbus.runtime.process.apiserver import ApiServerHealth
from pvbus.runtime.process.assembly import (
    Service,
    Surroundings,
    build_service,
    partition_count,
    run_all,
)
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.beside import WRITERS, BesidePorch
from pvbus.runtime.process.buses import bus_prefix, open_bus
from pvbus.runtime.process.configuration import load_config, settings_text
from pvbus.runtime.process.eventwriter import EventWriter
from pvbus.runtime.process.health import HealthServer
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.rights import AGENT, MissingRights
from pvbus.runtime.process.settings import (
    ConditionsConfig,
    ProcessConfig,
    RolloutConfig,
    ServiceConfig,
    ServicesConfig,
    host_names,
)
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.process.sources import open_sources, secrets_of
from pvbus.runtime.process.state import Observer
from pvbus.telemetry import logs
from pvbus.telemetry.guard import begin_process
from pvbus.telemetry.loopwatch import run_watched
from pvbus.telemetry.terminal import printable

if TYPE_CHECKING:
    from pvbus.runtime.opinion.asking import OpinionProcess

INSTANCE_CHARACTERS_MAX = 128
"""The length of the name of a process in Kubernetes Events."""

BUS_SECONDS_MAX = 60.0
"""How long a start waits for the bus: services and brokers may start together, in any order."""

BUS_RETRY_SECONDS = 1.0

T = TypeVar("T")
C = TypeVar("C", bound=ProcessConfig)
Main = Callable[[Sequence[str]], int]
"""An entry point: arguments -> exit code."""


class Host(NamedTuple):
    """Services that are ready to run, and their shared resources.

    services: the services, by name
    bus: the bus, for reading only
    cluster: the connection to the API server
    health_url: the address of /metrics, /healthz and /readyz
    observer: reports the states of the services
    api_server: whether the API server answers
    rights: the missing rights
    beside: Porch's controllers
    events: writes notices as Kubernetes Events
    opinions: gives second opinions on expressions, None without unroll
    """

    services: Mapping[str, Service]
    bus: Bus
    cluster: Cluster
    health_url: str
    observer: Observer
    api_server: ApiServerHealth
    rights: MissingRights
    beside: BesidePorch
    events: EventWriter
    opinions: "OpinionProcess | None"

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then drain. Raises a failing service's error."""

        async def wait() -> None:
            await stop.wait()
            for service in self.services.values():
                service.stop()

        async with asyncio.TaskGroup() as tasks:
            beside = (self.api_server, self.rights, self.beside, self.events, self.opinions)
            loops = (wait(), *(each.run() for each in beside if each is not None))
            others = [tasks.create_task(loop) for loop in loops]
            try:
                await run_all(list(self.services.values()))
            finally:
                for task in others:
                    task.cancel()


@asynccontextmanager
async def host_services(
    names: Sequence[str], config: ServiceConfig, tokens: Mapping[str, str] | None = None
) -> AsyncIterator[Host]:
    """Open all resources of these services. `Host.run` starts them.

    tokens: the bearer tokens of services that are users of their own; the others are the kubeconfig's user.
    """
    unknown = [name for name in names if name not in ALL_SERVICES]
    if unknown or not names:
        known = ", ".join(ALL_SERVICES)
        raise UsageError(f"unknown service {', '.join(unknown)!r}: expected some of {known}")
    is_client = any(ALL_RIGHTS[name] for name in names)
    async with (
        open_ground(config, is_client=is_client) as (bus, cluster, partitions, incarnation),
        open_monitoring(config) as monitoring,
        open_sources(config, names, secrets_of(cluster)) as sources,
    ):
        clock = SystemClock()
        buses = {name: bus.peer() for name in names}
        own_token = (tokens or {}).get
        reading = {name: cluster.named("pvbus", token=own_token(name, "")) for name in names}
        looking = next((reading[name] for name in WRITERS if name in reading), cluster)
        beside = BesidePorch(looking, clock, names, config.namespace_names, is_allowed=config.beside_porch)
        events = EventWriter(
            # by a name that is no service's: a refusal of these requests is no lack of the service
            cluster.named(f"{AGENT}events", token=own_token("conditions", ""), before_write=beside.check),
            clock,
            instance=socket.gethostname()[:INSTANCE_CHARACTERS_MAX] or "pvbus",
        )
        opinions = _opinions() if "unroll" in names else None
        around = Surroundings(monitoring, sources, opinions, events.tell)
        services = {
            name: build_service(
                name,
                buses[name],
                cluster.named(f"{AGENT}{name}", token=own_token(name, ""), before_write=beside.check),
                clock,
                whole_config(config, source_of(config, incarnation)),
                around,
                partitions=partitions,
            )
            for name in names
        }
        observer = Observer(services, bus, clock)
        api_server = ApiServerHealth(cluster, clock, names)
        rights = MissingRights(reading, clock, config.namespace_names)
        async with HealthServer(
            observer,
            api_server,
            rights,
            beside,
            host=config.health_host,
            port=config.health_port,
            names=host_names(config.health_names),
        ) as health:
            for each in buses.values():
                each.label = health.url
            yield Host(
                services, bus, cluster, health.url, observer, api_server, rights, beside, events, opinions
            )


def _opinions() -> "OpinionProcess":
    """Return what gives second opinions. Only unroll asks, so only its process imports the expressions."""
    from pvbus.runtime.opinion.asking import OpinionProcess

    return OpinionProcess()


def whole_config(config: ServiceConfig, source: str) -> ServicesConfig:
    """Return the settings of one service, with the defaults of the others."""
    return ServicesConfig(**{**msgspec.structs.asdict(config), "source": source})


class Ground(NamedTuple):
    """The resources that all services share.

    bus: the bus of the settings
    cluster: the connection to the API server
    partitions: the partition count of the topics
    incarnation: the id of the installation
    """

    bus: Bus
    cluster: HttpCluster
    partitions: int
    incarnation: str


@asynccontextmanager
async def open_ground(config: ServiceConfig, *, is_client: bool = True) -> AsyncIterator[Ground]:
    """Open bus and cluster; record the installation, or compare with the recorded one.

    is_client: whether requests are sent to the API server. If not, no kubeconfig is read.
    """
    bus = await in_time(config, lambda: open_bus(config))
    try:
        partitions = partition_count()
        installed = await in_time(config, lambda: ensure_installation(bus, partitions=partitions))
        kubeconfig = Path(config.kubeconfig) if config.kubeconfig else None
        if is_client:
            cluster = await HttpCluster.connect(kubeconfig, config.context or None)
        else:
            cluster = HttpCluster(Connection.unused())
        try:
            yield Ground(bus, cluster, partitions, installed.incarnation)
        finally:
            await cluster.close()
    finally:
        await bus.close()


def source_of(config: ServiceConfig, incarnation: str) -> str:
    """Return `ce_source` of the events of an installation; "" for services that publish none."""
    if not isinstance(config, ConditionsConfig | ServicesConfig):
        return ""
    if config.source:
        return config.source
    parts = ("/pvbus", config.cluster_name or incarnation, bus_prefix(config.bus))
    return "/".join(part for part in parts if part)


async def in_time(config: ServiceConfig, attempt: Callable[[], Awaitable[T]]) -> T:
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
        await asyncio.sleep(spread(BUS_RETRY_SECONDS, uniform))


async def serve(names: Sequence[str], config: ServiceConfig) -> None:
    """Run services until a signal ends them, for `python -m services.<name>` and `pvbus run`."""
    configure_process(config)
    log = logs.get_logger("host")
    stop = asyncio.Event()
    with stop_on_signals(stop) as begun:
        async with host_services(names, config) as host:
            begun()
            log.info("started", services=list(names), health=host.health_url)
            await host.run(stop)
    log.info("stopped", services=list(names))


_ABOUT = """{about}

    PVBUS_BUS=sqlite:.pvbus/bus.db PVBUS_KUBECONFIG=.pvbus/kubeconfig python -m services.{name}

Every setting is a variable; `pvbus.runtime.process.settings.{settings}` has the reasons. Any number of
these processes may run, each takes its share of the partitions. SIGTERM lets it finish what it holds."""
"""What --help says of a service on the bus, before its settings."""


def service_main(name: str, config: type[ServiceConfig], about: str) -> Main:
    """Return the entry point of a service on the bus.

    name: the name of the service
    config: its settings
    about: what it does, for --help
    """
    text = _ABOUT.format(about=about.strip(), name=name, settings=config.__name__)
    return process_main(name, config, lambda read: serve([name], read), text)


def process_main(
    name: str, config: type[C], start: Callable[[C], Coroutine[Any, Any, None]], about: str
) -> Main:
    """Return the entry point of a process that takes its settings from the environment.

    Its only argument is --help, which prints `about` and the settings. It returns the exit code: 0 ended by a
    signal, 1 failed, 2 bad configuration.
    """

    def main(arguments: Sequence[str]) -> int:
        if arguments:
            return _answer(name, config, arguments, about)
        begin_process()
        try:
            run_watched(start(load_config(config)))
        except* UsageError as exc:
            code = _complain(exc, 2)
        except* PvbusError as exc:
            code = _complain(exc, 1)
        else:
            code = 0
        return code

    return main


def _answer(name: str, config: type[ProcessConfig], arguments: Sequence[str], about: str) -> int:
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


@asynccontextmanager
async def open_monitoring(config: ServiceConfig) -> AsyncIterator[Monitoring | None]:
    """Open the Prometheus of the settings; None if none is set. Raises UsageError for an unusable file."""
    if not isinstance(config, RolloutConfig | ServicesConfig) or not config.prometheus_url:
        yield None
        return
    client = Prometheus(
        config.prometheus_url, token_file=config.prometheus_token_file, ca_file=config.prometheus_ca_file
    )
    try:
        yield client
    finally:
        await client.close()
