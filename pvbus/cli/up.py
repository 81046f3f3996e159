"""`pvbus up`: API server, package store, bus and services with one command.

Two processes, since there are two cores to use: this one runs the services, a child the API server with
the package store. Each ends with the other.
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.status import Status

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apply import apply
from pvbus.cli.controlplane import Address, ControlPlaneProcess
from pvbus.cli.datafolder import DEFAULT, DataPaths, held
from pvbus.cli.examples import fleet
from pvbus.cli.manifests import Manifest, read_manifests
from pvbus.cli.progress import Progress, Tally, Trouble, judge, unsettled_repositories
from pvbus.config import ServicesConfig, load_config
from pvbus.errors import PermanentError, TransientError
from pvbus.runtime.assembly import SERVICES, partition_count, settled
from pvbus.runtime.hosting import Host, hosted, stop_on_signals
from pvbus.runtime.ingest import IngestWorker
from pvbus.telemetry import logs

EXAMPLES: Mapping[str, Callable[[Path], list[Manifest]]] = {"fleet": fleet.make}
LOOK_SECONDS = 0.25
QUIET_SECONDS = 5.0
"""How long nothing must move, with something not ready, before that is called stalled. Timers of the
services up to HORIZON_SECONDS are waited for; retries that are further apart are not."""

HORIZON_SECONDS = 6.0
"""Beyond the removal delay, so that `--once` also sees removals through."""

TROUBLES_SHOWN_MAX = 10


class Options(NamedTuple):
    port: int
    once: bool
    timeout_seconds: float


@click.command(
    epilog="""\b
Examples:
  pvbus up --example fleet          200 variants to look around in; Ctrl-C ends it, the data stays
  pvbus up manifests/               apply a folder of manifests first
  pvbus up manifests/ --once        for scripts: end with 0 when all is ready, with 1 when it is stalled
  pvbus up --data /srv/pvbus --port 6443
"""
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--data", default=DEFAULT, show_default=True, help="Folder that holds everything.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: a free one, kept for the folder.")
@click.option("--example", type=click.Choice(sorted(EXAMPLES)), help="Make and apply an example.")
@click.option("--once", is_flag=True, help="End when everything is ready (0) or stalled (1).")
@click.option("--timeout", default=600.0, type=click.FloatRange(min=1), show_default=True, metavar="SECONDS",
              help="With --once: give up after so long.")  # fmt: skip
@click.option("--log-level", default="warning", type=click.Choice(["debug", "info", "warning", "error"]))
def up(
    paths: tuple[Path, ...],
    data: str,
    port: int,
    example: str | None,
    once: bool,
    timeout: float,
    log_level: str,
) -> None:
    """Run everything on this machine: API server, package store, bus and the five services.

    PATH is a file or a folder of manifests, applied first: definitions and namespaces, then
    Repositories, then the rest. Your own kubeconfig is neither read nor changed.
    """
    config = load_config(ServicesConfig)
    logs.configure(log_level, config.log_format)
    manifests = read_manifests(paths)
    folder = DataPaths(Path(data))
    folder.make()
    with held(folder):
        if example is not None:
            manifests = [*EXAMPLES[example](folder.example), *manifests]
        config = msgspec.structs.replace(
            config, bus=f"sqlite:{folder.bus}", kubeconfig=str(folder.kubeconfig), context=""
        )
        options = Options(port, once, timeout)
        sys.exit(asyncio.run(_up(folder, config, manifests, options, Screen())))


class Screen:
    """What a person sees: one line that changes on a terminal, a line per change elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._shown = ""
        self._shown_at = 0.0

    @contextmanager
    def live(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with self._console.status("starting") as self._status:
            yield
        self._status = None

    def line(self, text: str) -> None:
        """Print something that stays, on standard output."""
        click.echo(text)

    def progress(self, tally: Tally, *, seconds: float) -> None:
        text = str(tally)
        if self._status is not None:
            self._status.update(f"{text} [dim]{seconds:.0f} s[/]")
        elif text != self._shown and (tally.complete or time.monotonic() - self._shown_at >= 1.0):
            self._shown, self._shown_at = text, time.monotonic()
            click.echo(text)


async def _up(
    folder: DataPaths, config: ServicesConfig, manifests: list[Manifest], options: Options, screen: Screen
) -> int:
    """Run until told to stop, or with --once until there is an answer. Returns the exit code."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with ControlPlaneProcess(folder.root, options.port) as server:
            _introduce(server.address, screen)
            async with hosted(SERVICES, config) as host:
                screen.line(f"metrics and health: {host.health_url}/metrics")
                if manifests:
                    created = await _apply(folder, manifests)
                    screen.line(f"applied {len(manifests)} manifests, {created} of them new")
                    host.cluster.forget_resources()
                return await _supervise(server, host, stop, options, screen)


async def _apply(folder: DataPaths, manifests: list[Manifest]) -> int:
    """A person's manifests are read strictly: a mistyped field is an error, not left out."""
    cluster = await HttpCluster.connect(folder.kubeconfig, strict=True)
    try:
        return await apply(cluster, manifests)
    finally:
        await cluster.close()


def _introduce(address: Address, screen: Screen) -> None:
    screen.line(f"API server: {address.url}")
    screen.line(f"export KUBECONFIG={shlex.quote(str(address.kubeconfig))}")


async def _supervise(
    server: ControlPlaneProcess, host: Host, stop: asyncio.Event, options: Options, screen: Screen
) -> int:
    """Run services and watcher; whatever ends first ends the others."""
    services = asyncio.create_task(host.run(stop), name="services")
    child = asyncio.create_task(server.ended(), name="API server")
    watcher = asyncio.create_task(_watch(host, stop, options, screen), name="watcher")
    await asyncio.wait({services, child, watcher}, return_when=asyncio.FIRST_COMPLETED)
    ended = child.done() and not stop.is_set()
    stop.set()
    await asyncio.wait({services, watcher})
    child.cancel()
    if ended:
        raise PermanentError(
            f"the API server's process ended with code {child.result()}; its log is above. Start again: "
            "what was answered before is on disk"
        )
    await services
    return await watcher


async def _watch(host: Host, stop: asyncio.Event, options: Options, screen: Screen) -> int:
    """Show progress; with --once decide when it is over."""
    began = time.monotonic()
    progress = Progress(host.bus, partition_count())
    quiet_since = began
    try:
        with screen.live():
            while not stop.is_set():
                await progress.update(LOOK_SECONDS)
                now = time.monotonic()
                screen.progress(progress.tally, seconds=now - began)
                if not options.once:
                    continue
                if progress.tally.complete and await _is_done(host, progress):
                    break
                if not await _is_settled(host, horizon_seconds=HORIZON_SECONDS):
                    quiet_since = now
                if now - quiet_since > QUIET_SECONDS:
                    troubles = await _troubles(host, progress)
                    if troubles and not unsettled_repositories(troubles):
                        return _explain(screen, "stalled", troubles)
                if now - began > options.timeout_seconds:
                    outcome = f"not ready after {now - began:.0f} s{_busy(host)}"
                    return _explain(screen, outcome, await _troubles(host, progress))
        if not stop.is_set():
            screen.line(f"all ready after {time.monotonic() - began:.1f} s: {progress.tally}")
    finally:
        await progress.close()
    return 0


async def _is_done(host: Host, progress: Progress) -> bool:
    """Nothing is under way, the API server itself says that all is ready, and still nothing is.

    Only unroll's timers stand for work to come (removals, roll-ups); others look again at what is done.
    """
    unroll = host.services["unroll"].next_timer_seconds
    if unroll is not None and unroll <= HORIZON_SECONDS:
        return False
    if not await _is_settled(host) or await _troubles(host, progress):
        return False
    return await _is_settled(host)


async def _is_settled(host: Host, *, horizon_seconds: float = 0.0) -> bool:
    ingest = host.services["ingest"]
    assert isinstance(ingest, IngestWorker)
    if not ingest.observed:
        return False
    return await settled(host.services.values(), host.bus, horizon_seconds=horizon_seconds)


def _busy(host: Host) -> str:
    """Name the services that have work under way."""
    busy = [name for name, service in host.services.items() if not service.idle]
    return f" (still working: {', '.join(busy)})" if busy else ""


async def _troubles(host: Host, progress: Progress) -> list[Trouble]:
    try:
        return (await judge(host.cluster, progress))[1]
    except TransientError as exc:
        raise PermanentError(f"the API server does not answer: {exc}") from exc


def _explain(screen: Screen, outcome: str, troubles: list[Trouble]) -> int:
    screen.line(f"{outcome}: {len(troubles)} objects are not ready")
    for trouble in troubles[:TROUBLES_SHOWN_MAX]:
        screen.line(f"  {trouble}")
    if len(troubles) > TROUBLES_SHOWN_MAX:
        screen.line(f"  and {len(troubles) - TROUBLES_SHOWN_MAX} more")
    return 1
