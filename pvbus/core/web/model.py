"""The fleet in memory, as the page shows it: a small row for each variant and each set.

Rows are folded from seven topics: `pvbus.sets` and `pvbus.variants` say what exists, with which labels,
`pvbus.unroll` which set made a variant, from which object, and whether it is to be removed, `pvbus.objects`
the labels of that object and the conflicts of open drafts, `pvbus.setresults` which removals are held,
`pvbus.conditions.latest` what was published and which people are asked, `pvbus.policies` how rollouts stand.
The topics come in no order among each other: a row exists from the first fact on, and is shown while its
object or the wish for it exists. Texts that many rows share are stored once; messages of variants and
sets are not stored, as the page reads them for one object at a time.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple

from pvbus.core.api.quarantines import Quarantine
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.api.stops import RolloutStop, words_of
from pvbus.core.api.variants import CONFIG_GROUP, Condition, Downstream
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import (
    STOP_PREFIX,
    ChildKey,
    ConditionKey,
    Key,
    ObjectKey,
    StopKey,
    SubjectKey,
    is_check,
    is_child,
)
from pvbus.core.kernel.markers import SyncView, is_marker
from pvbus.core.kernel.records import (
    LATEST,
    OBJECTS,
    POLICIES,
    SETRESULTS,
    SETS,
    UNROLL,
    VARIANTS,
    ChildState,
    Coverage,
    Hold,
)
from pvbus.core.variants.attention import ATTENTION
from pvbus.core.variants.notices import KEPT_TYPE, LIFECYCLE_TYPE
from pvbus.core.variants.severity import ON_HOLD, WARNINGS
from pvbus.core.web.conflicts import ConflictRow, conflicts_in
from pvbus.core.web.labels import Labels, TargetLabels, labels_of, merged
from pvbus.core.web.rows import Facts, KeptRow, QuarantineRow, RolloutRow, SetRow, StopRow, VariantRow
from pvbus.core.web.states import OPEN_FIRST, counted
from pvbus.core.web.tasks import Question, TaskRow, question_of
from pvbus.core.web.versioned import Versioned

TOPICS = (SETS, VARIANTS, UNROLL, OBJECTS, SETRESULTS, LATEST, POLICIES)
VARIANT, SET, REVISION = "PackageVariant", "PackageVariantSet", "PackageRevision"
SHOWN = WARNINGS | {"Ready", "Stalled", ON_HOLD, ATTENTION}
"""The conditions that rows are made of."""
TEXTS_MIN, TEXTS_SHARE = 10_000, 4
"""Of shared texts: more than these, and so many for each variant, are mostly of variants that are gone."""


class _Meta(msgspec.Struct, rename="camel"):
    generation: int = 0
    deletion_timestamp: str | None = None
    labels: Mapping[str, str] = {}


class _Spec(msgspec.Struct):
    labels: Mapping[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _Meta
    spec: _Spec | None = None


class _Child(msgspec.Struct):
    state: ChildState
    okey: str = ""
    downstream: Downstream = Downstream()


class _Rollup(msgspec.Struct):
    hold: Hold | None = None


class _Event(msgspec.Struct):
    condition: Condition
    namespace: str = ""
    variant: str = ""


_object = msgspec.json.Decoder(_Object)
_child = msgspec.json.Decoder(_Child)
_rollup = msgspec.json.Decoder(_Rollup)
_event = msgspec.json.Decoder(_Event)
_policy = msgspec.json.Decoder(RolloutPolicy)
_quarantine = msgspec.json.Decoder(Quarantine)
_stop = msgspec.json.Decoder(RolloutStop)
_asking = msgspec.json.Decoder(ConditionEvent)


class Incomplete(NamedTuple):
    """A kind whose list the bus does not have in full. why: the reason, in words."""

    kind: str
    why: str


class Model:
    """Folds records; `version` rises with `publish`, if anything that is shown has changed."""

    def __init__(self, partitions: int) -> None:
        """Create an empty model. partitions: how many partitions each topic has."""
        self.version = 0
        self.variants: Versioned[VariantRow] = Versioned()
        self.sets: Versioned[SetRow] = Versioned()
        self.rollouts: Versioned[RolloutRow] = Versioned()
        self.tasks: Versioned[TaskRow] = Versioned()
        """By `<namespace>/<revision>|<condition type>`."""
        self.quarantines: Versioned[QuarantineRow] = Versioned()
        self.stops: Versioned[StopRow] = Versioned()
        self.retained: Versioned[KeptRow] = Versioned()
        """By `<namespace>/<revision>`."""
        self.conflicts: Versioned[ConflictRow] = Versioned()
        """By `<namespace>/<revision>`."""
        self.conflicts_changed = 0
        """The version at which they changed last."""
        self._target_labels = TargetLabels()
        self._hidden_variants: dict[str, VariantRow] = {}
        self._hidden_sets: dict[str, SetRow] = {}
        self._revisions: dict[str, tuple[str, str]] = {}
        self._texts: dict[Any, Any] = {}
        self._sync = {SETS: SyncView(partitions), VARIANTS: SyncView(partitions)}
        self._before: tuple[Any, ...] = ()
        self._dirty = False
        self._loaders: Mapping[str, Callable[[str, bytes | None], None]] = {
            SETS: self._load_set,
            VARIANTS: self._load_variant,
            UNROLL: self._load_child,
            OBJECTS: self._load_observed,
            SETRESULTS: self._load_rollup,
            LATEST: self._load_event,
            POLICIES: self._load_policy,
        }

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> None:
        """Apply a record. Raises ValueError, or msgspec's errors, for one that cannot be read."""
        if is_marker(key):
            if topic in self._sync and self._sync[topic].load(partition, key, value):
                self._dirty = True
            return
        self._loaders[topic](key, value)

    def publish(self) -> bool:
        """Give what was loaded a version; return whether anything has changed."""
        changed, self._dirty = self._dirty, False
        self.version += changed
        if len(self._texts) > TEXTS_MIN + TEXTS_SHARE * len(self.variants):
            self._texts.clear()  # most are of rows that are gone; the others are stored twice at worst
        return changed

    def incomplete(self) -> Iterator[Incomplete]:
        """Yield the kinds that may have more objects than are shown."""
        for kind, topic in ((SET, SETS), (VARIANT, VARIANTS)):
            marker = self._sync[topic].marker(f"{CONFIG_GROUP}/{kind}")
            if marker is None or marker.state != "ok":
                state = marker.state if marker is not None else "syncing"
                yield Incomplete(kind, marker.message if marker is not None and marker.message else state)
            else:
                yield from (Incomplete(kind, why) for why in _refused(marker.coverage))

    def held(self) -> dict[str, list[str]]:
        """Return the variants whose removal is held, by set, both in order.

        A set whose hold has no variant yet is among them, and one whose hold is still being written.
        """
        found: dict[str, list[str]] = {name: [] for name, row in self.sets.items() if row.hold is not None}
        for key, row in self.variants.items():
            if row.child is ChildState.HELD:
                found.setdefault(row.set_name, []).append(key)
        return {name: sorted(variants) for name, variants in sorted(found.items())}

    def made_from(self, target: str) -> tuple[str, ...]:
        """Return the variants that were made from an object."""
        return self._target_labels.variants_of(target)

    def owner_of(self, revision: str) -> str:
        """Return the variant of a package revision, "" if it is not known or has none."""
        return self._revisions.get(revision, ("", ""))[0]

    # ------------------------------------------------------------ topics

    def _load_set(self, key: str, value: bytes | None) -> None:
        row = self._set(key)
        meta = _object.decode(value).metadata if value is not None else None
        _load_object(row, meta)
        row.labels = self._intern(labels_of(meta.labels)) if meta is not None else ()
        self._store_set(key, row)

    def _load_variant(self, key: str, value: bytes | None) -> None:
        row = self._variant(key)
        variant = _object.decode(value) if value is not None else None
        _load_object(row, variant.metadata if variant is not None else None)
        row.own = self._intern(_own_labels(variant)) if variant is not None else ()
        self._relabel(row)
        self._store_variant(key, row)

    def _load_child(self, key: str, value: bytes | None) -> None:
        skey, name = ChildKey.parse(key)
        vkey = str(Key(Key.parse(skey).namespace, name))
        row = self._variant(vkey)
        child = _child.decode(value) if value is not None else None
        before = row.target
        if child is not None and child.state is not ChildState.GONE:
            row.set_name, row.child, row.target = self._intern(skey), child.state, self._intern(child.okey)
            row.downstream = f"{child.downstream.repo}/{child.downstream.package}"
        elif row.set_name == skey:  # another set may have the variant now
            row.set_name, row.child, row.target, row.downstream = "", None, "", ""
        self._target_labels.move(vkey, before, row.target)
        self._relabel(row)
        self._store_variant(vkey, row)

    def _load_observed(self, key: str, value: bytes | None) -> None:
        """Apply the row of an object that sets may select, or of a package revision."""
        if is_check(key):
            return
        observed = ObjectKey.parse(key)
        if observed.kind == REVISION:
            self._load_conflicts(f"{observed.namespace}/{observed.name}", value)
        elif observed.kind != VARIANT:
            for name in self._target_labels.load(key, value):
                row = self._variant(name)
                self._relabel(row)
                self._store_variant(name, row)

    def _load_conflicts(self, name: str, value: bytes | None) -> None:
        row = conflicts_in(name, value, self._texts.setdefault)
        before = self.conflicts.get(name)
        if row is None and before is None:
            return
        if row is None:
            self.conflicts.remove(name, self.version + 1)
        elif before is None or not row.is_as(before):
            self.conflicts.put(name, row, self.version + 1)
        else:
            return
        self.conflicts_changed = self.version + 1
        self._dirty = True

    def _relabel(self, row: VariantRow) -> None:
        """Set the labels that are shown of a variant anew."""
        row.labels = self._intern(merged(self._target_labels.of(row.target), row.own))

    def _load_rollup(self, key: str, value: bytes | None) -> None:
        if is_child(key):
            return
        row = self._set(key)
        row.hold = _rollup.decode(value).hold if value is not None else None
        self._store_set(key, row)

    def _load_event(self, key: str, value: bytes | None) -> None:
        subject, type_ = ConditionKey.parse(key)
        kind, name = SubjectKey.parse(subject)
        if kind == REVISION:
            if type_ == KEPT_TYPE:
                self._load_kept(name, value)
            elif type_ == LIFECYCLE_TYPE:
                self._load_revision(name, _event.decode(value) if value is not None else None)
            else:
                self._load_task(f"{name}|{type_}", value)
        elif type_ not in SHOWN:
            return
        elif kind == VARIANT:
            variant = self._variant(name)
            self._load_condition(variant, type_, value)
            self._store_variant(name, variant)
        elif kind == SET:
            row = self._set(name)
            self._load_condition(row, type_, value)
            self._store_set(name, row)

    def _load_policy(self, key: str, value: bytes | None) -> None:
        if key.startswith(STOP_PREFIX):
            self._load_stop(StopKey.parse(key), value)
            return
        if "|" in key:
            self._load_quarantine(ObjectKey.parse(key), value)
            return
        if value is None:
            self.rollouts.remove(key, self.version + 1)
        else:
            self.rollouts.put(key, RolloutRow(_policy.decode(value)), self.version + 1)
        self._dirty = True

    def _load_quarantine(self, key: ObjectKey, value: bytes | None) -> None:
        name = f"{key.namespace}/{key.name}"
        spec = _quarantine.decode(value).spec if value is not None else None
        if spec is None or spec.released is not None:
            self.quarantines.remove(name, self.version + 1)
        else:
            covers = [each.revision for each in spec.upstreams]
            covers += [f"{len(spec.contents)} contents"] if spec.contents else []
            sets = ", ".join(spec.sets) or "every set"
            row = QuarantineRow(f"{', '.join(covers)} in {sets}", spec.message or spec.reason)
            self.quarantines.put(name, row, self.version + 1)
        self._dirty = True

    def _load_stop(self, key: StopKey, value: bytes | None) -> None:
        name = f"{key.namespace}/{key.name}"
        lasting = _stop.decode(value).spec.lasting if value is not None else ()
        if lasting:
            entries = tuple((entry.name, words_of(entry)) for entry in lasting)
            row = StopRow("; ".join(words for _, words in entries), entries)
            self.stops.put(name, row, self.version + 1)
        else:
            self.stops.remove(name, self.version + 1)
        self._dirty = True

    def _load_task(self, name: str, value: bytes | None) -> None:
        asked = question_of(_asking.decode(value) if value is not None else None)
        before = self.tasks.get(name)
        if asked == (before.asked if before is not None else None):
            return
        if asked is None:
            self.tasks.remove(name, self.version + 1)
        else:
            self.tasks.put(name, TaskRow(Question(*map(self._intern, asked))), self.version + 1)
        self._dirty = True

    def _load_kept(self, name: str, value: bytes | None) -> None:
        event = _event.decode(value) if value is not None else None
        if event is None or event.condition.status != "True":
            self.retained.remove(name, self.version + 1)
        else:
            variant = f"{event.namespace}/{event.variant}"
            self.retained.put(name, KeptRow(variant, event.condition.message), self.version + 1)
        self._dirty = True

    def _load_condition(self, row: Facts, type_: str, value: bytes | None) -> None:
        condition = _event.decode(value).condition if value is not None else None
        is_true = condition is not None and condition.status == "True"
        if condition is not None and type_ not in WARNINGS:
            row.since = self._intern(max(row.since, _seconds(condition.last_transition_time)))
        match type_:
            case "Stalled":
                row.stalled = is_true
                row.stalled_at = condition.observed_generation if condition is not None else 0
            case "OnHold":
                row.on_hold = is_true
            case "AttentionNeeded":
                row.attention = self._intern(condition.reason) if condition is not None and is_true else ""
            case warning if warning in WARNINGS:
                if is_true or row.warning == warning:
                    row.warning = self._intern(warning) if is_true else ""
            case "Ready":
                is_known = condition is not None and condition.status != "Unknown"
                row.ready = is_true
                row.reason = self._intern(condition.reason) if condition is not None and is_known else ""
                row.observed = condition.observed_generation if condition is not None else 0

    def _load_revision(self, name: str, event: _Event | None) -> None:
        lifecycle = event.condition.reason if event is not None else ""
        entry: tuple[str, str] | None = None
        if event is not None and event.variant and lifecycle in OPEN_FIRST:
            variant = self._intern(f"{event.namespace}/{event.variant}")
            entry = self._intern((variant, self._intern(lifecycle)))
        before = self._revisions.pop(name, None)
        if entry is not None:
            self._revisions[name] = entry
        if entry != before:
            self._count(before, -1)
            self._count(entry, 1)

    def _count(self, revision: tuple[str, str] | None, by: int) -> None:
        if revision is None:
            return
        variant, lifecycle = revision
        row = self._variant(variant)
        row.lifecycles = self._intern(counted(row.lifecycles, lifecycle, by))
        self._store_variant(variant, row)

    # ------------------------------------------------------------ rows

    def _variant(self, key: str) -> VariantRow:
        """Return the row to change; `_store_variant` follows before another row is asked for."""
        row = self.variants.get(key) or self._hidden_variants.get(key) or VariantRow()
        self._before = astuple(row)
        return row

    def _set(self, key: str) -> SetRow:
        row = self.sets.get(key) or self._hidden_sets.get(key) or SetRow()
        self._before = astuple(row)
        return row

    def _store_variant(self, key: str, row: VariantRow) -> None:
        self._store(self.variants, self._hidden_variants, key, row)

    def _store_set(self, key: str, row: SetRow) -> None:
        self._store(self.sets, self._hidden_sets, key, row)

    def _store(self, table: Versioned[Any], hidden: dict[str, Any], key: str, row: Any) -> None:
        if astuple(row) == self._before:
            return
        was_shown = table.get(key) is not None
        hidden.pop(key, None)
        if row.shown:
            table.put(key, row, self.version + 1)
        else:
            table.remove(key, self.version + 1)
            if not row.blank:
                hidden[key] = row
        self._dirty = self._dirty or was_shown or row.shown

    def _intern(self, value: Any) -> Any:
        return self._texts.setdefault(value, value)


def _load_object(row: Facts, meta: _Meta | None) -> None:
    row.exists = meta is not None
    row.deleting = meta is not None and meta.deletion_timestamp is not None
    row.generation = meta.generation if meta is not None else 0


def _seconds(time: str | None) -> int:
    """Return a time of RFC 3339 in seconds since 1970, 0 for one that cannot be read."""
    try:
        return int(datetime.fromisoformat(time or "").timestamp())
    except (ValueError, OverflowError):
        return 0


def _own_labels(variant: _Object) -> Labels:
    package = variant.spec.labels if variant.spec is not None else None
    return merged(labels_of(variant.metadata.labels), labels_of(package or {}))


def _refused(coverage: Coverage) -> Iterator[str]:
    yield from (f"{refusal.namespace}: {refusal.message}" for refusal in coverage.refused)
