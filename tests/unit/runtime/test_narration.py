"""What the log says of writes, conditions and confirmations: once for each, and nothing of the rest."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from pvbus.core.api.variants import Condition
from pvbus.core.errors import PermanentError
from pvbus.core.kernel.effects import Create, Delete, Effect, Get, KindRef, Patch, Put, Update
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.records import CONDITIONS, SETRESULTS, SetResult
from pvbus.runtime.reconcile.narration import Narrator, write_line
from tests.unit.runtime.fakes import FakeWorld, simulated
from tests.unit.runtime.test_worker import KEYS

REVISION = KindRef("porch.kpt.dev", "PackageRevision", "v1alpha1")
PROPOSED = {"metadata": {"namespace": "default", "name": "a"}, "spec": {"lifecycle": "Proposed"}}
TO_DRAFT = {"spec": {"lifecycle": "Draft"}}
NAMED = {"metadata": {"namespace": "default", "name": "a"}}
STAYS = {"pvbus.dev/kept-for": "web/v@", "pvbus.dev/edited-by": "ann"}
STAYED = {"metadata": {"namespace": "default", "name": "a", "annotations": STAYS}}
ABOUT = {"kind": "PackageRevision", "namespace": "default", "name": "a"}


@pytest.mark.parametrize(
    ("effect", "result", "event", "more"),
    [
        (Create(REVISION, {"metadata": {"namespace": "default"}}), NAMED, "created", {}),
        (Update(REVISION, PROPOSED), NAMED, "updated", {"lifecycle": "Proposed"}),
        (Update(REVISION, NAMED, "approval"), NAMED, "updated", {"subresource": "approval"}),
        (Update(REVISION, STAYED), STAYED, "kept, as people edited it", {"of": "web/v", "editors": "ann"}),
        (Patch(REVISION, "default", "a", TO_DRAFT), NAMED, "updated", {"lifecycle": "Draft"}),
        (Delete(REVISION, "default", "a"), True, "deleted", {}),
    ],
)  # fmt: skip
def test_a_write_is_a_line(effect: Effect, result: Any, event: str, more: dict[str, str]) -> None:
    """Kind, namespace and name; the name that the server gave; the lifecycle that a revision gets."""
    line = write_line(effect, result)
    assert line is not None
    assert (line.event, line.fields, line.is_detail) == (event, {**ABOUT, **more}, False)


def test_what_wrote_nothing_is_no_line() -> None:
    """Reads, and a delete that found nothing; a status is a detail, as its events are logged."""
    assert write_line(Get(REVISION, "default", "a"), NAMED) is None
    assert write_line(Delete(REVISION, "default", "a"), False) is None
    line = write_line(Update(REVISION, NAMED, "status"), NAMED)
    assert line is not None
    assert line.is_detail


def event(kind: str, status: str, reason: str = "R", previous: str = "") -> Put:
    condition = Condition(type=kind, status=status, reason=reason, message="why")
    row = ConditionEvent(
        kind="PackageVariant", namespace="default", name="a", uid="u", condition=condition, previous=previous
    )
    return Put(CONDITIONS, "PackageVariant|default/a", row)


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (event("Stalled", "True"), "condition shows a failure"),
        (event("DeletionHeld", "True"), "condition shows a failure"),
        (event("FieldsDropped", "True"), "condition shows a failure"),
        (event("FieldsDropped", "False"), None),
        (event("Ready", "False", "RenderFailed"), "condition shows a failure"),
        (event("Ready", "False", "Terminating"), None),
        (event("Ready", "False", "Reconciling"), None),
        (event("Ready", "False", "Waiting"), None),
        (event("Ready", "False", "VariantsNotReady"), None),
        (event("Ready", "True", previous="False"), None),
        (event("DeletionHeld", "Unknown", previous="True"), "condition shows no failure any more"),
        (event("Ready", "True"), None),
        (event("Stalled", "False"), None),
    ],
)
def test_a_failing_condition_is_a_line(put: Put, words: str | None) -> None:
    """So is its end; what is only not done yet, and what was never wrong, is none."""
    lines = list(Narrator().lines((put,)))
    assert [line.event for line in lines] == ([words] if words else [])
    if words == "condition shows a failure":
        assert lines[0].fields["message"] == "why"


def test_a_lifecycle_is_a_line_and_no_failure() -> None:
    condition = Condition(type="Published", status="False", reason="Draft")
    row = ConditionEvent(
        kind="PackageRevision",
        namespace="default",
        name="a",
        uid="u",
        condition=condition,
        variant="default/v",
    )
    (line,) = Narrator().lines((Put(CONDITIONS, "PackageRevision|default/a", row),))
    assert (line.event, line.fields) == (
        "lifecycle changed",
        {**ABOUT, "variant": "default/v", "lifecycle": "Draft"},
    )


@pytest.mark.parametrize(
    "end",
    [event("Ready", "True", previous="False"), event("Ready", "False", "Waiting", previous="False")],
)
def test_the_end_of_a_failure_is_a_line_once(end: Put) -> None:
    """Where its beginning was one: what was only waited for did not fail."""
    narrator = Narrator()
    puts = (event("Ready", "False", "Waiting"), event("Ready", "False", "RenderFailed"), end, end)
    assert [line.event for line in narrator.lines(puts)] == [
        "condition shows a failure",
        "condition shows no failure any more",
    ]


def test_a_confirmation_is_a_line_once() -> None:
    """What a set's first row after a start has may be old."""
    narrator = Narrator()

    def lines(released: str) -> list[str]:
        row = SetResult(uid="u", generation=1, released=released)
        return [line.event for line in narrator.lines((Put(SETRESULTS, "default/web", row),))]

    found = [lines(released) for released in ("h1", "h1", "h2", "h2")]
    assert found == [[], [], ["removals confirmed"], []]


def test_a_worker_logs_what_it_wrote_and_not_what_was_refused() -> None:
    """A line comes after the answer, one for each write."""

    async def scenario(world: FakeWorld) -> None:
        async def refuse_first(name: str) -> None:
            if len(world.cluster.calls) == 1:
                raise PermanentError("422")

        world.cluster.answer = refuse_first
        world.worker()
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(30)
        assert [line for line in lines if line["event"] == "created"] == []
        await asyncio.sleep(60)
        assert [line["name"] for line in lines if line["event"] == "created"] == [KEYS[0]]

    with capture_logs() as lines:
        simulated(scenario)
