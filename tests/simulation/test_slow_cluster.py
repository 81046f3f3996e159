"""A fleet larger than what a worker decides at once, and an API server that is slower than a watch may be."""

import asyncio
from typing import Any

import pytest

from pvbus.core.kernel.echo import ECHO_SECONDS
from pvbus.runtime.reconcile import worker as worker_module
from tests.kit.processes import run_simulated
from tests.simulation.schedule import seeded
from tests.simulation.test_costly import selecting
from tests.simulation.world import REPOSITORY, SITE, SimulatedWorld

TARGETS = 200
WRITE_SECONDS = 1.0
IN_FLIGHT = 4
DIRTY_MAX = 40
"""Inputs pause above it, until half of it is left: for longer than a write waits for its echo."""


def test_each_variant_is_created_once_while_inputs_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The echo of a create must be read meanwhile: else it counts as lost, and the create is repeated."""
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", DIRTY_MAX)
    monkeypatch.setattr(worker_module, "EFFECTS_INFLIGHT_MAX", IN_FLIGHT)
    seconds = TARGETS * WRITE_SECONDS / IN_FLIGHT
    assert seconds > 2 * ECHO_SECONDS
    creates: list[str] = []

    async def main() -> None:
        world = SimulatedWorld(1, watched=False)
        create = world.cluster.create

        async def slow(resource: Any, obj: Any) -> Any:
            creates.append(obj["metadata"]["name"])
            await asyncio.sleep(WRITE_SECONDS)
            return await create(resource, obj)

        monkeypatch.setattr(world.cluster, "create", slow)
        world.upstream()
        world.serve_sites()
        world.put(REPOSITORY, "r1", spec={})
        for number in range(TARGETS):
            world.put(SITE, f"s{number:03}", metadata={"labels": {"env": "large"}})
        world.set("fleet", [selecting("large", "target.name", "target.name")])
        await world.start(("ingest", "unroll", "render"))
        await asyncio.sleep(2 * seconds)
        assert len(world.variants()) == TARGETS
        await world.close()

    with seeded(1):
        run_simulated(main())
    assert len(creates) == len(set(creates)) == TARGETS
