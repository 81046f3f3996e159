"""Withdrawals where something else cannot be written, and what render reports of them."""

from pvbus.core.api.variants import DownstreamTemplate, MapExpr, VariantTemplate
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Outcome, Update
from pvbus.core.kernel.keys import REMOVAL_CANCELLED
from pvbus.core.kernel.records import TargetRow
from tests.simulation.parts import RenderPart
from tests.unit.core.variants.test_render_controller import CHILD, VKEY, applied, row, stored, withdrawn


def failing(**fields: str) -> TargetRow:
    """A target that wants its child again, but has an expression that fails."""
    template = VariantTemplate(
        downstream=DownstreamTemplate(repo="r1", package="p"),
        label_exprs=(MapExpr(key="x", value_expr="target.labels['none']"),),
    )
    return row(digest="d2", cancelled="k1", template=template, **fields)


def test_a_withdrawal_that_is_refused_is_not_reported_as_written() -> None:
    """unroll gives no new order before the annotation is there."""
    part, _ = applied()
    part.target(withdrawn(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    outcome = part.go_on(steps, PermanentError("403: no right to update"))
    assert isinstance(outcome, Outcome)
    assert outcome.again_after == 60
    assert (part.results[CHILD].cancelled, part.results[CHILD].error) == ("", "403: no right to update")


def test_where_no_variant_can_be_made_there_is_nothing_to_withdraw() -> None:
    """Else the next order would wait for an annotation that nothing can carry."""
    part = RenderPart()
    part.target(row(cancelled="k1"), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Create)
    part.go_on(steps, PermanentError("422: spec.upstream is wrong"))
    assert part.results[CHILD].cancelled == "k1"


def test_a_target_that_returns_and_fails_withdraws_its_order() -> None:
    """Else the DELETE of a frozen worker would delete a variant that cannot be made again."""
    part, thing = applied()
    part.target(failing(), VKEY)
    steps, effect = part.begin(VKEY)
    assert isinstance(effect, Update)
    assert effect.object["metadata"]["annotations"] == {REMOVAL_CANCELLED: "k1"}
    assert effect.object["spec"] == thing["spec"]
    part.go_on(steps, stored(effect.object, "2"))
    result = part.results[CHILD]
    assert (result.cancelled, result.expression_failed) == ("k1", True)
    part.variant(stored(effect.object, "2"), VKEY)
    _, effect = part.begin(VKEY)
    assert effect is None


def test_a_withdrawal_of_a_target_that_fails_is_tried_again() -> None:
    part, _ = applied()
    part.target(failing(), VKEY)
    steps, _ = part.begin(VKEY)
    outcome = part.go_on(steps, PermanentError("403: no right to update"))
    assert outcome.again_after == 60
    assert (part.results[CHILD].cancelled, part.results[CHILD].expression_failed) == ("", True)
    _, effect = part.begin(VKEY)
    assert isinstance(effect, Update)


def test_a_spec_that_is_refused_does_not_keep_its_withdrawal_back() -> None:
    part, thing = applied()
    template = VariantTemplate(downstream=DownstreamTemplate(repo="r1", package="p"), labels={"x": "y"})
    part.target(row(digest="d2", cancelled="k1", template=template), VKEY)
    steps, effect = part.begin(VKEY)
    assert effect.object["spec"] != thing["spec"]
    effect = part.go_on(steps, PermanentError("422: spec.labels is wrong"))
    assert isinstance(effect, Update)
    assert effect.object["spec"] == thing["spec"]
    outcome = part.go_on(steps, stored(effect.object, "2"))
    assert outcome.again_after == 60
    assert (part.results[CHILD].cancelled, part.results[CHILD].error) == ("k1", "422: spec.labels is wrong")
