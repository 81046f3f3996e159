"""The owner of a revision, and the upstream that is meant: cases that only a live read distinguishes."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Downstream, PackageVariant, Upstream
from pvbus.core.kernel.effects import List
from pvbus.core.kernel.keys import FINALIZER
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import rows_of
from pvbus.core.kernel.records import OBJECTS
from pvbus.core.variants.inject.view import InjectView
from pvbus.core.variants.revisions.owning import list_package, terminate
from pvbus.ports.cluster import Object
from tests.kit.deciding import drive
from tests.simulation.inject_world import InjectWorld, owner, package, upstream, variant

REVISION = Kind("porch.kpt.dev", "PackageRevision")
HERE = Downstream(repo="edge", package="app")


def performed(steps: Any, answer: Any) -> Any:
    """Answer every effect alike; return what the generator returns, and the effects."""
    effects: list[Any] = []

    def perform(effect: Any) -> Any:
        effects.append(effect)
        return answer(effect)

    return drive(steps, perform), effects


def test_revisions_of_other_packages_in_a_live_list_are_left_alone() -> None:
    """A server may ignore a field selector, so each listed revision is checked."""
    listed = [
        package("edge", "app", "a")[0],
        package("edge", "other", "b")[0],
        package("west", "app", "c")[0],
    ]
    found, effects = performed(list_package("default", HERE), lambda effect: listed)
    assert [type(effect) for effect in effects] == [List]
    assert [obj["metadata"]["name"] for obj in found] == ["edge.app.a"]


def test_a_variant_that_goes_leaves_revisions_of_others_in_its_package() -> None:
    obj = variant()
    listed = [package("edge", "app", "mine", owners=[owner("v")])[0]]
    listed += [package("edge", "app", "theirs", owners=[owner("w")])[0], package("edge", "app", "free")[0]]
    for one in listed:
        one["metadata"]["uid"] = one["metadata"]["name"]

    def answer(effect: Any) -> Any:
        return list(listed) if isinstance(effect, List) else None

    left, effects = performed(terminate(msgspec.convert(obj, PackageVariant), [HERE]), answer)
    deleted = [effect.name for effect in effects if not isinstance(effect, List)]
    assert deleted == ["edge.app.mine"]
    assert left == ["PackageRevision edge.app.mine"], "it is still listed, so the finalizer stays"


async def test_a_finalizer_of_others_stays() -> None:
    obj = variant()
    obj["metadata"]["finalizers"] = ["example.org/first", FINALIZER, "example.org/last"]
    world = InjectWorld([*upstream(), obj])
    world.change(deleted=True)
    world.observe()
    await world.run()
    (left,) = world.all(Kind("config.porch.kpt.dev", "PackageVariant"))
    assert left["metadata"]["finalizers"] == ["example.org/first", "example.org/last"]


def seen(*objects: Object) -> InjectView:
    view = InjectView(1)
    for obj in objects:
        for row in rows_of(REVISION, obj, (OBJECTS,)):
            view.load_object(0, row.key, row.value)
    return view


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"revision": 1}, "v1"),
        ({"revision": 2}, "v2"),
        ({"workspace_name": "v2"}, "v2"),
        ({"revision": 2, "workspace_name": "v2"}, "v2"),
        ({"revision": 1, "workspace_name": "v2"}, None),
        ({"revision": 2, "workspace_name": "v1"}, None),
        ({"revision": 3}, None),
        ({}, "main"),
    ],
    ids=str,
)
def test_an_upstream_needs_both_halves_that_are_given(wanted: dict[str, Any], expected: str | None) -> None:
    revisions = [
        package("blue", "app", workspace, lifecycle="Published", revision=number)[0]
        for workspace, number in (("v1", 1), ("v2", 2), ("main", -1))
    ]
    for obj in revisions:
        obj["metadata"]["uid"] = obj["metadata"]["name"]
    found = seen(*revisions).upstream("default", Upstream(repo="blue", package="app", **wanted))
    assert (found.facts.workspace if found is not None else None) == expected
