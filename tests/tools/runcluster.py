"""`make run-cluster`: the services with the example fleet on a real Kubernetes API server.

It starts etcd, kube-apiserver and kube-controller-manager (`tests.tools.realcluster`), installs pvbus'
definitions, applies the example fleet, and runs the five services in one process. Ctrl-C ends everything, and
nothing of it stays. With --once it ends by itself: 0 when every target has its variant, else 1.

The package store is part of the embedded API server only, so nothing makes drafts here. The blueprint's
PackageRevision is an object that stands in for Porch's (`tests.tools.packages`).
"""

import argparse
import asyncio
import contextlib
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apply import apply
from pvbus.cli.children import ChildProcess
from pvbus.cli.examples import fleet
from pvbus.cli.manifests import Manifest
from pvbus.cli.progress import SET, VARIANT, Judged, condition_of
from pvbus.cli.supervisor import States
from pvbus.core.errors import PvbusError, TransientError
from pvbus.core.topics import SERVICES
from pvbus.ports.cluster import Cluster, Kind
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.process.state import ProcessState
from tests.tools import kubectl, packages
from tests.tools.auditlog import AuditLog
from tests.tools.clusterprograms import VERSION, ClusterUnavailableError, to_build
from tests.tools.realcluster import ADMINS, ClusterFailedError, RealCluster, running

DEFINITIONS = sorted((Path(__file__).parents[2] / "schemas" / "crds").glob("*.yaml"))
USER = "pvbus"
LOOK_SECONDS = 0.5
HORIZON_SECONDS = 6.0  # longer than removals wait
TIMEOUT_SECONDS = 300.0

NO_DRAFTS = """\
No drafts are made: this API server has no package store; so far only the embedded one has (make run)."""

ADVICE = """\
In another terminal, after the export above:
  kubectl get packagevariantsets,packagevariants
  kubectl label cluster asia-51 stage=production --overwrite     # one variant more
  kubectl get packagevariant web-edge-asia-asia-51-web
  kubectl delete packagevariantset web                           # the garbage collector deletes its variants
Ctrl-C ends everything; nothing of it stays."""

_state = msgspec.json.Decoder(ProcessState)


class Options(NamedTuple):
    """Of the command line."""

    once: bool
    timeout_seconds: float

    @property
    def interrupted_code(self) -> int:
        """The exit code after a signal: with --once it interrupts the wait, so it is a failure."""
        return 1 if self.once else 0


class World(NamedTuple):
    """What runs. cluster: a client of the control plane, for reading and for the fleet's manifests."""

    real: RealCluster
    services: ChildProcess
    cluster: Cluster


class Progress(NamedTuple):
    """What the API server has. applied: whether the set says that every target has its variant. why: the
    first variant's reason not to be ready."""

    variants: int = 0
    ready: int = 0
    applied: bool = False
    why: str = ""

    def __str__(self) -> str:
        return f"PackageVariants: {self.variants}"


def main(arguments: Sequence[str]) -> int:
    """Run until a signal, or with --once until the fleet is there. Return the exit code."""
    options = _options(arguments)

    def end(*_: object) -> None:
        raise SystemExit(options.interrupted_code)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        if names := to_build():
            _say(f"building {', '.join(names)} with Go, once; this takes some minutes")
        _say("starting etcd, kube-apiserver and kube-controller-manager")
        with running([*DEFINITIONS, packages.DEFINITION]) as real:
            _introduce(real)
            return asyncio.run(_run(real, options))
    except (ClusterUnavailableError, ClusterFailedError, PvbusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _options(arguments: Sequence[str]) -> Options:
    about = "Run the services with the example fleet on a real Kubernetes API server."
    parser = argparse.ArgumentParser(prog="make run-cluster", description=about)
    parser.add_argument("--once", action="store_true", help="end when every target has its variant")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS",
                        help="with --once: give up after so long (%(default)s)")  # fmt: skip
    parsed = parser.parse_args(arguments)
    return Options(parsed.once, parsed.timeout)


def _say(text: str) -> None:
    print(text, flush=True)


def _introduce(real: RealCluster) -> None:
    _say(f"Kubernetes {real.version}: {real.url}")
    _say(f"export KUBECONFIG={shlex.quote(str(real.kubeconfig))}")
    built = kubectl.cached(VERSION)
    if shutil.which("kubectl") is None and built.exists():
        _say(f"export PATH={shlex.quote(str(built.parent))}:$PATH")


async def _run(real: RealCluster, options: Options) -> int:
    stop = asyncio.Event()
    account = real.kubeconfig_of(USER, ADMINS)
    command = ("run", *SERVICES, "--kubeconfig", str(account), "--health-port", "0")
    bus = f"sqlite:{real.folder / 'bus.db'}"
    with stop_on_signals(stop) as begun:
        quiet = {"PVBUS_LOG_LEVEL": "warning"}
        name = "the process of the services"
        async with ChildProcess(name, *command, "--bus", bus, settings=quiet) as services:
            _say(f"metrics and health of the services: {services.reported['url']}/metrics")
            cluster = await HttpCluster.connect(real.kubeconfig, strict=True)
            try:
                await apply(cluster, _manifests(real.folder))
                begun()
                return await _follow(World(real, services, cluster), stop, options)
            finally:
                await cluster.close()
    return options.interrupted_code


def _manifests(folder: Path) -> list[Manifest]:
    """Return the example fleet, and the revision of its blueprint as an object."""
    blueprint = packages.published("default", "blueprints", fleet.PACKAGE, 1)
    return [*fleet.make(folder / "example"), Manifest(packages.DEFINITION, 1, blueprint)]


async def _follow(world: World, stop: asyncio.Event, options: Options) -> int:
    """Wait for the fleet, then with --once end; a signal and a program that ends come first."""
    arrival = asyncio.create_task(_arrival(world))
    ended = asyncio.create_task(_ended(world))
    stopped = asyncio.create_task(stop.wait())
    try:
        timeout = options.timeout_seconds if options.once else None
        await asyncio.wait({arrival, ended, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if arrival.done() and not options.once:
            await arrival
            _say(ADVICE)
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return options.interrupted_code
        if ended.done():
            _say(f"error: {await ended} ended")
            return 1
        if arrival.done():
            await arrival
            return 0
        _say(f"not there after {options.timeout_seconds:.0f} s: {await _look(world.cluster)}")
        return 1
    finally:
        for task in (arrival, ended, stopped):
            task.cancel()


async def _ended(world: World) -> str:
    """Wait until a program ends, and return its name."""
    services = asyncio.create_task(world.services.ended())
    while True:
        await asyncio.wait({services}, timeout=LOOK_SECONDS)
        if services.done():
            return world.services.what
        if (name := world.real.ended_program()) is not None:
            return name


async def _arrival(world: World) -> None:
    """Show the progress until every target has its variant, and then the summary."""
    began = time.monotonic()
    shown = Progress()
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(TransientError):
                progress = await _look(world.cluster)
                if progress.variants != shown.variants:
                    shown = progress
                    _say(f"{progress}")
                if progress.applied and await _is_settled(session, world.services.reported["url"]):
                    break
            await asyncio.sleep(LOOK_SECONDS)
    _summarize(await _look(world.cluster), time.monotonic() - began, world.real.audit)


async def _look(cluster: Cluster) -> Progress:
    sets, variants = [await _judged(cluster, kind) for kind in (SET, VARIANT)]
    applied = [condition_of(each.status.conditions, "TargetsApplied") for each in sets]
    waiting = [each.why for each in variants if not each.ready]
    return Progress(
        variants=len(variants),
        ready=len(variants) - len(waiting),
        applied=bool(sets) and all(each is not None and each.status == "True" for each in applied),
        why=waiting[0] if waiting else "",
    )


async def _judged(cluster: Cluster, kind: Kind) -> list[Judged]:
    resource = await cluster.resource(kind)
    items = (await cluster.list(resource)).items if resource is not None else []
    return [msgspec.convert(item, Judged) for item in items]


async def _is_settled(session: aiohttp.ClientSession, url: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(f"{url}/state", timeout=aiohttp.ClientTimeout(3)) as answer:
            return States((_state.decode(await answer.read()),)).is_settled(horizon_seconds=HORIZON_SECONDS)
    return False


def _summarize(progress: Progress, seconds: float, audit: AuditLog) -> None:
    _say(f"every target has its PackageVariant after {seconds:.1f} s")
    writes = Counter((event.verb, event.resource, event.is_accepted) for event in audit.writes(USER))
    for (verb, resource, is_accepted), count in sorted(writes.items()):
        _say(f"  {count} {resource}: {verb}{'' if is_accepted else ', refused'}")
    _say(f"ready: {progress.ready} of {progress.variants}")
    if progress.why:
        _say(f"  {progress.why}")
        _say(NO_DRAFTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
