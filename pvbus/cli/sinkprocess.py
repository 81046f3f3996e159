"""The webhook sink as a process: `pvbus run sink`."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.files import reason_of
from pvbus.core.errors import TransientError, UsageError
from pvbus.core.kernel.records import CONDITIONS
from pvbus.core.kernel.topics import SINK
from pvbus.core.variants.sink.message import Filter
from pvbus.ports.bus import Bus
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.health import HealthServer
from pvbus.runtime.process.hosting import in_time
from pvbus.runtime.process.settings import ServiceConfig, SinkConfig, host_names
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.process.state import Observer
from pvbus.runtime.sink.receiver import Receiver, read_token
from pvbus.runtime.sink.worker import RETRY_SECONDS_MIN, Limits, SinkWorker
from pvbus.runtime.web.gate import is_loopback
from pvbus.telemetry import logs, metrics
from pvbus.telemetry.terminal import printable


class _NoCluster:
    """The API server, the rights on it and Porch's controllers: the sink has nothing to do with them."""

    problem = ""
    failing_seconds = 0.0

    def lines(self, service: str) -> list[str]:
        return []

    def is_useless(self, service: str) -> bool:
        return False


class SinkHealth(HealthServer):
    """The endpoints of the sink. It is not ready while the receiver takes no events."""

    def __init__(self, worker: SinkWorker, observer: Observer, config: ServiceConfig) -> None:
        nothing = _NoCluster()
        super().__init__(
            observer,
            nothing,
            nothing,
            nothing,
            host=config.health_host,
            port=config.health_port,
            names=host_names(config.health_names),
        )
        self._worker = worker

    def readiness(self) -> tuple[list[str], bool]:
        lines, ready = super().readiness()
        problem = self._worker.pace.problem
        if problem:
            lines.append(
                f"receiver: {printable(problem)}; {self._worker.dirty_keys} events read and not sent"
            )
        return lines, ready and not problem

    async def measure(self) -> None:
        await super().measure()
        oldest = self._worker.oldest_at
        metrics.SINK_UNSENT.set(self._worker.dirty_keys)
        metrics.SINK_OLDEST.set(0 if oldest is None else max(0.0, time.time() - oldest))


async def serve_sink(services: ServiceConfig, config: SinkConfig) -> None:
    """Send the events of a bus until a signal ends it. Raises UsageError for invalid settings."""
    configure_process(config)
    log = logs.get_logger("host")
    receiver = receiver_of(config)
    stop = asyncio.Event()
    with stop_on_signals(stop) as begun:
        async with receiver, _open_bus(services) as (bus, partitions):
            worker = _worker(bus, receiver, partitions, config)
            async with SinkHealth(worker, Observer({SINK: worker}, bus, SystemClock()), services) as health:
                bus.label = health.url
                begun()
                log.info("started", services=[SINK], health=health.url)
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(worker.run())
                    stopping = tasks.create_task(stop.wait())
                    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    worker.stop()
                    stopping.cancel()
    log.info("stopped", services=[SINK])


@asynccontextmanager
async def _open_bus(services: ServiceConfig) -> AsyncIterator[tuple[Bus, int]]:
    """Open the bus of running services; yield it with its partition count."""
    bus = await in_time(services, lambda: open_bus(services, create=False))

    async def partitions() -> int:
        found = (await bus.topics()).get(CONDITIONS)
        if found is None:
            raise TransientError(f"the bus has no topic {CONDITIONS} yet: are the services running?")
        return found.partitions

    try:
        yield bus, await in_time(services, partitions)
    finally:
        await bus.close()


def _worker(bus: Bus, receiver: Receiver, partitions: int, config: SinkConfig) -> SinkWorker:
    return SinkWorker(
        bus,
        SystemClock(),
        receiver,
        partitions=partitions,
        start=config.sink_start,
        wanted=Filter(_names(config.sink_kinds), _names(config.sink_types)),
        limits=Limits(
            in_flight_max=config.sink_in_flight,
            attempts_max=config.sink_attempts,
            retry_seconds=(RETRY_SECONDS_MIN, config.sink_retry_seconds),
        ),
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def receiver_of(config: SinkConfig) -> Receiver:
    """Return the receiver of these settings. Reads files; raises UsageError that lists every problem."""
    problems: list[str] = []
    url = _url(config.sink_url, problems)
    is_plain = url is not None and url.scheme == "http"
    token_file = Path(config.sink_token_file) if config.sink_token_file else None
    if token_file is not None:
        if url is not None and is_plain and not is_loopback(url.hostname or ""):
            problems.append(
                "PVBUS_SINK_TOKEN_FILE needs an https URL in PVBUS_SINK_URL: without TLS the token is "
                "readable on the way"
            )
        try:
            read_token(token_file)
        except UsageError as exc:
            problems.append(str(exc))
    if is_plain and config.sink_ca_file:
        problems.append("PVBUS_SINK_CA_FILE needs an https URL in PVBUS_SINK_URL")
    tls = _tls(config.sink_ca_file, problems) if config.sink_ca_file else None
    if problems:
        raise UsageError("invalid configuration of the sink:\n  " + "\n  ".join(problems))
    return Receiver(
        config.sink_url,
        mode=config.sink_mode,
        token_file=token_file,
        tls=tls,
        timeout_seconds=config.sink_timeout_seconds,
        in_flight_max=config.sink_in_flight,
    )


def _url(text: str, problems: list[str]) -> SplitResult | None:
    """Return an address, None for an invalid one."""
    example = "for example https://receiver.example.org/events"
    if not text:
        problems.append(f"PVBUS_SINK_URL is not set: the address that events are posted to, {example}")
        return None
    try:
        url = urlsplit(text)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # of a bracket or a port
        is_valid = False
    if not is_valid or not text.isprintable() or " " in text or "#" in text:
        problems.append(f"PVBUS_SINK_URL is not an http or https URL, {example}")
        return None
    if url.username is not None or url.password is not None:
        problems.append("PVBUS_SINK_URL has a login, which logs would show: use PVBUS_SINK_TOKEN_FILE")
        return None
    return url


def _tls(file: str, problems: list[str]) -> ssl.SSLContext | None:
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as exc:  # the latter is an OSError: of a file that is not PEM
        reason = "it has no PEM certificates" if isinstance(exc, ssl.SSLError) else reason_of(exc)
        problems.append(f"PVBUS_SINK_CA_FILE: cannot read {file}: {reason}")
        return None
