"""Tasks behind conditions: what annotations say, when a task is open, and what the history records."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pvbus.core.kernel import tasks
from pvbus.core.kernel.keys import TASK_HISTORY, TASKS
from pvbus.core.kernel.tasks import HISTORY_MAX, Change, State, Task
from pvbus.core.variants.revisions.content import content_digest

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
QUESTION = '{"Certified": {"question": "Is it licensed?", "owner": "ann"}}'
ASKED = {TASKS: QUESTION}


def condition(status: str, message: str = "", type_: str = "Certified") -> dict[str, str]:
    return {"type": type_, "status": status, "message": message}


@pytest.mark.parametrize(
    ("text", "types", "problem"),
    [
        (QUESTION, ["Certified"], ""),
        ("", [], ""),
        ("{", [], "is not like"),
        ("[]", [], "is not like"),
        ("[" * 100_000, [], "is not like"),
        ('{"A": {"question": "a?"}, "B": {"owner": "ann"}}', ["A"], "the task B"),
        ('{"A": {"question": "a?"}, "B": "b?"}', ["A"], "the task B"),
        ('{"A": {"question": " "}}', [], "needs a question"),
        ('{"A": {"question": "a?", "due": "soon"}}', [], "soon"),
        ('{"A": {"question": "a?", "due": "2026-06-01T12:00:00"}}', [], "no time zone"),
        ('{"A": {"question": "a?", "later": 1}}', ["A"], ""),
    ],
)
def test_a_malformed_task_is_named_and_hides_no_other(text: str, types: list[str], problem: str) -> None:
    found = tasks.read({TASKS: text})
    assert list(found.tasks) == types
    assert len(found.problems) == bool(problem)
    assert problem in "".join(found.problems)


@pytest.mark.parametrize(
    ("conditions", "is_open"),
    [
        ([], True),
        ([condition("Unknown")], True),
        ([condition("True", type_="Other")], True),
        ([condition("True")], False),
        ([condition("False")], False),
        ([condition("True"), condition("True")], True),
    ],
)
def test_a_task_is_open_until_its_one_condition_is_true_or_false(conditions: Any, is_open: bool) -> None:
    assert tasks.is_open(conditions, "Certified") is is_open


@pytest.mark.parametrize(
    ("due", "overdue"),
    [
        ("", False),
        ("2026-06-01T11:59:59Z", True),
        ("2026-06-01T12:00:01Z", False),
        ("2026-06-01T13:30:00+02:00", True),
        ("2026-06-01", False),
        ("2026-05-31", True),
    ],
)
def test_a_date_ends_with_its_day_and_a_time_has_its_zone(due: str, overdue: bool) -> None:
    assert tasks.is_overdue(Task(question="?", due=due), NOW) is overdue


@pytest.mark.parametrize(
    ("before", "after", "recorded"),
    [
        ((ASKED, [condition("Unknown")]), (ASKED, [condition("True", "yes")]), ("Unknown", "True", "yes")),
        (({}, []), (ASKED, [condition("Unknown", "?")]), ("", "Unknown", "?")),
        ((ASKED, [condition("True", "a")]), (ASKED, [condition("True", "b")]), ("True", "True", "b")),
        ((ASKED, [condition("Unknown")]), ({}, [condition("True")]), ("Unknown", "True", "")),
        ((ASKED, [condition("True")]), (ASKED, []), ("True", "", "")),
        ((ASKED, [condition("True")]), (ASKED, [condition("True")]), None),
        (({}, [condition("Unknown")]), ({}, [condition("True")]), None),
    ],
)
def test_each_change_of_a_tasks_condition_is_recorded(before: Any, after: Any, recorded: Any) -> None:
    """Also one that removes the task in the same write; other conditions are none of the history's."""
    found = tasks.changes(State(*before), State(*after), "ann", "2026-06-01T12:00:00Z")
    assert [(each.before, each.after, each.message) for each in found] == ([recorded] if recorded else [])
    assert all((each.by, each.type) == ("ann", "Certified") for each in found)


def test_the_history_grows_to_its_limit_and_loses_the_oldest() -> None:
    annotations: dict[str, str] = {}
    for number in range(HISTORY_MAX + 3):
        change = Change(type="A", at="t", by=str(number), after="True")
        annotations[TASK_HISTORY] = tasks.history(annotations, [change])
    found = tasks.read(annotations).history
    assert [each.by for each in found] == [str(number) for number in range(3, HISTORY_MAX + 3)]
    assert tasks.history(annotations, []) == annotations[TASK_HISTORY]
    broken = tasks.read({TASK_HISTORY: "[1]"})
    assert (broken.history, "git has the history" in broken.problems[0]) == ((), True)


def test_a_task_is_added_beside_others_and_replaces_what_is_no_json() -> None:
    added = tasks.with_task({"other": "1", **ASKED}, "B", Task(question="b?"))
    assert set(tasks.read(added).tasks) == {"Certified", "B"}
    assert added["other"] == "1"
    assert list(tasks.read(tasks.with_task({TASKS: "{"}, "B", Task(question="b?"))).tasks) == ["B"]


def test_the_condition_of_an_open_task_has_the_question_for_whoever_meets_the_gate() -> None:
    asked = tasks.asked("A", Task(question="Licensed?", owner="ann", ticket="N-1", due="2026-06-01"))
    assert asked["status"] == "Unknown"
    assert asked["message"] == "ann is asked: Licensed? (N-1, due 2026-06-01)"
    assert tasks.asked("A", Task(question="Licensed?"))["message"] == "Licensed?"


def test_an_answer_leaves_the_identity_of_the_content() -> None:
    """What a person has rejected is not proposed again because a question about it was answered."""
    head = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: a\n  annotations:\n    x: '1'\n"
    record = msgspec.json.encode([Change(type="A", at="t", by="ann")]).decode()
    answered = f"{head}    {TASK_HISTORY}: '{record}'\n"
    assert content_digest({"Kptfile": head}) == content_digest({"Kptfile": answered})
    assert content_digest({"Kptfile": head}) != content_digest({"Kptfile": f"{head}    y: '1'\n"})
