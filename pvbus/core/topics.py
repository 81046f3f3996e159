"""The topic table: what is on each topic, under which keys, in which partition, and whose it is.

This is the one place that says so. The shells route and check records by it, controllers take their topics
from it, `schemas/topics.yaml` and the AsyncAPI document are generated from it.

The form of a key is its parts in angle brackets, joined by bars; the names in them have no bars. Forms of one
topic differ in their prefix (`check|`, `!sync|`) or in their number of parts, which is how a key is told from
others without decoding it.
"""

from collections.abc import Callable, Iterator

import msgspec

from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.keys import (
    CHECK_PREFIX,
    SYNC_PREFIX,
    CheckKey,
    ChildKey,
    ConditionKey,
    Key,
    MarkerKey,
    ObjectKey,
    SubjectKey,
    TargetKey,
    WatchKey,
    partition,
)
from pvbus.core.records import (
    CONDITIONS,
    DESIRED,
    DLQ,
    INJECTABLES,
    LATEST,
    META,
    OBJECTS,
    RESULTS,
    SETRESULTS,
    SETS,
    TARGETS,
    UNROLL,
    VARIANTS,
    WATCHES,
    CheckAnswer,
    CheckRequest,
    ChildResult,
    ChildRow,
    ConditionEvent,
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

PARTITIONS = 12
TOMBSTONE_SECONDS = 86_400  # whoever was away for less than half of it still sees every deletion
_DAY_SECONDS = 86_400
_PREFIXES = (CHECK_PREFIX, SYNC_PREFIX)

SERVICES = ("ingest", "unroll", "render", "inject", "conditions")


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A topic as a bus needs to know it.

    cleanup: "compact" keeps the last record of a key, and drops a tombstone `tombstone_seconds`
    after it was written at the earliest, and later where nobody writes on; "delete" drops records after
    `retention_seconds`.
    """

    name: str
    partitions: int
    cleanup: str
    retention_seconds: int | None = None
    tombstone_seconds: int = TOMBSTONE_SECONDS


class Rows:
    """Rows of one type within a topic, and the codec of their keys.

    form: of the keys, see the module. parse: decodes such a key (ValueError for what is none); `str` of the
    result encodes it. by: the part that chooses the partition, "" for the whole key. decoder: where
    controllers keep the bytes and decode them later, it shows on arrival whether they can. is_any: keys of
    any form.
    """

    __slots__ = ("by", "chooser", "decoder", "form", "is_any", "parse", "type")

    def __init__(
        self,
        type_: type[msgspec.Struct],
        form: str,
        parse: Callable[[str], object],
        *,
        by: str = "",
        keeps_bytes: bool = False,
        is_any: bool = False,
    ) -> None:
        self.type = type_
        self.form = form
        self.parse = parse
        self.by = by
        self.chooser = form.split("|").index(by) if by else -1
        self.decoder = msgspec.json.Decoder(type_) if keeps_bytes else None
        self.is_any = is_any

    def partition_key(self, key: str) -> str:
        """Return the part of a key that chooses its partition."""
        if self.chooser == 0:
            return key.partition("|")[0]
        return key if self.chooser < 0 else key.split("|", self.chooser + 1)[self.chooser]


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: what is on it, who writes it, who acts upon it and who reads it.

    owners: services whose lease i covers partition i: only they act upon it. readers: services (and programs)
    that read every partition. public: part of the contract with programs outside of pvbus.
    """

    spec: TopicSpec
    description: str
    rows: tuple[Rows, ...]
    producers: tuple[str, ...]
    owners: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    public: bool = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def values(self) -> tuple[str, ...]:
        """Return the names of the record Structs and API types."""
        return tuple(dict.fromkeys(rows.type.__name__ for rows in self.rows))

    @property
    def key(self) -> str:
        """Describe how keys look."""
        everywhere = " in every partition"
        forms = [f"`{r.form}`{everywhere if r.type is SyncMarker else ''}" for r in self.rows]
        return "; ".join(dict.fromkeys(forms))

    @property
    def partitioned_by(self) -> str:
        """Describe what chooses a row's partition (a marker is in every one)."""
        if self.spec.partitions == 1:
            return "one partition"
        rules = [f"`{r.by}`" if r.by else "the key" for r in self.rows if r.type is not SyncMarker]
        return "; ".join(dict.fromkeys(rules))


def _compacted(name: str, *, partitions: int = PARTITIONS) -> TopicSpec:
    return TopicSpec(name=name, partitions=partitions, cleanup="compact")


def _kept_for(name: str, days: int) -> TopicSpec:
    return TopicSpec(
        name=name, partitions=PARTITIONS, cleanup="delete", retention_seconds=days * _DAY_SECONDS
    )


_SKEY = "<namespace>/<set>"
_VKEY = "<namespace>/<variant>"
_OKEY = "<group>/<kind>|<namespace>|<name>"
_KIND = "<group>/<kind>"
_WATCH = f"{_KIND}|<requester>"
_NAME = "<namespace>/<name>"
_CHECK = f"{CHECK_PREFIX}{_KIND}|{_SKEY}"
_MARKERS = Rows(SyncMarker, f"{SYNC_PREFIX}{_KIND}", MarkerKey.parse)

TOPICS: tuple[Topic, ...] = (
    Topic(
        spec=_compacted(META, partitions=1),
        description="The installation itself. Every worker compares it with its own at start.",
        rows=(Rows(MetaRow, "installation", str),),
        producers=("the process that starts first",),
        readers=SERVICES,
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
        readers=("ingest", "unroll", "inject", "conditions"),
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
        description="The PackageVariantSets as they are in the cluster, without managedFields.",
        rows=(Rows(PackageVariantSet, _SKEY, Key.parse, by=_SKEY, keeps_bytes=True), _MARKERS),
        producers=("ingest",),
        owners=("unroll", "conditions"),
        readers=("ingest",),
    ),
    Topic(
        spec=_compacted(VARIANTS),
        description="The PackageVariants as they are in the cluster, without managedFields.",
        rows=(Rows(PackageVariant, _VKEY, Key.parse, by=_VKEY, keeps_bytes=True), _MARKERS),
        producers=("ingest",),
        owners=("render", "inject", "conditions"),
        readers=("ingest",),
    ),
    Topic(
        spec=_compacted(WATCHES),
        description="Kinds to watch, and single objects whose content is wanted, one row per wish.",
        rows=(
            Rows(WatchRequest, _WATCH, WatchKey.parse, by=_KIND),
            Rows(WatchRequest, f"{_WATCH}|<namespace>|<name>", WatchKey.parse, by=_KIND),
            Rows(CheckRequest, _CHECK, CheckKey.parse, by=_KIND, keeps_bytes=True),
        ),
        producers=("unroll", "inject"),
        owners=("ingest",),
        readers=("unroll", "inject"),
    ),
    Topic(
        spec=_compacted(UNROLL),
        description="What each set remembers of each of its children.",
        rows=(Rows(ChildRow, f"{_SKEY}|<variant>", ChildKey.parse, by=_SKEY),),
        producers=("unroll",),
        owners=("unroll",),
    ),
    Topic(
        spec=_compacted(TARGETS),
        description="Everything that is needed to render one PackageVariant, or the order to remove it.",
        rows=(Rows(TargetRow, f"{_VKEY}|<set>", TargetKey.parse, by=_VKEY),),
        producers=("unroll",),
        owners=("render",),
    ),
    Topic(
        spec=_compacted(DESIRED),
        description="What was last decided for each PackageVariant of a set.",
        rows=(Rows(DesiredRow, _VKEY, Key.parse, by=_VKEY),),
        producers=("render",),
        owners=("render", "inject"),
    ),
    Topic(
        spec=_compacted(RESULTS),
        description="What was last done for each PackageVariant, and what must be remembered of it.",
        rows=(Rows(ResultRow, _VKEY, Key.parse, by=_VKEY, keeps_bytes=True),),
        producers=("inject",),
        owners=("inject", "conditions"),
    ),
    Topic(
        spec=_compacted(SETRESULTS),
        description="What became of each child of a set, and the roll-up of the set.",
        rows=(
            Rows(ChildResult, f"{_SKEY}|<variant>", ChildKey.parse, by=_SKEY, keeps_bytes=True),
            Rows(SetResult, _SKEY, Key.parse, by=_SKEY, keeps_bytes=True),
        ),
        producers=("render", "unroll"),
        owners=("unroll", "conditions"),
    ),
    Topic(
        spec=_kept_for(CONDITIONS, days=7),
        description=(
            "One event for each change of a condition of a PackageVariant or PackageVariantSet, of Ready of "
            "a Repository, and of the lifecycle of a variant's PackageRevisions (their condition Published)."
        ),
        rows=(Rows(ConditionEvent, f"<Kind>|{_NAME}", SubjectKey.parse, by=_NAME),),
        producers=("conditions",),
        readers=("programs outside of pvbus",),
        public=True,
    ),
    Topic(
        spec=_compacted(LATEST),
        description="The last event of each condition: where a program that listens starts from.",
        rows=(Rows(ConditionEvent, f"<Kind>|{_NAME}|<condition type>", ConditionKey.parse, by=_NAME),),
        producers=("conditions",),
        owners=("conditions",),
        readers=("programs outside of pvbus",),
        public=True,
    ),
    Topic(
        spec=_kept_for(DLQ, days=30),
        description="Records that could not be decoded, with the place they came from.",
        rows=(Rows(DeadLetter, "<key of the record that could not be decoded>", str, is_any=True),),
        producers=SERVICES,
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
    """Return the owned topics that only the service itself writes: it restores from them what it did."""
    return tuple(t.name for t in TOPICS if service in t.owners and t.producers == (service,))


def inputs_of(service: str) -> tuple[str, ...]:
    """Return the owned topics that a lease of a service consumes: others write them, too."""
    memory = memory_of(service)
    return tuple(name for name in owned_topics(service) if name not in memory)


def broadcast_of(service: str) -> tuple[str, ...]:
    """Return the tables that every worker of a service has whole; the installation is read once, at start."""
    return tuple(t.name for t in TOPICS if service in t.readers and t.name != META)


def row_types() -> Iterator[type[msgspec.Struct]]:
    """Yield every type of rows once, whole API objects included."""
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
    """Return which rows of a topic have such a key, None where no rows do."""
    prefix = key[: key.index("|") + 1] if key.startswith(_PREFIXES) else ""
    return _RULES.get((topic, prefix, key.count("|"))) or _ANY.get(topic, _FOREIGN)


def partition_key(topic: str, key: str) -> str:
    """Return the part of a key that chooses its partition (markers go to every partition).

    That is the whole key where no rows of the topic have such a key: a tombstone for what another program
    wrote, for example.
    """
    rows = rows_of(topic, key)
    return key if rows is None else rows.partition_key(key)


def row_partition(topic: str, key: str, partitions: int) -> int:
    """Return the partition of a row."""
    rows = rows_of(topic, key)
    return partition(key if rows is None or not rows.by else rows.partition_key(key), partitions)


def child_of(topic: str, key: str) -> str:
    """Return the PackageVariant's name that unroll's row of a child speaks of, "" for any other row."""
    if topic == UNROLL:
        return ChildKey.parse(key).variant
    if topic == TARGETS:
        return Key.parse(TargetKey.parse(key).vkey).name
    return ""
