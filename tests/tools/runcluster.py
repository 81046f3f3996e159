"""`make run-cluster`: the services with the example fleet on a real Kubernetes API server.

It starts etcd, kube-apiserver and kube-controller-manager (`tests.tools.realcluster`), installs pvbus'
definitions, runs the package store behind the API server (`tests.tools.packagestore`) and the five services
in one process, and applies the example fleet. Ctrl-C ends everything, and nothing of it stays. With --once it
ends by itself: 0 when every variant is ready, else 1.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.cli.apply import apply
from pvbus.cli.children import ChildProcess
from pvbus.cli.live import REVISION
from pvbus.cli.progress import REPOSITORY, SET, VARIANT, Judged, condition_of
from pvbus.cli.supervisor import States
from pvbus.core.errors import PvbusError, TransientError
from pvbus.core.kernel.topics import SERVICES
from pvbus.examples import fleet
from pvbus.ports.cluster import Cluster, Kind, Object
from pvbus.runtime.process.signals import stop_on_signals
from pvbus.runtime.process.state import ProcessState
from tests.tools import kubectl
from tests.tools.auditlog import AuditLog
from tests.tools.clusterprograms import VERSION, ClusterUnavailableError, to_build
from tests.tools.packagestore import Replica, install, wait_until_available
from tests.tools.realcluster import ADMINS, ClusterFailedError, RealCluster, running

DEFINITIONS = sorted((Path(__file__).parents[2] / "schemas" / "crds").glob("*.yaml"))
USER = "pvbus"
LOOK_SECONDS = 0.5
HORIZON_SECONDS = 6.0  # longer than removals wait
TIMEOUT_SECONDS = 300.0

ADVICE = """\
In another terminal, after the export above:
  kubectl get packagevariantsets,packagevariants
  kubectl label cluster {cluster} stage=production --overwrite     # one variant more
  kubectl get packagevariant web-edge-asia-{cluster}-web
  kubectl get packagerevisions --field-selector=spec.packageName={cluster}-web
  kubectl delete packagevariantset web                           # the garbage collector deletes its variants
Ctrl-C ends everything; nothing of it stays."""

_state = msgspec.json.Decoder(ProcessState)


class Options(NamedTuple):
    """Of the command line. clusters: in production, in each region."""

    once: bool
    timeout_seconds: float
    dump: Path | None
    clusters: int

    @property
    def interrupted_code(self) -> int:
        """The exit code after a signal: with --once it interrupts the wait, so it is a failure."""
        return 1 if self.once else 0


class RunningWorld(NamedTuple):
    """What runs. cluster: a client of the control plane, for reading and for the fleet's manifests."""

    real: RealCluster
    store: Replica
    services: ChildProcess
    cluster: Cluster


class Progress(NamedTuple):
    """What the API server has. applied: whether the set says that every target has its variant. why: the
    first reason of a variant or a Repository not to be ready."""

    variants: int = 0
    ready: int = 0
    applied: bool = False
    why: str = ""

    @property
    def is_complete(self) -> bool:
        return self.applied and not self.why

    def __str__(self) -> str:
        return f"PackageVariants: {self.variants}, ready: {self.ready}"


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
        with running(DEFINITIONS) as real:
            _introduce(real)
            with package_store(real) as store:
                return asyncio.run(_run(real, store, options))
    except (ClusterUnavailableError, ClusterFailedError, PvbusError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _options(arguments: Sequence[str]) -> Options:
    about = "Run the services with the example fleet on a real Kubernetes API server."
    parser = argparse.ArgumentParser(prog="make run-cluster", description=about)
    parser.add_argument("--once", action="store_true", help="end when every variant is ready")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS",
                        help="with --once: give up after so long (%(default)s)")  # fmt: skip
    parser.add_argument("--dump", type=Path, metavar="FILE",
                        help="with --once: write every object of the fleet to a file, as JSON")  # fmt: skip
    parser.add_argument("--clusters", type=int, default=fleet.CLUSTERS_PER_REGION, metavar="N",
                        help="of the example fleet, in each region (%(default)s)")  # fmt: skip
    parsed = parser.parse_args(arguments)
    if not 1 <= parsed.clusters <= fleet.CLUSTERS_PER_REGION_MAX:
        parser.error(f"--clusters has to be 1 to {fleet.CLUSTERS_PER_REGION_MAX}")
    return Options(parsed.once, parsed.timeout, parsed.dump, parsed.clusters)


def _say(text: str) -> None:
    print(text, flush=True)


def _introduce(real: RealCluster) -> None:
    _say(f"Kubernetes {real.version}: {real.url}")
    _say(f"export KUBECONFIG={shlex.quote(str(real.kubeconfig))}")
    built = kubectl.cached(VERSION)
    if shutil.which("kubectl") is None and built.exists():
        _say(f"export PATH={shlex.quote(str(built.parent))}:$PATH")


@contextlib.contextmanager
def package_store(real: RealCluster) -> Iterator[Replica]:
    """Run the package store behind an API server, with the rights of an installation."""
    replica = Replica(real, real.folder / "packages", {"PVBUS_LOG_LEVEL": "warning"})
    install(real, replica.port)
    try:
        replica.start()
        wait_until_available(real)
        _say(f"metrics and health of the package store: {replica.health_url}/metrics")
        yield replica
    finally:
        replica.kill()


async def _run(real: RealCluster, store: Replica, options: Options) -> int:
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
                await apply(cluster, fleet.make(real.folder / "example", options.clusters))
                begun()
                return await _follow(RunningWorld(real, store, services, cluster), stop, options)
            finally:
                await cluster.close()
    return options.interrupted_code


async def _follow(world: RunningWorld, stop: asyncio.Event, options: Options) -> int:
    """Wait for the fleet, then with --once end; a signal and a program that ends come first."""
    arrival = asyncio.create_task(_arrival(world))
    ended = asyncio.create_task(_ended(world))
    stopped = asyncio.create_task(stop.wait())
    try:
        timeout = options.timeout_seconds if options.once else None
        await asyncio.wait({arrival, ended, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if arrival.done() and not options.once:
            await arrival
            staged = f"asia-{options.clusters + 1:02}"  # the last of a region is not in production
            _say(ADVICE.format(cluster=staged))
            await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return options.interrupted_code
        if ended.done():
            _say(f"error: {await ended} ended")
            return 1
        if arrival.done():
            await arrival
            if options.dump is not None:
                options.dump.write_text(json.dumps(await objects_of(world.cluster)))
            return 0
        _say(f"not there after {options.timeout_seconds:.0f} s: {await _look(world.cluster)}")
        return 1
    finally:
        for task in (arrival, ended, stopped):
            task.cancel()


async def _ended(world: RunningWorld) -> str:
    """Wait until a program ends, and return its name."""
    services = asyncio.create_task(world.services.wait_until_ended())
    while True:
        await asyncio.wait({services}, timeout=LOOK_SECONDS)
        if services.done():
            return world.services.what
        if (name := world.real.ended_program()) is not None:
            return name
        if not world.store.is_running:
            return f"the package store: {world.store.output[-2000:]}"


async def _arrival(world: RunningWorld) -> None:
    """Show the progress until every variant is ready, and then the summary."""
    began = time.monotonic()
    shown = Progress()
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(TransientError):
                progress = await _look(world.cluster)
                if (progress.variants, progress.ready) != (shown.variants, shown.ready):
                    shown = progress
                    _say(f"{progress}")
                if progress.is_complete and await _is_settled(session, world.services.reported["url"]):
                    break
            await asyncio.sleep(LOOK_SECONDS)
    _summarize(await _look(world.cluster), time.monotonic() - began, world.real.audit)


async def _look(cluster: Cluster) -> Progress:
    sets, variants, repositories = [await _judged(cluster, kind) for kind in (SET, VARIANT, REPOSITORY)]
    applied = [condition_of(each.status.conditions, "TargetsApplied") for each in sets]
    waiting = [each.why for each in (*sets, *variants) if not each.ready]
    ready = [condition_of(each.status.conditions, "Ready") for each in repositories]
    waiting += ["a Repository cannot be read" for each in ready if each is None or each.status != "True"]
    return Progress(
        variants=len(variants),
        ready=sum(each.ready for each in variants),
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
    _say(f"all ready after {seconds:.1f} s: {progress}")
    writes = Counter((event.verb, event.resource, event.is_accepted) for event in audit.writes(USER))
    for (verb, resource, is_accepted), count in sorted(writes.items()):
        _say(f"  {count} {resource}: {verb}{'' if is_accepted else ', refused'}")


async def objects_of(cluster: Cluster) -> dict[str, list[Object]]:
    """Return the objects of a fleet by kind, also the files of its packages."""
    found = {}
    for kind in (SET, VARIANT, REPOSITORY, REVISION, Kind(REVISION.group, "PackageRevisionResources")):
        resource = await cluster.resource(kind)
        assert resource is not None, kind
        found[kind.kind] = (await cluster.list(resource)).items
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
