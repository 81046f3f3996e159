"""A plan in the middle of a rollout that finishes what it has planned writes what the services then write."""

import asyncio
import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest

from pvbus.adapters.memory.writes import Write
from pvbus.cli.plandocument import document_of
from pvbus.cli.planpreview import Orders, frozen_of, orders_of
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.kernel.records import APPROVALS
from pvbus.core.variants.revisions.owning import lifecycle_of
from pvbus.ports.cluster import Object
from pvbus.runtime.preview import run as previews
from pvbus.runtime.preview.changes import Changes
from pvbus.runtime.preview.packages import StoreRules
from tests.kit.processes import run_simulated
from tests.simulation.cluster import QUARANTINE
from tests.simulation.rolling import Rolling, begin, targets
from tests.simulation.world import RESOURCES, REVISION, VARIANT

PLANNED = {VARIANT.kind, REVISION.kind, RESOURCES.kind}
CLOSED = {"start": "03:00", "end": "04:00"}


def lines(writes: Iterable[Write]) -> Counter[tuple[str, str, str]]:
    """Return what a plan announces: promotion proposes its drafts, which is no part of it."""
    return Counter(
        (write.verb, write.kind, write.name)
        for write in writes
        if write.kind in PLANNED
        and write.subresource == ""
        and not (write.kind == REVISION.kind and lifecycle_of(write.object or {"spec": {}}) == "Proposed")
    )


def release(world: Rolling, version: int) -> None:
    """Publish an upstream revision, with its position in git, of which the drafts are made."""
    world.upstream(version)
    git = {"repo": "up", "directory": "base", "ref": f"base/v{version}", "commit": f"{version}" * 40}
    world.put(REVISION, f"up.base.v{version}", status={"selfLock": {"type": "git", "git": git}})


class Live(NamedTuple):
    """objects, orders: in the middle of a rollout. change: to the set. done: what the services then write."""

    objects: Sequence[Object]
    orders: Orders
    change: Object
    done: list[Write]


async def live(case: str) -> Live:
    world = Rolling()
    world.cluster.rules = StoreRules(world.cluster, FunctionRegistry({}), is_embedded=True)
    release(world, 1)
    await begin(world, sites=3, windows=[CLOSED], onNewRevision="Finish" if case == "Finish" else "Supersede")
    await asyncio.sleep(120)
    release(world, 2)
    if case == "Quarantined":
        spec = {"upstreams": [{"revision": "up/base@v2"}], "sets": ["web"], "reason": "Test"}
        world.put(QUARANTINE, "q1", spec=spec)
    await world.converge()
    objects, orders = copy.deepcopy(world.cluster.objects()), orders_of(world.table(APPROVALS))
    before = len(world.cluster.writes)
    change = copy.deepcopy(world.set("web", targets(world.version), revision=2))
    await world.converge()
    done = list(world.cluster.writes[before:])
    await world.close()
    return Live(objects, orders, change, done)


@pytest.mark.parametrize(
    ("case", "words", "writes"),
    [
        ("Finish", "until attempt 1 of RolloutPolicy default/web is over (onNewRevision: Finish)", 3),
        ("Quarantined", "goes nowhere: quarantine q1 covers it", 3),
        ("Supersede", "", 12),
    ],
)
def test_a_plan_leaves_what_stays_proposed_as_the_services_do(case: str, words: str, writes: int) -> None:
    """Per variant its spec is written; without a reason to stay, its proposal is taken back, too."""
    fleet = run_simulated(live(case))
    isolated = [obj for obj in fleet.objects if obj["kind"] == QUARANTINE.kind]
    frozen = frozen_of(fleet.orders, isolated)
    world = previews.World(fleet.objects, server="pvbus", frozen=frozen)
    planned = previews.preview(world, changes=Changes([fleet.change]))
    assert lines(planned.writes) == lines(fleet.done)
    assert lines(planned.writes).total() == writes
    document = document_of(planned)
    notes = [
        each for each in document["notes"] if each.startswith("3 proposed, such as that of default/web-r1")
    ]
    assert len(notes) == bool(words)
    assert all(words in each for each in notes)
    assert not [each for each in document["troubles"] if each.startswith(f"{VARIANT.kind}/")]
