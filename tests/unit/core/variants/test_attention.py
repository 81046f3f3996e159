"""What waits for a person is one condition, of the variant and of its set, and absent otherwise."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Condition, PackageVariant
from pvbus.core.kernel.conflicts import Conflict
from pvbus.core.kernel.eventrows import ConditionEvent, EventTask
from pvbus.core.kernel.keys import PROPOSED_CONTENT, RETURNED, TASKS, Key
from pvbus.core.kernel.records import APPROVALS, LATEST, ChildFailure, Hold, SetResult
from pvbus.core.variants.attention import ATTENTION, CONFLICT, Need, OpenRevision, needed, variant_needs
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.inject.ensure import Ensured
from pvbus.core.variants.inject.report import ensured_conditions
from pvbus.core.variants.render.variant import attention_of
from pvbus.ports.cluster import Object
from tests.simulation.inject_world import InjectWorld, owner, package, upstream, variant

FIRST = "edge.app.packagevariant-1"
ASKED = {TASKS: '{"Certified": {"question": "Is it licensed?"}}'}


def draft(*, annotations: dict[str, str] | None = None, **spec: Any) -> list[Object]:
    objects = package("edge", "app", "packagevariant-1", owners=[owner("v")])
    objects[0]["metadata"]["annotations"] = annotations or {}
    objects[0]["spec"] |= spec
    return objects


async def attention(*objects: Object) -> tuple[InjectWorld, Condition | None]:
    world = InjectWorld([*upstream(), *objects, variant()])
    await world.settle()
    found = (each for each in world.result().conditions if each.type == ATTENTION)
    return world, next(found, None)


async def test_nothing_that_waits_is_no_condition() -> None:
    assert (await attention())[1] is None
    returned = {PROPOSED_CONTENT: "x", RETURNED: "a gate is unmet"}
    assert (await attention(*draft(annotations=returned)))[1] is None
    proposed = draft(annotations={PROPOSED_CONTENT: "x"}, lifecycle="Proposed")
    assert (await attention(*proposed))[1] is None


async def test_questions_and_rejections_are_told_until_they_are_settled() -> None:
    objects = draft(annotations={PROPOSED_CONTENT: "x"}, packageMetadata={"annotations": ASKED})
    world, found = await attention(*objects)
    assert found is not None
    assert (found.status, found.reason) == ("True", "TaskOpen")
    assert found.message == (
        f"2 things wait for a person: task Certified of {FIRST}: Is it licensed?; {FIRST} was rejected: "
        "change it, or see pvbus explain default/v"
    )
    obj = world.revisions()[FIRST]
    obj["status"]["conditions"] = [{"type": "Certified", "status": "True"}]
    obj["metadata"]["annotations"] = {}
    world.cluster.put(obj)
    await world.settle()
    assert ATTENTION not in {each.type for each in world.result().conditions}


def test_conflicts_come_first_while_they_are_open() -> None:
    conflict = Condition(type="UpgradeConflict", status="True", message="one conflict")
    asked = EventTask(question="Is it?", state="open")
    revision = OpenRevision("r", "Draft", {}, {"Certified": asked})
    key = Key("default", "v")
    assert [need.reason for need in variant_needs(key, [conflict], [revision])] == [
        "UpgradeConflict",
        "TaskOpen",
    ]
    settled = msgspec.structs.replace(conflict, status="False")
    assert [need.reason for need in variant_needs(key, [settled], [revision])] == ["TaskOpen"]


def test_three_are_named_and_the_others_counted() -> None:
    needs = [Need("TaskOpen", f"n{number}") for number in range(5)]
    assert needed(needs, 1)[0].message == "5 things wait for a person: n0; n1; n2; and 2 more"
    assert needed(needs[:3], 1, count=9)[0].message.endswith("n0; n1; n2; and 6 more")
    assert needed(needs[:1], 1)[0].message == "one thing waits for a person: n0"
    assert needed((), 1) == ()


def test_a_set_counts_its_variants_and_its_held_removals() -> None:
    first = ChildFailure(name="web-1", reason=ATTENTION, message="n0")
    held = Hold(id="h", token="t", count=4)
    result = SetResult(uid="u", generation=7, hold=held, needing=6, attention=(first,))
    found = {each.type: each for each in set_conditions(result, namespace="default", name="web")}[ATTENTION]
    assert found.reason == "DeletionHeld"
    assert found.message == (
        "7 things wait for a person: removals are held: pvbus confirm default/web --show; "
        "web-1: n0; and 5 more"
    )
    healthy = set_conditions(SetResult(uid="u", generation=7), namespace="default", name="web")
    assert ATTENTION not in {each.type for each in healthy}


def test_a_set_gets_the_words_of_a_variant_without_their_count() -> None:
    obj = variant()
    obj["status"] = {"conditions": msgspec.to_builtins(needed([Need("TaskOpen", "a: b")], 1))}
    assert attention_of(msgspec.convert(obj, PackageVariant)) == "a: b"
    assert attention_of(msgspec.convert(variant(), PackageVariant)) == attention_of(None) == ""


def test_the_metric_counts_the_objects_that_have_the_condition() -> None:
    controller = ConditionsController(source="/x", partitions=1)
    controller.open(0)

    def publish(name: str, status: str | None) -> None:
        condition = Condition(type=ATTENTION, status=status or "")
        event = ConditionEvent(kind="PackageVariant", namespace="d", name=name, uid="u", condition=condition)
        value = msgspec.json.encode(event) if status is not None else None
        controller.load(LATEST, 0, f"PackageVariant|d/{name}|{ATTENTION}", value)

    for name in ("a", "b", "c"):
        publish(name, "True")
    publish("b", "Unknown")
    publish("c", None)
    assert (controller.needing("PackageVariant"), controller.needing("PackageVariantSet")) == (1, 0)
    controller.close(0)
    assert controller.needing("PackageVariant") == 0


def test_a_warning_of_a_merge_is_said_and_waits_for_nobody() -> None:
    """Two elements stay where both sides changed the key of one: the draft can be proposed as it is."""
    seen = msgspec.convert(variant(), PackageVariant)
    field, beside = (f"spec.ports[port={port}]" for port in (9, 8))
    warning = Conflict(file="s.yaml", object="Service s", field=field, beside=beside, taken="both")
    conflict = Conflict(file="a.yaml", object="Deployment a", field="spec.replicas")

    def said(*found: Conflict) -> Condition:
        ensured = Ensured((), (), None, {}, {}, {FIRST: found})
        (condition,) = (each for each in ensured_conditions(seen, ensured, None) if each.type == CONFLICT)
        return condition

    alone = said(warning, msgspec.structs.replace(warning, field="x"))
    assert (alone.status, alone.reason) == ("False", "BothStay")
    assert alone.message == (
        f"{FIRST} has s.yaml Service s {field} and upstream's {beside}, as both sides changed the key of one "
        "element (and 1 more): `pvbus diff default/v` shows both"
    )
    assert list(variant_needs(Key("default", "v"), [alone], [])) == []
    both = said(warning, conflict)
    assert (both.status, both.reason) == ("True", "BothChanged")
    assert "left one conflict, the first in a.yaml Deployment a spec.replicas" in both.message
    assert both.message.endswith("changed the key of one element")


def noted(world: InjectWorld, order: str = "stranded", uid: str = "uid-v", policy: str = "web") -> None:
    """Write what a rollout writes of its target."""
    row = {"uid": uid, "attempt": 3, "order": order, "revision": FIRST, "digest": "d"}
    value = msgspec.json.encode(row)
    world.dirty.update(dict.fromkeys(world.controller.load(APPROVALS, 0, f"default/v|{policy}", value)))


def attention_of_set(condition: Condition) -> Condition:
    """Return AttentionNeeded of a set whose variant v has this condition."""
    obj = {**variant(), "status": {"conditions": [msgspec.to_builtins(condition)]}}
    message = attention_of(msgspec.convert(obj, PackageVariant))
    children = (ChildFailure(name="v", reason=ATTENTION, message=message),)
    result = SetResult(uid="u", generation=1, needing=1, attention=children)
    conditions = set_conditions(result, namespace="default", name="web")
    return next(present for present in conditions if present.type == ATTENTION)


@pytest.mark.parametrize(
    ("order", "uid"), [("stranded", "uid-v"), ("restore", "uid-v"), ("stranded", "other")]
)
async def test_a_revision_that_a_rollback_left_published_waits_until_another_is_published(
    order: str, uid: str
) -> None:
    released = package(
        "edge", "app", "packagevariant-1", owners=[owner("v")], lifecycle="Published", revision=1
    )
    world, condition = await attention(*released)
    assert condition is None

    async def present() -> Condition | None:
        await world.settle()
        return next((each for each in world.result().conditions if each.type == ATTENTION), None)

    noted(world, order, uid)
    condition = await present()
    if (order, uid) != ("stranded", "uid-v"):
        assert condition is None
        return
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "RollbackStranded")
    assert condition.message == (
        f"one thing waits for a person: attempt 3 of RolloutPolicy web was rolled back, but {FIRST} is "
        "published still, as no good revision took its place: publish a better one; "
        "pvbus rollout status default/web --state stranded says why, and shows all of them"
    )
    of_set = attention_of_set(condition)
    assert of_set.reason == "VariantsNeedAttention"
    assert of_set.message.startswith("one thing waits for a person: v: attempt 3 of RolloutPolicy web was")
    for obj in package(
        "edge", "app", "packagevariant-2", owners=[owner("v")], lifecycle="Published", revision=2
    ):
        world.cluster.put(obj)
    assert await present() is None


async def test_the_note_goes_with_the_next_attempt_or_the_policy() -> None:
    released = package(
        "edge", "app", "packagevariant-1", owners=[owner("v")], lifecycle="Published", revision=1
    )
    world, _ = await attention(*released)
    noted(world)
    noted(world, policy="other")
    await world.settle()
    (found,) = (each for each in world.result().conditions if each.type == ATTENTION)
    assert found.message.startswith("2 things wait for a person: attempt 3 of RolloutPolicy other was")
    for policy in ("web", "other"):
        world.dirty.update(dict.fromkeys(world.controller.load(APPROVALS, 0, f"default/v|{policy}", None)))
    await world.settle()
    assert ATTENTION not in {each.type for each in world.result().conditions}
