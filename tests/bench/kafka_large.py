"""A fleet of 100,000 on Kafka, made by the services at an API server, and then their restart.

It is filled as a fleet is: 100,000 targets and a set at the API server, nothing written past it. The
services do that in one process, as it is faster on few cores; what is measured is their restart as a process
each.
"""

from tests.bench.deployment import Deployment, fresh_bus
from tests.bench.fleet import TARGETS, Fleet
from tests.bench.kafka import APART, TOGETHER, fan_out
from tests.bench.kafka_restart import restarted
from tests.bench.report import Row
from tests.bench.scenarios import fleet_target
from tests.tools.kafka import running

NAME = "kafka-large"


async def kafka_large(*, small: bool) -> list[Row]:
    """Restart of every service of the chain over 100,000 variants."""
    count = 1_000 if small else 100_000
    with running(1) as kafka:
        bus = fresh_bus(kafka)
        async with Fleet.started() as fleet:
            await fleet.post_all(TARGETS, map(fleet_target, range(count)))
            async with Deployment(fleet.kubeconfig, bus, TOGETHER) as services:
                await services.settled()
                filled = await fan_out(fleet, services, count, kafka)
            rows = await restarted(NAME, fleet, bus, APART, count, goal=10)
    what = f"{count:,} targets, Kafka, one process"
    return [Row(NAME, f"{what}: variants/s while it was filled", count / filled.seconds, "1/s"), *rows]
