"""/metrics, /state, /healthz and /readyz of a process, over plain HTTP.

`healthz` reports that the event loop runs. `state` reports the progress of each lease (see
`pvbus.runtime.process.state`). `readyz` reports that every service holds its leases, has restored its tables
and can decide every key, and that the API server answers (see `pvbus.runtime.process.apiserver`). Otherwise
it names the leases in restore, the failing keys and the loss. It also names the missing rights (see
`pvbus.runtime.process.rights`) and a long stall of the event loop.
"""

import contextlib
import ipaddress
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pvbus.adapters.httpserver import LOCAL_NAMES, QuietRunner, host_name, is_own_host
from pvbus.runtime.process.assembly import Service
from pvbus.runtime.process.state import Observation, Observer, defect_lines, defects_of
from pvbus.telemetry import metrics
from pvbus.telemetry.loopwatch import loop_problem
from pvbus.telemetry.terminal import printable

CLUSTER_NAMES = (".svc", ".svc.cluster.local")
"""Ends of the names of Services, which Prometheus may use. Nobody can own such a name in the public DNS."""


class ApiServer(Protocol):
    """What a process knows of its API server: `pvbus.runtime.process.apiserver.ApiServerHealth`."""

    @property
    def problem(self) -> str: ...

    @property
    def failing_seconds(self) -> float: ...


class Rights(Protocol):
    """What a process knows of its rights: `pvbus.runtime.process.rights.MissingRights`."""

    def lines(self, service: str) -> list[str]: ...

    def is_useless(self, service: str) -> bool: ...


class Beside(Protocol):
    """What a process knows of Porch's controllers: `pvbus.runtime.process.beside.BesidePorch`."""

    @property
    def problem(self) -> str: ...


class Endpoints(ABC):
    """Serves the endpoints that every process has, within an async context, in which `url` is set."""

    def __init__(
        self,
        api_server: ApiServer,
        rights: Rights,
        beside: Beside | None = None,
        *,
        host: str,
        port: int,
        names: Sequence[str] = (),
    ) -> None:
        """Serve nothing until the context is entered.

        beside: what is known of Porch's controllers, None in a process that does not look for them
        host: the address to listen at
        port: the port to listen at; 0 takes any free one
        names: further names by which requests may name this server, beside its addresses
        """
        own = (*LOCAL_NAMES, socket.gethostname(), *names)
        self._names = frozenset(name.lower() for name in own)
        self._api_server = api_server
        self._rights = rights
        self._beside = beside
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""

    @abstractmethod
    def readiness(self) -> tuple[list[str], bool]:
        """Return a line per service, with what it lacks, and whether all are ready."""

    @abstractmethod
    async def measure(self) -> None:
        """Set the gauges, without an await after the first."""

    def add_routes(self, router: web.UrlDispatcher) -> None:
        router.add_get("/metrics", self._metrics)
        router.add_get("/healthz", self._healthz)
        router.add_get("/readyz", self._readyz)

    def lacks(self, service: str) -> tuple[list[str], bool]:
        """Return a line per resource on which a service lacks rights, and whether it has any at all."""
        lines = [f"{service}: {printable(line)}" for line in self._rights.lines(service)]
        return lines, not self._rights.is_useless(service)

    async def __aenter__(self) -> Self:
        application = web.Application(middlewares=[self._guard])
        self.add_routes(application.router)
        self._runner = QuietRunner(application, shutdown_timeout=0.5)
        host, port = await self._runner.listen(
            self._host, self._port, serves="metrics and health", setting="PVBUS_HEALTH_PORT"
        )
        self.url = f"http://{_address(host)}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse requests that a page of another site makes a browser send."""
        host = request.headers.get("Host", "")
        if not (is_own_host(host, self._names) or host_name(host).endswith(CLUSTER_NAMES)):
            named = host_name(host) or "of this request"
            text = (
                f"this server does not answer to the name {named}: use its address, or PVBUS_HEALTH_NAMES\n"
            )
            return web.Response(status=403, text=text)
        if "Origin" in request.headers:
            return web.Response(status=403, text="pages of other sites are not served\n")
        return await handler(request)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        lines, ready = self.readiness()
        if problem := self._api_server.problem:
            lines.append(f"API server: {printable(problem)}")
            ready = False
        if problem := loop_problem():
            lines.append(problem)
            ready = False
        if self._beside is not None and (problem := self._beside.problem):
            lines.append(f"Porch: {printable(problem)}")
            ready = False
        return web.Response(text="\n".join(lines) + "\n", status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        await self.measure()
        metrics.API_SERVER_FAILING.set(self._api_server.failing_seconds)
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})


class HealthServer(Endpoints):
    """Serves the endpoints of services on a bus."""

    def __init__(
        self,
        observer: Observer,
        api_server: ApiServer,
        rights: Rights,
        beside: Beside,
        *,
        host: str,
        port: int,
        names: Sequence[str] = (),
    ) -> None:
        super().__init__(api_server, rights, beside, host=host, port=port, names=names)
        self._observer = observer

    def add_routes(self, router: web.UrlDispatcher) -> None:
        super().add_routes(router)
        router.add_get("/state", self._state)

    def readiness(self) -> tuple[list[str], bool]:
        lines, ready = [], True
        for name, service in self._observer.services.items():
            lines.append(f"{name}: {_readiness(service)}")
            defects = defect_lines(name, defects_of(service))
            lacking, has_rights = self.lacks(name)
            lines += [*defects, *lacking]
            ready = ready and service.ready and not defects and has_rights
        return lines, ready

    async def measure(self) -> None:
        _measure(await self._observer.look())

    async def _state(self, request: web.Request) -> web.Response:
        observation = await self._observer.look()
        return web.Response(body=msgspec.json.encode(observation.state), content_type="application/json")


def _readiness(service: Service) -> str:
    if service.ready:
        return "ready" if service.leases() else "ready, as a spare: other workers hold every lease"
    restoring = [
        f"partition {number} ({lease.restore[0]} of {lease.restore[1]})"
        for number, lease in sorted(service.leases().items())
        if not lease.restored
    ]
    return f"restoring {', '.join(restoring)}" if restoring else "has no lease yet"


def _measure(observation: Observation) -> None:
    """Set the gauges. There is no await between here and the response, so no scrape sees half of them."""
    for gauge in metrics.MEASURED:
        gauge.clear()
    for (topic, number), records in observation.behind.items():
        metrics.LAG.labels(topic, str(number)).set(records)
    for name, service in observation.state.services.items():
        metrics.DIRTY.labels(name).set(service.dirty)
        for lease in service.leases:
            labels = (name, str(lease.partition))
            metrics.LEASE_HELD.labels(*labels).set(1)
            if lease.lag is not None:
                metrics.LEASE_LAG.labels(*labels).set(lease.lag)
            metrics.LEASE_DIRTY.labels(*labels).set(lease.dirty)
            metrics.LEASE_PROGRESS.labels(*labels).set(lease.seconds_since_progress)
            metrics.LEASE_RESTORE.labels(*labels).set(lease.restore_share)


def _address(host: str) -> str:
    """Return the address by which clients reach a server on `host`.

    It is our host name if the server listens on all addresses.
    """
    if ipaddress.ip_address(host).is_unspecified:
        with contextlib.suppress(OSError):
            host = socket.gethostbyname(socket.gethostname())
    return f"[{host}]" if ":" in host else host
