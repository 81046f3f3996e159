"""Each invariant of the watcher finds its own violation, and accepts what is allowed."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pvbus.core.api.variants import Downstream
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import HOLD, check_key
from pvbus.core.kernel.records import (
    DESIRED,
    OBJECTS,
    TARGETS,
    UNROLL,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildRow,
    ChildState,
    DesiredRow,
    TargetRow,
)
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Object
from tests.kit.processes import Process, run_simulated
from tests.simulation.facts import Inputs
from tests.simulation.watching import Watcher
from tests.simulation.world import REPOSITORY, REVISION, SET, SITE, VARIANT, SimulatedWorld

LEASE = Lease(group="g", partition=0, epoch=1)
CHECK = check_key("example.org", "Site", "default/alpha")
SET_UID = "uid-alpha"


class Scene:
    """A world whose services do not run: the test does their work."""

    def __init__(self, children: int = 20) -> None:
        self.world = SimulatedWorld(limits=RemovalLimits(removals_max=10, removals_share=0.3))
        self.watcher = self.world.watcher
        self.world.calm_since = None
        self.world.upstream()
        self.world.serve_sites()
        self.world.put(REPOSITORY, "r1", spec={})
        selector = {"apiVersion": "example.org/v1", "kind": "Site", "matchLabels": {"env": "prod"}}
        template = {"downstream": {"repo": "r1", "packageExpr": "target.name"}}
        self.world.set("alpha", [{"objectSelector": selector, "template": template}], uid=SET_UID)
        for number in range(children):
            self.site(number, "prod")
            self.child(number, "present")
            self.made(number)
        self.process = Process("render-1")

    def site(self, number: int, env: str) -> None:
        self.world.put(SITE, f"s{number}", metadata={"labels": {"env": env}})

    def step(self, topic: str, key: str, row: Any) -> None:
        self.watcher.stepped(LEASE, [Output(topic, 0, key.encode(), encode_row(row))])

    def child(self, number: int, state: Any) -> None:
        downstream = Downstream(repo="r1", package=f"s{number}")
        row = ChildRow(set_uid=SET_UID, state=state, downstream=downstream)
        self.step(UNROLL, f"default/alpha|alpha-r1-s{number}", row)

    def made(self, number: int) -> Object:
        owner = {"kind": "PackageVariantSet", "name": "alpha", "uid": SET_UID, "controller": True}
        upstream = {"repo": "up", "package": "base", "revision": 1}
        return self.world.put(
            VARIANT,
            f"alpha-r1-s{number}",
            spec={"upstream": upstream, "downstream": {"repo": "r1", "package": f"s{number}"}},
            metadata={
                "uid": f"uid-v{number}",
                "labels": {"config.porch.kpt.dev/packagevariantset": SET_UID},
                "ownerReferences": [owner],
            },
        )

    def ask(self) -> None:
        request = CheckRequest(group="example.org", kind="Site", nonce="n")
        self.step(WATCHES, CHECK, request)

    def answer(self) -> None:
        self.step(OBJECTS, CHECK, CheckAnswer(nonce="n"))

    def order(self, number: int) -> None:
        row = TargetRow(state="removed", set_name="alpha", set_uid=SET_UID, generation=1)
        self.step(TARGETS, f"default/alpha-r1-s{number}|alpha", row)

    def send_delete(self, number: int) -> None:
        obj = {"kind": "PackageVariant", "metadata": {"namespace": "default", "name": f"alpha-r1-s{number}"}}
        self.watcher.sent(self.process, "delete", obj, "")

    def delete(self, number: int) -> None:
        variant = self.world.find(VARIANT, f"alpha-r1-s{number}")
        assert variant is not None
        self.watcher.deleted(variant)
        self.child(number, "gone")

    def found(self) -> set[str]:
        return {violation.invariant for violation in self.watcher.violations}


def played(scene: Callable[[Scene], Awaitable[None]], **options: int) -> set[str]:
    async def main() -> set[str]:
        made = Scene(**options)
        await scene(made)
        return made.found()

    return run_simulated(main())


async def removal(scene: Scene) -> None:
    """A correct removal: observed, checked, answered, ordered, sent."""
    scene.site(1, "test")
    await asyncio.sleep(6)
    scene.ask()
    await asyncio.sleep(1)
    scene.answer()
    scene.order(1)
    await asyncio.sleep(1)
    scene.send_delete(1)
    scene.delete(1)


def test_a_removal_by_the_rules_violates_nothing() -> None:
    assert played(removal) == set()


def test_an_order_without_an_answer_is_found() -> None:
    async def scene(world: Scene) -> None:
        world.site(1, "test")
        world.ask()
        world.order(1)

    assert played(scene) == {"checked"}


def test_an_answer_of_long_ago_is_none() -> None:
    async def scene(world: Scene) -> None:
        world.site(1, "test")
        world.ask()
        world.answer()
        await asyncio.sleep(70)
        world.order(1)

    assert played(scene) == {"checked"}


@pytest.mark.parametrize("back", ["before the check", "after the order"])
def test_a_delete_of_what_was_wanted_at_its_check_is_found(back: str) -> None:
    """A label that flapped before the check excuses nothing; one that flaps back later is too late."""

    async def scene(world: Scene) -> None:
        world.site(1, "test")
        await asyncio.sleep(20)
        if back == "before the check":
            world.site(1, "prod")
            await asyncio.sleep(1)
        world.ask()
        await asyncio.sleep(1)
        world.answer()
        world.order(1)
        await asyncio.sleep(1)
        if back == "after the order":
            world.site(1, "prod")
        world.delete(1)

    assert played(scene) == ({"wanted"} if back == "before the check" else set())


@pytest.mark.parametrize("older", [False, True], ids=["younger", "older"])
@pytest.mark.parametrize("owner_wants", [False, True], ids=["unwanted", "wanted"])
def test_another_set_that_wants_the_name_does_not_keep_a_child(older: bool, owner_wants: bool) -> None:
    """The name is free for the other set only when the child is gone; a child that its own set wants is
    not the other's, whichever of them is older."""

    async def scene(world: Scene) -> None:
        since = "2000-01-01T00:00:00Z" if older else "2100-01-01T00:00:00Z"
        listed = {"repositories": [{"name": "r2", "packageNames": ["s1"]}]}
        world.world.set("other", [listed], uid="uid-other", creationTimestamp=since)
        downstream = Downstream(repo="r2", package="s1")  # of the other set, by the same name
        row = ChildRow(set_uid="uid-other", state=ChildState.PRESENT, downstream=downstream)
        world.step(UNROLL, "default/other|alpha-r1-s1", row)
        world.site(1, "test")
        await asyncio.sleep(20)
        if owner_wants:
            world.site(1, "prod")
        await asyncio.sleep(1)
        world.ask()
        world.answer()
        world.order(1)
        world.delete(1)

    assert played(scene) == ({"wanted"} if owner_wants else set())


def test_a_child_of_a_set_that_cannot_be_evaluated_is_wanted() -> None:
    """Also when it was made after the last moment at which users changed anything."""

    async def scene(world: Scene) -> None:
        world.site(1, "test")
        await world.world.delete(REVISION, "up.base.v1")
        await world.world.delete(VARIANT, "alpha-r1-s1")
        await asyncio.sleep(60)
        world.ask()
        world.answer()
        world.order(1)
        world.watcher.is_on = False
        world.made(1)
        world.watcher.is_on = True
        world.delete(1)

    assert played(scene) == {"wanted"}


@pytest.mark.parametrize(("seconds", "found"), [(59.0, set()), (61.0, {"order-age"})])
def test_a_delete_that_is_sent_late_is_found(seconds: float, found: set[str]) -> None:
    async def scene(world: Scene) -> None:
        world.site(1, "test")
        world.ask()
        world.answer()
        world.order(1)
        await asyncio.sleep(seconds)
        world.send_delete(1)

    assert played(scene) == found


@pytest.mark.parametrize(
    ("children", "removals", "pause", "confirm", "found"),
    [
        (20, 10, 1.0, False, set()),
        (20, 11, 1.0, False, {"guard"}),
        (20, 11, 61.0, False, set()),
        (20, 11, 55.0, False, {"guard"}),
        (20, 20, 1.0, True, set()),
        (60, 18, 1.0, False, set()),
        (60, 19, 1.0, False, {"guard"}),
    ],
)
def test_removals_above_the_guards_limit_are_found(
    children: int, removals: int, pause: float, confirm: bool, found: set[str]
) -> None:
    """Also where they trickle, each within ten minutes of the ones before; not what a user confirmed."""

    async def scene(world: Scene) -> None:
        await asyncio.sleep(1)
        names = [f"alpha-r1-s{number}" for number in range(removals)]
        if confirm:
            world.watcher.confirmed("default/alpha", names, valid=True)
        for number in range(removals):
            world.site(number, "test")
            world.ask()
            world.answer()
            world.order(number)
            world.delete(number)
            await asyncio.sleep(pause)

    assert played(scene, children=children) == found


@pytest.mark.parametrize(("confirmed", "found"), [(0, {"guard"}), (1, set())])
def test_a_removal_that_is_confirmed_after_its_delete_is_confirmed(confirmed: int, found: set[str]) -> None:
    async def scene(world: Scene) -> None:
        await asyncio.sleep(1)
        for number in range(11):
            if number == 10:
                names = [f"alpha-r1-s{done}" for done in range(confirmed)]
                world.watcher.confirmed("default/alpha", names, valid=True)
            world.site(number, "test")
            world.ask()
            world.answer()
            world.order(number)
            world.delete(number)
            await asyncio.sleep(1)

    assert played(scene) == found


def test_children_that_are_added_with_the_accident_do_not_raise_the_limit() -> None:
    async def scene(world: Scene) -> None:
        await asyncio.sleep(1)
        for number in range(15):
            world.site(number, "test")
            world.ask()
            world.answer()
            world.order(number)
            world.delete(number)
            for other in range(100 + 10 * number, 110 + 10 * number):
                world.child(other, "present")

    assert played(scene) == {"guard"}


def hold(world: Scene, value: str) -> None:
    obj = world.world.find(VARIANT, "alpha-r1-s1")
    assert obj is not None
    world.world.put(VARIANT, "alpha-r1-s1", metadata={"annotations": {HOLD: value}})


def update(world: Scene, annotations: dict[str, str], **spec: Any) -> None:
    obj = world.world.find(VARIANT, "alpha-r1-s1")
    assert obj is not None
    both = {**(obj["metadata"].get("annotations") or {}), **annotations}
    sent = {**obj, "metadata": {**obj["metadata"], "annotations": both}, "spec": {**obj["spec"], **spec}}
    world.watcher.sent(world.process, "update", sent, "")


def known(world: Scene) -> None:
    row = DesiredRow(set_name="alpha", set_uid=SET_UID, uid="uid-v1", outcome="held")
    world.step(DESIRED, "default/alpha-r1-s1", row)


@pytest.mark.parametrize(
    ("deleted", "found"),
    [("", {"hold"}), ("variant", {"hold"}), ("set", set()), ("set, in the foreground", set())],
)
def test_a_hold_of_a_set_ends_with_the_set(deleted: str, found: set[str]) -> None:
    """Garbage collection must be able to delete its objects."""

    async def scene(world: Scene) -> None:
        world.watcher.sent(world.process, "create", {"kind": "Note", "metadata": {}}, "")  # it is known
        world.world.put(SET, "alpha", metadata={"annotations": {HOLD: "true"}})
        known(world)
        await asyncio.sleep(30)
        match deleted:
            case "variant":
                world.world.put(VARIANT, "alpha-r1-s1", metadata={"finalizers": ["a/b"]})
                await world.world.delete(VARIANT, "alpha-r1-s1")
            case "set":
                await world.world.delete(SET, "alpha")
            case "set, in the foreground":
                world.world.put(SET, "alpha", metadata={"finalizers": ["foregroundDeletion"]})
                await world.world.delete(SET, "alpha")
        update(world, {}, labels={"a": "b"})

    assert played(scene) == found


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("nobody could know yet", set()),
        ("just known", set()),
        ("known for long", {"hold"}),
        ("known, but frozen since", set()),
        ("calm for long", {"hold"}),
        ("a withdrawal", set()),
        ("a withdrawal that changes more", {"hold"}),
        ("lifted", set()),
        ("another variant", set()),
    ],
)
def test_writes_under_hold_are_found(case: str, found: set[str]) -> None:
    async def scene(world: Scene) -> None:
        world.watcher.sent(world.process, "create", {"kind": "Note", "metadata": {}}, "")  # it is known
        if case == "calm for long":
            world.world.calm_since = 0.0
        hold(world, "true")
        await asyncio.sleep(25)
        if case not in ("nobody could know yet", "calm for long"):
            known(world)
        if case == "known, but frozen since":
            world.process.freeze()
        if case != "just known":
            await asyncio.sleep(30)
        world.process.thaw()
        match case:
            case "a withdrawal":
                update(world, {"pvbus.dev/removal-cancelled": "x"})
            case "a withdrawal that changes more":
                update(world, {"pvbus.dev/removal-cancelled": "x"}, labels={"a": "b"})
            case "lifted":
                hold(world, "false")
                update(world, {}, labels={"a": "b"})
            case "another variant":
                other = world.world.find(VARIANT, "alpha-r1-s2")
                assert other is not None
                world.watcher.sent(world.process, "update", {**other, "spec": {}}, "")
            case _:
                update(world, {}, labels={"a": "b"})

    assert played(scene) == found


@pytest.mark.parametrize("is_set", [True, False], ids=["set", "variant"])
@pytest.mark.parametrize("moment", ["never", "once", "now"])
def test_a_ready_that_was_never_true_is_found(is_set: bool, moment: str) -> None:
    condition = {"type": "Ready", "status": "True", "reason": "R", "observedGeneration": 1}

    def is_ready(world: Scene, value: bool) -> None:
        for number in range(2):
            obj = world.world.find(VARIANT, f"alpha-r1-s{number}")
            assert obj is not None
            status = {"conditions": [{**condition, "status": str(value), "lastTransitionTime": ""}]}
            world.world.put(VARIANT, f"alpha-r1-s{number}", status=status)

    def has_package(world: Scene) -> None:
        revision = {"repository": "r1", "packageName": "s1", "workspaceName": "w", "lifecycle": "Draft"}
        owners = [{"kind": "PackageVariant", "name": "alpha-r1-s1", "uid": "uid-v1", "controller": True}]
        meta = {"ownerReferences": owners}
        world.world.put(REVISION, "r1.s1.w", spec=revision, metadata=meta)

    async def scene(world: Scene) -> None:
        await asyncio.sleep(1)
        if moment != "never":
            is_ready(world, True)
            has_package(world)
        await asyncio.sleep(1)
        if moment == "once":
            is_ready(world, False)
            for name in ("r1.s1.w",):
                await world.world.delete(REVISION, name)
        name = "alpha" if is_set else "alpha-r1-s1"
        obj = world.world.find(SET if is_set else VARIANT, name)
        assert obj is not None
        world.watcher.status({**obj, "status": {"conditions": [condition]}})

    assert played(scene, children=2) == ({"ready"} if moment == "never" else set())


@pytest.mark.parametrize(
    ("seconds", "revision", "found"),
    [(0.1, 1, set()), (40.0, 1, set()), (60.0, 1, {"ready"}), (0.1, 2, {"ready"})],
)
def test_an_edit_just_before_a_generation_may_be_read_after_it(
    seconds: float, revision: int, found: set[str]
) -> None:
    """Not one of long ago, and never children that only the generation before wanted so."""

    async def scene(world: Scene) -> None:
        condition = {"type": "Ready", "status": "True", "reason": "R", "observedGeneration": 1}
        for number in range(2):
            status = {"conditions": [{**condition, "lastTransitionTime": ""}]}
            world.world.put(VARIANT, f"alpha-r1-s{number}", status=status)
        obj = world.world.find(VARIANT, "alpha-r1-s1")
        assert obj is not None
        await asyncio.sleep(1)
        world.world.put(VARIANT, "alpha-r1-s1", spec={**obj["spec"], "labels": {"by": "hand"}})
        await asyncio.sleep(seconds)
        world.world.upstream(2)
        alpha = world.world.find(SET, "alpha")
        assert alpha is not None
        nothing = {"repositorySelector": {"matchLabels": {"no": "repository"}}}
        changed = world.world.set("alpha", [*alpha["spec"]["targets"], nothing], revision=revision)
        await asyncio.sleep(5)
        ready = {**condition, "observedGeneration": 2}
        world.watcher.status({**changed, "status": {"conditions": [ready]}})

    assert played(scene, children=2) == found


@pytest.mark.parametrize("ready", [{0, 1}, {0}], ids=["in turn", "one never"])
def test_children_that_were_ready_in_turn_may_have_been_read_so(ready: set[int]) -> None:
    condition = {"type": "Ready", "reason": "R", "lastTransitionTime": ""}
    counts: list[int] = []

    async def scene(world: Scene) -> None:
        for moment in range(2):
            await asyncio.sleep(1)
            for number in range(2):
                status = str(number == moment and number in ready)
                conditions = [{**condition, "status": status}]
                world.world.put(VARIANT, f"alpha-r1-s{number}", status={"conditions": conditions})
        await asyncio.sleep(1)
        alpha = world.world.find(SET, "alpha")
        reported = {**condition, "status": "True", "observedGeneration": 1}
        world.watcher.status({**(alpha or {}), "status": {"conditions": [reported]}})
        counts.append(world.watcher.counts["ready, each child at a moment of its own"])

    all_were = len(ready) == 2
    assert played(scene, children=2) == (set() if all_were else {"ready"})
    assert counts == [int(all_were)]


@pytest.mark.parametrize(("size", "found"), [(100, {"ready"}), (19_900, set())])
def test_a_target_that_the_bus_does_not_take_is_not_missed(size: int, found: set[str]) -> None:
    async def scene(world: Scene) -> None:
        await asyncio.sleep(1)
        world.world.put(SITE, "s1", metadata={"annotations": {"note": "x" * size}})
        alpha = world.world.find(SET, "alpha")
        assert alpha is not None
        ready = {"type": "Ready", "status": "True", "reason": "R", "lastTransitionTime": ""}
        world.world.put(VARIANT, "alpha-r1-s0", status={"conditions": [ready]})
        await asyncio.sleep(1)
        targets = [*alpha["spec"]["targets"], {"repositorySelector": {"matchLabels": {"no": "repository"}}}]
        changed = world.world.set("alpha", targets)
        condition = {"type": "Ready", "status": "True", "reason": "R", "observedGeneration": 2}
        world.watcher.status({**changed, "status": {"conditions": [condition]}})

    assert played(scene, children=2) == found


def test_the_names_of_then_count_and_not_those_of_now() -> None:
    """A child whose row was forgotten meanwhile is judged by the row that it had at its check."""

    async def main() -> set[str]:
        scene = Scene(2)
        watcher: Watcher = scene.watcher
        inputs: Inputs = scene.world.inputs()
        assert set(inputs.names["default/alpha"]) == {"alpha-r1-s0", "alpha-r1-s1"}
        scene.step(UNROLL, "default/alpha|alpha-r1-s1", None)
        assert set(scene.world.inputs().names["default/alpha"]) == {"alpha-r1-s0"}
        assert set(watcher.expected(inputs)) == {"default/alpha-r1-s0", "default/alpha-r1-s1"}
        return scene.found()

    assert run_simulated(main()) == set()
