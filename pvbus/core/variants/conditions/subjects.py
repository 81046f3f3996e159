"""Objects with events whose status others write: Repositories, RolloutPolicies and RolloutStops, variants'
revisions, and the installs of packages with their revisions.

Their rows come from `pvbus.objects`, which every worker reads in full. The worker of the partition of
`<namespace>/<name>` publishes an object's events, as for sets and variants. So each row of
`pvbus.conditions.latest` has one writer, and an object one order of events, whichever variant owns it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pvbus.core.api.packages import PUBLISHED
from pvbus.core.api.variants import CONFIG_GROUP, PORCH_GROUP, Condition
from pvbus.core.kernel import objectrows
from pvbus.core.kernel.eventrows import EventCause, EventRollout, EventTask
from pvbus.core.kernel.keys import EDITED_BY, KEPT_FOR, ObjectKey, SubjectKey, maker_of, reconciled_partition
from pvbus.core.kernel.markers import SyncView, marker_kind
from pvbus.core.kernel.packagekinds import CLUSTER_SCOPED, REPORTING
from pvbus.core.kernel.records import ObjectRow, RevisionFacts
from pvbus.core.kernel.tasks import OPEN_STATES, asked
from pvbus.core.variants.notices import KEPT_TYPE, LIFECYCLE_TYPE

OBSERVED = (objectrows.REPOSITORY, objectrows.REVISION, objectrows.POLICY, objectrows.STOP, *REPORTING)
OBSERVED_NAMES = {str(kind): kind.kind for kind in OBSERVED}
OBSERVED_BY_SCOPE = {(kind.kind, kind not in CLUSTER_SCOPED): kind for kind in OBSERVED}
"""By name and whether its objects have a namespace: an event's key has no group, and two are called
PackageRevision."""

DUPLICATE = "Duplicate"
"""The reason of the event of a condition that is there more than once."""

_PLACEHOLDER = -1  # the revision number of a branch placeholder, which has no lifecycle of its own
_row = msgspec.json.Decoder(ObjectRow)


NO_QUESTIONS: Mapping[str, EventTask] = {}
NO_ROLLOUT = EventRollout()


class ConditionSubject(NamedTuple):
    """An existing object whose conditions are published.

    conditions: the conditions to publish
    cause: the cause of its events
    variant, owner_uid: name and uid of the PackageVariant that owns a revision
    questions: condition type -> the question to people behind it
    rollout: how far the rollout of a policy is
    """

    uid: str
    conditions: tuple[Condition, ...]
    cause: EventCause
    variant: str = ""
    questions: Mapping[str, EventTask] = NO_QUESTIONS
    owner_uid: str = ""
    rollout: EventRollout = NO_ROLLOUT


class Subjects:
    """The observed objects, by the keys of their events: `<Kind>|<namespace>/<name>`."""

    def __init__(self, partitions: int) -> None:
        self._count = partitions
        self._sync = SyncView(partitions)
        self._tables: list[dict[str, ConditionSubject]] = [{} for _ in range(partitions)]

    def load(self, partition: int, key: str, value: bytes | None) -> str | None:
        """Apply a record of the objects topic; return the event key of its object."""
        if not key.startswith(_PREFIXES):
            return None
        name = ObjectKey.parse(key)
        key = str(SubjectKey(name.kind, f"{name.namespace}/{name.name}"))
        table = self._tables[reconciled_partition(key, self._count)]
        if value is None:
            table.pop(key, None)
        else:
            table[key] = _subject(name, _row.decode(value))
        return key

    def load_marker(self, partition: int, key: str, value: bytes | None) -> str | None:
        """Apply a sync marker; return the kind whose completeness changed."""
        kind = OBSERVED_NAMES.get(marker_kind(key))
        return kind if kind is not None and self._sync.load(partition, key, value) else None

    def of(self, partition: int, key: str) -> ConditionSubject | None:
        return self._tables[partition].get(key)

    def keys(self, partition: int) -> Iterable[str]:
        """Return the keys of a partition that have a condition."""
        return [key for key, subject in self._tables[partition].items() if subject.conditions]

    def is_listed(self, kind: str, namespace: str) -> bool:
        """Return whether the list of a kind is complete, so that a missing object does not exist.

        namespace: the namespace of the object, "" for one of a kind of the cluster
        """
        observed = OBSERVED_BY_SCOPE.get((kind, bool(namespace)))
        return observed is not None and self._sync.ok(str(observed), namespace)


_PREFIXES = tuple(f"{kind}|" for kind in OBSERVED)


def _subject(name: ObjectKey, row: ObjectRow) -> ConditionSubject:
    cause = EventCause(generation=row.generation, resource_version=row.resource_version)
    if name.group != PORCH_GROUP:
        return ConditionSubject(row.uid, row.conditions, cause, rollout=row.rollout or NO_ROLLOUT)
    facts = row.revision
    if facts is not None:
        cause = replace(cause, commit=facts.self_commit)
    owners = [(o.name, o.uid) for o in row.owners if _is_variant(o.api_version, o.kind)]
    variant, owner_uid = owners[0] if owners else ("", "")
    if facts is None or not facts.lifecycle or facts.revision == _PLACEHOLDER:
        return ConditionSubject(row.uid, (), cause)
    if not row.owners and KEPT_FOR in row.annotations and facts.lifecycle not in PUBLISHED:
        return ConditionSubject(row.uid, (_retained(row),), cause, maker_of(row.annotations[KEPT_FOR])[1])
    if not variant:
        return ConditionSubject(row.uid, (), cause)
    questions = NO_QUESTIONS if row.deleted else _about_others(facts.questions)
    conditions = (_lifecycle(facts), *_of_gates_and_tasks(facts, questions))
    return ConditionSubject(row.uid, conditions, cause, variant, questions, owner_uid)


def _lifecycle(facts: RevisionFacts) -> Condition:
    return Condition(
        type=LIFECYCLE_TYPE,
        status="True" if facts.lifecycle in PUBLISHED else "False",
        reason=facts.lifecycle,
        message=f"package {facts.package} of repository {facts.repository}, workspace {facts.workspace}",
    )


def _retained(row: ObjectRow) -> Condition:
    set_name, variant = maker_of(row.annotations[KEPT_FOR])
    made_by = f" of PackageVariantSet {set_name}" if set_name else ""
    editors = row.annotations.get(EDITED_BY) or "somebody"
    message = (
        f"edited by {editors}; PackageVariant {variant}{made_by} has left it: applied again, the variant has "
        "it back, else propose or delete it"
    )
    return Condition(type=KEPT_TYPE, status="True", reason="VariantDeleted", message=message)


def _about_others(questions: Mapping[str, EventTask]) -> Mapping[str, EventTask]:
    """Return the questions but one whose condition has the type of the lifecycle: the event is that one's."""
    return {type_: task for type_, task in questions.items() if type_ != LIFECYCLE_TYPE}


def _of_gates_and_tasks(facts: RevisionFacts, questions: Mapping[str, EventTask]) -> Iterator[Condition]:
    """Yield the conditions that programs and people are waited for. The other ones of a package are its own.

    Several of one type are Unknown, as a gate takes them; so is one that is not there yet, if its question
    is open: a blueprint may ask without setting it.
    """
    by_type: dict[str, Condition] = {}
    for condition in facts.conditions:
        if condition.type in by_type:
            condition = Condition(type=condition.type, status="Unknown", reason=DUPLICATE)
        by_type[condition.type] = condition
    wanted = {*facts.gates, *facts.tasks} - {LIFECYCLE_TYPE}
    yield from (condition for type_, condition in by_type.items() if type_ in wanted)
    yield from (
        msgspec.convert(asked(type_, task), Condition)
        for type_, task in questions.items()
        if type_ in wanted and type_ not in by_type and task.state in OPEN_STATES
    )


def _is_variant(api_version: str, kind: str) -> bool:
    return kind == "PackageVariant" and api_version.startswith(f"{CONFIG_GROUP}/")
