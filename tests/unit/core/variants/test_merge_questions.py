"""The tasks of a Kptfile in an upgrade: each question is merged by itself."""

import json
from typing import Any

import pytest

from pvbus.core.kernel.keys import TASKS
from pvbus.core.variants.merge import kptfile
from pvbus.core.yaml import editor

A, A2, B, C = ({"question": text} for text in ("a?", "another?", "b?", "c?"))
OWNED = {**A, "owner": "ann"}


def text(tasks: Any) -> str:
    """Return a Kptfile. tasks: of its annotation, a text as it is, None without one."""
    head = "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n"
    if tasks is None:
        return head
    value = tasks if isinstance(tasks, str) else json.dumps(tasks)
    return f"{head}  annotations:\n    other: x\n    {TASKS}: {json.dumps(value)}\n"


def merged(old: Any, local: Any, new: Any) -> tuple[Any, list[str]]:
    """Return the tasks, and the fields in conflict."""
    found = kptfile.merge("Kptfile", text(old), text(local), text(new), with_upstream=False)
    assert found.text is not None
    (document,) = editor.parse(found.text)
    value = editor.get(document.value, ("metadata", "annotations", TASKS))
    return value, [conflict.field for conflict in found.conflicts]


@pytest.mark.parametrize(
    ("old", "local", "new", "wanted"),
    [
        (None, {"B": B}, {"A": A}, {"A": A, "B": B}),
        ({"A": A}, {"A": A, "B": B}, {"A": A2}, {"A": A2, "B": B}),
        ({"A": A}, {"A": A, "B": B}, {"C": C}, {"B": B, "C": C}),
        ({"A": A}, {"A": A, "B": B}, None, {"B": B}),
        ({"A": A}, {"A": OWNED}, {"A": A, "C": C}, {"A": OWNED, "C": C}),
        ({"A": A}, {"B": B}, {"A": A, "C": C}, {"B": B, "C": C}),
        (None, {"A": A}, {"A": A, "C": C}, {"A": A, "C": C}),
    ],
)
def test_a_question_of_a_draft_and_one_of_its_blueprint_are_both_asked(
    old: Any, local: Any, new: Any, wanted: Any
) -> None:
    value, conflicts = merged(old, local, new)
    assert (json.loads(value), conflicts) == (wanted, [])


def test_what_both_changed_of_one_question_is_a_conflict_and_hides_no_other() -> None:
    value, conflicts = merged({"A": A}, {"A": {"question": "mine?"}, "B": B}, {"A": A2})
    assert json.loads(value) == {"A": A2, "B": B}
    assert conflicts == [f'metadata.annotations["{TASKS}"]']


@pytest.mark.parametrize("broken", ["{", "[]", "[" * 100_000])
def test_what_is_no_list_of_tasks_is_merged_as_a_text(broken: str) -> None:
    value, conflicts = merged({"A": A}, broken, {"A": A2})
    assert (json.loads(value), len(conflicts)) == ({"A": A2}, 1)


def test_what_only_one_side_changed_keeps_its_text() -> None:
    """Spaces and the order of its author stay."""
    mine, theirs = (
        '{ "A": {"question": "a?", "owner": "ann"} }',
        '{"A":{"question": "a?"}, "Z": {"question":"z?"} }',
    )
    assert merged({"A": A}, mine, {"A": A})[0] == mine
    assert merged({"A": A}, {"A": A}, theirs)[0] == theirs
    assert merged(None, {"A": A}, theirs)[0] == theirs
