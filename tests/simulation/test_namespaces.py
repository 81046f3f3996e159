"""All services, limited to some namespaces: what is deleted, what goes on, and what is said."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pvbus.core.kernel.records import LATEST, OBJECTS
from pvbus.ports.cluster import Kind, Listing, Resource
from tests.kit.processes import run_simulated
from tests.simulation.world import REPOSITORY, SET, SITE, VARIANT, SimulatedWorld

TEAMS = ("red", "green", "blue")
TEMPLATE = {"downstream": {"repo": "r1", "packageExpr": "target.name"}}


def selecting(api: str = "example.org/v1", kind: str = "Site") -> dict[str, Any]:
    labels = {"env": "prod"}
    return {"objectSelector": {"apiVersion": api, "kind": kind, "matchLabels": labels}, "template": TEMPLATE}


def make(world: SimulatedWorld, namespace: str) -> None:
    """Two Sites with a set over them."""
    world.upstream(namespace=namespace)
    world.put(REPOSITORY, "r1", namespace=namespace, spec={})
    for name in ("s1", "s2"):
        world.put(SITE, name, namespace=namespace, metadata={"labels": {"env": "prod"}})
    world.set("web", [selecting()], namespace=namespace)


def scene(scenario: Callable[[SimulatedWorld], Awaitable[None]], *, replays: bool = False) -> None:
    async def main() -> None:
        world = SimulatedWorld(watched=False)
        world.faults.replays = replays
        world.serve_sites()
        for namespace in TEAMS:
            make(world, namespace)
        world.namespaces = TEAMS
        world.faults.granted = set(TEAMS)
        await world.start()
        await world.converge()
        assert counts(world) == dict.fromkeys(TEAMS, 2)
        await scenario(world)
        await world.close()

    run_simulated(main())


def counts(world: SimulatedWorld) -> dict[str, int]:
    found = dict.fromkeys(TEAMS, 0)
    for key in world.variants():
        found[key.partition("/")[0]] += 1
    return found


def condition(world: SimulatedWorld, namespace: str, kind: str) -> dict[str, Any]:
    found = world.find(SET, "web", namespace)
    assert found is not None
    return next((c for c in found["status"]["conditions"] if c["type"] == kind), {})


async def restart(world: SimulatedWorld, *namespaces: str) -> int:
    """Start all services with these namespaces; return how many writes there were before."""
    await world.stop()
    world.namespaces = namespaces
    before = len(world.cluster.writes)
    await world.start()
    await world.converge(quiet=90.0)
    return before


def relabel(world: SimulatedWorld, namespace: str, name: str, env: str) -> None:
    world.put(SITE, name, namespace=namespace, metadata={"labels": {"env": env}})


@pytest.mark.parametrize("replays", [False, True])
def test_a_namespace_off_the_list_loses_nothing_and_is_let_alone(replays: bool) -> None:
    """Its objects are neither deleted nor written, even if they change; another one goes on; and back on the
    list, it is brought up to date."""

    async def scenario(world: SimulatedWorld) -> None:
        children = world.children()
        before = await restart(world, "red", "green")
        assert world.cluster.writes[before:] == []
        assert world.children() == children  # none is released, nor takes its place anew later
        relabel(world, "blue", "s1", "test")
        world.put(SITE, "s3", namespace="blue", metadata={"labels": {"env": "prod"}})
        world.put(SITE, "s3", namespace="red", metadata={"labels": {"env": "prod"}})
        await world.converge(quiet=90.0)
        assert counts(world) == {"red": 3, "green": 2, "blue": 2}
        assert [w for w in world.cluster.writes[before:] if w.namespace == "blue"] == []
        await restart(world, *TEAMS)
        assert counts(world) == {"red": 3, "green": 2, "blue": 2}
        blue = {key for key in world.variants() if key.startswith("blue/")}
        assert blue == {"blue/web-r1-s2", "blue/web-r1-s3"}

    scene(scenario, replays=replays)


def test_a_namespace_without_a_role_loses_nothing_and_the_others_go_on() -> None:
    """403 for one of three, at a start and while services run; its role back, it is brought up to date."""

    async def scenario(world: SimulatedWorld) -> None:
        world.faults.granted = {"red", "green"}
        before = await restart(world, *TEAMS)
        assert world.cluster.writes[before:] == []
        relabel(world, "red", "s1", "test")
        relabel(world, "blue", "s1", "test")
        await world.converge(quiet=90.0)
        assert counts(world) == {"red": 1, "green": 2, "blue": 2}
        world.faults.granted = {"green", "blue"}
        relabel(world, "red", "s2", "test")
        await world.converge(quiet=150.0)
        assert counts(world) == {"red": 1, "green": 2, "blue": 1}

    scene(scenario)


def test_the_end_of_a_condition_is_published_where_the_end_is_seen() -> None:
    """Of a variant that is deleted in a namespace of the list, and of none that is only out of sight."""

    async def scenario(world: SimulatedWorld) -> None:
        def subjects(namespace: str) -> set[str]:
            return {key for key in world.table(LATEST) if f"|{namespace}/" in key}

        blue, red = subjects("blue"), subjects("red")
        assert any("PackageVariant|blue/web-r1-s1|" in key for key in blue)
        await restart(world, "red", "green")
        relabel(world, "red", "s1", "test")
        await world.converge(quiet=90.0)
        assert subjects("blue") == blue
        ended = red - subjects("red")
        assert {key for key in red if "/web-r1-s1|" in key} <= ended
        assert not {key for key in ended if "s2" in key}

    scene(scenario)


def test_a_mistyped_namespace_is_no_reason_to_delete() -> None:
    """Nobody has rights in it: the one that was meant is off the list, and the others go on."""

    async def scenario(world: SimulatedWorld) -> None:
        before = await restart(world, "red", "grene", "blue")
        assert world.cluster.writes[before:] == []
        relabel(world, "blue", "s1", "test")
        await world.converge(quiet=90.0)
        assert counts(world) == {"red": 2, "green": 2, "blue": 1}

    scene(scenario)


def test_a_namespace_that_is_deleted_and_made_again_starts_anew() -> None:
    """Its objects go with it, and its role; made again without a role it is not seen, with it, it is worked
    on; the others never change."""

    async def scenario(world: SimulatedWorld) -> None:
        before = len(world.cluster.writes)
        assert world.faults.granted is not None
        world.faults.granted.discard("green")
        for obj in [o for o in world.cluster.objects() if o["metadata"].get("namespace") == "green"]:
            group, _, _ = obj["apiVersion"].rpartition("/")
            world.cluster.remove(Kind(group, obj["kind"]), "green", obj["metadata"]["name"])
        await world.converge(quiet=90.0)
        make(world, "green")
        await world.converge(quiet=90.0)
        assert counts(world) == {"red": 2, "green": 0, "blue": 2}
        world.faults.granted.add("green")
        await world.converge(quiet=150.0)
        assert counts(world) == dict.fromkeys(TEAMS, 2)
        others = [w for w in world.cluster.writes[before:] if w.namespace in ("red", "blue")]
        assert others == []

    scene(scenario)


def test_a_set_says_that_it_selects_a_cluster_scoped_kind() -> None:
    """It keeps its variants: nothing is known of what it selected."""

    async def scenario(world: SimulatedWorld) -> None:
        world.set("web", [selecting("v1", "Namespace")], namespace="red")
        await world.converge(quiet=90.0)
        stalled = condition(world, "red", "Stalled")
        assert stalled["status"] == "True"
        assert "Namespace is a cluster-scoped kind, and PVBUS_NAMESPACES limits ingest" in stalled["message"]
        assert counts(world) == dict.fromkeys(TEAMS, 2)
        assert world.writes_of("delete", VARIANT) == []

    scene(scenario)


def test_secrets_are_read_only_while_a_set_selects_them() -> None:
    """Neither listed nor on the bus before, nor once no set does; the same for what packages inject."""

    async def main() -> None:
        world = SimulatedWorld(watched=False)
        world.serve_sites()
        make(world, "default")
        secret = Kind("", "Secret")
        world.cluster.put(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s", "namespace": "default", "labels": {"env": "prod"}},
                "data": {"password": "c2VjcmV0"},
            }
        )
        listed: list[str] = []
        list_all = world.cluster.list

        async def noted(resource: Resource, *arguments: Any, **options: Any) -> Listing:
            listed.append(resource.kind)
            return await list_all(resource, *arguments, **options)

        world.cluster.list = noted  # type: ignore[method-assign]  # what is asked for, as it is asked
        await world.start()
        await world.converge()
        assert "Site" in listed
        assert not {"Secret", "ConfigMap"} & set(listed)
        world.set("secrets", [selecting("v1", "Secret")])
        await world.converge()
        assert "Secret" in listed
        rows = [key for key in world.table(OBJECTS) if key.startswith(f"{secret}|")]
        assert rows == ["/Secret|default|s"]
        assert not any(b"c2VjcmV0" in value for value in world.table(OBJECTS).values())
        await world.delete(SET, "secrets")
        await world.converge(quiet=30.0)
        assert not [key for key in world.table(OBJECTS) if key.startswith(f"{secret}|")]
        listed.clear()
        await asyncio.sleep(700)
        assert "Secret" not in listed
        await world.close()

    run_simulated(main())
