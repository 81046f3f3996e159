"""What would happen: the services over a cluster in memory and a bus in memory, in virtual time.

The same controllers decide as in production, so a preview cannot drift from them. Nothing outside
the given objects is read or written.
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from pvbus.adapters.embedded.bus import SqliteBus
from pvbus.adapters.embedded.cluster import MemoryCluster, Write
from pvbus.contracts import topics
from pvbus.core.expressions import Engine
from pvbus.core.unroll.removal import Limits
from pvbus.ports.cluster import Object
from pvbus.runtime.assembly import build_service, run_all, settled
from pvbus.testing.clock import SimulatedClock, run_simulated

Only = Literal["sets", "variants"]
HORIZON_SECONDS = 30.0  # timers within belong to the evaluation (removal delay, roll-ups); later ones retry
LIMIT_SECONDS = 3_600.0  # virtual: an evaluation that has not settled by then never will
SERVICES_OF: dict[Only | None, tuple[str, ...]] = {
    None: ("ingest", "unroll", "render", "inject", "conditions"),
    "sets": ("ingest", "unroll", "render", "conditions"),
    "variants": ("ingest", "inject", "conditions"),
}


class Preview(NamedTuple):
    """The writes in order, and the cluster afterwards."""

    writes: list[Write]
    objects: list[Object]


def preview(
    objects: Sequence[Object], *, engine: Engine, only: Only | None = None, limits: Limits | None = None
) -> Preview:
    """Run the services over these objects until nothing changes."""
    return run_simulated(_preview(objects, engine, only, limits))


async def _preview(
    objects: Sequence[Object], engine: Engine, only: Only | None, limits: Limits | None
) -> Preview:
    clock = SimulatedClock()

    def stamp() -> str:
        return datetime.fromtimestamp(clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    cluster = MemoryCluster(objects, now=stamp)
    bus = await SqliteBus.open(":memory:", clock=clock)
    await bus.create_topics(topics())
    services = [
        build_service(
            name, bus.peer(), cluster, clock, engine=engine, limits=limits, children_report=only != "sets"
        )
        for name in SERVICES_OF[only]
    ]

    async def until_settled() -> None:
        quiet = 0
        while quiet < 2 and clock.monotonic() < LIMIT_SECONDS:
            await clock.sleep(0.5)
            done = await settled(services, bus, horizon_seconds=HORIZON_SECONDS)
            quiet = quiet + 1 if done else 0
        for service in services:
            service.stop()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_all(services))
        tasks.create_task(until_settled())
    await bus.close()
    return Preview(cluster.writes, cluster.objects())
