"""When a package revision is ready."""

from typing import Any

import pytest

from pvbus.core.errors import PermanentError
from pvbus.core.kernel.gates import awaited, merged, predecessors, unmet_of
from pvbus.core.kernel.keys import GATE_STEPS, TASKS


def revision(gates: tuple[str, ...], *conditions: tuple[str, Any]) -> Any:
    return {
        "spec": {"readinessGates": [{"conditionType": gate} for gate in gates]},
        "status": {"conditions": [{"type": type_, "status": status} for type_, status in conditions]},
    }


@pytest.mark.parametrize(
    ("gates", "conditions", "unmet"),
    [
        ((), (), []),
        ((), (("A", "False"),), []),
        (("A",), (("A", "True"),), []),
        (("A",), (), ["A (nothing was reported of it yet)"]),
        (("A",), (("B", "True"),), ["A (nothing was reported of it yet)"]),
        (("A",), (("A", "False"),), ["A (its status is False)"]),
        (("A",), (("A", "Unknown"),), ["A (its status is Unknown)"]),
        (("A",), (("A", "true"),), ["A (its status is true)"]),
        (("A",), (("A", None),), ["A (its status is None)"]),
        (
            ("A",),
            (("A", "True"), ("A", "True")),
            ["A (2 conditions have this type: set it anew to leave one)"],
        ),
        (
            ("A",),
            (("A", "True"), ("A", "False")),
            ["A (2 conditions have this type: set it anew to leave one)"],
        ),
        (("A", "B"), (("A", "True"), ("B", "True"), ("B2", "False")), []),
        (("B", "A"), (), ["B (nothing was reported of it yet)", "A (nothing was reported of it yet)"]),
        (("A", "A"), (), ["A (nothing was reported of it yet)"]),
    ],
)
def test_a_gate_needs_exactly_one_condition_that_is_true(gates: Any, conditions: Any, unmet: Any) -> None:
    assert [str(each) for each in unmet_of(revision(gates, *conditions))] == unmet


@pytest.mark.parametrize(
    ("steps", "to_propose", "to_approve"),
    [
        ('{"A": "approve"}', ["B"], ["A", "B"]),
        ('{"A": "propose"}', ["A", "B"], ["B"]),
        ('{"A": "approve", "B": "propose", "C": "approve"}', ["B"], ["A"]),
        ("{}", ["A", "B"], ["A", "B"]),
        ("", ["A", "B"], ["A", "B"]),
        ('{"A": "never"}', ["A", "B"], ["A", "B"]),
        ('{"A": "approve", "B": null}', ["A", "B"], ["A", "B"]),
        ("[" * 2_000, ["A", "B"], ["A", "B"]),
    ],
)
def test_a_gate_may_be_for_one_step_and_is_for_both_in_doubt(
    steps: str, to_propose: list[str], to_approve: list[str]
) -> None:
    obj = revision(("A", "B"))
    obj["spec"]["packageMetadata"] = {"annotations": {GATE_STEPS: steps}}
    for lifecycle, unmet in (("Draft", to_propose), ("", to_propose), ("Proposed", to_approve)):
        obj["spec"]["lifecycle"] = lifecycle
        assert [each.type for each in unmet_of(obj)] == unmet


def test_a_gate_that_is_added_makes_a_ready_revision_unready() -> None:
    assert not unmet_of(revision(("A",), ("A", "True")))
    assert [each.type for each in unmet_of(revision(("A", "B"), ("A", "True")))] == ["B"]


def test_the_message_of_a_condition_says_why_then_its_reason() -> None:
    obj = revision(("A", "B"))
    obj["status"]["conditions"] = [
        {"type": "A", "status": "False", "reason": "Down", "message": "no route"},
        {"type": "B", "status": "False", "reason": "Down", "message": ""},
    ]
    assert [each.why for each in unmet_of(obj)] == ["no route", "Down"]


@pytest.mark.parametrize(
    ("condition", "why"),
    [
        (None, "ann is asked: Licensed?"),
        (("Unknown", "Asked", "ann is asked: Licensed?"), "ann is asked: Licensed?"),
        (("Unknown", "InputsChanged", "it was True"), "ann is asked: Licensed?; it was True"),
        (("False", "Answered", "no licence"), "no licence"),
    ],
)
def test_the_gate_of_a_task_says_who_is_asked_until_somebody_has_answered(condition: Any, why: str) -> None:
    """A blueprint asks without a condition, and an upgrade replaces the one that had the question."""
    obj = revision(("A",))
    obj["spec"]["packageMetadata"] = {
        "annotations": {TASKS: '{"A": {"question": "Licensed?", "owner": "ann"}}'}
    }
    if condition is not None:
        status, reason, message = condition
        found = {"type": "A", "status": status, "reason": reason, "message": message}
        obj["status"]["conditions"] = [found]
    assert [each.why for each in unmet_of(obj)] == [why]


def test_a_revision_without_spec_or_status_is_ready() -> None:
    assert unmet_of({"metadata": {"name": "a"}}) == []


def conditions(**statuses: str) -> list[dict[str, Any]]:
    return [{"type": type_, "status": status} for type_, status in statuses.items()]


@pytest.mark.parametrize(
    ("present", "changes", "result"),
    [
        ({}, {"A": "True"}, {"A": "True"}),
        ({"A": "False", "B": "True"}, {"A": "True"}, {"A": "True", "B": "True"}),
        ({"A": "False"}, {"B": "True"}, {"A": "False", "B": "True"}),
        ({"A": "False"}, {}, {"A": "False"}),
    ],
)
def test_a_merge_changes_the_named_types_in_their_position(present: Any, changes: Any, result: Any) -> None:
    assert merged(conditions(**present), conditions(**changes)) == conditions(**result)


def test_a_merge_leaves_one_condition_of_a_changed_type() -> None:
    present = [*conditions(A="True", B="True"), *conditions(A="False", B="False")]
    assert merged(present, conditions(A="Unknown")) == [
        *conditions(A="Unknown", B="True"),
        *conditions(B="False"),
    ]


ORDER = {"Signed": ("Built",), "Deployed": ("Signed", "Licensed"), "Loop": ("Back",), "Back": ("Loop",)}


@pytest.mark.parametrize(
    ("type_", "present", "waits_for"),
    [
        ("Built", {}, []),
        ("Signed", {}, ["Built"]),
        ("Signed", {"Built": "False"}, ["Built"]),
        ("Signed", {"Built": "True"}, []),
        ("Signed", {"Built": "True", "Signed": "True"}, []),
        ("Deployed", {"Signed": "True", "Licensed": "True"}, ["Built"]),
        ("Deployed", {"Built": "True", "Signed": "True"}, ["Licensed"]),
        ("Deployed", {"Built": "True", "Signed": "True", "Licensed": "True"}, []),
        ("Loop", {"Back": "True", "Loop": "True"}, ["Loop"]),
    ],
)
def test_a_condition_waits_for_all_that_it_comes_after(type_: str, present: Any, waits_for: Any) -> None:
    found = awaited(ORDER, conditions(**present), type_)
    assert [each.type for each in found] == waits_for


@pytest.mark.parametrize("first", ["Signed", "Deployed"])
def test_two_resolvers_act_in_order_whoever_looks_first(first: str) -> None:
    """Each sets its condition once it waits for none; the order of their looks does not matter."""
    order = {"Signed": ("Built",), "Deployed": ("Signed",)}
    second = {"Signed": "Deployed", "Deployed": "Signed"}[first]
    present: list[Any] = conditions(Built="False")
    acted: list[str] = []
    for look in (first, second, None, first, second, first, second):
        if look is None:
            present = [*merged(present, conditions(Built="True"))]
        elif look not in acted and not awaited(order, present, look):
            acted.append(look)
            present = [*merged(present, conditions(**{look: "True"}))]
    assert acted == ["Signed", "Deployed"]


def test_the_order_is_read_from_the_packages_annotation() -> None:
    def declaring(text: str) -> Any:
        return {"spec": {"packageMetadata": {"annotations": {"pvbus.dev/condition-order": text}}}}

    assert predecessors({}) == {}
    assert predecessors(declaring('{"B": ["A"]}')) == {"B": ("A",)}
    for wrong in ("[", '["A"]', '{"B": "A"}', '{"B": [1]}'):
        with pytest.raises(PermanentError, match=r"pvbus\.dev/condition-order is not like"):
            predecessors(declaring(wrong))
