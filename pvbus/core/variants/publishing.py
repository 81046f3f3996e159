"""Makes the public events of an object's conditions, and decides which changes get one.

The last event of each condition is a row of `pvbus.conditions.latest`, written in the same step as the
event. The next event is derived from it alone: the previous status, the id, and the time, which never goes
back.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pvbus.core.api.rollouts import PROGRESSING
from pvbus.core.api.variants import Condition
from pvbus.core.kernel.effects import Notice, Put
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause, EventRollout, EventTask
from pvbus.core.kernel.keys import ConditionKey, Key, SubjectKey, sha1_head
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.records import CONDITIONS, LATEST
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.notices import COUNTS_TYPE, notice_of
from pvbus.core.variants.severity import DISPUTED

SET_OPTIONAL_TYPES = frozenset({"OnHold", "DeletionHeld", "Removing", COUNTS_TYPE, ATTENTION, DISPUTED})
"""Ours, and absent while they do not apply."""

CONDITION_CHANGED = "dev.pvbus.condition.changed.v1"

EVENT_TYPES: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    CONDITION_CHANGED: (
        ConditionEvent,
        "A condition of an object has a new status, reason, message or question, or says the same of a new "
        "generation; or the object no longer has it.",
    ),
}
"""The types of public events: the type of the data, and what such an event says."""

ATTRIBUTES: Mapping[str, str] = {
    "ce_specversion": "Version of CloudEvents: 1.0.",
    "ce_id": "Unique id of the change. An event that is sent again has the same id.",
    "ce_source": "The installation that sent the event: `/pvbus/CLUSTER/PREFIX`, or `PVBUS_SOURCE`.",
    "ce_type": f"Type of the event: `{CONDITION_CHANGED}`.",
    "ce_subject": "The object: `<Kind>/<namespace>/<name>/<condition type>`.",
    "ce_time": "When the event was made (RFC 3339); the condition has the time of its last transition.",
    "content-type": "Type of the value: application/json.",
}


def condition_headers(event: ConditionEvent, *, event_id: str, source: str) -> tuple[tuple[str, bytes], ...]:
    """Return the record headers of a condition event, in the order of ATTRIBUTES.

    event_id: unique per change; a repeated step sends the same id.
    """
    values = {
        "ce_specversion": "1.0",
        "ce_id": event_id,
        "ce_source": source,
        "ce_type": CONDITION_CHANGED,
        "ce_subject": f"{event.kind}/{event.namespace}/{event.name}/{event.condition.type}",
        "ce_time": event.time or event.condition.last_transition_time or "",
        "content-type": "application/json",
    }
    return tuple((name, values[name].encode()) for name in ATTRIBUTES if values[name])


WITHDRAWN = "Withdrawn"
DELETED = "Deleted"
CONFIRMED = "Confirmed"
LAST_REASONS: Mapping[str, str] = {
    WITHDRAWN: "the object, or its condition, is not there any more",
    DELETED: "the PackageRevision is gone",
    CONFIRMED: "of `DeletionHeld`: a person confirmed the held removals",
}
"""The reasons of a condition's last event, and their meanings."""

NO_CAUSE = EventCause()
NO_TASK = EventTask()
NO_TASKS: Mapping[str, EventTask] = {}
NO_ROLLOUT = EventRollout()

COUNTING_TYPES = frozenset({"TargetsApplied", "Removing"})
COUNTING_REASONS = frozenset({"Reconciling", "VariantsNotReady", "DeletionHeld"})
COUNTING_SECONDS = 10.0
"""Messages with counts change with every target; this is the shortest time between two events. With a
longer time, consumers would show wrong counts for too long."""

Latest = Mapping[str, ConditionEvent]
"""The last event of each condition of one object, by type."""


class News(NamedTuple):
    """What is to be published of an object.

    puts: the events to publish now
    again_after: seconds until the next event, None if there is none
    """

    puts: tuple[Put, ...]
    again_after: float | None = None


class Publisher:
    """The events of one installation. source: its `ce_source`."""

    def __init__(self, source: str) -> None:
        self._source = source

    def changed(
        self,
        key: str,
        uid: str,
        conditions: Sequence[Condition],
        latest: Latest,
        now: float,
        variant: str = "",
        cause: EventCause = NO_CAUSE,
        tasks: Mapping[str, EventTask] = NO_TASKS,
        owner_uid: str = "",
        rollout: EventRollout = NO_ROLLOUT,
    ) -> News:
        """Return the events of the conditions that changed.

        key: the object, as `<Kind>|<namespace>/<name>`
        latest: condition type -> the last published event
        tasks: condition type -> the question behind the condition
        variant, owner_uid: name and uid of the PackageVariant that owns a revision
        rollout: how far the rollout of a policy is
        now: the time, in seconds since the epoch
        """
        waits: dict[str, float] = {}
        for condition in conditions:
            last, task = latest.get(condition.type), tasks.get(condition.type, NO_TASK)
            wait = _seconds_until_news(last, uid, condition, task, now)
            if last is not None and condition.type == PROGRESSING and _has_moved(last.rollout, rollout):
                wait = 0
            if wait is not None:
                waits[condition.type] = wait
        if not waits or min(waits.values()) > 0:
            return News((), min(waits.values(), default=None))
        is_stalled = any((c.type, c.status) == ("Stalled", "True") for c in conditions)
        puts: list[Put] = []  # counts go with a transition: the old ones would contradict it
        time = self._time(latest, now)
        for condition in conditions:
            if condition.type in waits:
                last = latest.get(condition.type)
                event = self._event(key, uid, condition, last, time)
                task = tasks.get(condition.type, NO_TASK)
                event = replace(event, variant=variant, cause=cause, task=task, rollout=rollout)
                notice = notice_of(event, last, owner_uid=owner_uid, is_stalled=is_stalled)
                puts += self._sent(key, event, event, notice)
        return News(tuple(puts))

    @staticmethod
    def _event(
        key: str, uid: str, condition: Condition, last: ConditionEvent | None, time: str
    ) -> ConditionEvent:
        kind, name = SubjectKey.parse(key)
        return ConditionEvent(
            kind=kind,
            namespace=Key.parse(name).namespace,
            name=Key.parse(name).name,
            uid=uid,
            condition=condition,
            previous=last.condition.status if last is not None and last.uid == uid else "",
            id=_event_id(uid, condition, time),
            time=time,
        )

    def ended(
        self,
        key: str,
        gone: Iterable[ConditionEvent],
        latest: Latest,
        now: float,
        reason: str = WITHDRAWN,
        *,
        cause: EventCause = NO_CAUSE,
        released: str = "",
        message: str = "",
    ) -> tuple[Put, ...]:
        """Publish the end of conditions: status Unknown, as Kubernetes reads an absent one.

        gone: the last published events of the conditions that ended
        message: why the object went, "" if it is there
        released: the id of the set's last confirmed hold; the end of that hold has the reason Confirmed
        """
        puts: list[Put] = []
        time = self._time(latest, now)
        for last in sorted(gone, key=lambda event: event.condition.type):
            condition = Condition(
                type=last.condition.type,
                status="Unknown",
                reason=CONFIRMED if released and last.cause.hold == released else reason,
                message=message,
                last_transition_time=timestamp(now),
                observed_generation=last.condition.observed_generation,
            )
            event = replace(
                last,
                condition=condition,
                previous=last.condition.status,
                id=_event_id(last.uid, condition, time),
                time=time,
                last=True,
                cause=cause,
                task=NO_TASK,
                rollout=NO_ROLLOUT,
            )
            puts += self._sent(key, event, None, notice_of(event, last))
        return tuple(puts)

    @staticmethod
    def _time(latest: Latest, now: float) -> str:
        """Return the time of an event, later than all before it: another worker's clock may be ahead of
        ours, and an equal time could give a returning condition its former id."""
        last = max((event.time for event in latest.values()), default="")
        time = _precise(now)
        return time if time > last else _precise(_seconds(last) + 0.001)

    def _sent(
        self, key: str, event: ConditionEvent, remembered: ConditionEvent | None, notice: Notice | None
    ) -> list[Put]:
        headers = condition_headers(event, event_id=event.id, source=self._source)
        row = str(ConditionKey(key, event.condition.type))
        return [
            Put(CONDITIONS, key, event, headers, notice),
            Put(LATEST, row, remembered, headers if remembered else ()),
        ]


def _seconds_until_news(
    last: ConditionEvent | None, uid: str, new: Condition, task: EventTask, now: float
) -> float | None:
    """Return the seconds until a change is published, 0 for now; None: nothing has changed.

    A change of status or reason is a transition; one of a question is news, and so is a condition that
    speaks of a newer generation, even if it says the same: programs wait for that. A message with counts
    is published less often.
    """
    if last is None or last.uid != uid:
        return 0
    old = last.condition
    if new.observed_generation > old.observed_generation:
        return 0
    if (old.status, old.reason, last.task) != (new.status, new.reason, task):
        return 0
    if old.message == new.message:
        return None
    if not _has_counts(new):
        return 0
    return min(max(_seconds(last.time) + COUNTING_SECONDS - now, 0), COUNTING_SECONDS)


def _has_moved(before: EventRollout, after: EventRollout) -> bool:
    """Tell whether a rollout is in another phase, attempt or wave: the numbers of its targets alone are no
    news."""
    return (before.phase, before.attempt, before.wave) != (after.phase, after.attempt, after.wave)


def _has_counts(condition: Condition) -> bool:
    return condition.type in COUNTING_TYPES or condition.reason in COUNTING_REASONS


def _event_id(uid: str, condition: Condition, time: str) -> str:
    """Make an id from the change and its time, which is unique per object."""
    seed = [uid, condition.type, condition.status, condition.reason]
    seed += [condition.last_transition_time or "", time]
    return sha1_head("\n".join([*seed, condition.message])) + sha1_head("/".join(seed))


def _precise(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(time: str) -> float:
    """Return the seconds of a `_precise` timestamp; 0 for an event of a release that wrote none."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0


def _later(status: Condition, published: Condition) -> Condition:
    """Return the later one of a condition in the status and its last event.

    The event is published first, so it is never older; but new counts are in the status before their event.
    """
    if status.observed_generation != published.observed_generation:
        return max(status, published, key=lambda condition: condition.observed_generation)
    is_same = (status.status, status.reason) == (published.status, published.reason)
    return status if is_same and _has_counts(status) else published


def merge(
    present: tuple[Condition, ...],
    desired: tuple[Condition, ...],
    now: float,
    published: Mapping[str, Condition] | None = None,
) -> tuple[Condition, ...]:
    """Replace the desired conditions by type, keep foreign ones, and move lastTransitionTime only where
    the status changed.

    published: the last published conditions, by type. They are ahead of a status that was not written, or
    whose echo is not here yet; without them, the present status is the previous state.
    """
    wanted = {condition.type: condition for condition in desired}
    published = published or {}
    before = {condition.type: condition for condition in present} | dict(published)

    def timed(new: Condition) -> Condition:
        old = before.get(new.type)
        since = old.last_transition_time if old is not None and old.status == new.status else None
        return replace(new, last_transition_time=since or timestamp(now))

    result = []
    for old in present:
        new = wanted.pop(old.type, None)
        if new is not None:
            result.append(timed(new))
        elif old.type not in SET_OPTIONAL_TYPES:
            result.append(_later(old, published.get(old.type, old)))
    result += [timed(new) for new in wanted.values()]
    known = {condition.type for condition in result} | SET_OPTIONAL_TYPES
    result += [last for last in published.values() if last.type not in known]  # its status is not written yet
    return tuple(result)
