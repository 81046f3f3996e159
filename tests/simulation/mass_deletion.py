"""Many sets that are deleted together, without faults: `python -m tests.simulation.mass_deletion 10000`.

Each set has one variant, and every tenth draft has a person's edits. Beside them one set loses most of its
targets at the same time, which its guard must hold.
"""

import json
import resource
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR
from pvbus.core.kernel.records import Hold
from pvbus.ports.cluster import Object
from tests.kit.processes import run_simulated
from tests.simulation.world import REPOSITORY, REVISION, SET, VARIANT, SimulatedWorld

EDITED_EACH = 10
WIDE = "wide"
WIDE_CHILDREN, WIDE_LEFT = 20, 2


class Cost(NamedTuple):
    """What a phase took. records: on the bus. writes: requests of the services to the cluster. cpu_seconds:
    of all services and of the simulated cluster."""

    records: int
    writes: int
    cpu_seconds: float


class Deletion(NamedTuple):
    """The world after the sets were deleted, and what that took.

    edited: packages of the drafts that a person edited, by name. retained: what of them says for which
    variant it stays. owned: those of them that have an owner. drafts, variants: the names of all others.
    hold, words: what the guard of the wide set says.
    """

    edited: dict[str, str]
    retained: dict[str, str]
    owned: list[str]
    drafts: list[str]
    variants: list[str]
    hold: Hold | None
    words: str
    making: Cost
    deleting: Cost


def _packages(count: int) -> list[str]:
    return [f"p{number:05}" for number in range(count)]


def _listed(packages: Iterable[str]) -> list[Object]:
    return [{"repositories": [{"name": "r1", "packageNames": list(packages)}]}]


async def delete_together(count: int) -> Deletion:
    """Make this many sets, edit some of their drafts, delete them all at once, and wait until all is done."""
    world = SimulatedWorld(watched=False)
    world.upstream()
    world.put(REPOSITORY, "r1", spec={})
    for package in _packages(count):
        world.cluster.put(_set_of(package))
    wide = [f"wide-{number:02}" for number in range(WIDE_CHILDREN)]
    world.set(WIDE, _listed(wide))
    began = await _cost(world)
    await world.start()
    await world.converge(limit=20_000.0)
    made = await _cost(world)
    edited = _edit(world)
    await world.converge(limit=20_000.0)
    before = await _cost(world)
    for package in _packages(count):
        world.cluster.terminate(SET, "default", f"s-{package}")
    world.set(WIDE, _listed(wide[:WIDE_LEFT]))
    await world.converge(limit=20_000.0)
    after = await _cost(world)
    drafts = {obj["metadata"]["name"]: obj["metadata"] for obj in world.objects(REVISION) if _is_draft(obj)}
    rollup, shown = world.rollup(WIDE), world.find(SET, WIDE)
    assert rollup is not None
    assert shown is not None
    found = Deletion(
        edited,
        {name: meta["annotations"].get(KEPT_FOR, "") for name, meta in drafts.items() if name in edited},
        [name for name in edited if drafts.get(name, {}).get("ownerReferences")],
        [name for name in drafts if name not in edited],
        [obj["metadata"]["name"] for obj in world.objects(VARIANT)],
        rollup.hold,
        "; ".join(condition["message"] for condition in shown["status"]["conditions"]),
        _difference(began, made),
        _difference(before, after),
    )
    await world.close()
    return found


def _set_of(package: str) -> Object:
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha2",
        "kind": SET.kind,
        "metadata": {
            "name": f"s-{package}",
            "namespace": "default",
            "uid": f"uid-{package}",
            "generation": 1,
        },
        "spec": {"upstream": {"repo": "up", "package": "base", "revision": 1}, "targets": _listed([package])},
    }


def _is_draft(obj: Object) -> bool:
    return bool(obj["spec"]["lifecycle"] == "Draft")


def _edit(world: SimulatedWorld) -> dict[str, str]:
    """Have a person edit some drafts; return their packages by name."""
    edited = {}
    for obj in world.objects(REVISION):
        package = obj["spec"]["packageName"]
        if _is_draft(obj) and package.startswith("p") and int(package[1:]) % EDITED_EACH == 0:
            meta = obj["metadata"]
            annotations = {**(meta.get("annotations") or {}), EDITED_BY: "ann"}
            world.cluster.put({**obj, "metadata": {**meta, "annotations": annotations}})
            edited[meta["name"]] = package
    return edited


async def _cost(world: SimulatedWorld) -> Cost:
    records = sum((await world.ends()).values()) if world.running else 0
    return Cost(records, len(world.cluster.writes), time.process_time())


def _difference(before: Cost, after: Cost) -> Cost:
    return Cost(
        after.records - before.records,
        after.writes - before.writes,
        after.cpu_seconds - before.cpu_seconds,
    )


def main() -> None:
    """Print what the deletion of so many sets took, as JSON, after a check of what is left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    deletion = run_simulated(delete_together(int(sys.argv[1])))
    assert deletion.retained.keys() == deletion.edited.keys()
    assert deletion.owned == []
    assert len(deletion.drafts) == len(deletion.variants) == WIDE_CHILDREN
    cost = deletion.deleting
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"records": cost.records, "writes": cost.writes, "cpuSeconds": cost.cpu_seconds}
    print(json.dumps({**found, "residentBytes": resident}))


if __name__ == "__main__":
    main()
