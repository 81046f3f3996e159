"""Services in a process of their own, as the benchmarks measure them: the other process of two.

    python -m tests.bench.services KUBECONFIG BUS SERVICE...

The first line tells that all are ready, and what the process weighed before it had any table. Commands:
`usage`, `counts`, `settled` (answered when nothing is left to do). KUBECONFIG `-` stands for a cluster that
only answers creates; see `tests.bench.echo`. With a folder in BENCH_PROFILE, a profile is written there.
"""

import argparse
import asyncio
import contextlib
import cProfile
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from pvbus.adapters.embedded.bus import SqliteBus
from pvbus.config import ServicesConfig
from pvbus.core.expressions import compilations
from pvbus.core.renderer import RenderController
from pvbus.core.unroll.controller import UnrollController
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Cluster
from pvbus.runtime.assembly import Service, build_service, partition_count, run_all, settled
from pvbus.runtime.clock import SystemClock
from pvbus.runtime.hosting import COLLECTOR_THRESHOLDS, hosted
from pvbus.runtime.ingest import IngestWorker
from pvbus.runtime.installation import ensure_installation
from pvbus.runtime.worker import Worker
from pvbus.telemetry import logs
from tests.bench.children import answer_commands, eventually, tell, usage
from tests.bench.echo import EchoCluster

READY_SECONDS = 120.0
SETTLED_SECONDS = 900.0
HORIZON_SECONDS = 1.5  # beyond a set's roll-up, which is written once per second


@asynccontextmanager
async def against_api_server(
    kubeconfig: str, bus: str, names: list[str]
) -> AsyncIterator[tuple[list[Service], Bus]]:
    """Services as `pvbus run` has them, with health and metrics."""
    config = ServicesConfig(bus=f"sqlite:{bus}", kubeconfig=kubeconfig, log_level="warning")
    async with hosted(names, config) as host:
        yield list(host.services.values()), host.bus


@asynccontextmanager
async def against_nothing(path: str, names: list[str]) -> AsyncIterator[tuple[list[Service], Bus]]:
    """Services with a cluster that answers creates and lets their echo appear on the bus."""
    bus = await SqliteBus.open(path)
    try:
        _, engine = await ensure_installation(bus, partitions=partition_count())
        async with EchoCluster(bus.peer(), active="render" in names) as cluster:
            answering = cast(Cluster, cluster)  # the calls it lacks are those that creating does not need
            yield [build_service(n, bus.peer(), answering, SystemClock(), engine=engine) for n in names], bus
    finally:
        await bus.close()


def counts(services: list[Service]) -> dict[str, int]:
    """Return what the controllers counted since their start."""
    found = {"compilations": compilations()}
    for service in services:
        controller = service.controller if isinstance(service, Worker) else None
        if isinstance(controller, UnrollController):
            found["setEvaluations"] = controller.set_evaluations
            found["targetEvaluations"] = controller.target_evaluations
        elif isinstance(controller, RenderController):
            found["renderEvaluations"] = controller.evaluations
    return found


def is_ready(service: Service) -> bool:
    return service.ready and (not isinstance(service, IngestWorker) or service.observed)


async def serve(kubeconfig: str, path: str, names: list[str]) -> None:
    logs.configure("warning")
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    empty = usage()["residentBytes"]
    places = (
        against_nothing(path, names) if kubeconfig == "-" else against_api_server(kubeconfig, path, names)
    )
    async with places as (services, bus):

        async def all_ready() -> bool:
            return all(is_ready(service) for service in services)

        async def all_settled() -> bool:
            return await settled(services, bus, horizon_seconds=HORIZON_SECONDS)

        async def wait_settled() -> float:
            return await eventually(all_settled, "services are settled", seconds=SETTLED_SECONDS)

        async def give_usage() -> dict[str, float]:
            return usage()

        async def give_counts() -> dict[str, int]:
            return counts(services)

        running = asyncio.create_task(run_all(services))
        await asyncio.wait(
            {
                running,
                asyncio.ensure_future(eventually(all_ready, "ready", seconds=READY_SECONDS, every=0.01)),
            },
            return_when=asyncio.FIRST_COMPLETED,
        )
        tell({"emptyBytes": empty, **usage()})
        commands: dict[str, Any] = {"usage": give_usage, "counts": give_counts, "settled": wait_settled}
        answering = asyncio.create_task(answer_commands(commands))
        await asyncio.wait({running, answering}, return_when=asyncio.FIRST_COMPLETED)
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
    options = parser.parse_args()
    with profiled(os.environ.get("BENCH_PROFILE", ""), "-".join(options.services)):
        asyncio.run(serve(options.kubeconfig, options.bus, options.services))


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
