"""Conditions: the truth table of a set, statuses merged and written last, and what consumers are told."""

from typing import Any

import msgspec
import pytest

from pvbus.codec import encode_row
from pvbus.core.conditions import WITHDRAWN, ConditionsController, merge, set_conditions
from pvbus.core.effects import Update
from pvbus.core.model import Condition
from pvbus.core.records import (
    CONDITIONS,
    LATEST,
    RESULTS,
    SETRESULTS,
    SETS,
    VARIANTS,
    ConditionEvent,
    Counts,
    ResultRow,
    SetResult,
    sync_key,
)
from tests.simulation.parts import SET, VARIANT, marker, obj, site_set

NOTHING = Counts()
ALL = Counts(desired=3, applied=3, ready=2)
SOME = Counts(desired=3, applied=1)
STALLING = ("ValidationError", "UpstreamNotFound", "NoMatchingTargets", "UnexpectedError", "TargetConflict")


def table(result: SetResult) -> dict[str, tuple[str, str]]:
    found = set_conditions(result, namespace="default", name="alpha")
    assert {c.observed_generation for c in found} == {7}
    return {c.type: (c.status, c.reason) for c in found}


def rolled(**fields: Any) -> SetResult:
    return SetResult(uid="uid-alpha", generation=7, **fields)


@pytest.mark.parametrize("reason", STALLING)
def test_a_reason_to_stall_is_the_reason_of_both(reason: str) -> None:
    """S19."""
    found = table(rolled(reason=reason, message="why", counts=SOME))
    assert (found["Stalled"], found["Ready"]) == (("True", reason), ("False", reason))


@pytest.mark.parametrize(
    ("result", "ready"),
    [
        (rolled(counts=ALL), ("True", "Reconciled")),
        (rolled(counts=NOTHING), ("True", "Reconciled")),
        (rolled(counts=SOME), ("False", "Reconciling")),
        (rolled(counts=ALL, held={"abcd": 12}), ("False", "DeletionHeld")),
    ],
)
def test_a_valid_set_is_ready_when_all_is_applied(result: SetResult, ready: tuple[str, str]) -> None:
    """S19."""
    found = table(result)
    assert found["Stalled"] == ("False", "Valid")
    assert found["Ready"] == ready


def test_nothing_selected_is_visible() -> None:
    """S6: the counts are there, and show 0."""
    found = {c.type: c for c in set_conditions(rolled(), namespace="default", name="alpha")}
    assert "desired 0, applied 0" in found["TargetsApplied"].message


def test_a_hold_says_so() -> None:
    found = table(rolled(on_hold=True))
    assert (found["OnHold"], found["Ready"]) == (("True", "Annotation"), ("False", "OnHold"))


def test_held_deletions_come_with_the_command_that_confirms_them() -> None:
    found = {c.type: c for c in set_conditions(rolled(held={"aa": 3, "bb": 1}), namespace="ns", name="alpha")}
    message = found["DeletionHeld"].message
    assert message.startswith("4 deletions are held")
    assert (
        "kubectl annotate packagevariantset -n ns alpha --overwrite pvbus.dev/confirm-deletion=aa,bb"
        in message
    )


def test_only_a_changed_status_moves_its_time_and_foreign_conditions_stay() -> None:
    old = (
        Condition(type="Ready", status="True", reason="A", last_transition_time="then"),
        Condition(type="Stalled", status="False", last_transition_time="then"),
        Condition(type="Mine", status="Unknown", last_transition_time="then"),
        Condition(type="DeletionHeld", status="True", last_transition_time="then"),
    )
    new = (Condition(type="Ready", status="True", reason="B"), Condition(type="Stalled", status="True"))
    merged = {c.type: c for c in merge(old, new, 0.0)}
    assert set(merged) == {"Ready", "Stalled", "Mine"}
    assert (merged["Ready"].reason, merged["Ready"].last_transition_time) == ("B", "then")
    assert merged["Stalled"].last_transition_time == "1970-01-01T00:00:00Z"
    assert merged["Mine"] == old[2]


class Part:
    """The controller on one partition, with a set and its roll-up."""

    def __init__(self) -> None:
        self.controller = ConditionsController(source="/test")
        self.controller.open(0)
        for topic, kind in ((SETS, SET), (VARIANTS, VARIANT)):
            self.controller.load(topic, 0, sync_key(*kind), marker("ok"))
        self.events: list[ConditionEvent] = []
        self.now = 0.0

    def see(self, thing: Any, topic: str = SETS) -> None:
        key = f"default/{thing['metadata']['name']}"
        self.controller.load(topic, 0, key, msgspec.json.encode(thing))

    def tell(self, row: Any, topic: str = SETRESULTS, key: str = "default/alpha") -> None:
        self.controller.load(topic, 0, key, encode_row(row))

    def run(self, key: str = "PackageVariantSet|default/alpha") -> Any:
        """Return the written status, None where nothing was written; the echo follows at once."""
        steps, written = self.controller.reconcile(key, self.now), None
        try:
            effect = next(steps)
            assert isinstance(effect, Update)
            assert effect.subresource == "status"
            written = effect.object
            steps.send(written)
        except StopIteration as end:
            outcome = end.value
        for put in outcome.puts:
            self.controller.store(0, put)
            if put.topic == CONDITIONS:
                self.events.append(put.row)
        if written is not None:
            self.see(written, SETS if written["kind"] == "PackageVariantSet" else VARIANTS)
        return written["status"] if written is not None else None

    def told(self) -> list[tuple[str, str, str]]:
        events, self.events = self.events, []
        return [(e.condition.type, e.condition.status, e.previous) for e in events]


def observed() -> Part:
    part = Part()
    part.see(site_set())
    part.tell(rolled(counts=SOME))
    return part


def test_a_status_is_written_once_and_every_transition_told() -> None:
    part = observed()
    status = part.run()
    assert [c["type"] for c in status["conditions"]] == ["Stalled", "Ready", "TargetsApplied"]
    assert part.told() == [("Stalled", "False", ""), ("Ready", "False", ""), ("TargetsApplied", "False", "")]
    assert part.run() is None
    assert part.told() == []
    part.tell(rolled(counts=ALL))
    assert part.run() is not None
    assert part.told() == [("Ready", "True", "False"), ("TargetsApplied", "True", "False")]


def test_counts_that_move_are_written_but_no_transition() -> None:
    part = observed()
    part.run()
    part.told()
    part.tell(rolled(counts=Counts(desired=3, applied=2)))
    assert part.run() is not None
    assert part.told() == []


def test_a_result_of_another_object_is_not_acted_upon() -> None:
    part = Part()
    part.see(site_set(uid="uid-second"))
    part.tell(rolled(counts=ALL))
    assert part.run() is None


def test_an_older_result_never_takes_a_newer_generation_back() -> None:
    part = observed()
    part.run()
    part.tell(SetResult(uid="uid-alpha", generation=6, counts=ALL))
    assert part.run() is None


def test_a_foreign_conditions_generation_is_none_of_ours() -> None:
    part = Part()
    foreign = {"type": "Mine", "status": "True", "observedGeneration": 99}
    part.see({**site_set(), "status": {"conditions": [foreign]}})
    part.tell(rolled(counts=ALL))
    status = part.run()
    assert foreign in status["conditions"]


def test_a_condition_that_ends_is_told_as_unknown() -> None:
    part = observed()
    part.tell(rolled(held={"aa": 11}))
    part.run()
    part.told()
    part.tell(rolled(counts=ALL))
    part.run()
    last = [e for e in part.events if e.condition.type == "DeletionHeld"]
    assert [(e.condition.status, e.condition.reason, e.previous) for e in last] == [
        ("Unknown", WITHDRAWN, "True")
    ]


def test_when_the_object_goes_its_conditions_are_withdrawn_once() -> None:
    part = observed()
    part.run()
    part.told()
    part.controller.load(SETS, 0, "default/alpha", None)
    part.tell(None)
    part.run()
    assert [kind for kind, status, _ in part.told() if status == "Unknown"] == [
        "Ready",
        "Stalled",
        "TargetsApplied",
    ]
    part.run()
    assert part.told() == []


def test_what_is_being_listed_is_not_gone() -> None:
    part = observed()
    part.run()
    part.told()
    part.controller.load(SETS, 0, sync_key(*SET), marker("syncing", 2))
    part.controller.load(SETS, 0, "default/alpha", None)
    part.run()
    assert part.told() == []


def test_the_same_change_has_the_same_id_and_another_has_another() -> None:
    first, second = observed(), observed()
    first.run()
    second.run()
    assert [e.id for e in first.events] == [e.id for e in second.events]
    ids = {e.id for e in first.events}
    for counts in (ALL, SOME, ALL):
        first.now += 1
        first.told()
        first.tell(rolled(counts=counts))
        first.run()
        fresh = {e.id for e in first.events}
        assert len(fresh) == 2
        assert not fresh & ids
        ids |= fresh


def test_a_variants_result_becomes_its_status() -> None:
    """V19 in part: conditions and downstream targets, with the generation they speak of."""
    part = Part()
    part.see(obj(VARIANT, "v", spec={}), VARIANTS)
    ready = Condition(type="Ready", status="True", reason="NoErrors", observed_generation=1)
    part.tell(ResultRow(uid="uid-v", generation=1, conditions=(ready,)), RESULTS, "default/v")
    status = part.run("PackageVariant|default/v")
    assert status["conditions"][0]["reason"] == "NoErrors"
    assert status["conditions"][0]["observedGeneration"] == 1
    assert part.told() == [("Ready", "True", "")]


def test_latest_restores_what_consumers_know() -> None:
    part = observed()
    part.run()
    again = Part()
    for event in part.events:
        key = f"PackageVariantSet|default/alpha|{event.condition.type}"
        again.controller.load(LATEST, 0, key, encode_row(event))
    place = part.controller._places[0]["PackageVariantSet|default/alpha"]
    again.see(msgspec.json.decode(place.raw or b""))
    again.tell(rolled(counts=SOME))
    assert again.run() is None
    assert again.told() == []
