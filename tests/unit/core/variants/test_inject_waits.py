"""The waits and the records of inject: its set, its lists, its former downstreams."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Downstream, PackageVariant
from pvbus.core.kernel.keys import digest, sync_key
from pvbus.core.kernel.records import DESIRED, OBJECTS, RESULTS, VARIANTS, DesiredRow, ResultRow, SyncMarker
from pvbus.core.variants.inject.controller import InjectController
from pvbus.ports.cluster import Kind
from tests.simulation.inject_world import InjectWorld, owner, package, upstream, variant

KEY = "default/v"
VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
MINE = [owner("v")]


def spec_digest(world: InjectWorld) -> str:
    return digest(msgspec.convert(world.variant(), PackageVariant).spec)


def desired(world: InjectWorld, **fields: Any) -> None:
    row = DesiredRow(
        **{"set_name": "alpha", "outcome": "applied", "uid": "uid-v", "spec_digest": "newer", **fields}
    )
    world._load(DESIRED, KEY, msgspec.json.encode(row))


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({}, True),
        ({"uid": "uid-former"}, False),
        ({"outcome": "error"}, False),
        ({"spec_digest": "as it is"}, False),
    ],
    ids=["another spec is on its way", "of a former variant", "nothing is applied", "it is as wanted"],
)
async def test_nothing_is_made_of_a_spec_that_the_set_is_about_to_change(
    fields: dict[str, Any], waits: bool
) -> None:
    world = InjectWorld([*upstream(), variant()])
    world.observe()
    if fields.get("spec_digest"):
        fields = {**fields, "spec_digest": spec_digest(world)}
    desired(world, **fields)
    for _ in range(3):
        await world.run()
        world.observe()
    assert bool(world.revisions()) is not waits
    desired(world, spec_digest=spec_digest(world))
    await world.settle()
    assert list(world.lifecycles().values()) == ["Draft"]


@pytest.mark.parametrize("uid", ["uid-v", "uid-former"])
async def test_a_variant_that_goes_looks_at_every_downstream_that_its_row_remembers(uid: str) -> None:
    """A draft of a former downstream that was never observed is deleted, too, before the finalizer goes;
    the packages of a former variant of that name are not examined."""
    world = InjectWorld([*upstream(), variant()])
    world.observe()
    hidden = package("west", "old", "packagevariant-1", owners=MINE)
    for obj in hidden:
        world.cluster.put(obj)
    row = ResultRow(uid=uid, downstreams=(Downstream(repo="west", package="old"),))
    world._load(RESULTS, KEY, msgspec.json.encode(row))
    world.change(deleted=True)
    for obj in world.all(VARIANT):
        world._load(VARIANTS, KEY, msgspec.json.encode(obj))
    for _ in range(4):
        if world.variant() is not None:
            await world.run()
    remembered = uid == "uid-v"
    assert ("west.old.packagevariant-1" in world.revisions()) is not remembered
    assert world.variant() is None


@pytest.mark.parametrize("kind", ["porch.kpt.dev/PackageRevision", "config.porch.kpt.dev/Repository"])
async def test_nothing_is_made_while_a_list_is_not_complete(kind: str) -> None:
    world = InjectWorld([*upstream(), variant()])
    world.observe()
    group, _, name = kind.partition("/")
    marker = SyncMarker(state="syncing", epoch=2)
    world._load(OBJECTS, sync_key(group, name), msgspec.json.encode(marker))
    for _ in range(3):
        await world.run()
    assert world.writes() == []
    await world.settle()
    assert list(world.lifecycles().values()) == ["Draft"]


async def test_a_variant_missing_from_an_incomplete_list_is_not_forgotten() -> None:
    world = InjectWorld([*upstream(), variant()])
    await world.settle()
    syncing = msgspec.json.encode(SyncMarker(state="syncing", epoch=2))
    key = sync_key("config.porch.kpt.dev", "PackageVariant")
    world._load(VARIANTS, key, syncing)
    world._load(VARIANTS, KEY, None)
    outcome = await world.run()
    assert outcome.result == "waiting"
    assert (RESULTS, KEY) in world.rows
    world._load(VARIANTS, key, msgspec.json.encode(SyncMarker(state="ok", epoch=3)))
    await world.run()
    assert (RESULTS, KEY) not in world.rows


def test_a_controller_without_markers_waits() -> None:
    controller = InjectController(partitions=1, elapsed=lambda: 0.0)
    controller.open(0)
    controller.load(VARIANTS, 0, KEY, msgspec.json.encode(variant()))
    with pytest.raises(StopIteration) as end:
        next(controller.reconcile(0, KEY, 0.0))
    assert end.value.value.result == "waiting"
