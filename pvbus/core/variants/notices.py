"""What `kubectl describe` tells people of an object: notices, made from the events of its conditions.

A notice is worth a person's look: what was made, became ready, was upgraded or published, is held or fails.
Work that goes on, counts and repetitions have none. The lifecycle of a package revision is a notice of its
variant; only of a draft that stayed without its variant the revision itself is told.
"""

from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP
from pvbus.core.kernel.effects import KindRef, Notice
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.variants.attention import CONFLICT
from pvbus.core.variants.severity import ON_HOLD, PROGRESS, TROUBLES

COUNTS_TYPE = "TargetsApplied"

REPOSITORY, REVISION = "Repository", "PackageRevision"

LIFECYCLE_TYPE = "Published"
"""The condition that represents a revision's lifecycle. True while it is `Published` or
`DeletionProposed`. The reason is the lifecycle."""

KEPT_TYPE = "Kept"
"""The condition of a draft that stayed, as people had edited it, when its variant went. The event names that
variant as its owner."""

VARIANT, SET = "PackageVariant", "PackageVariantSet"
KINDS = {
    VARIANT: KindRef(CONFIG_GROUP, VARIANT, "v1alpha1"),
    SET: KindRef(CONFIG_GROUP, SET, "v1alpha2"),
    REPOSITORY: KindRef(CONFIG_GROUP, REPOSITORY, "v1alpha1"),
    REVISION: KindRef(PORCH_GROUP, REVISION, "v1alpha1"),
}
"""The kinds that have notices."""

REPORTED = TROUBLES - {ON_HOLD}
"""Conditions that are reported while they are True: Ready says that an object is on hold."""

NEEDS = frozenset({"Ready", "ConfigInjected"})
"""Conditions that are reported while they are False, but for the reasons below."""

UNTOLD_REASONS = PROGRESS | {"DeletionHeld", CONFLICT}
"""Reasons that say that work goes on, or that stand in a condition of their own, which says what to do."""

LIFECYCLES = {
    "Draft": "DraftReturned",
    "Proposed": "Proposed",
    "Published": "Published",
    "DeletionProposed": "DeletionProposed",
}
"""The reason of the notice of a lifecycle; a new draft is `DraftCreated`."""

NOTE_BYTES_MAX = 1000
"""Kubernetes takes 1024; what is longer stands in the condition."""


def notice_of(
    event: ConditionEvent, last: ConditionEvent | None, *, owner_uid: str = "", is_stalled: bool = False
) -> Notice | None:
    """Return the notice of an event, None if it is not worth one.

    last: the event before it of the same condition, None for the first one
    owner_uid: the uid of the variant that owns a revision
    is_stalled: whether the object's condition Stalled is True, and so says why it is not ready
    """
    if event.kind not in KINDS:
        return None
    if last is not None and last.uid != event.uid:
        last = None
    if event.kind == REVISION and event.condition.type != KEPT_TYPE:
        return _lifecycle(event, last, owner_uid)
    content = _content_of(event, last, is_stalled=is_stalled)
    if content is None:
        return None
    reason, is_warning, note = content
    return _notice(event, event.kind, event.name, event.uid, reason, note, is_warning=is_warning)


_Content = tuple[str, bool, str]
"""Reason, whether it is a warning, and note."""


def _content_of(event: ConditionEvent, last: ConditionEvent | None, *, is_stalled: bool) -> _Content | None:
    condition = event.condition
    if event.last:
        return _held_ended(event)
    if condition.type in NEEDS | {COUNTS_TYPE, KEPT_TYPE} and condition.status == "True":
        return _fulfilled(event, last)
    is_trouble = (condition.type in REPORTED and condition.status == "True") or (
        condition.type in NEEDS and condition.status == "False"
    )
    if not is_trouble or condition.reason in UNTOLD_REASONS or (condition.type == "Ready" and is_stalled):
        return None
    if last is not None and _words(last) == _words(event):
        return None  # the same of another generation
    reason = condition.reason if condition.type in NEEDS | {"Stalled"} else condition.type
    return reason or condition.type, condition.reason != "OnHold", condition.message


def _fulfilled(event: ConditionEvent, last: ConditionEvent | None) -> _Content | None:
    """Return the content for a condition that is True: of its becoming so, and of a change that arrived."""
    condition = event.condition
    if condition.type == "ConfigInjected":
        return None
    if last is None or last.condition.status != "True":
        return condition.type, False, condition.message
    if (
        condition.type == "Ready"
        and event.cause.upstream
        and last.cause.upstream
        not in (
            "",
            event.cause.upstream,
        )
    ):
        return "Upgraded", False, f"made from {event.cause.upstream}, before from {last.cause.upstream}"
    if condition.observed_generation > last.condition.observed_generation and event.kind != REPOSITORY:
        reason = condition.type if condition.type == COUNTS_TYPE else "Updated"
        return reason, False, f"generation {condition.observed_generation}: {condition.message}"
    return None


def _held_ended(event: ConditionEvent) -> _Content | None:
    if event.condition.type != "DeletionHeld":
        return None
    if event.condition.reason == "Confirmed":
        return "DeletionConfirmed", False, "a person confirmed the held deletions"
    return "DeletionWithdrawn", False, "the held deletions are not wanted any more"


def _words(event: ConditionEvent) -> tuple[str, str, str]:
    return event.condition.status, event.condition.reason, event.condition.message


def _lifecycle(event: ConditionEvent, last: ConditionEvent | None, owner_uid: str) -> Notice | None:
    lifecycle = event.condition.reason
    if event.condition.type != LIFECYCLE_TYPE or not owner_uid or lifecycle not in LIFECYCLES:
        return None
    if last is not None and last.condition.reason == lifecycle:
        return None
    reason = "DraftCreated" if last is None and lifecycle == "Draft" else LIFECYCLES[lifecycle]
    note = f"PackageRevision {event.name}: {event.condition.message}"
    return _notice(event, VARIANT, event.variant, owner_uid, reason, note)


def _notice(
    event: ConditionEvent,
    kind: str,
    name: str,
    uid: str,
    reason: str,
    note: str,
    *,
    is_warning: bool = False,
) -> Notice:
    return Notice(
        id=event.id,
        kind=KINDS[kind],
        namespace=event.namespace,
        name=name,
        uid=uid,
        reason=reason,
        note=note.encode()[:NOTE_BYTES_MAX].decode(errors="ignore"),
        is_warning=is_warning,
        time=event.time,
    )
