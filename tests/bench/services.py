"""Services in a process of their own, as the benchmarks measure them: the other process of two.

    python -m tests.bench.services KUBECONFIG BUS SERVICE...

What only some services need is imported by these alone, or its time would be measured for all of them.

BUS is an address as in PVBUS_BUS. The first line tells that all are ready, since when /readyz said so, and
what the process weighed before it had any table. Commands: `usage`, `counts`, `metrics`, `steps` (of
rollouts), `writes` (to the API server, by kind), `settled` (answered when nothing is left to do), `lateness`
(of the loop, since the last time it was asked for). KUBECONFIG
`-` stands for a cluster that only answers creates, and writes of a policy's status; see `tests.bench.echo`.
`after:SECONDS` is the same one, where a create takes so long.
--packages N: resolve and establish have N packages of `tests.bench.packagecatalog` as their sources.
--snapshots FOLDER: as PVBUS_KAFKA_SNAPSHOTS, and written at once. With a folder in BENCH_PROFILE, a profile
is written there.
"""

import services as _  # noqa: F401  # isort: skip  # as in every process of a service: first

import argparse
import asyncio
import contextlib
import cProfile
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from prometheus_client import Counter

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.core.cel import compilations
from pvbus.ports.bus import Bus, Record
from pvbus.ports.cluster import Cluster
from pvbus.runtime.process import hosting
from pvbus.runtime.process.assembly import Service, build_service, is_settled, partition_count, run_all
from pvbus.runtime.process.buses import bus_file, open_bus
from pvbus.runtime.process.installation import ensure_installation
from pvbus.runtime.process.settings import ServicesConfig
from pvbus.runtime.reconcile.worker import Worker
from pvbus.telemetry import logs, metrics
from tests.bench.children import answer_commands, eventually, tell, usage

READY_SECONDS = 120.0
SETTLED_SECONDS = 900.0
SNAPSHOT_SECONDS = 1.0
HORIZON_SECONDS = 1.5  # beyond a set's roll-up, which is written once per second


@asynccontextmanager
async def against_api_server(
    kubeconfig: str, bus: str, names: list[str], snapshots: str
) -> AsyncIterator[tuple[list[Service], Bus]]:
    """Services as `pvbus run` has them, with health and metrics."""
    config = ServicesConfig(
        bus=bus,
        kubeconfig=kubeconfig,
        log_level="warning",
        kafka_snapshots=snapshots,
        kafka_snapshot_seconds=SNAPSHOT_SECONDS,
    )
    async with hosting.host_services(names, config) as host:
        # Before the first look of one nothing is written, and sets wait for the opinion of the other.
        beside = [asyncio.create_task(each.run()) for each in (host.beside, host.opinions) if each]
        try:
            yield list(host.services.values()), host.bus
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


@asynccontextmanager
async def against_nothing(
    url: str, names: list[str], answer_seconds: float
) -> AsyncIterator[tuple[list[Service], Bus]]:
    """Services with a cluster that answers creates and lets their echo appear on the bus."""
    from tests.bench.echo import EchoCluster

    bus = await open_bus(ServicesConfig(bus=url))
    try:
        await ensure_installation(bus, partitions=partition_count())
        active = bool({"render", "rollout"} & set(names))
        async with EchoCluster(bus.peer(), active=active, answer_seconds=answer_seconds) as cluster:
            answering = cast(Cluster, cluster)  # the calls it lacks are those that creating does not need
            yield [build_service(n, bus.peer(), answering, SystemClock()) for n in names], bus
    finally:
        await bus.close()


COUNTS = {
    "UnrollController": {
        "setEvaluations": "preparing.set_evaluations",
        "targetEvaluations": "preparing.target_evaluations",
    },
    "RenderController": {"renderEvaluations": "evaluations"},
    "ResolveController": {"solves": "evaluations"},
    "EstablishController": {"establishes": "evaluations"},
}
"""What controllers count, by the names of their classes: importing all of them would be measured, too."""


def counts(services: list[Service]) -> dict[str, int]:
    """Return what the controllers counted since their start."""
    found = {"compilations": compilations()}
    for service in services:
        controller = service.controller if isinstance(service, Worker) else None
        for name, path in COUNTS.get(type(controller).__name__, {}).items():
            found[name] = attrgetter(path)(controller)
    return found


def counted(counter: Counter, label: str) -> dict[str, float]:
    """Return a counter's values by one of its labels."""
    found: dict[str, float] = {}
    for metric in counter.collect():
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                found[sample.labels[label]] = found.get(sample.labels[label], 0) + sample.value
    return found


def count_reads(url: str) -> Callable[[], int]:
    """Count the records that this process gets from the bus, from now on."""
    found = 0

    def counting(poll: Any) -> Any:
        async def counted_poll(self: Any, **options: Any) -> list[Record]:
            nonlocal found
            records: list[Record] = await poll(self, **options)
            found += len(records)
            return records

        return counted_poll

    kind: Any
    if bus_file(url) is None:
        from pvbus.adapters.kafka.reader import KafkaReader

        kind = KafkaReader
    else:
        from pvbus.adapters.sqlite.reader import SqliteReader

        kind = SqliteReader
    setattr(kind, "poll", counting(kind.poll))  # noqa: B010  # as a statement, mypy refuses it
    return lambda: found


def time_steps(names: list[str]) -> dict[str, float]:
    """Measure the steps of rollouts from now on: their number, and the CPU seconds of the longest."""
    found: dict[str, float] = {"count": 0, "longest": 0.0}
    if "rollout" not in names:
        return found
    from pvbus.core.promotion.rollout.controller import RolloutController

    step: Any = RolloutController._step

    def timed(self: Any, *arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return step(self, *arguments)
        finally:
            found["count"] += 1
            found["longest"] = max(found["longest"], time.thread_time() - began)

    setattr(RolloutController, "_step", timed)  # noqa: B010  # as a statement, mypy refuses it
    return found


def count_writes() -> dict[str, int]:
    """Count what this process changes in the API server from now on, by verb and kind; not what fails."""
    found: dict[str, int] = {}

    def counting(verb: str, call: Any) -> Any:
        async def counted_call(self: Any, resource: Any, *arguments: Any, **options: Any) -> Any:
            answer = await call(self, resource, *arguments, **options)
            part = "/status" if options.get("subresource") else ""
            name = f"{'check ' if self._is_dry_run else ''}{verb} {resource.kind}{part}"
            found[name] = found.get(name, 0) + 1
            return answer

        return counted_call

    for verb in ("create", "update", "patch", "delete"):
        setattr(HttpCluster, verb, counting(verb, getattr(HttpCluster, verb)))
    return found


def serve_packages(count: int) -> None:
    """Let the services read packages that are made here, instead of the sources that are set."""
    from tests.bench import packagecatalog

    @asynccontextmanager
    async def open_sources(*settings: Any) -> AsyncIterator[Any]:
        yield packagecatalog.Registry(count)

    setattr(hosting, "open_sources", open_sources)  # noqa: B010  # as a statement, mypy refuses it


class Lateness:
    """How late the loop runs what is due now, sampled 200 times a second: what every other key waits."""

    EVERY_SECONDS = 0.005

    def __init__(self) -> None:
        self._sampling: asyncio.Task[None] | None = None
        self._late: list[float] = []

    async def take(self) -> dict[str, float]:
        """Return p99.9 and the longest of the seconds since the last call; the first call only begins."""
        late, self._late = sorted(self._late), []
        if self._sampling is None:
            self._sampling = asyncio.create_task(self._sample())
        if not late:
            return {"p999": 0.0, "longest": 0.0}
        return {"p999": late[int(len(late) * 0.999)], "longest": late[-1]}

    async def _sample(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + self.EVERY_SECONDS
            await asyncio.sleep(self.EVERY_SECONDS)
            self._late.append(max(clock() - due, 0.0))

    def stop(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()


def is_ready(service: Service) -> bool:
    return service.ready and service.observed


async def serve(kubeconfig: str, url: str, names: list[str], snapshots: str) -> None:
    count_read, steps, writes = count_reads(url), time_steps(names), count_writes()
    logs.configure("warning")
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # each try of a Kafka that is just up
    empty = usage()["residentBytes"]
    if kubeconfig == "-" or kubeconfig.startswith("after:"):
        locations = against_nothing(url, names, float(kubeconfig.partition(":")[2] or 0))
    else:
        locations = against_api_server(kubeconfig, url, names, snapshots)
    async with locations as (services, bus):
        ready_at = [0.0]

        async def all_ready() -> bool:
            if not ready_at[0] and all(service.ready for service in services):
                ready_at[0] = time.time()
            return all(is_ready(service) for service in services)

        async def all_settled() -> bool:
            return await is_settled(services, bus, horizon_seconds=HORIZON_SECONDS)

        async def wait_settled() -> float:
            return await eventually(all_settled, "services are settled", seconds=SETTLED_SECONDS)

        async def give_usage() -> dict[str, float]:
            return usage()

        async def give_counts() -> dict[str, int]:
            return counts(services)

        async def give_steps() -> dict[str, float]:
            return steps

        async def give_writes() -> dict[str, int]:
            return writes

        async def give_metrics() -> dict[str, Any]:
            return {
                "steps": counted(metrics.STEPS, "outcome").get("done", 0),
                "recordsByTopic": counted(metrics.RECORDS_WRITTEN, "topic"),
                "read": count_read(),
                "leases": sum(len(service.leases()) for service in services),
            }

        lateness = Lateness()
        running = asyncio.create_task(run_all(services))
        await asyncio.wait(
            {
                running,
                asyncio.ensure_future(eventually(all_ready, "ready", seconds=READY_SECONDS, every=0.01)),
            },
            return_when=asyncio.FIRST_COMPLETED,
        )
        tell({"emptyBytes": empty, "readyAt": ready_at[0], **usage()})
        commands: dict[str, Any] = {
            "usage": give_usage,
            "counts": give_counts,
            "metrics": give_metrics,
            "steps": give_steps,
            "writes": give_writes,
            "settled": wait_settled,
            "lateness": lateness.take,
        }
        answering = asyncio.create_task(answer_commands(commands))
        await asyncio.wait({running, answering}, return_when=asyncio.FIRST_COMPLETED)
        lateness.stop()
        for service in services:
            service.stop()
        await running


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kubeconfig")
    parser.add_argument("bus", type=str)
    parser.add_argument("services", nargs="+")
    parser.add_argument("--packages", type=int, metavar="N")
    parser.add_argument("--snapshots", default="", metavar="FOLDER")
    options = parser.parse_args()
    if options.packages is not None:
        serve_packages(options.packages)
    with profiled(os.environ.get("BENCH_PROFILE", ""), "-".join(options.services)):
        asyncio.run(serve(options.kubeconfig, options.bus, options.services, options.snapshots))


@contextlib.contextmanager
def profiled(folder: str, name: str) -> Any:
    """Write a cProfile file into a folder, if one is given."""
    if not folder:
        yield
        return
    profile = cProfile.Profile()
    try:
        with profile:
            yield
    finally:
        profile.dump_stats(Path(folder) / f"{name}-{os.getpid()}.prof")


if __name__ == "__main__":
    main()
