"""`pvbus up`: API server, package store, bus and services with one command.

There are at least two processes, to use two cores: this one runs the services, or supervises their processes,
and a child runs the API server with the package store. Each ends when the other ends.
"""

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
from rich.console import Console
from rich.status import Status

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.adapters.manifests import Manifest, read_manifests
from pvbus.cli.apply import Applied, apply_news
from pvbus.cli.applyrecord import AppliedRecord, distinct, identity
from pvbus.cli.children import ending, kill_children
from pvbus.cli.controlplaneprocess import ControlPlaneProcess
from pvbus.cli.datafolder import DEFAULT, DataPaths, held
from pvbus.cli.functions import functions_of, isolation_problem
from pvbus.cli.progress import Progress, Tally, Trouble, judge, unsettled_repositories
from pvbus.cli.supervisor import States, Supervisor, supervisor_of
from pvbus.cli.webpage import page_of
from pvbus.core.errors import PermanentError, TransientError, UsageError
from pvbus.core.kernel.topics import PLATFORM, PROMOTION, SERVICES
from pvbus.core.platform.establish.reporting import PAGES_SECONDS
from pvbus.examples import fleet, platform
from pvbus.install.packagekinds import carvel_crds, crossplane_crds, packaging_crds
from pvbus.ports.cluster import Cluster, Kind
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.begin import configure_process
from pvbus.runtime.process.buses import bus_file, kafka_settings
from pvbus.runtime.process.configuration import load_config
from pvbus.runtime.process.settings import ApiServerConfig, LogLevel, ServicesConfig, WebConfig
from pvbus.runtime.process.signals import end_within, stop_on_signals
from pvbus.runtime.web.server import Hints
from pvbus.telemetry.loopwatch import run_watched
from pvbus.telemetry.terminal import unfiltered

EXAMPLES: Mapping[str, Callable[[Path, int], list[Manifest]]] = {
    "fleet": fleet.make,
    "platform": platform.make,
}
LOOK_SECONDS = 0.25
ASK_SECONDS = 1.0  # while objects are not ready, states are requested less often: each queries the bus

QUIET_SECONDS = 5.0
"""How long the services must be settled, with objects that are not ready, before that is called stalled.
Timers of the services within HORIZON_SECONDS count as work; later retries do not."""

HORIZON_SECONDS = 6.0
"""Longer than the removal delay, so that `--once` also waits for removals."""

WORK_TIMERS_SECONDS = {"unroll": HORIZON_SECONDS, "establish": PAGES_SECONDS}
"""Timers that mean work to come, by service, and how near they are then: removals and roll-ups, and the pages
of the lock. Those of the other services look at finished work again."""

LATE_SECONDS = 10.0
"""How much later than its timeout `--once` ends by force, at the latest: a full disk or a server without an
answer may hold up everything else, also the end."""

TROUBLES_SHOWN_MAX = 10


class UpOptions(NamedTuple):
    """The options of one `pvbus up`.

    port: the port of the API server, 0 for any free one
    processes: the processes of each service; 0 runs all services in this process
    once: whether to end when all is ready
    timeout_seconds: when `once` gives up
    hints: the options that other commands need for this installation; those that only ask the API server take
        no `--bus`
    server: environment variables for the process of the API server
    web: the settings of the page, None without one
    services: the names of the services to run
    tries: what to try when all is ready for the first time, a line each
    """

    port: int
    processes: int
    once: bool
    timeout_seconds: float
    hints: Hints
    server: Mapping[str, str]
    web: WebConfig | None
    services: Sequence[str] = SERVICES
    tries: Sequence[str] = ()


@click.command(
    short_help="Run everything on this machine.",
    epilog="""\b
Examples:
  pvbus up --example fleet          200 variants to look around in; Ctrl-C ends it, the data stays
  pvbus up --example platform       packages that depend on each other
  pvbus up manifests/               apply a folder of manifests first
  pvbus up manifests/ --once        for scripts: end with 0 when all is ready, with 1 when it is stalled
  pvbus up --data /srv/pvbus --port 6443
  pvbus up --bus kafka://127.0.0.1:9092 --processes 2
  pvbus up --function-engine podman manifests/
  pvbus up --promote manifests/     drafts that are opted in and ready are proposed
  pvbus up --packages manifests/    packages are installed, with what they need
""",
)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@click.option("--data", default=DEFAULT, show_default=True, help="Folder that holds everything.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="0: a free one, kept for the folder.")
@click.option("--example", type=click.Choice(sorted(EXAMPLES)), help="Make and apply an example.")
@click.option("--clusters", default=fleet.CLUSTERS_PER_REGION, show_default=True, metavar="N",
              type=click.IntRange(1, fleet.CLUSTERS_PER_REGION_MAX),
              help="In each of the four regions of the fleet.")  # fmt: skip
@click.option("--reapply", is_flag=True, help="Apply PATH and the example even if they did not change: "
              "takes back edits made with kubectl.")  # fmt: skip
@click.option(
    "--bus",
    metavar="URL",
    help="sqlite:PATH, or kafka://HOST:PORT[,HOST:PORT...][/PREFIX], where a data folder has a "
    "prefix of its own if none is given; its TLS and login are settings, PVBUS_KAFKA_*. PVBUS_BUS is for the "
    "commands that look at it.  [default: a file in the data folder]",
)
@click.option("--processes", default=0, type=click.IntRange(0, 64), show_default=True, metavar="N",
              help="Processes of each service; 0 runs all of them in this one.")  # fmt: skip
@click.option("--web/--no-web", default=True, show_default=True, help="Serve a page that shows the fleet.")
@click.option("--promote", is_flag=True, help="Also run promote, rollout and release: drafts that are "
              "opted in and ready are proposed, and approved by RolloutPolicies.")  # fmt: skip
@click.option("--packages", is_flag=True, help="Also run resolve and establish: packages that Providers, "
              "Configurations, Functions and PackageInstalls ask for are installed.")  # fmt: skip
@click.option("--function-engine", type=click.Choice(["auto", "podman", "docker", "nerdctl"]),
              help="For functions that are not built in [PVBUS_FUNCTION_ENGINE].")  # fmt: skip
@click.option("--function-runner", metavar="HOST:PORT",
              help="Porch's function runner, for the others [PVBUS_FUNCTION_RUNNER].")  # fmt: skip
@click.option("--once", is_flag=True, help="End when everything is ready (0) or stalled (1).")
@click.option("--timeout", default=600.0, type=click.FloatRange(min=1), show_default=True, metavar="SECONDS",
              help="With --once: give up after so long.")  # fmt: skip
@click.option("--log-level", default="warning", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]),
              help="What the services log.")  # fmt: skip
def up(
    paths: tuple[Path, ...],
    data: str,
    port: int,
    example: str | None,
    clusters: int,
    reapply: bool,
    bus: str | None,
    processes: int,
    web: bool,
    promote: bool,
    packages: bool,
    function_engine: str | None,
    function_runner: str | None,
    once: bool,
    timeout: float,
    log_level: LogLevel,
) -> None:
    """Run everything on this machine: API server, package store, bus and the five services.

    PATH is a file or a folder of manifests, applied first: definitions and namespaces, then
    Repositories, then the rest. A manifest is applied when it is new, or when its file has changed since it
    was applied last, and never because of a restart: edits made with kubectl stay, and so do objects that are
    no longer in a file. Your own kubeconfig is neither read nor changed.
    """
    variables = {"PVBUS_FUNCTION_ENGINE": function_engine, "PVBUS_FUNCTION_RUNNER": function_runner}
    functions = {name: value for name, value in variables.items() if value is not None}
    config = load_config(ServicesConfig)
    server_config = load_config(ApiServerConfig, {**os.environ, **functions})
    functions_of(server_config)
    configure_process(msgspec.structs.replace(config, log_level=log_level))
    if reapply and not paths and example is None:
        raise UsageError("--reapply needs what to apply: give PATH or --example, too")
    packages = packages or example == "platform"
    manifests = distinct(read_manifests(paths))
    folder = DataPaths(Path(data))
    config = msgspec.structs.replace(
        config,
        bus=bus or f"sqlite:{folder.bus}",
        kubeconfig=str(folder.kubeconfig),
        context="",
        log_level=log_level,
        sources_cache=str(folder.root / "sources"),
    )
    if example == "platform":
        config = platform.configured(config, folder.example)
    needs_prefix = bus_file(config.bus) is None and not kafka_settings(config).prefix
    folder.make()
    with held(folder):
        if needs_prefix:
            config = msgspec.structs.replace(config, bus=f"{config.bus.rstrip('/')}/{folder.bus_prefix()}")
        if example is not None:
            made = EXAMPLES[example](folder.example, clusters)
            manifests = _with_others(_source_of(example), made, manifests)
        if packages:
            manifests = _with_others("the kinds of packages", _package_kinds(folder.root), manifests)
        of_data = f" --data {shlex.quote(data)}" if data != DEFAULT else ""
        hints = Hints(of_data + (f" --bus {shlex.quote(config.bus)}" if bus else ""), of_data)
        scope = [os.path.abspath(path) for path in paths]
        given = Given(manifests, (*scope, _source_of(example)) if example else tuple(scope), reapply)
        page = load_config(WebConfig) if web and not once else None
        services = (*SERVICES, *(PROMOTION if promote else ()), *(PLATFORM if packages else ()))
        tries = _tries(of_data) if example == "fleet" and not once else ()
        options = UpOptions(port, processes, once, timeout, hints, functions, page, services, tries)
        if problem := isolation_problem(server_config):
            click.echo(problem, err=True)
        sys.exit(run_watched(_up(folder, config, given, options, Screen())))


class Given(NamedTuple):
    """The manifests to apply.

    manifests: the manifests, with those of ours
    scope: the files, folders and examples that they come from
    reapply: whether to apply the manifests that are not new, too
    """

    manifests: Sequence[Manifest]
    scope: Sequence[str]
    reapply: bool


def _tries(options: str) -> Sequence[str]:
    """Return what to try with the example fleet: each shows something within seconds.

    options: those that name the data folder
    """
    own = "pvbus" if shutil.which("pvbus") else sys.argv[0]
    return (
        "to try in a second terminal, after the line with KUBECONFIG above:",
        '  kubectl patch cluster asia-01 --type merge -p \'{"spec":{"replicas":9}}\'',
        f"    one draft changes: {own} diff{options} default/web-edge-asia-asia-01-web",
        "  kubectl label cluster asia-01 stage=staging --overwrite",
        "    its variant goes after five seconds; with stage=production it is there again",
        f"  {own} explain{options} default/web-edge-asia-asia-01-web",
        "    where a variant comes from, and why it is as it is",
    )


def _source_of(example: str) -> str:
    return f"example {example}"


def _package_kinds(folder: Path) -> list[Manifest]:
    """Return the definitions of what installs and packages are, as neither project's programs bring them."""
    kinds = (*packaging_crds(), *crossplane_crds(), *carvel_crds())
    return [Manifest(folder, number, crd) for number, crd in enumerate(kinds, 1)]


def _with_others(source: str, objects: list[Manifest], manifests: list[Manifest]) -> list[Manifest]:
    """Add objects of ours to the user's manifests, which override them."""
    own = {identity(manifest.object) for manifest in manifests}
    made = [manifest._replace(source=source) for manifest in objects]
    return [*(manifest for manifest in made if identity(manifest.object) not in own), *manifests]


class Screen:
    """Progress for the user: one changing line on a terminal, a line per change elsewhere."""

    def __init__(self) -> None:
        self._console = Console(file=unfiltered(sys.stderr), highlight=False)
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
        """Print a permanent line on standard output."""
        click.echo(text)

    def progress(self, tally: Tally, *, seconds: float) -> None:
        text = str(tally)
        if self._status is not None:
            self._status.update(f"{text} [dim]{seconds:.0f} s[/]")
        elif text != self._shown and (tally.complete or time.monotonic() - self._shown_at >= 1.0):
            self._shown, self._shown_at = text, time.monotonic()
            click.echo(text)


async def _up(
    folder: DataPaths, config: ServicesConfig, given: Given, options: UpOptions, screen: Screen
) -> int:
    """Run until a signal, or with --once until all is ready or it gives up. Return the exit code."""
    stop = asyncio.Event()
    if options.once:
        late = options.timeout_seconds + LATE_SECONDS
        end_within(late, kill_children, f"it was not ready after {options.timeout_seconds:.0f} s")
    code = None
    with stop_on_signals(stop, last=kill_children) as begun, _started_in_time(options) as start:
        process = ControlPlaneProcess(
            folder.root, options.port, config.log_level, options.server, config.namespaces
        )
        async with start, process as server:
            screen.line(f"API server: {server.address.url}")
            screen.line(f"export KUBECONFIG={shlex.quote(str(server.address.kubeconfig))}")
            if bus_file(config.bus) != folder.bus:
                screen.line(f"export PVBUS_BUS={shlex.quote(config.bus)}")
            services = supervisor_of(
                config, folder.services_kubeconfig, options.processes, screen.line, options.services
            )
            async with (
                services as supervisor,
                page_of(folder, supervisor.bus, options.web, options.hints, screen.line),
            ):
                if given.manifests:
                    applied = await _apply(folder, given)
                    for line in (f"manifests: {applied}", *applied.remarks):
                        screen.line(line)
                    supervisor.cluster.forget_resources()
                begun()
                start.reschedule(None)
                code = await _supervise(server, supervisor, stop, options, screen)
    if code is None:
        screen.line(f"ended by a signal; everything is in {folder.root}")
        return 1 if options.once else 0  # the wait was interrupted, so it has failed
    return code


@contextmanager
def _started_in_time(options: UpOptions) -> Iterator[asyncio.Timeout]:
    """Yield a timeout for the start with --once. Raises PermanentError when it expires."""
    try:
        yield asyncio.timeout(options.timeout_seconds if options.once else None)
    except TimeoutError as exc:
        raise PermanentError(
            f"not ready after {options.timeout_seconds:.0f} s: it was still starting; the log above says "
            "what it waited for. Give it more with --timeout",
            reason="Timeout",
        ) from exc


async def _apply(folder: DataPaths, given: Given) -> Applied:
    """Apply the user's manifests strictly: an unknown field is an error, not pruned."""
    cluster = await HttpCluster.connect(folder.kubeconfig, strict=True)
    try:
        record = AppliedRecord.open(folder.applied, await _identity_of(cluster))
        return await apply_news(cluster, given.manifests, record, given.scope, reapply=given.reapply)
    finally:
        await cluster.close()


async def _identity_of(cluster: Cluster) -> str:
    """Return the uid of the default namespace, which is new after the server's data were removed."""
    resource = await cluster.resource(Kind("", "Namespace"))
    found = await cluster.get(resource, "", "default") if resource is not None else None
    return str(found["metadata"]["uid"]) if found is not None else ""


async def _supervise(
    server: ControlPlaneProcess,
    supervisor: Supervisor,
    stop: asyncio.Event,
    options: UpOptions,
    screen: Screen,
) -> int | None:
    """Run services and watcher; the first of them or the API server to end stops the others.

    Return the exit code, None if a signal ended it.
    """
    services = asyncio.create_task(supervisor.run(stop), name="services")
    child = asyncio.create_task(server.wait_until_ended(), name="API server")
    watcher = asyncio.create_task(_watch(supervisor, stop, options, screen), name="watcher")
    limit = options.timeout_seconds + LATE_SECONDS / 2 if options.once else None
    await asyncio.wait({services, child, watcher}, return_when=asyncio.FIRST_COMPLETED, timeout=limit)
    if not (services.done() or child.done() or watcher.done()):
        watcher.cancel()
    ended = child.done() and not stop.is_set()
    stop.set()
    await asyncio.wait({services, watcher})
    child.cancel()
    if ended:
        raise PermanentError(
            f"the API server's process {ending(child.result())}; its log is above. Start again: "
            "what was answered before is on disk"
        )
    await services
    if watcher.cancelled():
        seconds = options.timeout_seconds
        screen.line(
            f"not ready after {seconds:.0f} s: the bus or the API server does not answer; see the log"
        )
        return 1
    return await watcher


async def _watch(
    supervisor: Supervisor, stop: asyncio.Event, options: UpOptions, screen: Screen
) -> int | None:
    """Show progress; with --once decide when to end. Return the exit code, None after a signal.

    With --once it ends with 0 when all objects are ready and no work is left; with a list of troubles when
    the services have been settled for QUIET_SECONDS with objects that are not ready, or at the timeout. A
    Repository without a condition puts off the former.
    """
    began = time.monotonic()
    installs = set(PLATFORM) <= set(options.services)
    progress = Progress(supervisor.bus, partition_count(), has_installs=installs)
    quiet_since = looked = began
    tries = options.tries
    try:
        with screen.live():
            while not stop.is_set():
                await progress.update(LOOK_SECONDS)
                now = time.monotonic()
                screen.progress(progress.tally, seconds=now - began)
                if tries and progress.tally.complete:
                    for line in tries:
                        screen.line(line)
                    tries = ()
                if not options.once or (not progress.tally.complete and now - looked < ASK_SECONDS):
                    continue
                looked = now
                states = await supervisor.states()
                if progress.tally.complete and await _is_done(supervisor, states, progress):
                    break
                if not states.is_settled(horizon_seconds=HORIZON_SECONDS):
                    quiet_since = now
                if now - quiet_since > QUIET_SECONDS:
                    troubles = await _troubles(supervisor, progress)
                    if troubles and not unsettled_repositories(troubles):
                        return _explain(screen, "stalled", troubles, options, states.defects())
                if now - began > options.timeout_seconds:
                    outcome = f"not ready after {now - began:.0f} s{_busy(states)}"
                    troubles = await _troubles(supervisor, progress)
                    return _explain(screen, outcome, troubles, options, states.defects())
        if stop.is_set():
            return None
        screen.line(f"all ready after {time.monotonic() - began:.1f} s: {progress.tally}")
    finally:
        await progress.close()
    return 0


async def _is_done(supervisor: Supervisor, states: States, progress: Progress) -> bool:
    """Return whether no work is in progress, before and after the API server confirms that all is ready."""
    if (
        states.has_timer_within(WORK_TIMERS_SECONDS)
        or not states.is_settled()
        or await _troubles(supervisor, progress)
    ):
        return False
    return (await supervisor.states()).is_settled()


def _busy(states: States) -> str:
    """Return the services with work in progress, for the message."""
    busy = states.busy()
    return f" (still working: {', '.join(busy)})" if busy else ""


async def _troubles(supervisor: Supervisor, progress: Progress) -> list[Trouble]:
    try:
        return (await judge(supervisor.cluster, progress))[1]
    except TransientError as exc:
        raise PermanentError(f"the API server does not answer: {exc}") from exc


def _explain(
    screen: Screen, outcome: str, troubles: list[Trouble], options: UpOptions, defects: list[str]
) -> int:
    words = "1 object is" if len(troubles) == 1 else f"{len(troubles)} objects are"
    screen.line(f"{outcome}: {words} not ready")
    for trouble in troubles[:TROUBLES_SHOWN_MAX]:
        screen.line(f"  {trouble._replace(options=options.hints.bus)}")
    if len(troubles) > TROUBLES_SHOWN_MAX:
        screen.line(f"  and {len(troubles) - TROUBLES_SHOWN_MAX} more")
    for defect in defects:
        screen.line(f"  {defect}; its trace is in the log")
    return 1
