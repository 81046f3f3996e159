"""Conditions: from results to status subresources and public events.

A key is `<Kind>|<namespace>/<name>`. A transition is published first, in one step with its row in
`pvbus.conditions.latest`; the status is written after that step has returned. So every status was
published before, in the same order, wherever a worker crashes; an event may be a moment ahead of the
status. A message that only changes its counts is in the status at once, and is published less often.

Other programs write the status of Repositories and of variants' package revisions; here they only have
events (see `pvbus.core.variants.conditions.subjects`). Foreign conditions stay as they are.
"""

from collections.abc import Generator, Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from pvbus.core.api.decoding import decode_set
from pvbus.core.api.variants import (
    CONFIG_GROUP,
    Condition,
    DownstreamTarget,
    PackageVariant,
    PackageVariantSet,
)
from pvbus.core.kernel.controller import KeyedController
from pvbus.core.kernel.echo import ObservedObject
from pvbus.core.kernel.effects import Effect, KindRef, Outcome, Put, Reconciliation, Update
from pvbus.core.kernel.eventrows import ConditionEvent, EventCause
from pvbus.core.kernel.keys import ConditionKey, Key, SubjectKey, is_child
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.messages import cut
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.records import (
    DESIRED,
    LATEST,
    OBJECTS,
    RESULTS,
    SETRESULTS,
    SETS,
    VARIANTS,
    DesiredRow,
    ResultRow,
    SetResult,
)
from pvbus.core.kernel.specretention import SpecRetention
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.conditions.endings import DECIDED_TO_REMOVE, end_of
from pvbus.core.variants.conditions.sets import set_conditions
from pvbus.core.variants.conditions.subjects import NO_ROLLOUT, OBSERVED_NAMES, ConditionSubject, Subjects
from pvbus.core.variants.notices import REVISION
from pvbus.core.variants.publishing import (
    DELETED,
    NO_TASKS,
    WITHDRAWN,
    Publisher,
    merge,
)

VARIANT = KindRef(CONFIG_GROUP, "PackageVariant", "v1alpha1")
SET = KindRef(CONFIG_GROUP, "PackageVariantSet", "v1alpha2")
_variant = msgspec.json.Decoder(PackageVariant)
_result = msgspec.json.Decoder(ResultRow)
_desired = msgspec.json.Decoder(DesiredRow)
_rollup = msgspec.json.Decoder(SetResult)
_event = msgspec.json.Decoder(ConditionEvent)


class _Traces(msgspec.Struct):
    """The fields of a ResultRow that lead to the change before it: see there."""

    cause: float = 0.0
    upstream: str = ""


_traces = msgspec.json.Decoder(_Traces)
_NOT_REMOVED = DesiredRow()  # one for all objects


class ObjectState(ObservedObject):
    """One object: as observed, its result, and its last published events.

    former: the object before it went
    removed: the decision of its set to remove it
    latest: condition type -> the last published event
    """

    __slots__ = ("former", "latest", "removed", "result")

    def __init__(self) -> None:
        super().__init__()
        self.former: bytes | None = None
        self.removed = _NOT_REMOVED
        self.result: bytes | None = None
        self.latest: dict[str, ConditionEvent] = {}


class ConditionsController(KeyedController[ObjectState]):
    """Results in, status and events out. Messages are cut far below the bus's limit."""

    name = "conditions"
    listed = (VARIANTS, SETS)
    evaluations = 0

    def __init__(
        self, *, source: str, partitions: int, children_report: bool = True, keeps_specs: bool = True
    ) -> None:
        """Create a controller without partitions.

        source: the `ce_source` of the installation's events
        partitions: how many partitions the bus has
        children_report: see `pvbus.core.variants.conditions.sets.set_conditions`
        keeps_specs: whether the former specs of sets are kept
        """
        super().__init__(lambda _: ObjectState())
        self._publisher = Publisher(source)
        self._children_report = children_report
        self._subjects = Subjects(partitions)
        self._needing: dict[int, set[str]] = {}
        self._specs = SpecRetention(SET) if keeps_specs else None

    def needing(self, kind: str) -> int:
        """Return how many objects of a kind wait for a person, for metrics."""
        return sum(key.startswith(f"{kind}|") for keys in self._needing.values() for key in keys)

    # ------------------------------------------------------------ records in

    def open(self, partition: int) -> None:
        super().open(partition)
        self._needing[partition] = set()

    def close(self, partition: int) -> None:
        super().close(partition)
        self._needing.pop(partition, None)

    def keys(self, partition: int) -> Iterable[str]:
        if partition not in self._tables:
            return []
        return list(dict.fromkeys((*super().keys(partition), *self._subjects.keys(partition))))

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if topic == OBJECTS:
            return self._load_object(partition, key, value)
        states = self._tables.get(partition)
        if states is None:
            return ()
        if is_marker(key):
            if self._load_marker(topic, partition, key, value):
                return [k for k, state in states.items() if state.raw is None]
            return ()
        if topic == LATEST:
            return (self._remember(partition, key, _event.decode(value) if value is not None else None),)
        if topic == SETRESULTS and is_child(key):
            return ()  # a child's row: the roll-up counts it
        if topic == DESIRED and (value is None or DECIDED_TO_REMOVE not in value):
            return ()  # the answer to it comes with the object; a row without a reason takes none back
        kind = "PackageVariant" if topic in (RESULTS, VARIANTS, DESIRED) else "PackageVariantSet"
        subject = str(SubjectKey(kind, key))
        state = self._ensure_state(partition, subject)
        if topic == DESIRED:
            state.removed = _desired.decode(value or b"")
        elif topic in (RESULTS, SETRESULTS):
            state.result = value
        else:
            state.former = state.raw if value is None else None
            state.observe(value)
        return (subject,)

    def _load_object(self, partition: int, key: str, value: bytes | None) -> Iterable[str]:
        if is_marker(key):
            kind = self._subjects.load_marker(partition, key, value)
            if kind is None:
                return ()
            begins = str(SubjectKey(kind, ""))
            return [
                key
                for number, states in self._tables.items()
                for key in states
                if key.startswith(begins) and self._subjects.of(number, key) is None
            ]
        changed = self._subjects.load(partition, key, value)
        return () if changed is None else (changed,)

    def _remember(self, partition: int, key: str, event: ConditionEvent | None) -> str:
        """Apply a row of `latest`; return the key of its object."""
        owner, condition = ConditionKey.parse(key)
        state = self._ensure_state(partition, owner)
        if condition == ATTENTION:
            needing, waits = self._needing[partition], event is not None and event.condition.status == "True"
            needing.add(owner) if waits else needing.discard(owner)
        if event is None:
            state.latest.pop(condition, None)
        else:
            state.latest[condition] = event
        return owner

    def store(self, partition: int, put: Put) -> Iterable[str]:
        if put.topic != LATEST or partition not in self._tables:
            return ()
        event = put.row if isinstance(put.row, ConditionEvent) else None
        return (self._remember(partition, put.key, event),)  # now its status may be written

    # ------------------------------------------------------------ deciding

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        states = self._tables.get(partition)
        if states is None:
            return Outcome()
        kind, name = SubjectKey.parse(key)
        if kind in OBSERVED_NAMES.values():
            return self._observe(partition, kind, key, now)
        state = states.get(key)
        if state is None:
            return Outcome()
        if state.raw is None:
            if self._specs is not None:
                self._specs.forget(key)
            return self._publish_end(partition, kind, key, state, now)
        outcome = yield from self._publish(kind, Key.parse(name), state, now)
        specs_after = (yield from self._retain(key, state, now)) if kind == SET.kind else None
        waits = (state.echo_seconds(now), outcome.again_after, specs_after)
        times = [time for time in waits if time is not None]
        return outcome._replace(again_after=min(times, default=None))

    def _retain(self, key: str, state: ObjectState, now: float) -> Generator[Effect, Any, float | None]:
        """Keep a set's spec; return the seconds until the next attempt, None if none is due."""
        if self._specs is None or state.raw is None:  # the set may have gone while its status was written
            return None
        meta = decode_set(state.raw)[0].metadata
        return (yield from self._specs.retain(key, meta.uid, meta.generation, state.raw, now))

    def _observe(self, partition: int, kind: str, key: str, now: float) -> Outcome:
        """Publish the conditions that other programs wrote, and their ends."""
        states = self._tables[partition]
        state, subject = states.get(key) or ObjectState(), self._subjects.of(partition, key)
        present = () if subject is None else _dated(subject, state, now)
        if not present and not state.latest:
            states.pop(key, None)
            return Outcome()
        if subject is None and not self._subjects.is_listed(kind, _namespace_of(key)):
            return Outcome(result="waiting", waiting=("objects are being listed",))
        uid, variant, cause, tasks, owner_uid = (
            ("", "", EventCause(), NO_TASKS, "")
            if subject is None
            else (subject.uid, subject.variant, subject.cause, subject.questions, subject.owner_uid)
        )
        news = self._publisher.changed(
            *(key, uid, present, state.latest, now),
            variant=variant,
            cause=cause,
            tasks=tasks,
            owner_uid=owner_uid,
            rollout=NO_ROLLOUT if subject is None else subject.rollout,
        )
        types = {condition.type for condition in present}
        left = [event for type_, event in state.latest.items() if type_ not in types]
        reason = DELETED if subject is None and kind == REVISION else WITHDRAWN
        ends = self._publisher.ended(key, left, state.latest, now, reason, cause=cause)
        puts = (*news.puts, *ends)
        return Outcome(puts, "changed" if puts else "unchanged", news.again_after)

    def _publish_end(self, partition: int, kind: str, key: str, state: ObjectState, now: float) -> Outcome:
        """Publish the last events of an absent object, once its kind's list is complete."""
        topic = VARIANTS if kind == "PackageVariant" else SETS
        if not self._is_listed(topic, partition, f"{CONFIG_GROUP}/{kind}", _namespace_of(key)):
            return Outcome(result="waiting", waiting=("objects are being listed",))
        uid = max(state.latest.values(), key=lambda event: event.time).uid if state.latest else ""
        end = end_of(kind, Key.parse(key.partition("|")[2]), uid, state.former, state.removed)
        puts = self._publisher.ended(
            *(key, state.latest.values(), state.latest, now),
            cause=EventCause(set=end.set_name),
            message=end.message,
        )
        if not puts and state.result is None:
            del self._tables[partition][key]
        return Outcome(puts, "changed" if puts else "unchanged")

    def _publish(self, kind: str, key: Key, state: ObjectState, now: float) -> Reconciliation:
        """Publish the transitions; if there are none, write the status."""
        raw = state.current(now)
        assert raw is not None
        obj: PackageVariant | PackageVariantSet
        obj = _variant.decode(raw) if kind == "PackageVariant" else decode_set(raw)[0]
        uid, subject = obj.metadata.uid, str(SubjectKey(kind, str(key)))
        desired, extra = self._desired(kind, key, obj, state)
        if desired is None:  # the rows belong to a former object of this name
            gone = [event for event in state.latest.values() if event.uid != uid]
            puts = self._publisher.ended(subject, gone, state.latest, now)
            return Outcome(puts, "changed" if puts else "waiting", waiting=("no result yet",))
        traced, released = _traced(kind, obj, state)
        conditions = merge(obj.status.conditions, desired, now, _transitions(state, uid))
        ours, present = {c.type for c in desired}, {c.type for c in conditions}
        left = [event for event in state.latest.values() if event.condition.type not in present]
        news = self._publisher.changed(
            subject, uid, [c for c in conditions if c.type in ours], state.latest, now, cause=traced
        )
        ends = self._publisher.ended(subject, left, state.latest, now, cause=traced, released=released)
        puts = (*news.puts, *ends)
        if puts:
            return Outcome(puts, "changed")
        if conditions == obj.status.conditions and extra == _extra(obj):
            return Outcome(again_after=news.again_after)
        status = {"conditions": [msgspec.to_builtins(c) for c in conditions], **extra}
        body = {**msgspec.json.decode(raw), "status": status}
        written = yield Update(VARIANT if kind == "PackageVariant" else SET, body, "status")
        state.note_answer(written, now)
        cause = _cause(state, obj.status.conditions, conditions)
        return Outcome((), "changed", news.again_after, cause=cause)

    def _desired(
        self, kind: str, key: Key, obj: PackageVariant | PackageVariantSet, state: ObjectState
    ) -> tuple[tuple[Condition, ...] | None, dict[str, Any]]:
        """Return the conditions of the result, and the other status fields. None: there is no result, or it
        has another uid, or is older than the present status."""
        if state.result is None:
            return None, {}
        if kind == "PackageVariantSet":
            rollup = _rollup.decode(state.result)
            if rollup.uid != obj.metadata.uid:
                return None, {}
            wanted = set_conditions(
                rollup, namespace=key.namespace, name=key.name, children_report=self._children_report
            )
            extra: dict[str, Any] = {}
        else:
            result = _result.decode(state.result)
            if result.uid != obj.metadata.uid:
                return None, {}
            wanted = result.conditions
            targets = [_as_stored(t) for t in result.targets]
            extra = {"downstreamTargets": targets} if targets else {}
        ours = {c.type for c in wanted}
        published = max((c.observed_generation for c in obj.status.conditions if c.type in ours), default=0)
        if wanted and max(c.observed_generation for c in wanted) < published:
            return None, {}
        return tuple(replace(c, message=cut(c.message)) for c in wanted), extra


def _dated(subject: ConditionSubject, state: ObjectState, now: float) -> tuple[Condition, ...]:
    """Return an object's conditions with the times of their transitions: the published ones, then theirs."""
    dated = []
    for condition in subject.conditions:
        time = condition.last_transition_time or timestamp(now)
        last = state.latest.get(condition.type)
        if last is not None and (last.uid, last.condition.status) == (subject.uid, condition.status):
            time = last.condition.last_transition_time or time
        dated.append(replace(condition, message=cut(condition.message), last_transition_time=time))
    return tuple(dated)


def _namespace_of(subject: str) -> str:
    return Key.parse(subject.partition("|")[2]).namespace


def _traced(kind: str, obj: PackageVariant | PackageVariantSet, state: ObjectState) -> tuple[EventCause, str]:
    """Return the cause of an object's events, and the id of its last confirmed hold of removals."""
    meta = obj.metadata
    cause = EventCause(generation=meta.generation, resource_version=meta.resource_version)
    if state.result is None:
        return cause, ""
    if kind == "PackageVariant":
        return replace(cause, upstream=_traces.decode(state.result).upstream), ""
    rollup = _rollup.decode(state.result)
    hold = rollup.hold.id if rollup.hold is not None else ""
    return replace(cause, hold=hold), rollup.released


def _cause(state: ObjectState, before: Iterable[Condition], after: Iterable[Condition]) -> float:
    """Return the start of the attempt if this status is the first Ready one of its generation; else 0,
    and 0 for sets, whose results have no such time."""
    old = next((c for c in before if c.type == "Ready"), None)
    new = next((c for c in after if c.type == "Ready"), None)
    if new is None or new.status != "True" or state.result is None:
        return 0.0
    if old is not None and (old.status, old.observed_generation) == (new.status, new.observed_generation):
        return 0.0
    return _traces.decode(state.result).cause


def _transitions(state: ObjectState, uid: str) -> dict[str, Condition]:
    """Return the last published conditions of this very object, by type."""
    return {kind: event.condition for kind, event in state.latest.items() if event.uid == uid}


def _as_stored(target: DownstreamTarget) -> dict[str, Any]:
    """Return a target as an API server stores it: the CRD has no fields for the metadata of a
    FunctionResultList, so the server prunes them, and a comparison with them would never be equal."""
    stored: dict[str, Any] = msgspec.to_builtins(target)
    result = (stored.get("renderStatus") or {}).get("result") or {}
    if result.get("metadata"):
        result["metadata"] = {}
    return stored


def _extra(obj: PackageVariant | PackageVariantSet) -> dict[str, Any]:
    if isinstance(obj, PackageVariant) and obj.status.downstream_targets:
        return {"downstreamTargets": [msgspec.to_builtins(t) for t in obj.status.downstream_targets]}
    return {}
