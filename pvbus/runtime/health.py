"""/metrics, /healthz and /readyz of a process, over plain HTTP.

`healthz` says that the event loop turns; `readyz` that every service holds its claims and has restored
its tables.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pvbus.errors import PermanentError
from pvbus.ports.bus import Bus
from pvbus.runtime.assembly import Service
from pvbus.telemetry import metrics


class HealthServer:
    """An async context manager; `url` is known inside."""

    def __init__(self, services: Mapping[str, Service], bus: Bus, *, host: str, port: int) -> None:
        """port: 0 takes a free one."""
        self._services = services
        self._bus = bus
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as exc:
            await self._runner.cleanup()
            raise PermanentError(
                f"port {self._port} on {self._host}, for metrics and health, cannot be had ({exc.strerror}): "
                "choose another one with PVBUS_HEALTH_PORT (0 takes any free one)",
                reason="PortInUse",
            ) from exc
        address = self._runner.addresses[0]
        self.url = f"http://{address[0]}:{address[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        lines = [f"{name}: {'ready' if each.ready else 'restoring'}" for name, each in self._services.items()]
        ready = all(service.ready for service in self._services.values())
        return web.Response(text="\n".join(lines) + "\n", status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        await self._measure_lag()
        return web.Response(body=generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _measure_lag(self) -> None:
        """Of each partition that is read here the slowest reader counts."""
        behind: dict[tuple[str, int], int] = {}
        for name, service in self._services.items():
            positions = dict(service.positions())
            for place, end in (await self._bus.end_offsets(list(positions))).items():
                behind[place] = max(behind.get(place, 0), end - positions[place])
            metrics.DIRTY.labels(name).set(service.dirty_keys)
        for (topic, partition), records in behind.items():
            metrics.LAG.labels(topic, str(partition)).set(records)
