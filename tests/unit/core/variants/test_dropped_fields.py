"""An older definition of PackageVariant drops fields of a spec: it is said, and nobody waits."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import DownstreamTemplate, PackageVariant, VariantTemplate
from pvbus.core.kernel.echo import ECHO_SECONDS
from pvbus.core.kernel.effects import Create, Outcome, Update
from pvbus.core.kernel.keys import digest
from pvbus.core.kernel.records import DESIRED, DesiredRow
from pvbus.core.variants.render.controller import DROPPED_RETRY_SECONDS
from pvbus.core.variants.render.variant import FIELDS_MAX, dropped_fields
from tests.simulation.inject_world import InjectWorld, upstream, variant
from tests.simulation.parts import RenderPart
from tests.unit.core.variants.test_render_controller import VKEY, row, stored

LABELLED = VariantTemplate(downstream=DownstreamTemplate(repo="r1", package="p"), labels={"tier": "gold"})


def spec_of(obj: Any) -> Any:
    return msgspec.convert(obj, PackageVariant).spec


@pytest.mark.parametrize(
    ("sent", "remaining", "paths"),
    [
        ({"labels": {"a": "1"}}, {"labels": {"a": "1"}}, ()),
        ({"labels": {"a": "1"}}, {}, ("spec.labels",)),
        ({}, {"labels": {"a": "1"}}, ()),  # a default, or a webhook's
        (
            {"packageContext": {"data": {"a": "1"}, "removeKeys": ["b"]}},
            {"packageContext": {"data": {"a": "1"}}},
            ("spec.packageContext.removeKeys",),
        ),
        (
            {"injectors": [{"name": "a"}, {"name": "b", "group": "g"}]},
            {"injectors": [{"name": "a"}, {"name": "b"}]},
            ("spec.injectors[1].group",),
        ),
    ],
)
def test_the_paths_of_what_is_missing(sent: Any, remaining: Any, paths: tuple[str, ...]) -> None:
    specs = [spec_of({"metadata": {"name": "a"}, "spec": spec}) for spec in (sent, remaining)]
    assert dropped_fields(*specs) == paths


def test_not_all_of_many_missing_fields_are_named() -> None:
    data = {str(number): "x" for number in range(100)}
    sent, remaining = (
        spec_of({"metadata": {"name": "a"}, "spec": {"packageContext": {"data": each}}})
        for each in (data, {"a": "1"})
    )
    assert len(dropped_fields(sent, remaining)) == FIELDS_MAX


class Pruned:
    """Render on an API server whose definition has no field `labels`."""

    def __init__(self) -> None:
        self.part = RenderPart()
        self.part.target(row(template=LABELLED), VKEY)
        steps, effect = self.part.begin(VKEY)
        assert isinstance(effect, Create)
        assert effect.object["spec"]["labels"] == {"tier": "gold"}
        self.thing = self._answer(effect.object)
        self.outcome: Outcome = self.part.go_on(steps, self.thing)
        self.part.variant(self.thing, VKEY)

    @staticmethod
    def _answer(obj: Any) -> Any:
        return stored({**obj, "spec": {name: v for name, v in obj["spec"].items() if name != "labels"}})

    @property
    def desired(self) -> DesiredRow:
        (put,) = [put for put in self.outcome.puts if put.topic == DESIRED]
        assert isinstance(put.row, DesiredRow)
        return put.row


def test_what_is_stored_counts_as_applied_and_the_rest_is_named() -> None:
    """Inject waits for nothing more: the digest is that of the stored spec."""
    world = Pruned()
    assert (world.desired.outcome, world.desired.dropped) == ("applied", ("spec.labels",))
    assert world.desired.spec_digest == digest(spec_of(world.thing))


def test_a_dropped_field_is_offered_again_after_a_while_and_not_before() -> None:
    """Then the definition may have it."""
    world = Pruned()
    part = world.part
    part.now += ECHO_SECONDS
    outcome, effect = part.begin(VKEY)
    assert effect is None
    assert outcome.again_after == pytest.approx(DROPPED_RETRY_SECONDS - ECHO_SECONDS)
    part.now += DROPPED_RETRY_SECONDS
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    assert effect.object["spec"]["labels"] == {"tier": "gold"}
    world.outcome = part.go_on(steps, stored(effect.object, "2"))
    assert world.desired.dropped == ()


async def test_the_variant_says_what_is_dropped_and_its_draft_is_made() -> None:
    """It waited without end for the set to change it. Once all is stored, the condition says so."""
    world = InjectWorld([*upstream(), variant()])
    world.observe()
    desired = DesiredRow(set_name="alpha", uid="uid-v", spec_digest=digest(spec_of(world.variant())))
    for dropped, status in ((("spec.labels",), "True"), ((), "False")):
        named = msgspec.structs.replace(desired, dropped=dropped)
        world._load(DESIRED, "default/v", msgspec.json.encode(named))
        await world.settle()
        assert list(world.lifecycles().values()) == ["Draft"]
        conditions = {c.type: c for c in world.result().conditions}
        assert conditions["Ready"].status == "True"
        assert conditions["FieldsDropped"].status == status
        assert ("spec.labels" in conditions["FieldsDropped"].message) is (status == "True")
