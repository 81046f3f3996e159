"""Hold: inject writes nothing for a variant that is on hold, reports this, and continues afterwards."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import PackageVariantSpec
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.keys import HOLD, digest
from pvbus.core.kernel.objectrows import VARIANT, rows_of, topics_of
from pvbus.core.kernel.records import DESIRED, DesiredRow
from pvbus.core.variants.revisions.former import MADE_BY, PROPOSED_BY
from pvbus.ports.cluster import Kind
from tests.simulation.inject_world import (
    NAMESPACE,
    PIPELINE,
    InjectWorld,
    owner,
    package,
    upstream,
    variant,
)

KEY = f"{NAMESPACE}/v"
MINE = [owner("v")]
FIRST = "edge.app.packagevariant-1"
ON = {HOLD: "true"}

Switch = Callable[[InjectWorld, bool], None]


def by_variant(world: InjectWorld, on: bool) -> None:
    obj = world.variant()
    assert obj is not None
    obj["metadata"]["annotations"] = ON if on else {}
    world.cluster.put(obj)


def desired(world: InjectWorld, **fields: Any) -> None:
    """Write the row of the set `fleet`, for the variant as it is."""
    obj = world.variant()
    assert obj is not None
    row = DesiredRow(
        **{
            "set_name": "fleet",
            "outcome": "applied",
            "uid": obj["metadata"]["uid"],
            "spec_digest": digest(msgspec.convert(obj["spec"], PackageVariantSpec)),
            **fields,
        }
    )
    world._load(DESIRED, KEY, msgspec.json.encode(row))


def by_set(world: InjectWorld, on: bool) -> None:
    desired(world, on_hold=on)


HOLDS = pytest.mark.parametrize(
    ("hold", "holder"),
    [(by_variant, "PackageVariant default/v"), (by_set, "PackageVariantSet default/fleet")],
)


def fresh() -> InjectWorld:
    return InjectWorld([*upstream(), variant(pipeline=PIPELINE)])


def edited() -> InjectWorld:
    return InjectWorld(
        [
            *upstream(),
            *package("edge", "app", "packagevariant-1", owners=MINE),
            variant(pipeline=PIPELINE),
        ]
    )


def adopting() -> InjectWorld:
    foreign = package("edge", "app", "by-hand")
    return InjectWorld([*upstream(), *foreign, variant(adoptionPolicy="adoptExisting")])


def returned() -> InjectWorld:
    left = package("edge", "app", "packagevariant-1", lifecycle="DeletionProposed", revision=1)
    left[0]["metadata"]["annotations"] = {MADE_BY: "v@before", PROPOSED_BY: "v@before"}
    return InjectWorld([*upstream(), *left, variant()])


def retargeted() -> InjectWorld:
    old = package("old", "app", "packagevariant-1", owners=MINE)
    old += package("old", "app", "packagevariant-2", lifecycle="Published", revision=1, owners=MINE)
    return InjectWorld([*upstream(), *old, variant()])


def deleted() -> InjectWorld:
    mine = package("edge", "app", "packagevariant-1", lifecycle="Published", revision=1, owners=MINE)
    world = InjectWorld(
        [*upstream(), *mine, *package("edge", "app", "packagevariant-2", owners=MINE), variant()]
    )
    world.change(deleted=True)
    return world


def unfinalized() -> InjectWorld:
    obj = variant()
    obj["metadata"]["finalizers"] = []
    return InjectWorld([*upstream(), obj])


WORLDS = [fresh, edited, adopting, returned, retargeted, deleted, unfinalized]


def snapshot(world: InjectWorld, *, leaving_out: Iterable[str] = ("PackageVariant",)) -> list[Any]:
    return [obj for obj in world.snapshot() if obj["kind"] not in leaving_out]


@HOLDS
@pytest.mark.parametrize("make", WORLDS)
async def test_nothing_is_written_on_hold_and_all_is_done_when_it_goes(
    make: Callable[[], InjectWorld], hold: Switch, holder: str
) -> None:
    plain = make()
    await plain.settle()
    world = make()
    before = snapshot(world, leaving_out=())
    hold(world, True)
    world.cluster.writes.clear()
    await world.settle()
    world.restart()
    await world.settle()
    assert world.writes() == []
    assert snapshot(world) == [obj for obj in before if obj["kind"] != "PackageVariant"]
    message = f'nothing is written for this variant while {holder} has the annotation {HOLD}: "true"'
    assert world.reported("OnHold") == ("True", "Annotation", message)
    assert world.reported() == ("False", "OnHold", message)
    assert world.result().waiting == (f"the removal of the annotation {HOLD} from {holder}",)
    hold(world, False)
    await world.settle()
    assert snapshot(world) == snapshot(plain)
    if world.variant() is not None:
        assert world.reported()[:2] == ("True", "NoErrors")
        assert world.reported("OnHold") == ("", "", "")


@HOLDS
async def test_what_is_changed_by_hand_on_hold_is_reverted_only_afterwards(hold: Switch, holder: str) -> None:
    world = fresh()
    await world.settle()
    assert "set-labels" in world.files(FIRST)["Kptfile"]
    hold(world, True)
    await world.settle()
    mine = {
        obj["metadata"]["name"]: obj for obj in world.all(Kind("porch.kpt.dev", "PackageRevisionResources"))
    }[FIRST]
    mine["spec"]["resources"]["Kptfile"] = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: app\n"
    world.cluster.put(mine)
    world.touch(FIRST)
    await world.settle()
    assert "set-labels" not in world.files(FIRST)["Kptfile"]
    hold(world, False)
    await world.settle()
    assert "set-labels" in world.files(FIRST)["Kptfile"]


@HOLDS
@pytest.mark.parametrize("make", [w for w in WORLDS if w is not fresh])
async def test_a_hold_that_comes_in_the_middle_stops_the_rest(
    make: Callable[[], InjectWorld], hold: Switch, holder: str
) -> None:
    """Before each effect in turn the hold is observed: no write follows."""
    plain = make()
    await plain.settle()
    for moment in range(20):
        world = make()
        world.observe()
        world.cluster.writes.clear()
        at: list[int] = []

        def observed(number: int, effect: Any, world: InjectWorld = world, at: list[int] = at) -> None:
            if number == moment:  # noqa: B023 - called within the turn of the loop
                hold(world, True)
                for row in rows_of(VARIANT, world.variant() or {}, topics_of(VARIANT, requested=False)):
                    world._load(row.topic, row.key, row.value)
                at.append(len(world.writes()))

        if world.variant() is None:
            continue
        with contextlib.suppress(ConflictError):
            await world.run(before_effect=observed)
        if not at:
            break
        # The effect that is under way goes through, none after it.
        assert len(world.writes()) - at[0] <= 1
        await world.settle()
        if world.variant() is not None:
            assert world.reported()[1] == "OnHold"
            hold(world, False)
            await world.settle()
        assert snapshot(world) == snapshot(plain)
    assert moment > 1


async def test_the_hold_of_a_set_is_not_that_of_a_variant_of_the_same_name() -> None:
    """A row of another object, or of a set that does not own this one, says nothing about it."""
    for fields in ({"uid": "uid-other"}, {"outcome": "conflict"}):
        world = fresh()
        desired(world, on_hold=True, **fields)
        await world.settle()
        assert world.reported()[:2] == ("True", "NoErrors")


async def test_a_variant_that_was_made_again_under_the_hold_of_its_set_is_held() -> None:
    obj = variant()
    obj["metadata"]["ownerReferences"] = [{"kind": "PackageVariantSet", "name": "fleet", "uid": "u"}]
    world = InjectWorld([*upstream(), obj])
    desired(world, on_hold=True, uid="uid-before")
    await world.settle()
    assert world.reported()[1] == "OnHold"
    assert world.writes() == []
