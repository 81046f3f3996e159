"""The services that `pvbus up` runs: in this process, or each as processes of its own.

Both implement `Supervisor`, and both report their state like every process of pvbus
(`pvbus.runtime.process.state`), so `States` decides for both whether all work is done, and which service is
still busy.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import aiohttp
import msgspec

from pvbus.cli.children import USAGE_CODE, ChildProcess, DiedError, ending
from pvbus.core.errors import PermanentError, UsageError
from pvbus.core.kernel.backoff import Backoff
from pvbus.core.kernel.topics import SERVICES
from pvbus.core.yaml.reader import document
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster
from pvbus.runtime.backoff import uniform
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.hosting import Host, host_services, open_ground
from pvbus.runtime.process.rights import AGENT
from pvbus.runtime.process.settings import ServicesConfig
from pvbus.runtime.process.state import ProcessState, ServiceReport, defect_lines

BACKOFF_SECONDS = (0.5, 10.0)
"""The time between the end of a process and its restart; it doubles each time, until a process lives
longer."""

STATE_SECONDS_MAX = 3.0
"""Timeout for a process's state; the process itself queries the bus for a second at most."""

Say = Callable[[str], None]
_state = msgspec.json.Decoder(ProcessState)


class Supervisor(Protocol):
    """Runs the services.

    bus: the bus, for reading only
    cluster: the API server, for reading only
    """

    @property
    def bus(self) -> Bus: ...

    @property
    def cluster(self) -> Cluster: ...

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set, then drain. Raises errors that a restart cannot fix."""
        ...

    async def states(self) -> "States":
        """Request the state of every process once."""
        ...


class States(NamedTuple):
    """The states that the processes reported.

    processes: the reports
    missing: the processes without a report
    services: the names of the services that have to run
    """

    processes: tuple[ProcessState, ...]
    missing: tuple[str, ...] = ()
    services: Sequence[str] = SERVICES

    def _reports(self, name: str) -> Iterator[ServiceReport]:
        """Yield the reports of workers with leases: a spare worker is neither ready nor idle."""
        for process in self.processes:
            if (report := process.services.get(name)) is not None and report.leases:
                yield report

    def is_settled(self, *, horizon_seconds: float = 0.0) -> bool:
        """Return whether all work is done.

        That is so when every lease is held by one worker, all records are read, all kinds are listed, all
        services are idle, and no timer ends within the horizon.
        """
        return not self.missing and all(
            self._holds_everything(name) and all(_rests(r, horizon_seconds) for r in self._reports(name))
            for name in self.services
        )

    def _holds_everything(self, name: str) -> bool:
        held = sorted(lease.partition for report in self._reports(name) for lease in report.leases)
        return held == list(range(partition_count()))

    def busy(self) -> list[str]:
        """Return the services with work in progress, or with leases that no worker holds yet."""
        return [
            name
            for name in self.services
            if not self._holds_everything(name) or not all(report.idle for report in self._reports(name))
        ]

    def defects(self) -> list[str]:
        """Return a line for each decision that fails by a bug of ours."""
        found = (item for process in self.processes for item in process.services.items())
        return [line for name, report in found for line in defect_lines(name, report.defects)]

    def has_timer_within(self, seconds: Mapping[str, float]) -> bool:
        """Return whether a timer of one of these services ends within its seconds."""
        return any(
            report.next_timer_seconds is not None and report.next_timer_seconds <= limit
            for name, limit in seconds.items()
            for report in self._reports(name)
        )


def _rests(report: ServiceReport, horizon_seconds: float) -> bool:
    timer = report.next_timer_seconds
    is_timer_far = timer is None or timer > horizon_seconds
    return report.idle and report.observed and report.behind == 0 and is_timer_far


@asynccontextmanager
async def supervisor_of(
    config: ServicesConfig, accounts: Path, processes: int, say: Say, services: Sequence[str] = SERVICES
) -> AsyncIterator[Supervisor]:
    """Prepare the services.

    config: the settings; its kubeconfig is for reading alone
    accounts: a kubeconfig with a context `pvbus-<service>` for each service
    processes: the processes of each service; 0 runs all of them in this process
    say: prints a line
    services: the names of the services
    """
    if processes == 0:
        async with host_services(services, config, _tokens(accounts)) as host:
            say(f"metrics and health: {host.health_url}/metrics")
            yield _HereSupervisor(host)
        return
    async with open_ground(config) as ground, aiohttp.ClientSession() as session:
        urls = {f"{name}/{n + 1}": "" for name in services for n in range(processes)}
        settings = msgspec.structs.replace(config, kubeconfig=str(accounts))
        yield _ProcessSupervisor(ground.bus, ground.cluster, settings, urls, session, say)


def _tokens(accounts: Path) -> dict[str, str]:
    """Return the token of each service."""
    users = document(accounts.read_bytes()).value["users"]
    return {user["name"].removeprefix(AGENT): user["user"]["token"] for user in users}


class _HereSupervisor:
    """All services in this process."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.bus = host.bus
        self.cluster = host.cluster

    async def run(self, stop: asyncio.Event) -> None:
        await self._host.run(stop)

    async def states(self) -> States:
        return States(((await self._host.observer.look()).state,), services=tuple(self._host.services))


class _ProcessSupervisor:
    """Each service as separate processes, which are restarted whenever they end."""

    def __init__(
        self,
        bus: Bus,
        cluster: Cluster,
        config: ServicesConfig,
        urls: dict[str, str],
        session: aiohttp.ClientSession,
        say: Say,
    ) -> None:
        """Start nothing until `run`.

        config: the settings, with the kubeconfig of the services' accounts
        urls: `<service>/<number>` -> the address of a process, "" while it is not known
        """
        self.bus = bus
        self.cluster = cluster
        self._config = config
        self._session = session
        self._say = say
        self._urls = urls
        self._served: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks:
            keepers = [tasks.create_task(self._keep(worker), name=worker) for worker in self._urls]
            await stop.wait()
            for sync in keepers:
                sync.cancel()

    async def _keep(self, worker: str) -> None:
        """Restart one process whenever it ends. Raises errors that a restart cannot fix."""
        clock = asyncio.get_running_loop()
        backoff = Backoff(*BACKOFF_SECONDS, uniform)
        refused = ""
        while True:
            began = clock.time()
            try:
                end = ending(await self._run_once(worker))
                refused = ""
            except DiedError as exc:
                end = str(exc).removeprefix(f"{worker} ")
            except PermanentError as exc:
                if worker not in self._served or str(exc) == refused:
                    raise
                refused = str(exc)
                end = f"could not be started: {refused}"
            if clock.time() - began > BACKOFF_SECONDS[1]:
                backoff.reset()
            pause = backoff.next_seconds()
            self._say(f"{worker} {end}; restarting in {pause:.1f} s")
            await asyncio.sleep(pause)

    async def _run_once(self, worker: str) -> int:
        """Run one process to its end; return its exit code."""
        config, service = self._config, worker.partition("/")[0]
        command = ("run", service, "--bus", config.bus, "--kubeconfig", config.kubeconfig)
        settings = {"PVBUS_LOG_LEVEL": config.log_level, **_of_packages(config)}
        async with ChildProcess(worker, *command, "--context", AGENT + service, "--health-port", "0",
                         settings=settings) as child:  # fmt: skip
            self._urls[worker] = url = child.reported["url"]
            self._served.add(worker)
            self._say(f"{worker}: metrics and health: {url}/metrics")
            try:
                code = await child.wait_until_ended()
            finally:
                self._urls[worker] = ""
        if code == USAGE_CODE:
            raise UsageError(f"{worker} cannot work with its settings; its log is above")
        return code

    async def states(self) -> States:
        reported = await asyncio.gather(*(self._ask(url) for url in self._urls.values()))
        missing = [worker for worker, state in zip(self._urls, reported, strict=True) if state is None]
        services = tuple(dict.fromkeys(worker.partition("/")[0] for worker in self._urls))
        return States(tuple(state for state in reported if state is not None), tuple(missing), services)

    async def _ask(self, url: str) -> ProcessState | None:
        if not url:
            return None
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, msgspec.MsgspecError):
            async with asyncio.timeout(STATE_SECONDS_MAX), self._session.get(f"{url}/state") as answer:
                return _state.decode(await answer.read())
        return None


def _of_packages(config: ServicesConfig) -> dict[str, str]:
    """Return the settings of the package services, which `pvbus up` may have set itself."""
    return {
        "PVBUS_SOURCES_CACHE": config.sources_cache,
        "PVBUS_SOURCES_LOCAL": config.sources_local,
        "PVBUS_PLATFORMS": config.platforms,
        "PVBUS_OBSERVE_SECONDS": str(config.observe_seconds),
    }
