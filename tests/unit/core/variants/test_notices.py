"""Notices: which transitions of conditions people are told of, and how few Events they become."""

import pytest

from pvbus.core.api.variants import Condition
from pvbus.core.kernel.effects import Create, KindRef, Notice, Patch
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause
from pvbus.core.variants.conditions.recording import (
    OBJECT_BURST,
    OBJECT_SECONDS,
    REPEAT_SECONDS,
    TOTAL_BURST,
    TOTAL_PER_SECOND,
    WARNINGS_RESERVE,
    Recorder,
)
from pvbus.core.variants.notices import NOTE_BYTES_MAX, notice_of
from pvbus.core.variants.publishing import Publisher

NOW = 1_800_000_000.0


def event(
    type_: str = "Ready",
    status: str = "True",
    reason: str = "NoErrors",
    message: str = "made",
    *,
    kind: str = "PackageVariant",
    generation: int = 1,
    upstream: str = "",
    uid: str = "u",
    last: bool = False,
) -> ConditionEvent:
    condition = Condition(
        type=type_, status=status, reason=reason, message=message, observed_generation=generation
    )
    return ConditionEvent(
        kind=kind,
        namespace="default",
        name="web",
        uid=uid,
        condition=condition,
        id="0123456789abcdef",
        time="2030-01-01T00:00:00.000Z",
        variant="web-eu" if kind == "PackageRevision" else "",
        cause=EventCause(upstream=upstream),
        last=last,
    )


FAILS = event(status="False", reason="Error", message="no upstream")
SET, REVISION = "PackageVariantSet", "PackageRevision"
RETAINED = event("Kept", "True", "VariantDeleted", "edited by ann", kind=REVISION)
COUNTED = event("TargetsApplied", "True", "AllApplied", "desired 3", kind=SET)


@pytest.mark.parametrize(
    ("new", "last", "expected"),
    [
        (event(), None, ("Ready", False)),
        (event(), FAILS, ("Ready", False)),
        (event(), event(uid="former"), ("Ready", False)),
        (event(), event(), None),
        (event(generation=2), event(), ("Updated", False)),
        (event(generation=2, upstream="b"), event(upstream="a"), ("Upgraded", False)),
        (event(upstream="b"), event(upstream="a"), ("Upgraded", False)),
        (FAILS, event(), ("Error", True)),
        (FAILS, FAILS, None),
        (event(status="False", reason="Error", message="no rights"), FAILS, ("Error", True)),
        (event(status="False", reason="Error", message="no upstream", generation=2), FAILS, None),
        (event(status="False", reason="Waiting"), event(), None),
        (event(status="False", reason="VariantsNotReady", kind=SET), None, None),
        (event(status="False", reason="OnHold"), event(), ("OnHold", False)),
        (event("Stalled", "True", "ValidationError"), None, ("ValidationError", True)),
        (event("Stalled", "False", "Valid"), event("Stalled", "True", "ValidationError"), None),
        (event("UpgradeConflict", "True", "BothChanged"), None, ("UpgradeConflict", True)),
        (event("ConfigInjected", "False", "RequiredNotInjected"), None, ("RequiredNotInjected", True)),
        (event("ConfigInjected", "True", "Complete"), None, None),
        (event("DeletionHeld", "True", "TooManyDeletions", kind=SET), None, ("DeletionHeld", True)),
        (
            event("DeletionHeld", "Unknown", "Confirmed", kind=SET, last=True),
            event("DeletionHeld", "True", "TooManyDeletions", kind=SET),
            ("DeletionConfirmed", False),
        ),
        (event(status="Unknown", reason="Withdrawn", last=True), event(), None),
        (COUNTED, None, ("TargetsApplied", False)),
        (event("TargetsApplied", "False", "InProgress", kind=SET), COUNTED, None),
        (event("Ready", "False", "Broken", kind="Repository"), None, ("Broken", True)),
        (event("Ready", "True", kind="Repository", generation=2), event(kind="Repository"), None),
        (event("Progressing", "True", kind="RolloutPolicy"), None, None),
        (RETAINED, None, ("Kept", False)),
        (RETAINED, event("Kept", "True", uid="former", kind=REVISION), ("Kept", False)),
        (RETAINED, RETAINED, None),
        (event("Kept", "Unknown", "Withdrawn", kind=REVISION, last=True), RETAINED, None),
    ],
)
def test_which_transitions_people_are_told_of(
    new: ConditionEvent, last: ConditionEvent | None, expected: tuple[str, bool] | None
) -> None:
    """Becoming ready, an upgrade, a change that arrived, holds and failures; not work that goes on."""
    notice = notice_of(new, last)
    assert (None if notice is None else (notice.reason, notice.is_warning)) == expected


def test_a_stalled_object_is_told_of_once() -> None:
    """Stalled has the words; Ready says the same, or less."""
    assert notice_of(FAILS, None, is_stalled=True) is None
    conditions = (event("Stalled", "True", "ValidationError", "bad spec").condition, FAILS.condition)
    puts = Publisher("/x").changed("PackageVariant|default/web", "u", conditions, {}, NOW).puts
    assert [p.notice.note for p in puts if p.notice is not None] == ["bad spec"]


@pytest.mark.parametrize(
    ("former", "lifecycle", "reason"),
    [
        ("", "Draft", "DraftCreated"),
        ("Draft", "Proposed", "Proposed"),
        ("Proposed", "Draft", "DraftReturned"),
        ("Proposed", "Published", "Published"),
        ("Published", "DeletionProposed", "DeletionProposed"),
        ("Draft", "Draft", None),
    ],
)
def test_the_lifecycle_of_a_revision_is_told_of_its_variant(
    former: str, lifecycle: str, reason: str | None
) -> None:
    """With the uid of the variant, by which kubectl looks for it."""
    new, last = (event("Published", "False", each, kind="PackageRevision") for each in (lifecycle, former))
    notice = notice_of(new, last if former else None, owner_uid="owner")
    assert (notice.reason if notice else None) == reason
    if notice is not None:
        assert (notice.kind.kind, notice.name, notice.uid) == ("PackageVariant", "web-eu", "owner")
    assert notice_of(new, None) is None  # of a revision that no variant owns


def test_a_draft_that_stayed_is_told_of_itself() -> None:
    """Its variant is gone, and kubectl would find no Event of that."""
    notice = notice_of(RETAINED, None)
    assert notice is not None
    assert (notice.kind.group, notice.kind.kind) == ("porch.kpt.dev", REVISION)
    assert (notice.name, notice.uid, notice.note) == ("web", "u", "edited by ann")


def test_a_long_message_is_cut_to_what_kubernetes_takes() -> None:
    notice = notice_of(event(status="False", reason="Error", message="é" * 2000), None)
    assert notice is not None
    assert len(notice.note.encode()) <= NOTE_BYTES_MAX


def notice(number: int = 0, *, note: str = "", name: str = "web", is_warning: bool = False) -> Notice:
    kind = KindRef("config.porch.kpt.dev", "PackageVariant", "v1alpha1")
    time = "2030-01-01T00:00:00.123Z"
    return Notice(f"{number:016x}", kind, "default", name, f"uid-{name}", "Ready", note, is_warning, time)


def test_an_event_has_what_kubernetes_asks_for() -> None:
    write = Recorder("host").admit(notice(1, note="made", name="w" * 253), 0.0)
    assert isinstance(write, Create)
    body = write.object
    assert len(body["metadata"]["name"]) <= 253
    assert body["eventTime"] == "2030-01-01T00:00:00.123000Z"
    assert (body["type"], body["reason"], body["note"]) == ("Normal", "Ready", "made")
    assert body["regarding"]["apiVersion"] == "config.porch.kpt.dev/v1alpha1"


def test_a_repetition_counts_in_the_event_that_it_repeats() -> None:
    recorder = Recorder("host")
    first = recorder.admit(notice(1), 0.0)
    again = recorder.admit(notice(2), 1.0)
    assert isinstance(first, Create)
    assert isinstance(again, Patch)
    assert again.name == first.object["metadata"]["name"]
    assert again.patch["series"]["count"] == 2
    assert isinstance(recorder.admit(notice(3, note="other"), 2.0), Create)
    assert isinstance(recorder.admit(notice(4), 2.0 + REPEAT_SECONDS), Create)


def test_an_object_has_few_events_whatever_happens_to_it() -> None:
    """A burst, then one in five minutes."""
    recorder = Recorder("host")
    written = [recorder.admit(notice(n, note=str(n)), 0.0) for n in range(100)]
    assert sum(write is not None for write in written) == OBJECT_BURST
    assert recorder.admit(notice(200, note="later"), OBJECT_SECONDS) is not None


def test_a_fan_out_of_ten_thousand_is_bounded_and_hides_no_failure() -> None:
    """Over a minute: the burst without the part for warnings, and so many in each second."""
    recorder, seconds = Recorder("host"), 60
    written = [
        recorder.admit(notice(n, name=f"web-{n}"), n * seconds / 10_000) is not None for n in range(10_000)
    ]
    most = TOTAL_BURST - WARNINGS_RESERVE + TOTAL_PER_SECOND * seconds
    assert most - 2 <= sum(written) <= most
    assert recorder.admit(notice(1, name="failing", is_warning=True), seconds) is not None
