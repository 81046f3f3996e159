"""The rows on the bus: one Struct per kind of row.

Rows are JSON. New fields have defaults, types never change, unknown fields are allowed. A row
carries the uid of its object; a row of another uid is ignored. Rows of `sets` and `variants` are the
objects themselves (`pvbus.core.api.variants`) without managedFields. `pvbus.core.kernel.topics` defines the
rows and keys of each topic.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

from pvbus.core.api.promotion import PackageSpecializerSpec
from pvbus.core.api.variants import Condition, Downstream, DownstreamTarget, Upstream, VariantTemplate
from pvbus.core.kernel.codec import Row
from pvbus.core.kernel.eventrows import EventRollout, EventTask

META = "pvbus.meta"
OBJECTS = "pvbus.objects"
INJECTABLES = "pvbus.injectables"
SETS = "pvbus.sets"
VARIANTS = "pvbus.variants"
WATCHES = "pvbus.watches"
UNROLL = "pvbus.unroll"
TARGETS = "pvbus.targets"
DESIRED = "pvbus.desired"
RESULTS = "pvbus.results"
SETRESULTS = "pvbus.setresults"
PROMOTIONS = "pvbus.promotions"
RELEASES = "pvbus.releases"
POLICIES = "pvbus.policies"
CANDIDATES = "pvbus.candidates"
ROLLOUTS = "pvbus.rollouts"
APPROVALS = "pvbus.approvals"
INSTALLS = "pvbus.installs"
SOURCES = "pvbus.sources"
LOCK = "pvbus.lock"
ESTABLISHED = "pvbus.established"
CONDITIONS = "pvbus.conditions"
LATEST = "pvbus.conditions.latest"
DLQ = "pvbus.dlq"

SCHEMA_VERSION = 1


class MetaRow(Row, frozen=True, kw_only=True, omit_defaults=False):
    """The installation: written once, compared by every worker at its start. Key: `installation`.

    Defaults are written out: an omitted version would later be read as the newer default.
    """

    partitions: int
    incarnation: str
    schema_version: int = SCHEMA_VERSION


class Refusal(Row, frozen=True, kw_only=True):
    """A namespace that should be listed and may not be. message: why, and what to do."""

    namespace: str
    message: str


class Coverage(Row, frozen=True, kw_only=True):
    """The namespaces of which a list shows every object. namespaces: empty for all; none of those refused."""

    namespaces: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def covers(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def problem(self, namespace: str) -> str:
        """Return why a namespace is not covered, "" if it is."""
        if self.covers(namespace):
            return ""
        messages = (refusal.message for refusal in self.refused if refusal.namespace == namespace)
        return next(messages, f'PVBUS_NAMESPACES of ingest does not have the namespace "{namespace}"')


class SyncMarker(Row, frozen=True, kw_only=True):
    """The completeness of a kind's rows in this partition.

    state `ok`: every existing object of the kind has its row, in the namespaces of `coverage`; an absent row
    of any other namespace means nothing. `syncing`: rows may be missing or stale. `unavailable`: the kind is
    not served, or may not be read (`message` in the API's words). `unwatched`: no service requests it any
    more. versions: the served ones, preferred one first.
    """

    state: Literal["syncing", "ok", "unavailable", "unwatched"]
    epoch: int
    versions: tuple[str, ...] = ()
    message: str = ""
    coverage: Coverage = Coverage()


class ObjectOwner(Row, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class RevisionFacts(Row, frozen=True, kw_only=True):
    """Facts of a PackageRevision. `lock_*`: status.upstreamLock.git; `self_*`: status.selfLock.git. gates,
    tasks: types of the conditions that readiness gates name, and of those that ask people. questions: of
    these, by type. gate_steps: the one step of those gates that are not for both."""

    repository: str
    package: str
    workspace: str = ""
    revision: int = 0
    lifecycle: str = ""
    lock_repo: str = ""
    lock_directory: str = ""
    lock_ref: str = ""
    lock_commit: str = ""
    self_repo: str = ""
    self_directory: str = ""
    self_commit: str = ""
    clone_upstream: str = ""
    conditions: tuple[Condition, ...] = ()
    gates: tuple[str, ...] = ()
    gate_steps: Mapping[str, str] = {}
    tasks: tuple[str, ...] = ()
    questions: Mapping[str, EventTask] = {}


class ObjectRow(Row, frozen=True, kw_only=True):
    """Metadata of an observed object, and a few facts of its kind that services need. conditions: Ready of a
    Repository, all of a RolloutPolicy, an install of a package or its revision. specializer: the spec of a
    PackageSpecializer. rollout: how far that of a RolloutPolicy is."""

    uid: str
    resource_version: str = ""
    generation: int = 0
    created: str = ""
    deleted: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owners: tuple[ObjectOwner, ...] = ()
    digest: str = ""
    revision: RevisionFacts | None = None
    deployment: bool | None = None
    downstream: Downstream | None = None
    served: tuple[str, ...] | None = None
    conditions: tuple[Condition, ...] = ()
    specializer: PackageSpecializerSpec | None = None
    rollout: EventRollout | None = None


class InjectableRow(Row, frozen=True, kw_only=True):
    """Content of an object requested by name; or, with an empty name in the key, whether the
    namespace has any object of the kind. exists False: it was looked up and not found.

    content: `spec`, or `data` of a core ConfigMap; UNSET when the object has no such field.
    """

    exists: bool
    uid: str = ""
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""


class WatchRequest(Row, frozen=True, kw_only=True):
    """One lease's request for a kind (metadata), or for the content of one object of it."""

    group: str
    kind: str
    requester: str
    content: bool = False
    namespace: str = ""
    name: str = ""


class CheckRequest(Row, frozen=True, kw_only=True):
    """A set's request to confirm that the rows of a kind are up to date, before it orders removals.

    The worker that watches the kind answers after a consistent read that began after it consumed the
    request, and after every difference that the read found was committed. nonce: 128 random bits,
    repeated in the answer. names: `<namespace>/<name>` of the objects to read; empty: the whole kind.
    """

    group: str
    kind: str
    nonce: str
    names: tuple[str, ...] = ()


class CheckAnswer(Row, frozen=True, kw_only=True):
    """The answer to the CheckRequest with this nonce."""

    nonce: str


class ChildState(StrEnum):
    """State of a set's child: `present`, or how far its removal is (`pvbus.core.variants.unroll.states`).

    `waiting`: no target wants it; its removal is not ordered yet. `held`: by the guard. `confirmed`: held,
    and a person confirmed it. `ordered`: render was given the order. `gone`: its PackageVariant is not there.
    """

    PRESENT = "present"
    WAITING = "waiting"
    HELD = "held"
    CONFIRMED = "confirmed"
    ORDERED = "ordered"
    GONE = "gone"


class ChildRow(Row, frozen=True, kw_only=True):
    """A set's record of one child.

    since: start of the state, seconds since the epoch, for display only. digest: that of the present row
    in `targets`, "" while render has another row or none. created, unwanted: numbers of the set's passes in
    which it was created, and last became unwanted; 0: before any, or long ago; for a row that waits on
    hold: it was never compared with the targets. hold: id of the hold that holds it, or that was
    confirmed. cancelled: token of the last withdrawn order; the next order waits until render has written
    it. generation: of the set at the order. on_hold: the row for render is on hold: it writes nothing;
    hold_reason: why, as the set says.
    """

    set_uid: str
    state: ChildState
    downstream: Downstream
    digest: str = ""
    target: int = 0
    okey: str = ""
    since: float = 0
    created: int = 0
    unwanted: int = 0
    hold: str = ""
    cancelled: str = ""
    generation: int = 0
    on_hold: bool = False
    hold_reason: str = ""


class Root(Row, frozen=True, kw_only=True):
    """One CEL root, cut down to the fields that the expressions read. repo, package: of a list target."""

    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    repo: str = ""
    package: str = ""


class TargetRow(Row, frozen=True, kw_only=True):
    """Render's input for one PackageVariant, or the order to remove it.

    state `present`: make it. `removed`: the order to delete it. `withdrawn`: write only the annotation
    that withdraws an order. digest: of the inputs of the result, never of the set's generation.
    cancelled: token of the last withdrawn order; the living PackageVariant must carry it in its
    annotation, so that a DELETE decided earlier fails on its precondition. generation, ordered: of the
    set and the time of the order (seconds since the epoch), only with `removed`: render deletes while the
    live set is at that generation and the order is fresh. why: with `removed`, why the set has no use for it
    any more. on_hold: the set has the hold annotation; hold_reason: why.
    """

    state: Literal["present", "removed", "withdrawn"]
    set_name: str
    set_uid: str
    set_created: str = ""
    digest: str = ""
    generation: int = 0
    ordered: float = 0
    why: str = ""
    cancelled: str = ""
    on_hold: bool = False
    hold_reason: str = ""
    target: int = 0
    upstream: Upstream | None = None
    template: VariantTemplate | None = None
    downstream: Downstream = Downstream()
    repo_default: str = ""
    package_default: str = ""
    list_target: bool = False
    roots: Mapping[str, Root] = {}


class HoldingSet(Row, frozen=True, kw_only=True):
    """A PackageVariantSet on hold; reason: why, "" if it says nothing."""

    name: str
    uid: str
    reason: str = ""


class DesiredRow(Row, frozen=True, kw_only=True):
    """Render's last decision for a PackageVariant.

    dropped: fields that the set wants and the API server does not store; spec_digest is of what it stores.
    outcome: `applied` (the PackageVariant has spec_digest), `error` (the template), `refused` (by the
    API server), `conflict`, `held`, `waiting` (until the former one is gone), `removed`, `expired` (the
    order was too old), `withdrawn` (only the withdrawal of an order is written), `defect` (a bug of
    ours). reported: digest of the last report to each set, by set name. on_hold: the set has the hold
    annotation, so no service writes anything for this PackageVariant; hold_reason: why. holders: while render
    sees no PackageVariant, the sets on hold whose PackageVariant can still show up. why: of the order that
    was carried out on the PackageVariant of this uid.
    """

    set_name: str = ""
    set_uid: str = ""
    input_digest: str = ""
    spec_digest: str = ""
    outcome: Literal[
        "applied",
        "error",
        "refused",
        "conflict",
        "held",
        "waiting",
        "removed",
        "expired",
        "withdrawn",
        "defect",
    ] = "applied"
    uid: str = ""
    error: str = ""
    reported: Mapping[str, str] = {}
    on_hold: bool = False
    hold_reason: str = ""
    holders: tuple[HoldingSet, ...] = ()
    dropped: tuple[str, ...] = ()
    why: str = ""


class ChildResult(Row, frozen=True, kw_only=True):
    """Render's report to a set about one child.

    evaluated, applied: digests of the target row. expression_failed: the template could not be evaluated.
    ready: the living PackageVariant's own Ready, False while its conditions are of an earlier generation;
    unready: why not; failing: it reports a failure, not work in progress. cancelled: token that the living
    PackageVariant carries. expired: time of an order that was too old to carry out. attention: the message of
    its condition AttentionNeeded, "" without one.
    """

    set_uid: str
    evaluated: str = ""
    applied: str = ""
    reason: str = ""
    error: str = ""
    expression_failed: bool = False
    ready: bool = False
    unready: str = ""
    failing: bool = False
    cancelled: str = ""
    expired: float = 0
    attention: str = ""


class Counts(Row, frozen=True, kw_only=True):
    desired: int = 0
    applied: int = 0
    ready: int = 0
    failed: int = 0
    held: int = 0
    removing: int = 0


class ChildFailure(Row, frozen=True, kw_only=True):
    """A child that is not ready, or a failing target: its name and the reason."""

    name: str
    reason: str = ""
    message: str = ""


class Dispute(Row, frozen=True, kw_only=True):
    """An expression about which two evaluators disagree. path: of its field. target: as messages name it.

    ours, theirs: the answers, strings as JSON, of pvbus and of cel-python.
    """

    path: str
    target: str
    ours: str
    theirs: str


class Hold(Row, frozen=True, kw_only=True):
    """Removals of a set that the guard holds. id: of this hold, never reused. token: confirms its `count`
    removals; "" while they are being collected. generation: of the set whose change began the hold, 0 if
    targets changed; additions of that generation wait."""

    id: str
    token: str = ""
    count: int = 0
    generation: int = 0


class SetResult(Row, frozen=True, kw_only=True):
    """A set's roll-up. reason: of Stalled, `Valid` if it is not stalled; on_hold: the user's annotation;
    hold_reason: why.

    hold: removals that the guard holds, None if there are none. released: id of the last confirmed hold.
    waiting: the event that removals wait for, in words. unready: the first three children that are not
    ready, or targets that fail. needing: number of children that wait for a person; attention: the first
    three of them. opinion: generation whose expressions had a second opinion; disputed: number of evaluations
    it disagrees with; disputes: the first three of them. plan_required: the set needs a signed plan, also
    once its annotation is gone.
    """

    uid: str
    generation: int
    reason: str = "Valid"
    message: str = ""
    counts: Counts = Counts()
    on_hold: bool = False
    hold_reason: str = ""
    hold: Hold | None = None
    released: str = ""
    waiting: str = ""
    unready: tuple[ChildFailure, ...] = ()
    needing: int = 0
    attention: tuple[ChildFailure, ...] = ()
    opinion: int = 0
    disputed: int = 0
    disputes: tuple[Dispute, ...] = ()
    plan_required: bool = False


class InjectedObject(Row, frozen=True, kw_only=True):
    """One injection point and its outcome. hash: of the injected content, "" if none."""

    file: str
    group: str
    version: str = ""
    kind: str
    condition_type: str
    required: bool = False
    name: str = ""
    hash: str = ""
    reason: str = ""
    message: str = ""


class ResultRow(Row, frozen=True, kw_only=True):
    """Inject's last result for a PackageVariant, and its durable state.

    input_digest: of all inputs of the outcome; if equal, there is nothing to do. downstreams: every
    (repo, package) that ever had a revision of ours and may still have one. requests: keys in `watches`
    that this variant needs. waiting: the events it waits for, in words. cause: start of the last attempt
    that followed a change, in wall seconds.
    """

    uid: str
    generation: int = 0
    input_digest: str = ""
    upstream: str = ""
    upstream_identity: str = ""
    revisions: tuple[str, ...] = ()
    injected: tuple[InjectedObject, ...] = ()
    downstreams: tuple[Downstream, ...] = ()
    targets: tuple[DownstreamTarget, ...] = ()
    conditions: tuple[Condition, ...] = ()
    requests: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    cause: float = 0


class DeadLetter(Row, frozen=True, kw_only=True):
    """A record that could not be decoded, or that the sink's receiver refused, and its position."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes = b""
