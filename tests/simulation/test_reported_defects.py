"""A bug is reported on the object whose decision it ended, and the report ends with the bug."""

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from pvbus.core.variants.inject.controller import InjectController
from pvbus.core.variants.render.controller import RenderController
from pvbus.core.variants.unroll.controller import UnrollController
from pvbus.ports.cluster import Kind
from tests.kit.processes import run_simulated
from tests.simulation.outcome import check_watched
from tests.simulation.schedule import seeded
from tests.simulation.test_liveness import inventory, label, selecting
from tests.simulation.world import SET, VARIANT, SimulatedWorld, defects

MESSAGE = (
    "the decision fails, which is a bug in pvbus: KeyError: 'oh'; the log of the service {} has the trace: "
    "please report both"
)


def broken(*_: Any, **__: Any) -> Any:
    raise KeyError("oh")


def conditions(world: SimulatedWorld, kind: Kind, name: str) -> dict[str, tuple[str, str, str]]:
    obj = world.find(kind, name)
    assert obj is not None
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in obj["status"]["conditions"]}


@pytest.mark.parametrize(
    ("decision", "service", "kind", "name", "condition", "prefix"),
    [
        ((UnrollController, "_evaluate"), "unroll", SET, "alpha", "Stalled", ""),
        ((RenderController, "_decide_claims"), "render", SET, "alpha", "Stalled", "Site default/s0: "),
        ((InjectController, "_decide"), "inject", VARIANT, "alpha-r1-s1", "Ready", ""),
    ],
    ids=["unroll", "render", "inject"],
)
def test_a_bug_is_reported_on_its_object_until_it_is_gone(
    decision: tuple[type, str], service: str, kind: Kind, name: str, condition: str, prefix: str
) -> None:
    async def main() -> None:
        world = SimulatedWorld(1)
        await inventory(world, 2)
        with patch.object(*decision, broken):
            target = selecting()
            target["template"]["labels"] = {"changed": "yes"}
            world.set("alpha", [target])
            await asyncio.sleep(90)
            found = conditions(world, kind, name)
            assert found["Ready"][0] == "False"
            assert found[condition][1] == "InternalError"
            assert found[condition][2].startswith(f"{prefix}{MESSAGE.format(service)}")
            writes = len(world.cluster.writes)
            await asyncio.sleep(300)  # it is tried again, and says the same
            assert len(world.cluster.writes) == writes
        await world.converge(quiet=70.0)
        assert conditions(world, kind, name)["Ready"][0] == "True"
        label(world, 1, "test")
        await world.converge(quiet=70.0)
        assert set(world.variants()) == {"default/alpha-r1-s0"}
        check_watched(world)
        world._defects = defects()
        await world.close()

    with seeded(1):
        run_simulated(main())
