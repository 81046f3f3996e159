"""What render reports of a withdrawal that could not be written."""

from pvbus.core.effects import Create, Outcome, Update
from pvbus.errors import PermanentError
from tests.simulation.parts import RenderPart
from tests.unit.core.test_renderer import CHILD, VKEY, applied, row, withdrawn


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
