"""Counted costs: evaluations by the unroll and render services, calls to the API server."""

import asyncio
from typing import Any

import pytest

from pvbus.core.errors import TransientError
from pvbus.core.kernel.keys import partition
from tests.kit.cluster import resource_of
from tests.kit.processes import run_simulated
from tests.simulation.world import CONFIG_MAP, PARTITIONS, REPOSITORY, SET, SITE, VARIANT, SimulatedWorld

SETS = 12
SITES = 24
GROUPS = 4


def sets_of(group: int) -> set[str]:
    return {f"set{i}" for i in range(SETS) if i % GROUPS == group}


async def fleet(names: tuple[str, ...] = ("ingest", "unroll", "render", "conditions")) -> SimulatedWorld:
    """Twelve sets in four groups; each selects the six Sites of its group: 72 variants."""
    world = SimulatedWorld(watched=False)
    world.upstream()
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={}, metadata={"labels": {"fleet": "a"}})
    for i in range(SITES):
        world.put(SITE, f"s{i}", metadata={"labels": {"group": f"g{i % GROUPS}"}})
    for i in range(SETS):
        selector = {
            "apiVersion": "example.org/v1",
            "kind": "Site",
            "matchLabels": {"group": f"g{i % GROUPS}"},
        }
        template = {
            "downstream": {"repo": "r1", "packageExpr": f"'n{i}-' + target.name"},
            "labelExprs": [
                {"key": "size", "valueExpr": "'size' in target.labels ? target.labels['size'] : 'm'"}
            ],
        }
        world.set(f"set{i}", [{"objectSelector": selector, "template": template}])
    await world.start(names)
    await world.converge()
    return world


class Counted:
    """What was counted between two moments."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.start = self._now()

    def _now(self) -> tuple[int, int, int, int]:
        unroll, render = self.world.of("unroll").controller, self.world.of("render").controller
        writes = sum(w.kind == VARIANT.kind for w in self.world.cluster.writes)
        calls = sum(r.cluster.calls for r in self.world.running.values() if r.name.startswith("render"))
        return unroll.preparing.target_evaluations, render.evaluations, writes, calls

    def statuses(self) -> int:
        """Return the status writes to sets so far: some per set that was touched, and none elsewhere."""
        return sum(w.kind == SET.kind for w in self.world.cluster.writes)

    def since(self) -> tuple[int, ...]:
        """Return targets evaluated, templates rendered, PackageVariants written, calls of render."""
        return tuple(after - before for before, after in zip(self.start, self._now(), strict=True))


def counted(scenario: Any) -> None:
    async def main() -> None:
        world = await fleet()
        assert len(world.variants()) == SETS * SITES // GROUPS
        await scenario(world)
        await world.close()

    run_simulated(main())


def test_a_label_that_selects_costs_the_sets_it_enters_and_leaves() -> None:
    """M7, S22: three sets lose the Site, three get it; each makes or removes one variant."""

    async def scenario(world: SimulatedWorld) -> None:
        count = Counted(world)
        world.put(SITE, "s0", metadata={"labels": {"group": "g1"}})
        await world.converge()
        evaluated, rendered, writes, calls = count.since()
        per_group = SETS // GROUPS
        assert (evaluated, rendered, writes) == (per_group, per_group, 2 * per_group)
        assert calls == writes + per_group  # each removal looks at its set once more
        made = {name.partition("-")[0] for name in (w.name for w in world.writes_of("create"))}
        assert sets_of(1) <= made

    counted(scenario)


def test_a_label_that_an_expression_reads_costs_the_variants_that_read_it() -> None:
    """M7."""

    async def scenario(world: SimulatedWorld) -> None:
        count = Counted(world)
        statuses = count.statuses()
        world.put(SITE, "s0", metadata={"labels": {"group": "g0", "size": "xl"}})
        await world.converge()
        per_group = SETS // GROUPS
        assert count.since() == (per_group, per_group, per_group, per_group)
        assert count.statuses() - statuses <= 2 * per_group

    counted(scenario)


def test_a_label_that_nobody_reads_is_evaluated_and_written_nowhere() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        count = Counted(world)
        world.put(SITE, "s0", metadata={"labels": {"group": "g0", "other": "x"}})
        await world.converge()
        assert count.since()[1:] == (0, 0, 0)

    counted(scenario)


def test_what_no_set_selects_costs_nothing() -> None:
    """An unrelated PackageRevision, Repository, ConfigMap and a Site of another group."""

    async def scenario(world: SimulatedWorld) -> None:
        count = Counted(world)
        world.upstream(package="unrelated")
        world.put(REPOSITORY, "r9", spec={})
        world.put(CONFIG_MAP, "c", data={})
        world.put(SITE, "s99", metadata={"labels": {"group": "none"}})
        await world.converge()
        assert count.since() == (0, 0, 0, 0)

    counted(scenario)


def test_a_set_that_is_touched_writes_nothing_to_its_variants() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        count = Counted(world)
        world.put(SET, "set0", metadata={"annotations": {"touched": "yes"}})
        await world.converge()
        assert count.since() == (0, 0, 0, 0)

    counted(scenario)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_restart_of_everything_sends_and_writes_nothing(workers: int) -> None:
    """Whatever the number of workers that take over: but that conditions reads each set's history once."""

    async def scenario(world: SimulatedWorld) -> None:
        writes, ends = len(world.cluster.writes), await world.ends()
        await world.stop()
        world.workers = workers
        await world.start(["ingest", "unroll", "render", "conditions"])
        await asyncio.sleep(30)
        assert all(r.service.idle for r in world.running.values())
        assert len(world.cluster.writes) == writes
        assert await world.ends() == ends
        assert sum(r.cluster.calls for r in world.running.values() if not r.name.startswith("ingest")) == SETS
        assert sum(r.cluster.calls for r in world.running.values() if r.name.startswith("conditions")) == SETS

    counted(scenario)


def test_an_api_server_that_is_down_for_a_while_needs_nobodys_edit() -> None:
    """S20: transient errors are tried again until they end."""

    async def scenario(world: SimulatedWorld) -> None:
        world.faults.unavailable = 1.0
        for i in range(4):
            world.put(SITE, f"new{i}", metadata={"labels": {"group": "g0"}})
        await asyncio.sleep(30)
        before = len(world.variants())
        world.faults.calm()
        await world.converge(quiet=70)  # the longest backoff is a minute
        assert before == SETS * SITES // GROUPS
        assert len(world.variants()) == before + 4 * SETS // GROUPS

    counted(scenario)


def test_a_worker_that_dies_is_replaced_without_a_write_too_many() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        count = len(world.cluster.writes)
        for name in list(world.running):
            service = name.partition("-")[0]
            await world.kill(name)
            world.add_worker(service)
        world.put(SITE, "late", metadata={"labels": {"group": "g0"}})
        await world.converge(quiet=25)
        created = world.writes_of("create", since=count)
        assert len(created) == SETS // GROUPS
        others = [w for w in world.cluster.writes[count:] if w.verb != "create"]
        assert [w for w in others if w.kind == VARIANT.kind] == []

    counted(scenario)


def test_a_lost_answer_is_no_second_write() -> None:
    """Every create is applied and answered with an error; none is repeated, none is in doubt for long."""

    async def scenario(world: SimulatedWorld) -> None:
        count = len(world.cluster.writes)
        world.faults.lost = 1.0
        world.put(SITE, "late", metadata={"labels": {"group": "g0"}})
        await asyncio.sleep(20)
        world.faults.calm()
        await world.converge()
        assert len(world.writes_of("create", since=count)) == SETS // GROUPS
        assert {partition(f"default/{w.name}", PARTITIONS) for w in world.writes_of("create", since=count)}

    counted(scenario)


def test_errors_of_the_simulated_cluster_are_the_ports() -> None:
    """The scenario above proves something only if calls really fail."""

    async def scenario(world: SimulatedWorld) -> None:
        world.faults.unavailable = 1.0
        running = next(iter(world.running.values()))
        resource = await resource_of(running.cluster, SITE)
        with pytest.raises(TransientError):
            await running.cluster.get(resource, "default", "s0")
        world.faults.calm()
        assert await running.cluster.get(resource, "default", "s0") is not None

    counted(scenario)
