"""Conditions: the truth table of a set, statuses merged and written last, and the published events."""

from typing import Any

import msgspec
import pytest

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import List, Update
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.records import (
    CONDITIONS,
    LATEST,
    RESULTS,
    SETRESULTS,
    SETS,
    VARIANTS,
    ChildFailure,
    Counts,
    Hold,
    ResultRow,
    SetResult,
)
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.conditions.controller import ConditionsController
from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.publishing import WITHDRAWN, merge
from tests.kit.deciding import drive
from tests.simulation.parts import SET, VARIANT, marker, obj, site_set

NOTHING = Counts()
ALL = Counts(desired=3, applied=3, ready=3)
APPLIED = Counts(desired=3, applied=3, ready=2)
SOME = Counts(desired=3, applied=1)
STALLING = ("ValidationError", "UpstreamNotFound", "NoMatchingTargets", "UnexpectedError", "TargetConflict")
HOLD = Hold(id="h1", token="c0ffee12", count=46)


def named(result: SetResult, **flags: bool) -> dict[str, Condition]:
    found = set_conditions(result, namespace="ns", name="alpha", **flags)
    assert {c.observed_generation for c in found} == {7}
    return {c.type: c for c in found}


def table(result: SetResult, **flags: bool) -> dict[str, tuple[str, str]]:
    return {kind: (c.status, c.reason) for kind, c in named(result, **flags).items()}


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
        (rolled(counts=APPLIED), ("False", "VariantsNotReady")),
        (rolled(counts=Counts(desired=3, applied=3, ready=3, failed=1)), ("False", "VariantsNotReady")),
        (rolled(counts=ALL, hold=HOLD), ("False", "DeletionHeld")),
        (rolled(counts=Counts(held=20)), ("False", "DeletionHeld")),  # confirmed, and not yet a row
        (rolled(counts=Counts(desired=3, applied=3, ready=3, removing=9)), ("True", "Reconciled")),
    ],
)
def test_a_valid_set_is_ready_when_every_child_is_applied_and_ready(
    result: SetResult, ready: tuple[str, str]
) -> None:
    """S19."""
    found = table(result)
    assert found["Stalled"] == ("False", "Valid")
    assert found["Ready"] == ready


def test_where_no_child_reports_applied_alone_decides() -> None:
    assert table(rolled(counts=APPLIED), children_report=False)["Ready"] == ("True", "Reconciled")
    assert table(rolled(counts=SOME), children_report=False)["Ready"] == ("False", "Reconciling")


def test_a_set_that_is_not_ready_names_three_variants_and_counts_the_others() -> None:
    """The message has the counts and the reasons; one long reason does not push the others out."""
    children = (
        ChildFailure(name="web-a", reason="RenderFailed", message="set-labels: no such image"),
        ChildFailure(name="web-b", reason="Error", message="x" * 5_000),
        ChildFailure(name="web-c"),
    )
    counts = Counts(desired=200, applied=200, ready=150, failed=2)
    message = named(rolled(counts=counts, unready=children))["Ready"].message
    assert message.startswith(
        "desired 200, applied 200, ready 150, failed 2, held 0, removing 0. Not ready: "
    )
    assert "web-a (RenderFailed: set-labels: no such image); web-b (Error: xxx" in message
    assert message.endswith("; web-c; and 47 more")
    assert len(message) < 1_000


def test_nothing_selected_is_visible() -> None:
    """S6: the counts are there, and show 0."""
    assert "desired 0, applied 0" in named(rolled())["TargetsApplied"].message


def test_a_hold_says_so() -> None:
    found = table(rolled(on_hold=True))
    assert (found["OnHold"], found["Ready"]) == (("True", "Annotation"), ("False", "OnHold"))


def test_a_hold_gives_no_count_that_nobody_counted() -> None:
    """Render does not look at what is applied: 200 variants that are all there must not be 0."""
    found = named(rolled(on_hold=True, counts=Counts(desired=200, removing=2), waiting="nothing"))
    assert (found["TargetsApplied"].status, found["TargetsApplied"].reason) == ("False", "OnHold")
    assert "applied 0" not in found["TargetsApplied"].message
    assert found["TargetsApplied"].message.startswith("200 variants were wanted when the hold began")
    assert found["Removing"].reason == "Waiting"
    assert found["Removing"].message == "2 variants are to be removed; waiting for the end of the hold"


def test_held_deletions_come_with_the_commands_that_show_and_confirm_them() -> None:
    """One token however many rows: the message of 40,000 deletions is as long as that of 46."""
    message = named(rolled(hold=HOLD))["DeletionHeld"].message
    command = "kubectl annotate packagevariantset -n ns alpha pvbus.dev/confirm-deletion=c0ffee12 --overwrite"
    assert message == (
        "46 deletions are held because they are too many at once; to see them: pvbus confirm ns/alpha --show"
        f"; to confirm them: pvbus confirm ns/alpha, or {command}"
    )
    many = named(rolled(hold=msgspec.structs.replace(HOLD, count=40_000)))["DeletionHeld"].message
    assert len(many) == len(message) + 3


def test_a_hold_without_a_token_yet_names_no_command() -> None:
    """What is counted are the rows: those that follow the hold already, and those that will."""
    found = named(rolled(hold=Hold(id="h1"), counts=Counts(held=40, removing=6)))
    message = found["DeletionHeld"].message
    assert message.startswith("46 deletions are held")
    assert "still being written" in message
    assert "confirm-deletion" not in message


def test_removals_say_what_they_wait_for_and_then_go_from_the_status() -> None:
    removing = Counts(desired=3, applied=3, ready=3, removing=2)
    found = named(rolled(counts=removing, waiting="an answer to the check of Clusters"))["Removing"]
    assert (found.status, found.reason) == ("True", "Waiting")
    assert found.message == "2 variants are to be removed; waiting for an answer to the check of Clusters"
    assert table(rolled(counts=removing))["Removing"] == ("True", "InProgress")
    assert "Removing" not in table(rolled(counts=ALL))


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


def _of(status: str, reason: str, message: str, generation: int, type_: str = "Stalled") -> Condition:
    return Condition(
        type=type_, status=status, reason=reason, message=message, observed_generation=generation
    )


@pytest.mark.parametrize(
    ("stored", "published", "counts"),
    [
        pytest.param(("False", "Valid", "a", 1), ("False", "Valid", "a", 2), "event", id="its generation"),
        pytest.param(("False", "Valid", "a", 1), ("True", "Error", "b", 2), "event", id="all of it"),
        pytest.param(("False", "Valid", "a", 2), ("True", "Error", "b", 2), "event", id="its status"),
        pytest.param(("False", "Valid", "a", 2), ("False", "Valid", "b", 2), "event", id="its message"),
        pytest.param(
            ("False", "Reconciling", "2", 2), ("False", "Reconciling", "1", 2), "status", id="counts"
        ),
        pytest.param(
            ("False", "Reconciling", "1", 1), ("False", "Reconciling", "1", 2), "event", id="counted anew"
        ),
        pytest.param(("False", "Valid", "a", 3), ("True", "Error", "b", 2), "status", id="an event was lost"),
    ],
)
def test_of_a_status_and_its_event_the_later_one_counts(
    stored: tuple[str, str, str, int], published: tuple[str, str, str, int], counts: str
) -> None:
    """A step between the two can fail, and the condition can leave the result in that time."""
    status, event = _of(*stored), _of(*published)
    assert merge((status,), (), 0.0, {"Stalled": event}) == (event if counts == "event" else status,)


class Part:
    """The controller on one partition, with a set and its roll-up."""

    def __init__(self) -> None:
        self.controller = ConditionsController(source="/test", partitions=1)
        self.controller.open(0)
        for topic, kind in ((SETS, SET), (VARIANTS, VARIANT)):
            self.controller.load(topic, 0, sync_key(*kind), marker("ok"))
        self.events: list[ConditionEvent] = []
        self.now = 0.0
        self.again_after: float | None = None
        self.cause = 0.0

    def see(self, thing: Any, topic: str = SETS) -> None:
        key = f"default/{thing['metadata']['name']}"
        self.controller.load(topic, 0, key, msgspec.json.encode(thing))

    def tell(self, row: Any, topic: str = SETRESULTS, key: str = "default/alpha") -> None:
        self.controller.load(topic, 0, key, encode_row(row))

    def run(self, key: str = "PackageVariantSet|default/alpha") -> Any:
        """Reconcile until nothing is published any more. Return the written status, None where nothing was
        written; the echo follows at once."""
        written, dirty = None, True

        def perform(effect: Any) -> Any:
            nonlocal written
            if isinstance(effect, Update):
                assert effect.subresource == "status"
                written = effect.object
            return [] if isinstance(effect, List) else getattr(effect, "object", None)

        while dirty:
            outcome = drive(self.controller.reconcile(0, key, self.now), perform)
            self.again_after, self.cause, dirty = outcome.again_after, outcome.cause, False
            for put in outcome.puts:
                dirty |= key in self.controller.store(0, put)
                if put.topic == CONDITIONS:
                    assert isinstance(put.row, ConditionEvent)
                    self.events.append(put.row)
        if written is not None:
            self.see(written, SETS if written["kind"] == "PackageVariantSet" else VARIANTS)
        return written["status"] if written is not None else None

    def reported(self) -> list[tuple[str, str, str]]:
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
    assert part.reported() == [
        ("Stalled", "False", ""),
        ("Ready", "False", ""),
        ("TargetsApplied", "False", ""),
    ]
    assert part.run() is None
    assert part.reported() == []
    part.tell(rolled(counts=ALL))
    assert part.run() is not None
    assert part.reported() == [("Ready", "True", "False"), ("TargetsApplied", "True", "False")]


def test_what_was_published_and_not_written_is_written_when_nothing_more_is_said_of_it() -> None:
    """A hold says nothing of Stalled, whose last status could not be written."""
    part = observed()
    former = part.run()
    part.tell(rolled(reason="ValidationError", message="two targets with one downstream"))
    part.run()
    part.reported()
    part.see({**site_set(), "status": former})
    part.now += 60.0
    part.tell(rolled(on_hold=True))
    found = {c["type"]: (c["status"], c["reason"]) for c in part.run()["conditions"]}
    assert found["OnHold"] == ("True", "Annotation")
    assert found["Stalled"] == ("True", "ValidationError")
    assert "Stalled" not in [kind for kind, _, _ in part.reported()]


def test_a_condition_that_was_published_and_is_in_no_status_yet_is_not_withdrawn_by_a_hold() -> None:
    """The write of the first status failed, or is still under way: then it would bring the condition back."""
    part = observed()
    part.run()
    part.reported()
    part.see(site_set())
    part.now += 60.0
    part.tell(rolled(on_hold=True))
    found = {c["type"]: (c["status"], c["reason"]) for c in part.run()["conditions"]}
    assert found["OnHold"] == ("True", "Annotation")
    assert found["Stalled"] == ("False", "Valid")
    assert "Stalled" not in [kind for kind, _, _ in part.reported()]


def test_the_status_that_first_says_ready_of_a_generation_completes_its_attempt() -> None:
    """Later writes of the same, and statuses that are not Ready, complete nothing."""
    part, key = Part(), "PackageVariant|default/v"

    def attempted(generation: int, status: str, cause: float) -> float:
        ready = Condition(type="Ready", status=status, reason="R", observed_generation=generation)
        row = ResultRow(uid="uid-v", generation=generation, conditions=(ready,), cause=cause)
        part.tell(row, RESULTS, "default/v")
        part.run(key)
        return part.cause

    part.see(obj(VARIANT, "v", uid="uid-v"), VARIANTS)
    assert attempted(1, "False", 5.0) == 0.0
    assert attempted(1, "True", 7.0) == 7.0
    assert attempted(1, "True", 8.0) == 0.0
    assert attempted(2, "True", 9.0) == 9.0
    part = observed()
    part.tell(rolled(counts=ALL))
    part.run()
    assert part.cause == 0.0


def test_a_new_generation_that_says_the_same_is_one_event_of_each_condition() -> None:
    """Else no program could learn from the events that a change has arrived."""
    part, key = Part(), "PackageVariant|default/v"

    def conditions_of(generation: int) -> tuple[Condition, ...]:
        return (
            Condition(type="Ready", status="True", reason="NoErrors", observed_generation=generation),
            Condition(type="Stalled", status="False", reason="Valid", observed_generation=generation),
        )

    def published(generation: int) -> list[tuple[str, str, int]]:
        part.events = []
        part.now += 1.0
        row = ResultRow(uid="uid-v", generation=generation, conditions=conditions_of(generation))
        part.tell(row, RESULTS, "default/v")
        part.run(key)
        return [(e.condition.type, e.previous, e.condition.observed_generation) for e in part.events]

    part.see(obj(VARIANT, "v", uid="uid-v"), VARIANTS)
    assert published(1) == [("Ready", "", 1), ("Stalled", "", 1)]
    first = part.events
    assert published(2) == [("Ready", "True", 2), ("Stalled", "False", 2)]
    assert {event.id for event in first}.isdisjoint(event.id for event in part.events)
    assert {e.condition.last_transition_time for e in (*first, *part.events)} == {"1970-01-01T00:00:01Z"}
    assert published(2) == []
    assert published(1) == []


def test_an_event_leads_back_to_the_object_and_the_upstream_that_it_came_from() -> None:
    """The generation and version that were observed, and the PackageRevision that the variant follows."""
    part, key = Part(), "PackageVariant|default/v"
    ready = Condition(type="Ready", status="True", reason="R", observed_generation=3)
    part.see(obj(VARIANT, "v", metadata={"generation": 3, "resourceVersion": "81"}), VARIANTS)
    part.tell(
        ResultRow(uid="uid-v", generation=3, conditions=(ready,), upstream="up.base.v3"), RESULTS, "default/v"
    )
    part.run(key)
    (event,) = part.events
    assert event.cause == EventCause(generation=3, resource_version="81", upstream="up.base.v3")
    assert not event.last


@pytest.mark.parametrize(
    ("released", "reason"),
    [("h1", "Confirmed"), ("h0", "Withdrawn"), ("", "Withdrawn")],
    ids=["confirmed", "the targets came back", "none was ever confirmed"],
)
def test_the_end_of_held_removals_says_whether_a_person_confirmed_them(released: str, reason: str) -> None:
    """The hold before it was confirmed, too, but that was another one."""
    part = observed()
    part.tell(rolled(counts=ALL, hold=HOLD, released="h0"))
    part.run()
    (held,) = [event for event in part.events if event.condition.type == "DeletionHeld"]
    assert (held.condition.status, held.cause.hold, held.last) == ("True", "h1", False)
    part.now += 60.0
    part.events = []
    part.tell(rolled(counts=ALL, released=released))
    part.run()
    (end,) = [event for event in part.events if event.condition.type == "DeletionHeld"]
    assert (end.condition.status, end.condition.reason, end.previous) == ("Unknown", reason, "True")
    assert end.last
    assert {event.condition.type for event in part.events if event.last} == {"DeletionHeld", ATTENTION}


def test_the_last_events_of_an_object_that_is_gone_have_no_cause() -> None:
    part = observed()
    part.run()
    part.events = []
    part.controller.load(SETS, 0, "default/alpha", None)
    part.run()
    assert [(e.condition.reason, e.last, e.cause) for e in part.events] == [
        ("Withdrawn", True, EventCause())
    ] * 3


def test_counts_that_move_are_written_but_no_transition() -> None:
    part = observed()
    part.run()
    part.reported()
    part.tell(rolled(counts=Counts(desired=3, applied=2)))
    assert part.run() is not None
    assert part.reported() == []


def test_a_result_of_another_object_is_not_acted_upon() -> None:
    part = Part()
    part.see(site_set(uid="uid-second"))
    part.tell(rolled(counts=ALL))
    assert part.run() is None


def test_a_result_of_a_former_variant_is_not_acted_upon() -> None:
    """A variant that was deleted and made again is not Ready because the former one was."""
    part = Part()
    part.see(obj(VARIANT, "v", spec={}, metadata={"uid": "uid-second"}), VARIANTS)
    ready = Condition(type="Ready", status="True", reason="NoErrors", observed_generation=1)
    part.tell(ResultRow(uid="uid-v", generation=1, conditions=(ready,)), RESULTS, "default/v")
    assert part.run("PackageVariant|default/v") is None
    assert part.reported() == []


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
    part.tell(rolled(hold=HOLD))
    part.run()
    part.reported()
    part.tell(rolled(counts=ALL))
    part.run()
    last = [e for e in part.events if e.condition.type == "DeletionHeld"]
    assert [(e.condition.status, e.condition.reason, e.previous) for e in last] == [
        ("Unknown", WITHDRAWN, "True")
    ]


def test_when_the_object_goes_its_conditions_are_withdrawn_once() -> None:
    part = observed()
    part.run()
    part.reported()
    part.controller.load(SETS, 0, "default/alpha", None)
    part.tell(None)
    part.run()
    assert [kind for kind, status, _ in part.reported() if status == "Unknown"] == [
        "Ready",
        "Stalled",
        "TargetsApplied",
    ]
    part.run()
    assert part.reported() == []


def test_what_is_being_listed_is_not_gone() -> None:
    part = observed()
    part.run()
    part.reported()
    part.controller.load(SETS, 0, sync_key(*SET), marker("syncing", 2))
    part.controller.load(SETS, 0, "default/alpha", None)
    part.run()
    assert part.reported() == []


def test_the_same_change_has_the_same_id_and_another_has_another() -> None:
    first, second = observed(), observed()
    first.run()
    second.run()
    assert [e.id for e in first.events] == [e.id for e in second.events]
    ids = {e.id for e in first.events}
    for counts in (ALL, SOME, ALL):
        first.now += 1
        first.reported()
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
    assert part.reported() == [("Ready", "True", "")]


def test_latest_restores_what_consumers_know() -> None:
    part = observed()
    part.run()
    again = Part()
    for event in part.events:
        key = f"PackageVariantSet|default/alpha|{event.condition.type}"
        again.controller.load(LATEST, 0, key, encode_row(event))
    state = part.controller.state(0, "PackageVariantSet|default/alpha")
    assert state is not None
    again.see(msgspec.json.decode(state.raw or b""))
    again.tell(rolled(counts=SOME))
    assert again.run() is None
    assert again.reported() == []


def test_counts_are_published_again_after_a_while() -> None:
    """The last published message does not stay wrong: one with current counts follows within 10 s."""
    part = observed()
    part.run()
    part.reported()
    part.now = 3.0
    part.tell(rolled(counts=Counts(desired=3, applied=2)))
    part.run()
    assert part.reported() == []
    assert part.again_after == 7.0
    part.now = 10.0
    part.run()
    assert [(e.condition.type, e.previous) for e in part.events] == [
        ("Ready", "False"),
        ("TargetsApplied", "False"),
    ]
    assert all("applied 2" in e.condition.message for e in part.events)
    part.reported()
    part.run()
    assert part.reported() == []


def test_with_a_transition_the_counts_are_published_as_well() -> None:
    """Ready=True beside "ready 1" of a moment ago would contradict itself until the counts change again."""
    part = observed()
    part.tell(rolled(counts=Counts(desired=3, applied=3, ready=1)))
    part.run()
    part.reported()
    part.now = 1.0
    part.tell(rolled(counts=ALL))
    part.run()
    messages = {e.condition.type: e.condition.message for e in part.events}
    assert set(messages) == {"Ready", "TargetsApplied"}
    assert "ready 3" in messages["TargetsApplied"]


def test_events_have_their_own_time_that_never_goes_back() -> None:
    """Not the time of the last transition, and not that of a worker whose clock is behind."""
    part = observed()
    part.now = 1_770_000_000.25
    part.run()
    assert {e.time for e in part.events} == {"2026-02-02T02:40:00.250Z"}
    part.reported()
    part.now -= 3_600
    part.tell(rolled(reason="ValidationError", message="why", counts=SOME))
    part.run()
    assert [(e.condition.type, e.time) for e in part.events] == [
        ("Stalled", "2026-02-02T02:40:00.251Z"),
        ("Ready", "2026-02-02T02:40:00.251Z"),
    ]
    part.reported()
    part.now += 7_200
    part.tell(rolled(reason="ValidationError", message="why not", counts=SOME))
    part.run()
    assert {e.time for e in part.events} == {"2026-02-02T03:40:00.250Z"}
    assert {e.condition.last_transition_time for e in part.events if e.condition.type == "Ready"} == {
        "2026-02-02T02:40:00Z"
    }


def test_a_condition_that_comes_back_while_the_clock_is_behind_is_another_event() -> None:
    part = observed()
    part.now = 1_770_000_000.0
    part.run()
    part.now -= 3_600
    for removing in (1, 0, 1):
        part.tell(rolled(counts=Counts(desired=3, applied=1, removing=removing)))
        part.run()
    ids = [event.id for event in part.events if event.condition.type == "Removing"]
    assert len(ids) == 3
    assert len(set(ids)) == 3


def test_what_is_known_of_a_former_object_is_withdrawn_before_the_new_one_has_a_result() -> None:
    """A set that was deleted and made again is not Ready because the former one was."""
    part = observed()
    part.tell(rolled(counts=ALL))
    part.run()
    part.reported()
    part.see(site_set(uid="uid-second"))
    part.run()
    assert {(kind, status) for kind, status, _ in part.reported()} == {
        ("Ready", "Unknown"),
        ("Stalled", "Unknown"),
        ("TargetsApplied", "Unknown"),
    }


def test_the_same_condition_of_another_object_is_an_event() -> None:
    """A set that is made again, and gets its result at once, is Ready by itself: `previous` is empty."""
    part = observed()
    part.run()
    part.reported()
    part.see(site_set(uid="uid-second"))
    part.tell(SetResult(uid="uid-second", generation=7, counts=SOME))
    part.run()
    assert {(e.uid, e.previous) for e in part.events} == {("uid-second", "")}
    assert len(part.reported()) == 3


def test_a_message_with_another_reason_to_wait_is_published_at_once() -> None:
    """Only what counts has to wait."""
    part = Part()
    part.see(obj(VARIANT, "v", spec={}), VARIANTS)
    for message in ("waits for the content of a", "waits for the content of b"):
        ready = Condition(
            type="Ready", status="False", reason="Waiting", message=message, observed_generation=1
        )
        part.tell(ResultRow(uid="uid-v", generation=1, conditions=(ready,)), RESULTS, "default/v")
        part.run("PackageVariant|default/v")
        assert [e.condition.message for e in part.events] == [message]
        part.reported()


@pytest.mark.parametrize(
    ("message", "end"),
    [
        ("; ".join(f"spec.targets[{n}]: must specify one of three" for n in range(2_000)), " more)"),
        ("x" * 50_000, "... (and 18000 more characters)"),
    ],
    ids=["a list of problems", "one long text"],
)
def test_a_message_is_cut_to_what_an_api_server_takes(message: str, end: str) -> None:
    """Otherwise the whole status is refused, and never written."""
    part = Part()
    part.see(site_set())
    part.tell(rolled(reason="ValidationError", message=message))
    written = [c["message"] for c in part.run()["conditions"] if c["type"] in ("Stalled", "Ready")]
    assert len(written) == 2
    for text in written:
        assert 31_000 < len(text) < 32_768
        assert text.endswith(end)
    shown = written[0].count("spec.targets")
    if shown:
        assert written[0].endswith(f"must specify one of three (and {2_000 - shown} more)")
    part.see(obj(VARIANT, "v", spec={}), VARIANTS)
    ready = Condition(type="Ready", status="False", reason="Error", message=message, observed_generation=1)
    part.tell(ResultRow(uid="uid-v", generation=1, conditions=(ready,)), RESULTS, "default/v")
    assert part.run("PackageVariant|default/v")["conditions"][0]["message"].endswith(end)
