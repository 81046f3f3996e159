"""Packages that depend on each other, with users, faults and kills: what never happens, and how it ends.

The schedules are those of `tests.simulation.packages_schedule`; more of them are played by
`make simulate SEEDS=500 ARGS="--world packages"`, or here by PVBUS_SIMULATION_SEEDS. Services are killed
before each of their turns: CI takes a sample, `PVBUS_TEST_KILLS=effects` each turn with an effect, and
`PVBUS_TEST_KILLS=all` each turn. `PVBUS_TEST_PAIRS=100` has 100 pairs of installers in conflict.
"""

import asyncio
import os
from typing import Any, NamedTuple

import pytest

from pvbus.ports.cluster import Kind
from tests.kit.processes import run_simulated
from tests.simulation.__main__ import PACKAGES, Supervisor, command, unexercised
from tests.simulation.killing import Kill, KillingWorld
from tests.simulation.packages_judge import PAGE, PKG, actives
from tests.simulation.packages_schedule import ALWAYS
from tests.simulation.packages_world import SERVICES, PackagesWorld, crd, key_of

SEEDS = int(os.environ.get("PVBUS_SIMULATION_SEEDS", "2"))
FIRST = int(os.environ.get("PVBUS_SIMULATION_FIRST", "1"))
KILLS = os.environ.get("PVBUS_TEST_KILLS", "sample")
SAMPLE = 2
"""Runs per service in CI: each takes a second."""
PAIRS = int(os.environ.get("PVBUS_TEST_PAIRS", "20"))
"""Of installers that want the same object: 100 of them take 40 seconds."""


@pytest.mark.timeout(0 if SEEDS > 2 else 300)
def test_after_any_storm_packages_are_as_the_rules_say_and_a_restart_is_silent() -> None:
    supervisor = Supervisor(FIRST, SEEDS, 1, quiet=True, world=PACKAGES)
    supervisor.run()
    assert supervisor.failed == {}
    assert supervisor.done == SEEDS
    assert unexercised(supervisor.counts, SEEDS, PACKAGES) == []


def test_a_failing_schedule_of_packages_is_repeated_by_its_command() -> None:
    assert command(7, PACKAGES) == 'make simulate SEEDS=1 FIRST=7 ARGS="--world packages"'
    assert "install" in ALWAYS


# ------------------------------------------------------------ kills


class Ending(NamedTuple):
    """revisions: of the lock, with what is active. owners: who controls each object of a package."""

    revisions: dict[str, tuple[tuple[str, int, bool], ...]]
    states: dict[str, str]
    owners: dict[str, str]
    healthy: dict[str, bool]


class KilledPackages(KillingWorld, PackagesWorld):
    """A world of packages. ending: how it was once the story was over"""

    counted = SERVICES
    ending: Ending


async def story(world: PackagesWorld) -> None:
    """Install with a dependency, upgrade, go back by hand, and lose a conflict."""
    publish = world.registries.publish
    publish("base", "v1.0.0", ["Base", "Shared"])
    publish("base", "v1.1.0", ["Base", "Extra"])
    publish("net", "v1.0.0", ["Net"], depends=[("base", "v1.0.0", "")])
    publish("rival", "v1.0.0", ["Rival", "Base"])
    world.install("base", "base", "v1.0.0")
    world.install("net", "net", "v1.0.0")
    await world.rest(quiet=15.0)
    world.install("rival", "rival", "v1.0.0")
    world.install("base", "base", "v1.1.0")
    await world.rest(quiet=15.0)
    base = next(
        each
        for each in world.revisions()
        if each["metadata"]["name"].startswith("base-") and each["spec"]["desiredState"] == "Inactive"
    )
    world.desire(base, "Active")
    await world.rest(quiet=15.0)


def run_with(kill: Kill | None) -> KilledPackages:
    """Tell the story with one kill, and return the world at its end."""

    async def main() -> KilledPackages:
        world = KilledPackages()
        world.kill_at = kill
        await world.begin()
        killing = asyncio.create_task(world.obey())
        await story(world)
        killing.cancel()
        await world.rest()
        world.check_rest()
        world.ending = ending(world)
        await world.close()
        return world

    return run_simulated(main(), context={"kill": kill})


def ending(world: PackagesWorld) -> Ending:
    rows = {
        key: tuple((each.name, each.revision, each.is_active) for each in row.revisions)
        for key, row in world.lock().items()
    }
    states = {each["metadata"]["name"]: each["spec"]["desiredState"] for each in world.revisions()}
    names = ("Base", "Shared", "Extra", "Net", "Rival")
    owners = {name: world.controller_of(name) for name in names}
    return Ending(rows, states, owners, {key: done.is_healthy for key, done in world.done().items()})


@pytest.fixture(scope="module")
def undisturbed() -> KilledPackages:
    return run_with(None)


def test_the_story_has_all_that_it_is_about(undisturbed: KilledPackages) -> None:
    """Base goes to another revision and back; the rival gets nothing, not even what it alone wants."""
    end = undisturbed.ending
    first, second = sorted(end.revisions[f"{PKG}/Provider||base"], key=lambda each: each[2])
    assert (first[1:], second[1:]) == ((2, False), (3, True))
    assert end.states[second[0]] == "Active"
    net = next(name for name in end.states if name.startswith("net-"))
    assert end.owners == {"Base": second[0], "Shared": second[0], "Extra": "", "Net": net, "Rival": ""}
    assert end.healthy[f"{PKG}/Provider||net"]
    assert not end.healthy[f"{PKG}/Provider||rival"]


@pytest.mark.timeout(0 if KILLS != "sample" else 300)
@pytest.mark.parametrize("service", SERVICES)
def test_a_kill_at_any_await_ends_as_if_there_had_been_none(
    undisturbed: KilledPackages, service: str
) -> None:
    effects = sorted(undisturbed.effects[service])
    turns = effects[:: max(1, len(effects) // SAMPLE)] if KILLS == "sample" else effects
    if KILLS == "all":
        turns = list(range(1, undisturbed.turns[service] + 1))
    for turn in turns:
        assert run_with(Kill(service, turn)).ending == undisturbed.ending, f"{service} killed at {turn}"


# ------------------------------------------------------------ counted costs

DECISIONS_MAX = 6
"""One each for the install, its content, the versions of what it needs, their content, and the install that
was made; and one for a fact that comes in two parts."""
PASSES_MAX = 20
"""Two for each of the seven rows that change, to do it and to report it; three for the published lock; and
the rest for echoes that come before the answer to their write."""


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_packages_with_one_dependency_settle_in_few_decisions_and_passes(seed: int) -> None:
    async def main() -> None:
        world = PackagesWorld(seed)
        world.registries.publish("base", "v1.0.0", ["Base"])
        world.registries.publish("net", "v1.0.0", ["Net"], depends=[("base", "v1.0.0", "")])
        await world.begin()
        await asyncio.sleep(20.0)
        resolve, establish = (world.of(service).controller for service in ("resolve", "establish"))
        passes: list[str] = []
        reconcile, decisions = establish.reconcile, resolve.decisions

        def count(partition: int, key: str, now: float) -> Any:
            passes.append(key)
            return reconcile(partition, key, now)

        establish.reconcile = count
        world.install("net", "net", "v1.0.0")
        await asyncio.sleep(20.0)  # a Deployment that is not available is looked at every 30
        assert [row.is_healthy for row in world.done().values()] == [True, True]
        assert resolve.decisions - decisions <= DECISIONS_MAX
        assert len(passes) <= PASSES_MAX, passes
        await world.close()

    run_simulated(main())


# ------------------------------------------------------------ conflicts, hands, and a lost bus


def test_of_two_installers_at_once_one_has_all_and_the_other_nothing_however_many_they_are() -> None:
    """Both bring Both<n>, and each an object of its own: who was first has all, the other one changes nothing
    at all, and nobody waits for ever."""

    async def main() -> None:
        world = PackagesWorld(1)
        for number in range(PAIRS):
            for side in ("a", "b"):
                names = [f"Both{number}", f"Only{side}{number}"]
                world.registries.publish(f"{side}{number}", "v1.0.0", names)
        await world.begin()
        world.storm()
        for number in range(PAIRS):
            for side in world.random.sample(["a", "b"], 2):
                world.install(f"{side}{number}", f"{side}{number}", "v1.0.0")
        await asyncio.sleep(60.0)
        await world.calm()
        await world.rest(quiet=100.0)
        world.check_rest()
        lock = world.lock()
        for number in range(PAIRS):
            keys = {side: f"{PKG}/Provider||{side}{number}" for side in "ab"}
            (winner,) = (side for side, key in keys.items() if actives(lock[key]))
            loser = "b" if winner == "a" else "a"
            assert lock[keys[loser]].reason == "ObjectOwned"
            (revision,) = actives(lock[keys[winner]])
            for name in (f"Both{number}", f"Only{winner}{number}"):
                assert world.controller_of(name) == revision.name
            assert (
                world.find(
                    Kind("apiextensions.k8s.io", "CustomResourceDefinition"),
                    f"only{loser}{number}s.example.org",
                    "",
                )
                is None
            )
        await world.close()

    run_simulated(main())


def test_a_bus_that_is_lost_changes_nothing_in_the_cluster() -> None:
    """The lock is made again from the cluster: the same revisions with the same numbers, and who was first
    in a conflict still has the object. Only what is reported of it follows what is known meanwhile."""

    async def main() -> None:
        world = KilledPackages()
        await world.begin()
        await story(world)
        await world.rest()
        before, writes = ending(world), len(world.cluster.writes)
        world.registries.publish("base", "v1.0.0", ["Base"], salt="moved")  # what is active has no tag
        await world.empty_bus()
        await world.rest()
        world.check_rest()
        assert ending(world) == before
        since = world.cluster.writes[writes:]
        changes = [each for each in since if each.subresource != "status" and each.kind != PAGE]
        assert changes == []
        await world.close()

    run_simulated(main())


def test_an_object_of_both_revisions_is_never_without_a_controller() -> None:
    """In an upgrade an object goes from one revision to the other in one write."""

    async def main() -> None:
        world = PackagesWorld()
        world.registries.publish("base", "v1.0.0", ["Base", "Shared"])
        world.registries.publish("base", "v1.1.0", ["Base", "Extra"])
        world.install("base", "base", "v1.0.0")
        await world.begin()
        await world.rest(quiet=15.0)
        seen: list[str] = []
        store = world.cluster._store

        def note(kind: Kind, obj: Any) -> Any:
            if obj["metadata"]["name"] == "bases.example.org":
                owners = obj["metadata"].get("ownerReferences") or ()
                seen.append(",".join(each["name"] for each in owners if each["controller"]))
            return store(kind, obj)

        world.cluster._store = note  # type: ignore[method-assign]
        world.install("base", "base", "v1.1.0")
        await world.rest(quiet=15.0)
        (revision,) = actives(world.lock()[f"{PKG}/Provider||base"])
        assert seen == [revision.name]
        await world.close()

    run_simulated(main())


def test_a_users_own_objects_are_as_they_were_whatever_packages_bring() -> None:
    """One is controlled by somebody else, so the package gets nothing, also not what nobody controls."""

    async def main() -> None:
        world = PackagesWorld()
        world.own(crd("Foreign", text="somebody's"), controller=True)
        world.own(crd("Mine", text="a user's"))
        world.registries.publish("foreign", "v1.0.0", ["First", "Mine", "Foreign", "Last"])
        key = world.install("foreign", "foreign", "v1.0.0")
        await world.begin()
        await world.rest()
        world.check_rest()
        assert world.controller_of("First") == ""
        assert not world.done()[key].is_healthy
        obj = next(each for each in world.installs() if key_of(each) == key)
        await world.drop(obj)
        await world.rest()
        world.check_rest()
        assert world.lock() == {}
        await world.close()

    run_simulated(main())
