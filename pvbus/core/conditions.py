"""Conditions: from results to status subresources and public events.

A key is `<Kind>|<namespace>/<name>`. The status is written first, then the event and the memory of
it in one step; a crash between the two repeats the event with the same id. Conditions that are not
ours stay as they are.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from pvbus.core.cloudevents import condition_headers
from pvbus.core.effects import KindRef, Outcome, Put, Reconciliation, Update
from pvbus.core.ids import CONFIRM_DELETION, Key, sha1_head
from pvbus.core.model import CONFIG_GROUP, Condition, DownstreamTarget, PackageVariant, PackageVariantSet
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
)
from pvbus.core.tables import SyncView, is_marker

VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
SET = KindRef(CONFIG_GROUP, "PackageVariantSet", "v1alpha2")
ECHO_SECONDS = 10.0
COUNTS_TYPE = "TargetsApplied"
WITHDRAWN = "Withdrawn"  # the reason of a condition's last event: its object does not have it any more

_variant = msgspec.json.Decoder(PackageVariant)
_set = msgspec.json.Decoder(PackageVariantSet)
_result = msgspec.json.Decoder(ResultRow)
_rollup = msgspec.json.Decoder(SetResult)
_event = msgspec.json.Decoder(ConditionEvent)


def set_conditions(result: SetResult, *, namespace: str, name: str) -> tuple[Condition, ...]:
    """Return the conditions of a set from its roll-up.

    Source of types, reasons and messages of Stalled and Ready: Porch v1.5.8; the others are ours.
    """
    counts = result.counts
    tally = (
        f"desired {counts.desired}, applied {counts.applied}, ready {counts.ready}, "
        f"failed {counts.failed}, held {counts.held}, removing {counts.removing}"
    )

    def condition(kind: str, *, status: bool, reason: str, message: str) -> Condition:
        return Condition(
            type=kind,
            status="True" if status else "False",
            reason=reason,
            message=message,
            observed_generation=result.generation,
        )

    all_applied = counts.applied == counts.desired
    found = []
    if result.on_hold:
        message = "nothing is written for this set while it has the annotation pvbus.dev/hold"
        found.append(condition("OnHold", status=True, reason="Annotation", message=message))
        found.append(condition("Ready", status=False, reason="OnHold", message=message))
    elif result.reason != "Valid":
        found.append(condition("Stalled", status=True, reason=result.reason, message=result.message))
        found.append(condition("Ready", status=False, reason=result.reason, message=result.message))
    else:
        message = "all validation checks passed"
        found.append(condition("Stalled", status=False, reason="Valid", message=message))
        if result.hold is not None:
            found.append(condition("Ready", status=False, reason="DeletionHeld", message=tally))
        elif all_applied:
            message = "package variants successfully reconciled"
            found.append(condition("Ready", status=True, reason="Reconciled", message=message))
        else:
            found.append(condition("Ready", status=False, reason="Reconciling", message=tally))
    if result.hold is not None:
        message = _held_message({result.hold.token: result.hold.count}, namespace, name)
        found.append(condition("DeletionHeld", status=True, reason="TooManyDeletions", message=message))
    if result.reason == "Valid" or counts != Counts():  # that nothing is selected is shown as well
        reason = "AllApplied" if all_applied else "InProgress"
        if counts == Counts():
            reason = "NothingSelected"
            tally += ": no target selects anything; check kind, name and labels in spec.targets"
        found.append(condition(COUNTS_TYPE, status=all_applied, reason=reason, message=tally))
    return tuple(found)


def _held_message(held: Mapping[str, int], namespace: str, name: str) -> str:
    number = sum(held.values())
    command = (
        f"kubectl annotate packagevariantset -n {namespace} {name} --overwrite "
        f"{CONFIRM_DELETION}={','.join(held)}"
    )
    return f"{number} deletions are held because they are too many at once; to confirm them: {command}"


OPTIONAL_TYPES = frozenset({"OnHold", "DeletionHeld", COUNTS_TYPE})
"""Ours, but absent while they have nothing to say."""


class Place:
    """One object: as it is observed, what its result says, and what consumers were last told."""

    __slots__ = ("expires", "latest", "raw", "response", "result")

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.response: bytes | None = None
        self.expires = 0.0
        self.result: bytes | None = None
        self.latest: dict[str, ConditionEvent] = {}

    def stored(self, now: float) -> bytes:
        """Return the object as last seen: our own write's response stands in for the echo."""
        if self.response is not None and now >= self.expires:
            self.response = None
        raw = self.response if self.response is not None else self.raw
        assert raw is not None
        return raw


class ConditionsController:
    """Results in, status and events out. See `pvbus.core.effects.Controller`."""

    name = "conditions"
    inputs = (RESULTS, SETRESULTS, VARIANTS, SETS)
    memory = (LATEST,)
    broadcast = ()

    def __init__(self, *, source: str) -> None:
        """source: the installation, as the `ce_source` of its events."""
        self._source = source
        self._places: dict[int, dict[str, Place]] = {}
        self._sync: dict[int, dict[str, SyncView]] = {}

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        self._places[partition] = {}
        self._sync[partition] = {VARIANTS: SyncView(1), SETS: SyncView(1)}

    def close(self, partition: int) -> None:
        self._places.pop(partition, None)
        self._sync.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        return list(self._places.get(partition, ()))

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        places = self._places.get(partition)
        if places is None:
            return ()
        if is_marker(key):
            if topic in self._sync[partition] and self._sync[partition][topic].load(partition, key, value):
                return [k for k, place in places.items() if place.raw is None]
            return ()
        if topic == LATEST:
            kind, name, condition = key.split("|")
            place = places.setdefault(f"{kind}|{name}", Place())
            self._remember(place, condition, _event.decode(value) if value is not None else None)
            return (f"{kind}|{name}",)
        if topic == SETRESULTS and "|" in key:
            return ()  # a child's row: the roll-up tells of it
        kind = "PackageVariant" if topic in (RESULTS, VARIANTS) else "PackageVariantSet"
        place = places.setdefault(f"{kind}|{key}", Place())
        if topic in (RESULTS, SETRESULTS):
            place.result = value
        else:
            place.raw, place.response = value, None
        return (f"{kind}|{key}",)

    @staticmethod
    def _remember(place: Place, condition: str, event: ConditionEvent | None) -> None:
        if event is None:
            place.latest.pop(condition, None)
        else:
            place.latest[condition] = event

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic == LATEST and partition in self._places:
            kind, name, condition = put.key.split("|")
            place = self._places[partition].setdefault(f"{kind}|{name}", Place())
            self._remember(place, condition, put.row if isinstance(put.row, ConditionEvent) else None)
        return ()

    def refused(self, partition: int, puts: tuple[Put, ...], error: str) -> Iterable[str]:
        return ()  # nothing here grows with its input beyond what the bus takes; the shell logs it

    # ------------------------------------------------------------ deciding

    def reconcile(self, key: str, now: float) -> Reconciliation:
        partition = next((p for p, places in self._places.items() if key in places), None)
        if partition is None:
            return Outcome()
        place = self._places[partition][key]
        kind, _, name = key.partition("|")
        if place.raw is None:
            return self._gone(partition, key, place, now)
        outcome = yield from self._publish(kind, Key.parse(name), place, now)
        if place.response is not None:  # should its echo have come before, there may be no other one
            return outcome._replace(again_after=max(place.expires - now, 0.1))
        return outcome

    def _gone(self, partition: int, key: str, place: Place, now: float) -> Outcome:
        """The object is not there: once that is certain, consumers' last word goes too."""
        kind = key.partition("|")[0]
        topic = VARIANTS if kind == "PackageVariant" else SETS
        if not self._sync[partition][topic].ok(f"{CONFIG_GROUP}/{kind}"):
            return Outcome(result="waiting", waiting=("objects are being listed",))
        puts: list[Put] = []
        for last in sorted(place.latest.values(), key=lambda event: event.condition.type):
            puts += self._withdrawn(key, last, now)
        if not puts and place.result is None:
            del self._places[partition][key]
        return Outcome(tuple(puts), "changed" if puts else "unchanged")

    def _publish(self, kind: str, key: Key, place: Place, now: float) -> Reconciliation:
        raw = place.stored(now)
        obj: PackageVariant | PackageVariantSet
        obj = _variant.decode(raw) if kind == "PackageVariant" else _set.decode(raw)
        desired, extra = self._desired(kind, key, obj, place)
        if desired is None:
            return Outcome(result="waiting", waiting=("no result yet",))
        conditions = merge(obj.status.conditions, desired, now)
        if conditions != obj.status.conditions or extra != _extra(obj):
            status = {"conditions": [msgspec.to_builtins(c) for c in conditions], **extra}
            body = {**msgspec.json.decode(raw), "status": status}
            written = yield Update(VARIANT if kind == "PackageVariant" else SET, body, "status")
            place.response, place.expires = msgspec.json.encode(written), now + ECHO_SECONDS
        ours = {c.type for c in desired}
        told = [c for c in conditions if c.type in ours]
        puts = self._events(kind, key, obj.metadata.uid, told, place)
        for left in sorted(set(place.latest) - {c.type for c in conditions}):
            puts += self._withdrawn(f"{kind}|{key}", place.latest[left], now)
        return Outcome(tuple(puts), "changed" if puts else "unchanged")

    @staticmethod
    def _desired(
        kind: str, key: Key, obj: PackageVariant | PackageVariantSet, place: Place
    ) -> tuple[tuple[Condition, ...] | None, dict[str, Any]]:
        """Return the conditions the result asks for, and what else its status holds; a result of
        another uid (or older than what is published) is not acted upon."""
        if place.result is None:
            return None, {}
        if kind == "PackageVariantSet":
            rollup = _rollup.decode(place.result)
            if rollup.uid != obj.metadata.uid:
                return None, {}
            wanted = set_conditions(rollup, namespace=key.namespace, name=key.name)
            extra: dict[str, Any] = {}
        else:
            result = _result.decode(place.result)
            if result.uid != obj.metadata.uid:
                return None, {}
            wanted = result.conditions
            targets = [_as_stored(t) for t in result.targets]
            extra = {"downstreamTargets": targets} if targets else {}
        ours = {c.type for c in wanted}
        published = max((c.observed_generation for c in obj.status.conditions if c.type in ours), default=0)
        if wanted and max(c.observed_generation for c in wanted) < published:
            return None, {}
        return wanted, extra

    def _events(self, kind: str, key: Key, uid: str, conditions: list[Condition], place: Place) -> list[Put]:
        puts = []
        for condition in conditions:
            last = place.latest.get(condition.type)
            if last is not None and last.uid == uid and not _is_news(last.condition, condition):
                continue
            former = last if last is not None and last.uid == uid else None
            event = ConditionEvent(
                kind=kind,
                namespace=key.namespace,
                name=key.name,
                uid=uid,
                condition=condition,
                previous=former.condition.status if former is not None else "",
                id=_event_id(last, uid, condition),
            )
            puts += self._sent(f"{kind}|{key}", event, event)
        return puts

    def _withdrawn(self, key: str, last: ConditionEvent, now: float) -> list[Put]:
        """Tell that a condition is no more: unknown, as Kubernetes reads an absent one."""
        condition = Condition(
            type=last.condition.type,
            status="Unknown",
            reason=WITHDRAWN,
            last_transition_time=_stamp(now),
            observed_generation=last.condition.observed_generation,
        )
        event = replace(
            last,
            condition=condition,
            previous=last.condition.status,
            id=_event_id(last, last.uid, condition),
        )
        return self._sent(key, event, None)

    def _sent(self, key: str, event: ConditionEvent, remembered: ConditionEvent | None) -> list[Put]:
        headers = condition_headers(event, event_id=event.id, source=self._source)
        return [
            Put(CONDITIONS, key, event, headers),
            Put(LATEST, f"{key}|{event.condition.type}", remembered, headers if remembered else ()),
        ]


def _event_id(last: ConditionEvent | None, uid: str, condition: Condition) -> str:
    """Make an id from the change and the event before it, so that a repeated step sends the same one."""
    seed = [last.id if last else "", uid, condition.type, condition.status, condition.reason]
    seed.append(condition.last_transition_time or "")
    return sha1_head("\n".join([*seed, condition.message])) + sha1_head("/".join(seed))


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_news(old: Condition, new: Condition) -> bool:
    """A change of status or reason is a transition; of the message only where it says something new
    (not the counts, which change with every target)."""
    if (old.status, old.reason) != (new.status, new.reason):
        return True
    return old.message != new.message and new.reason not in (
        "InProgress",
        "Reconciling",
        "AllApplied",
        "NothingSelected",
    )


def _as_stored(target: DownstreamTarget) -> dict[str, Any]:
    """Return a target as an API server keeps it: the definition has no fields for the metadata of a
    FunctionResultList, so they are dropped, and comparing with them would never end."""
    stored: dict[str, Any] = msgspec.to_builtins(target)
    result = (stored.get("renderStatus") or {}).get("result") or {}
    if result.get("metadata"):
        result["metadata"] = {}
    return stored


def _extra(obj: PackageVariant | PackageVariantSet) -> dict[str, Any]:
    if isinstance(obj, PackageVariant) and obj.status.downstream_targets:
        return {"downstreamTargets": [msgspec.to_builtins(t) for t in obj.status.downstream_targets]}
    return {}


def merge(
    present: tuple[Condition, ...], desired: tuple[Condition, ...], now: float
) -> tuple[Condition, ...]:
    """Put the desired conditions in place of their types, keep foreign ones, and move
    lastTransitionTime only where the status changed."""
    wanted = {condition.type: condition for condition in desired}
    stamp = _stamp(now)
    result = []
    for old in present:
        new = wanted.pop(old.type, None)
        if new is not None:
            same = old.status == new.status and old.last_transition_time
            when = old.last_transition_time if same else stamp
            result.append(replace(new, last_transition_time=when))
        elif old.type not in OPTIONAL_TYPES:
            result.append(old)
    result += [replace(new, last_transition_time=stamp) for new in wanted.values()]
    return tuple(result)
