"""The topic table: the rows, keys, partition rule, producers and owners of each topic.

It is the only definition; `topicspecs` has the fields of an entry. The shells route and check records by it,
controllers take their topics from it, `schemas/topics.yaml` and the AsyncAPI document are generated from it.
"""

from collections.abc import Iterator

import msgspec

from pvbus.core.api.quarantines import Quarantine
from pvbus.core.api.rollouts import RolloutPolicy
from pvbus.core.api.stops import RolloutStop
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.kernel.eventrows import ConditionEvent
from pvbus.core.kernel.keys import (
    CHECK_PREFIX,
    STOP_PREFIX,
    SYNC_PREFIX,
    CheckKey,
    ChildKey,
    ConditionKey,
    Key,
    MarkerKey,
    ObjectKey,
    StopKey,
    SubjectKey,
    TargetKey,
    WatchKey,
    partition,
)
from pvbus.core.kernel.packagerows import (
    ContentRow,
    EstablishedRow,
    LockRow,
    PackagingObject,
    ScopedKey,
    SourceRow,
)
from pvbus.core.kernel.promotionrows import ApprovalRow, CandidateRow, PromotionRow, ReleaseRow
from pvbus.core.kernel.records import (
    APPROVALS,
    CANDIDATES,
    CONDITIONS,
    DESIRED,
    DLQ,
    ESTABLISHED,
    INJECTABLES,
    INSTALLS,
    LATEST,
    LOCK,
    META,
    OBJECTS,
    POLICIES,
    PROMOTIONS,
    RELEASES,
    RESULTS,
    ROLLOUTS,
    SETRESULTS,
    SETS,
    SOURCES,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildResult,
    ChildRow,
    DeadLetter,
    DesiredRow,
    InjectableRow,
    MetaRow,
    ObjectRow,
    ResultRow,
    SetResult,
    SyncMarker,
    TargetRow,
    WatchRequest,
)
from pvbus.core.kernel.rolloutrows import Rollout, Target
from pvbus.core.kernel.topicspecs import Rows, Topic, TopicSpec

PARTITIONS = 12
_DAY_SECONDS = 86_400
_PREFIXES = (CHECK_PREFIX, STOP_PREFIX, SYNC_PREFIX)

SERVICES = ("ingest", "unroll", "render", "inject", "conditions")
PROMOTION = ("promote", "rollout", "release")
"""Services that may be left out: then nothing proposes."""
PLATFORM = ("resolve", "establish")
"""Services that may be left out: then no package is installed."""
ALL_SERVICES = (*SERVICES, *PROMOTION, *PLATFORM)
SINK = "sink"
"""The webhook sink: a program beside the services, which reads the public topics."""


def _compacted(name: str, *, partitions: int = PARTITIONS) -> TopicSpec:
    return TopicSpec(name=name, partitions=partitions, cleanup="compact")


def _kept_for(name: str, days: int) -> TopicSpec:
    return TopicSpec(
        name=name, partitions=PARTITIONS, cleanup="delete", retention_seconds=days * _DAY_SECONDS
    )


_SKEY = "<namespace>/<set>"
_VKEY = "<namespace>/<variant>"
_RKEY = "<namespace>/<revision>"
_REVISION = f"<Kind>|{_RKEY}"
_PKEY = "<namespace>/<policy>"
_OKEY = "<group>/<kind>|<namespace>|<name>"
_KIND = "<group>/<kind>"
_SCOPE = "<scope>"
_SOKEY = f"{_SCOPE}|{_OKEY}"
_WATCH = f"{_KIND}|<requester>"
_NAME = "<namespace>/<name>"
_CHECK = f"{CHECK_PREFIX}{_KIND}|{_SKEY}"
_MARKERS = Rows(SyncMarker, f"{SYNC_PREFIX}{_KIND}", MarkerKey.parse, is_everywhere=True)

TOPICS: tuple[Topic, ...] = (
    Topic(
        spec=_compacted(META, partitions=1),
        description="The installation itself. Every worker compares it with its own at start.",
        rows=(Rows(MetaRow, "installation", str),),
        producers=("the process that starts first",),
        readers=ALL_SERVICES,
    ),
    Topic(
        spec=_compacted(OBJECTS),
        description=(
            "Metadata of every object that a set or a variant may depend on, and how complete each kind is."
        ),
        rows=(
            Rows(ObjectRow, _OKEY, ObjectKey.parse),
            _MARKERS,
            Rows(CheckAnswer, _CHECK, CheckKey.parse, keeps_bytes=True),
        ),
        producers=("ingest",),
        readers=("ingest", "unroll", "inject", "conditions", "promote"),
    ),
    Topic(
        spec=_compacted(INJECTABLES),
        description="Content of the objects that a variant injects, asked for by name.",
        rows=(Rows(InjectableRow, _OKEY, ObjectKey.parse, keeps_bytes=True), _MARKERS),
        producers=("ingest",),
        readers=("ingest", "inject"),
    ),
    Topic(
        spec=_compacted(SETS),
        description="The cluster's PackageVariantSets, without managedFields.",
        rows=(Rows(PackageVariantSet, _SKEY, Key.parse, by=_SKEY, keeps_bytes=True), _MARKERS),
        producers=("ingest",),
        owners=("unroll", "conditions"),
        readers=("ingest",),
    ),
    Topic(
        spec=_compacted(VARIANTS),
        description="The cluster's PackageVariants, without managedFields.",
        rows=(Rows(PackageVariant, _VKEY, Key.parse, by=_VKEY, keeps_bytes=True), _MARKERS),
        producers=("ingest",),
        owners=("render", "inject", "conditions", "promote", "release"),
        readers=("ingest",),
    ),
    Topic(
        spec=_compacted(WATCHES),
        description="Kinds to watch, and single objects whose content is needed, one row per request.",
        rows=(
            Rows(WatchRequest, _WATCH, WatchKey.parse, by=_KIND),
            Rows(WatchRequest, f"{_WATCH}|<namespace>|<name>", WatchKey.parse, by=_KIND),
            Rows(CheckRequest, _CHECK, CheckKey.parse, by=_KIND, keeps_bytes=True),
        ),
        producers=("unroll", "inject", "promote", "resolve"),
        owners=("ingest",),
        readers=("unroll", "inject", "promote", "resolve"),
    ),
    Topic(
        spec=_compacted(UNROLL),
        description="The state of each child that a set has.",
        rows=(Rows(ChildRow, f"{_SKEY}|<variant>", ChildKey.parse, by=_SKEY),),
        producers=("unroll",),
        owners=("unroll",),
    ),
    Topic(
        spec=_compacted(TARGETS),
        description="The input to render one PackageVariant, or the order to remove it.",
        rows=(Rows(TargetRow, f"{_VKEY}|<set>", TargetKey.parse, by=_VKEY),),
        producers=("unroll",),
        owners=("render",),
    ),
    Topic(
        spec=_compacted(DESIRED),
        description="The last decision for each PackageVariant of a set.",
        rows=(Rows(DesiredRow, _VKEY, Key.parse, by=_VKEY),),
        producers=("render",),
        owners=("render", "inject", "conditions", "promote", "release"),
    ),
    Topic(
        spec=_compacted(RESULTS),
        description="The last result for each PackageVariant, and its durable state.",
        rows=(Rows(ResultRow, _VKEY, Key.parse, by=_VKEY, keeps_bytes=True),),
        producers=("inject",),
        owners=("inject", "conditions"),
    ),
    Topic(
        spec=_compacted(SETRESULTS),
        description="The result of each child that a set has, and the set's roll-up.",
        rows=(
            Rows(ChildResult, f"{_SKEY}|<variant>", ChildKey.parse, by=_SKEY, keeps_bytes=True),
            Rows(SetResult, _SKEY, Key.parse, by=_SKEY, keeps_bytes=True),
        ),
        producers=("render", "unroll"),
        owners=("unroll", "conditions"),
    ),
    Topic(
        spec=_compacted(PROMOTIONS),
        description="The decision on each open revision of a variant, or one that no variant owns: why it "
        "is not proposed, or the order.",
        rows=(
            Rows(PromotionRow, _VKEY, Key.parse, by=_VKEY),
            Rows(PromotionRow, _REVISION, SubjectKey.parse, by=_RKEY),
        ),
        producers=("promote",),
        owners=("promote", "release"),
    ),
    Topic(
        spec=_compacted(RELEASES),
        description="The outcome of each order to propose, take back, approve or restore a revision.",
        rows=(
            Rows(ReleaseRow, _VKEY, Key.parse, by=_VKEY),
            Rows(ReleaseRow, _REVISION, SubjectKey.parse, by=_RKEY),
        ),
        producers=("release",),
        owners=("promote", "release"),
    ),
    Topic(
        spec=_compacted(POLICIES),
        description="The cluster's RolloutPolicies, Quarantines and RolloutStops, without managedFields.",
        rows=(
            Rows(RolloutPolicy, _PKEY, Key.parse, by=_PKEY, keeps_bytes=True),
            Rows(Quarantine, _OKEY, ObjectKey.parse, keeps_bytes=True),
            Rows(
                RolloutStop,
                f"{STOP_PREFIX}<namespace>|<name>",
                StopKey.parse,
                keeps_bytes=True,
                is_everywhere=True,
            ),
            _MARKERS,
        ),
        producers=("ingest",),
        owners=("rollout",),
        readers=("ingest", "promote", "release"),
    ),
    Topic(
        spec=_compacted(CANDIDATES),
        description="What a policy's rollout knows of each of its targets.",
        rows=(Rows(CandidateRow, f"{_PKEY}|<variant>", ChildKey.parse, by=_PKEY),),
        producers=("promote",),
        owners=("rollout",),
    ),
    Topic(
        spec=_compacted(ROLLOUTS),
        description="The state of each policy's rollout, and of each target in it.",
        rows=(
            Rows(Rollout, _PKEY, Key.parse, by=_PKEY),
            Rows(Target, f"{_PKEY}|<variant>", ChildKey.parse, by=_PKEY),
        ),
        producers=("rollout",),
        owners=("rollout",),
    ),
    Topic(
        spec=_compacted(APPROVALS),
        description=(
            "The rollouts' orders: approve a revision, take that back, or restore a former one; what stays "
            "proposed as planned, and what a rollback has left published."
        ),
        rows=(Rows(ApprovalRow, f"{_VKEY}|<policy>", TargetKey.parse, by=_VKEY),),
        producers=("rollout",),
        owners=("release", "inject", "promote"),
    ),
    Topic(
        spec=_compacted(INSTALLS),
        description="The cluster's installs of packages, their revisions and Carvel's Packages.",
        rows=(
            Rows(PackagingObject, _SOKEY, ScopedKey.parse, by=_SCOPE, keeps_bytes=True),
            _MARKERS,
        ),
        producers=("ingest",),
        owners=("resolve", "establish"),
        readers=("ingest",),
    ),
    Topic(
        spec=_compacted(SOURCES),
        description="What was seen of the sources of packages, and read of their content.",
        rows=(
            Rows(SourceRow, f"{_SCOPE}|<source>", ScopedKey.parse, by=_SCOPE),
            Rows(ContentRow, f"{_SCOPE}|<source>|<digest>", ScopedKey.parse, by=_SCOPE),
        ),
        producers=("resolve",),
        owners=("resolve",),
    ),
    Topic(
        spec=_compacted(LOCK),
        description="The decision for each install: its revisions, objects and dependencies.",
        rows=(Rows(LockRow, _SOKEY, ScopedKey.parse, by=_SCOPE),),
        producers=("resolve",),
        owners=("resolve", "establish"),
    ),
    Topic(
        spec=_compacted(ESTABLISHED),
        description="How far each install is in the cluster.",
        rows=(Rows(EstablishedRow, _SOKEY, ScopedKey.parse, by=_SCOPE),),
        producers=("establish",),
        owners=("establish", "resolve"),
    ),
    Topic(
        spec=_kept_for(CONDITIONS, days=7),
        description=(
            "One event for each change of a condition: of a PackageVariant, PackageVariantSet or "
            "RolloutPolicy, of an install of a package or its revision, of Ready of a Repository, of Stopped "
            "of a RolloutStop, of the lifecycle of a variant's PackageRevisions (their condition Published), "
            "and of the conditions that are gates or tasks of these."
        ),
        rows=(Rows(ConditionEvent, f"<Kind>|{_NAME}", SubjectKey.parse, by=_NAME),),
        producers=("conditions",),
        readers=(SINK, "programs outside of pvbus"),
        public=True,
    ),
    Topic(
        spec=_compacted(LATEST),
        description="The last event of each condition: the starting point of a new consumer.",
        rows=(Rows(ConditionEvent, f"<Kind>|{_NAME}|<condition type>", ConditionKey.parse, by=_NAME),),
        producers=("conditions",),
        owners=("conditions",),
        readers=(SINK, "programs outside of pvbus"),
        public=True,
    ),
    Topic(
        spec=_kept_for(DLQ, days=30),
        description="Records that could not be decoded, or that the receiver of the sink refused.",
        rows=(Rows(DeadLetter, "<key of the record>", str, is_any=True),),
        producers=(*ALL_SERVICES, SINK),
        readers=("people",),
    ),
)


# ---------------------------------------------------------------- topics


def topic_specs(partitions: int | None = None) -> list[TopicSpec]:
    """Return every topic; `partitions` replaces the default number (one-partition topics stay)."""
    specs = [topic.spec for topic in TOPICS]
    if partitions is None:
        return specs
    return [
        spec if spec.partitions == 1 else msgspec.structs.replace(spec, partitions=partitions)
        for spec in specs
    ]


def owned_topics(service: str) -> tuple[str, ...]:
    """Return the topics of which partition i belongs to lease i of a service."""
    return tuple(topic.name for topic in TOPICS if service in topic.owners)


def memory_of(service: str) -> tuple[str, ...]:
    """Return the changelog topics of a service: owned ones that only itself writes, to restore its state."""
    return tuple(t.name for t in TOPICS if service in t.owners and t.producers == (service,))


def inputs_of(service: str) -> tuple[str, ...]:
    """Return the owned topics that a lease of a service consumes: other services write them, too."""
    memory = memory_of(service)
    return tuple(name for name in owned_topics(service) if name not in memory)


def pausable_of(service: str) -> tuple[str, ...]:
    """Return the inputs that a lease may leave unread while it has too much to do: what other services ask.

    What ingest writes says what the cluster has. Decisions rest on it, and a write is done once it is seen
    there: unread for longer than a write waits for its echo, each write would be repeated.
    """
    observed = {topic.name for topic in TOPICS if topic.producers == ("ingest",)}
    return tuple(name for name in inputs_of(service) if name not in observed)


def broadcast_of(service: str) -> tuple[str, ...]:
    """Return the tables that every worker of a service reads in full; `pvbus.meta` is read once, at start."""
    return tuple(t.name for t in TOPICS if service in t.readers and t.name != META)


def row_types() -> Iterator[type[msgspec.Struct]]:
    """Yield every row type once, API objects included."""
    yield from dict.fromkeys(rows.type for topic in TOPICS for rows in topic.rows)


# ---------------------------------------------------------------- keys

_RULES: dict[tuple[str, str, int], Rows] = {}
_ANY: dict[str, Rows | None] = {topic.name: None for topic in TOPICS}
_FOREIGN = Rows(msgspec.Struct, "<key>", str, is_any=True)
"""A topic that is not ours has keys of any form, and the whole key chooses the partition."""

for _topic in TOPICS:
    for _rows in _topic.rows:
        if _rows.is_any:
            _ANY[_topic.name] = _rows
        else:
            _prefix = next((prefix for prefix in _PREFIXES if _rows.form.startswith(prefix)), "")
            _RULES[_topic.name, _prefix, _rows.form.count("|")] = _rows


def rows_of(topic: str, key: str) -> Rows | None:
    """Return the rows of a topic with this form of key, None if there are none."""
    prefix = key[: key.index("|") + 1] if key.startswith(_PREFIXES) else ""
    return _RULES.get((topic, prefix, key.count("|"))) or _ANY.get(topic, _FOREIGN)


def partition_key(topic: str, key: str) -> str:
    """Return the part of a key that chooses its partition (markers go to every partition).

    That is the whole key if no rows of the topic have this form of key, for example in a tombstone for the
    row of another program.
    """
    rows = rows_of(topic, key)
    return key if rows is None else rows.partition_key(key)


def row_partition(topic: str, key: str, partitions: int) -> int:
    """Return the partition of a row."""
    rows = rows_of(topic, key)
    return partition(key if rows is None or not rows.by else rows.partition_key(key), partitions)


def child_of(topic: str, key: str) -> str:
    """Return the name of the PackageVariant in a key that unroll writes for a child, "" for other rows."""
    if topic == UNROLL:
        return ChildKey.parse(key).variant
    if topic == TARGETS:
        return Key.parse(TargetKey.parse(key).vkey).name
    return ""
