"""Without faults, every permitted removal is completed: none waits for ever, and accidents remove nothing.

The invariants of `watching` hold in every scenario, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pvbus.core.kernel.keys import HOLD
from pvbus.core.kernel.records import DESIRED, RESULTS, SETRESULTS, TARGETS, UNROLL
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.bus import Output
from tests.kit.processes import run_simulated
from tests.simulation.outcome import check_variants, check_watched
from tests.simulation.schedule import NOTE, RECORD_BYTES, seeded
from tests.simulation.world import REPOSITORY, SET, SITE, VARIANT, Options, SimulatedWorld

Scenario = Callable[[SimulatedWorld], Awaitable[None]]


def selecting(env: str = "prod", prefix: str = "") -> dict[str, Any]:
    selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": env}}
    downstream = {"repo": "r1", "packageExpr": f"'{prefix}' + target.name"}
    return {"objectSelector": selector, "template": {"downstream": downstream}}


def label(world: SimulatedWorld, number: int, env: str) -> None:
    world.put(SITE, f"s{number}", metadata={"labels": {"env": env}})


async def inventory(world: SimulatedWorld, sites: int, *targets: Any) -> None:
    """Make sites, a set that selects them, and wait until its variants are there."""
    world.upstream()
    world.serve_sites()
    world.put(REPOSITORY, "r1", spec={})
    for number in range(sites):
        label(world, number, "prod")
    world.set("alpha", list(targets) or [selecting()])
    await world.start()
    await world.converge()
    assert len(world.variants()) == sites * max(len(targets), 1)


def played(scenario: Scenario, **options: Any) -> None:
    async def main() -> None:
        options.setdefault("limits", RemovalLimits(removals_max=5, removals_share=0.1))
        world = SimulatedWorld(1, **options)
        await scenario(world)
        await world.converge(quiet=70.0)
        check_watched(world)
        check_variants(world)
        await world.close()

    with seeded(1):
        run_simulated(main())


async def goes(world: SimulatedWorld, count: int, seconds: float = 240.0) -> None:
    """Wait until the given number of variants is left."""
    deadline = world.now + seconds
    while len(world.variants()) != count:
        assert world.now < deadline, f"{len(world.variants())} of {count} are left, and nothing goes on"
        await asyncio.sleep(1.0)


def removed(world: SimulatedWorld) -> int:
    return len(world.writes_of("delete"))


@pytest.mark.parametrize("removes", [False, True])
def test_a_value_that_the_bus_just_takes_leaves_its_variant_in_hand(removes: bool) -> None:
    """The variant's own row is larger than its target's: if written, it could not be observed any more."""
    noted = selecting()
    noted["template"]["packageContext"] = {"dataExprs": [{"key": "note", "valueExpr": NOTE}]}

    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 1, noted)
        vkey = "default/alpha-r1-s0"
        world.put(SITE, "s0", metadata={"annotations": {"note": "x" * (RECORD_BYTES - 600)}})
        await world.converge()
        rollup = world.rollup("alpha")
        assert rollup is not None
        assert [one.name for one in rollup.unready] == ["alpha-r1-s0"]
        assert world.variants()[vkey]["spec"]["packageContext"]["data"] == {"note": "none"}
        if removes:
            label(world, 0, "test")
            await goes(world, 0)
        else:
            world.put(SITE, "s0", metadata={"annotations": {"note": "short"}})
            await world.converge()
            assert world.variants()[vkey]["spec"]["packageContext"]["data"] == {"note": "short"}

    played(scenario, options=Options(record_bytes=RECORD_BYTES))


def test_rows_that_a_damaged_bus_refuses_fail_their_variant_alone_until_it_is_repaired() -> None:
    """The set says so and is not Ready; others are made and changed as before."""

    def is_damaged(output: Output) -> bool:
        return output.topic in (UNROLL, TARGETS) and b"alpha-r1-s9" in output.key

    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 9)
        world.faults.refuses = is_damaged
        for number in (9, 10, 11):
            label(world, number, "prod")
        await world.converge()
        assert set(world.variants()) == {f"default/alpha-r1-s{n}" for n in range(12) if n != 9}
        rollup = world.rollup("alpha")
        assert rollup is not None
        assert (rollup.counts.desired, rollup.counts.applied, rollup.counts.failed) == (12, 11, 1)
        assert (rollup.reason, rollup.message) == ("BusRefused", "Site default/s9: the bus's file is damaged")
        conditions = {c["type"]: c for c in world.objects(SET)[0]["status"]["conditions"]}
        assert (conditions["Ready"]["status"], conditions["Stalled"]["status"]) == ("False", "True")
        label(world, 12, "prod")
        await asyncio.sleep(100.0)
        assert len(world.variants()) == 12
        assert "default/alpha-r1-s9" not in world.variants()
        world.faults.refuses = lambda output: False
        await world.converge(quiet=70.0)
        assert len(world.variants()) == 13

    played(scenario)


def test_a_bus_that_refuses_every_row_for_a_while_loses_none() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 3)
        world.faults.refuses = lambda output: output.topic in (UNROLL, TARGETS, SETRESULTS, DESIRED, RESULTS)
        for number in range(3, 30):
            label(world, number, "prod")
        await asyncio.sleep(100.0)
        assert len(world.variants()) == 3
        world.faults.refuses = lambda output: False
        await world.converge(quiet=70.0)
        assert len(world.variants()) == 30

    played(scenario)


def test_a_dropped_entry_of_targets_removes_its_variants() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 3, selecting(), selecting(prefix="x-"))
        world.set("alpha", [selecting()])
        await goes(world, 3)

    played(scenario)


def test_a_kind_that_is_away_and_back_with_fewer_objects_removes_the_others() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 4)
        world.unserve(SITE)
        await asyncio.sleep(100.0)
        assert removed(world) == 0
        world.serve_sites()
        for number in range(2):
            label(world, number, "prod")
        await goes(world, 2)

    played(scenario)


def test_a_hold_stops_removals_and_they_go_when_it_is_lifted() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 4)
        world.put(SET, "alpha", metadata={"annotations": {HOLD: "true"}})
        await asyncio.sleep(25.0)
        writes = len(world.cluster.writes)
        label(world, 1, "test")
        name = "alpha-r1-s2"
        obj = world.find(VARIANT, name)
        assert obj is not None
        world.put(VARIANT, name, spec={**obj["spec"], "labels": {"by": "hand"}})
        await world.delete(VARIANT, "alpha-r1-s3")
        await asyncio.sleep(120.0)
        made = [w for w in world.cluster.writes[writes:] if not w.subresource and w.kind == "PackageVariant"]
        assert [w.verb for w in made if w.verb != "delete" and w.name == name] == []
        assert world.variants().keys() >= {"default/alpha-r1-s1"}
        world.put(SET, "alpha", metadata={"annotations": {HOLD: "false"}})
        await goes(world, 3)

    played(scenario)


def test_a_hold_on_one_variant_does_not_stop_the_others() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 4)
        world.put(VARIANT, "alpha-r1-s0", metadata={"annotations": {HOLD: "true"}})
        await asyncio.sleep(10.0)
        label(world, 0, "test")
        label(world, 1, "test")
        await goes(world, 3)
        await asyncio.sleep(100.0)
        assert "default/alpha-r1-s0" in world.variants()
        world.put(VARIANT, "alpha-r1-s0", metadata={"annotations": {HOLD: "false"}})
        await goes(world, 2)

    played(scenario)


@pytest.mark.parametrize("chunk", [2, 2000])
def test_what_is_confirmed_goes_and_nothing_else(chunk: int) -> None:
    """Held rows whose targets return are free again; a wrong token confirms nothing."""

    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 20)
        for number in range(12):
            label(world, number, "test")
        await asyncio.sleep(90.0)
        assert removed(world) == 0
        for number in range(2):
            label(world, number, "prod")
        await asyncio.sleep(90.0)
        world.confirm("default/alpha", ["deadbeef"])
        await asyncio.sleep(60.0)
        assert removed(world) == 0
        for _ in range(3):
            tokens, held = world.tokens("default/alpha")
            if held:
                world.confirm("default/alpha", tokens)
                await asyncio.sleep(90.0)
        await goes(world, 10)

    played(scenario, options=Options(step_records=chunk))


def test_a_set_that_fails_for_a_while_removes_afterwards() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 3)
        bad = selecting()
        bad["template"] = {"downstream": {"repo": "r1", "packageExpr": "target.labels['package']"}}
        world.set("alpha", [bad])
        label(world, 1, "test")
        await asyncio.sleep(100.0)
        assert removed(world) == 0
        world.set("alpha", [selecting()])
        await goes(world, 2)

    played(scenario)


@pytest.mark.parametrize("per_second", [1, 20, 200])
@pytest.mark.parametrize("chunk", [200, 2000])
def test_a_label_that_is_mistyped_on_everything_removes_nothing(per_second: int, chunk: int) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 60)
        for number in range(60):
            label(world, number, "prodd")
            await asyncio.sleep(1.0 / per_second)
        await asyncio.sleep(700.0)
        assert removed(world) == 0
        tokens, held = world.tokens("default/alpha")
        assert (len(tokens), len(held)) == (1, 60)
        for number in range(60):
            label(world, number, "prod")
        await asyncio.sleep(120.0)
        assert world.tokens("default/alpha") == ([], [])
        assert removed(world) == 0
        assert len(world.variants()) == 60

    played(scenario, options=Options(step_records=chunk))


def test_a_selector_that_moves_to_other_objects_removes_nothing() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await inventory(world, 30)
        for number in range(30, 150):
            label(world, number, "other")
        world.set("alpha", [selecting("other")])
        await asyncio.sleep(200.0)
        assert removed(world) == 0
        world.set("alpha", [selecting()])
        await asyncio.sleep(120.0)
        assert removed(world) == 0

    played(scenario)


@pytest.mark.timeout(300)
def test_a_thousand_sets_that_ask_at_once_all_get_their_answer() -> None:
    """One object that all sets select leaves: each set removes one variant."""
    sets = 1000

    async def main() -> None:
        world = SimulatedWorld(1)
        world.upstream()
        world.serve_sites()
        world.put(REPOSITORY, "r1", spec={})
        label(world, 0, "prod")
        for number in range(sets):
            spec = {"upstream": {"repo": "up", "package": "base", "revision": 1}, "targets": [selecting()]}
            world.cluster.put(
                {
                    "apiVersion": "config.porch.kpt.dev/v1alpha2",
                    "kind": "PackageVariantSet",
                    "metadata": {"name": f"set-{number}", "namespace": "default", "uid": f"uid-{number}"},
                    "spec": spec,
                }
            )
        world.cluster.world = Unwatched()  # type: ignore[assignment]
        await world.start(("ingest", "unroll", "render"))
        await goes(world, sets, 120.0)
        world.cluster.put({**site(), "metadata": {**site()["metadata"], "labels": {"env": "test"}}})
        deadline = world.now + 600.0
        while removed(world) < sets:
            assert world.now < deadline, f"{removed(world)} of {sets} went"
            await asyncio.sleep(5.0)
        world.watcher.violations.clear()
        await world.close()

    run_simulated(main())


def site() -> dict[str, Any]:
    return {
        "apiVersion": "example.org/v1",
        "kind": "Site",
        "metadata": {"name": "s0", "namespace": "default"},
    }


class Unwatched:
    """Receives the writes of a cluster that has too many to judge each."""

    class watcher:  # noqa: N801 - stands for an attribute
        @staticmethod
        def changed(objects: Any) -> None:
            return

    def wrote(self, verb: str, obj: Any, subresource: str) -> None:
        return
