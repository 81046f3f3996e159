"""Conditions belong to one object: of another uid nothing is published, and each event has its own id."""

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.records import RESULTS, VARIANTS, ResultRow
from pvbus.core.variants.publishing import WITHDRAWN
from tests.simulation.parts import VARIANT, obj
from tests.unit.core.variants.test_conditions import Part

KEY = "PackageVariant|default/v"


def ready(status: str, message: str = "m") -> Condition:
    return Condition(type="Ready", status=status, reason="R", message=message, observed_generation=1)


def variant(uid: str, **fields: object) -> Part:
    part = Part()
    part.see(obj(VARIANT, "v", spec={}, metadata={"uid": uid}, **fields), VARIANTS)
    return part


def tell(part: Part, uid: str, *conditions: Condition) -> None:
    part.tell(ResultRow(uid=uid, generation=1, conditions=conditions), RESULTS, "default/v")


def test_a_result_of_a_former_variant_of_that_name_is_not_published() -> None:
    part = variant("uid-new")
    tell(part, "uid-old", ready("True"))
    assert part.run(KEY) is None
    assert part.events == []
    tell(part, "uid-new", ready("False"))
    status = part.run(KEY)
    assert status["conditions"][0]["status"] == "False"


def test_a_new_variant_of_the_same_name_begins_without_a_previous_status() -> None:
    part = variant("uid-old")
    tell(part, "uid-old", ready("True"))
    part.run(KEY)
    part.see(obj(VARIANT, "v", spec={}, metadata={"uid": "uid-new"}), VARIANTS)
    tell(part, "uid-new", ready("False"))
    part.run(KEY)
    assert [(e.uid, e.condition.status, e.previous) for e in part.events] == [
        ("uid-old", "True", ""),
        ("uid-new", "False", ""),
    ]


def test_a_change_there_and_back_has_new_ids() -> None:
    """Also within one second: the time of the transition alone does not distinguish events."""
    part = variant("uid-v")
    for status in ("True", "False", "True", "False"):
        tell(part, "uid-v", ready(status))
        part.run(KEY)
    assert [e.previous for e in part.events] == ["", "True", "False", "True"]
    assert len({e.id for e in part.events}) == 4


def test_a_new_message_is_an_event_and_the_time_of_the_transition_stays() -> None:
    part = variant("uid-v")
    tell(part, "uid-v", ready("False", "one reason"))
    part.run(KEY)
    part.now += 100
    tell(part, "uid-v", ready("False", "another reason"))
    part.run(KEY)
    assert [e.condition.message for e in part.events] == ["one reason", "another reason"]
    times = {e.condition.last_transition_time for e in part.events}
    assert len(times) == 1


def test_a_condition_that_is_not_there_any_more_is_withdrawn_once() -> None:
    part = variant("uid-v")
    injected = Condition(type="DeletionHeld", status="True", reason="R", observed_generation=1)
    tell(part, "uid-v", ready("True"), injected)
    part.run(KEY)
    part.events.clear()
    tell(part, "uid-v", ready("True"))
    part.run(KEY)
    part.run(KEY)
    assert [(e.condition.type, e.condition.reason) for e in part.events] == [("DeletionHeld", WITHDRAWN)]
