"""Makes the public events of an object's conditions, and decides which changes get one.

The last event of each condition is a row of `pvbus.conditions.latest`, written in the same step as the
event. The next event is derived from it alone: the previous status, the id, and the time, which never goes
back.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec.structs import replace

from pvbus.core.api.variants import Condition
from pvbus.core.conditions.cloudevents import condition_headers
from pvbus.core.effects import Put
from pvbus.core.keys import ConditionKey, Key, SubjectKey, sha1_head
from pvbus.core.records import CONDITIONS, LATEST, ConditionEvent

WITHDRAWN = "Withdrawn"  # the reason of a condition's last event: its object no longer has it
DELETED = "Deleted"  # the same, for the lifecycle of a package revision that is gone
LAST_REASONS = frozenset({WITHDRAWN, DELETED})

COUNTING_TYPES = frozenset({"TargetsApplied", "Removing"})
COUNTING_REASONS = frozenset({"Reconciling", "VariantsNotReady", "DeletionHeld"})
COUNTING_SECONDS = 10.0
"""Messages with counts change with every target; this is the shortest time between two events. With a
longer time, consumers would show wrong counts for too long."""

Latest = Mapping[str, ConditionEvent]
"""The last event of each condition of one object, by type."""


class News(NamedTuple):
    """puts: the events to publish now. again_after: seconds until the next event, None if there is none."""

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
    ) -> News:
        """Return the events of the conditions that changed.

        key: `<Kind>|<namespace>/<name>`.
        """
        waits = {
            condition.type: wait
            for condition in conditions
            if (wait := _seconds_until_news(latest.get(condition.type), uid, condition, now)) is not None
        }
        if not waits or min(waits.values()) > 0:
            return News((), min(waits.values(), default=None))
        puts: list[Put] = []  # counts go with a transition: the old ones would contradict it
        for condition in conditions:
            if condition.type in waits:
                puts += self._event(key, uid, condition, latest, now, variant)
        return News(tuple(puts))

    def _event(
        self, key: str, uid: str, condition: Condition, latest: Latest, now: float, variant: str
    ) -> list[Put]:
        kind, name = SubjectKey.parse(key)
        last = latest.get(condition.type)
        time = self._time(latest, now)
        event = ConditionEvent(
            kind=kind,
            namespace=Key.parse(name).namespace,
            name=Key.parse(name).name,
            uid=uid,
            condition=condition,
            previous=last.condition.status if last is not None and last.uid == uid else "",
            id=_event_id(uid, condition, time),
            time=time,
            variant=variant,
        )
        return self._sent(key, event, event)

    def ended(
        self, key: str, gone: Iterable[ConditionEvent], latest: Latest, now: float, reason: str = WITHDRAWN
    ) -> tuple[Put, ...]:
        """Publish the end of conditions: status Unknown, as Kubernetes reads an absent one."""
        puts: list[Put] = []
        time = self._time(latest, now)
        for last in sorted(gone, key=lambda event: event.condition.type):
            condition = Condition(
                type=last.condition.type,
                status="Unknown",
                reason=reason,
                last_transition_time=stamp(now),
                observed_generation=last.condition.observed_generation,
            )
            event = replace(
                last,
                condition=condition,
                previous=last.condition.status,
                id=_event_id(last.uid, condition, time),
                time=time,
            )
            puts += self._sent(key, event, None)
        return tuple(puts)

    @staticmethod
    def _time(latest: Latest, now: float) -> str:
        """Return the time of an event, later than all before it: another worker's clock may be ahead of
        ours, and an equal time could give a returning condition its former id."""
        last = max((event.time for event in latest.values()), default="")
        time = _precise(now)
        return time if time > last else _precise(_seconds(last) + 0.001)

    def _sent(self, key: str, event: ConditionEvent, remembered: ConditionEvent | None) -> list[Put]:
        headers = condition_headers(event, event_id=event.id, source=self._source)
        row = str(ConditionKey(key, event.condition.type))
        return [
            Put(CONDITIONS, key, event, headers),
            Put(LATEST, row, remembered, headers if remembered else ()),
        ]


def _seconds_until_news(last: ConditionEvent | None, uid: str, new: Condition, now: float) -> float | None:
    """Return the seconds until a change is published, 0 for now; None: nothing has changed.

    A change of status or reason is a transition. A message with counts is published less often.
    """
    if last is None or last.uid != uid:
        return 0
    old = last.condition
    if (old.status, old.reason) != (new.status, new.reason):
        return 0
    if old.message == new.message:
        return None
    if new.type not in COUNTING_TYPES and new.reason not in COUNTING_REASONS:
        return 0
    return min(max(_seconds(last.time) + COUNTING_SECONDS - now, 0), COUNTING_SECONDS)


def _event_id(uid: str, condition: Condition, time: str) -> str:
    """Make an id from the change and its time, which is unique per object."""
    seed = [uid, condition.type, condition.status, condition.reason]
    seed += [condition.last_transition_time or "", time]
    return sha1_head("\n".join([*seed, condition.message])) + sha1_head("/".join(seed))


def stamp(now: float) -> str:
    """Return a condition's timestamp: RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _precise(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(time: str) -> float:
    """Return the seconds of a `_precise` timestamp; 0 for an event of a release that wrote none."""
    return datetime.fromisoformat(time).timestamp() if time else 0.0
