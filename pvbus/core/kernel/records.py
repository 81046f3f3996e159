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
from pvbus.core.api.rollouts import TargetCounts
from pvbus.core.api.variants import Condition, Downstream, DownstreamTarget, Upstream, VariantTemplate

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


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Options shared by all rows. gc=False: frozen plain data has no cycles to collect."""


class MetaRow(_Row, frozen=True, kw_only=True, omit_defaults=False):
    """The installation: written once, compared by every worker at its start. Key: `installation`.

    Defaults are written out: an omitted version would later be read as the newer default.
    """

    partitions: int
    incarnation: str
    schema_version: int = SCHEMA_VERSION


class Refusal(_Row, frozen=True, kw_only=True):
    """A namespace that should be listed and may not be. message: why, and what to do."""

    namespace: str
    message: str


class Coverage(_Row, frozen=True, kw_only=True):
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


class SyncMarker(_Row, frozen=True, kw_only=True):
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


class ObjectOwner(_Row, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class EventTask(_Row, frozen=True, kw_only=True):
    """The question to a person behind a condition of a PackageRevision.

    question: empty for a condition without one. owner: the name of who should answer. ticket: a number
    or
    an address. due: RFC 3339 with a zone, or a date, whose end in UTC is meant. state: `open`; `proposed`:
    open, and the revision must become a draft again first; `answered`; `lapsed`: published without an answer.
    blocks: the readiness gates that are not met without it: its own, and those that come after it.
    answeredBy, answeredAt: the recorded user of the answer, and the time.
    """

    question: str = ""
    owner: str = ""
    ticket: str = ""
    due: str = ""
    state: str = ""
    blocks: tuple[str, ...] = ()
    answered_by: str = ""
    answered_at: str = ""


class EventRollout(_Row, frozen=True, kw_only=True):
    """How far a rollout was when a condition of its RolloutPolicy changed.

    phase, attempt, wave: of its status; the wave from 1. waves: how many the policy has. targets: the numbers
    of the targets of the attempt: all, those that wait, are in flight, proven, failing, rolled back, and that
    left.
    """

    phase: str = ""
    attempt: int = 0
    wave: int = 0
    waves: int = 0
    targets: TargetCounts | None = None


class RevisionFacts(_Row, frozen=True, kw_only=True):
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


class ObjectRow(_Row, frozen=True, kw_only=True):
    """Metadata of an observed object, and a few facts of its kind that services need. conditions: Ready of a
    Repository, all of a RolloutPolicy. specializer: the spec of a PackageSpecializer. rollout: how far that
    of a RolloutPolicy is."""

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


class InjectableRow(_Row, frozen=True, kw_only=True):
    """Content of an object requested by name; or, with an empty name in the key, whether the
    namespace has any object of the kind. exists False: it was looked up and not found.

    content: `spec`, or `data` of a core ConfigMap; UNSET when the object has no such field.
    """

    exists: bool
    uid: str = ""
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""


class WatchRequest(_Row, frozen=True, kw_only=True):
    """One lease's request for a kind (metadata), or for the content of one object of it."""

    group: str
    kind: str
    requester: str
    content: bool = False
    namespace: str = ""
    name: str = ""


class CheckRequest(_Row, frozen=True, kw_only=True):
    """A set's request to confirm that the rows of a kind are up to date, before it orders removals.

    The worker that watches the kind answers after a consistent read that began after it consumed the
    request, and after every difference that the read found was committed. nonce: 128 random bits,
    repeated in the answer. names: `<namespace>/<name>` of the objects to read; empty: the whole kind.
    """

    group: str
    kind: str
    nonce: str
    names: tuple[str, ...] = ()


class CheckAnswer(_Row, frozen=True, kw_only=True):
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


class ChildRow(_Row, frozen=True, kw_only=True):
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


class Root(_Row, frozen=True, kw_only=True):
    """One CEL root, cut down to the fields that the expressions read. repo, package: of a list target."""

    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    repo: str = ""
    package: str = ""


class TargetRow(_Row, frozen=True, kw_only=True):
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


class DesiredRow(_Row, frozen=True, kw_only=True):
    """Render's last decision for a PackageVariant.

    dropped: fields that the set wants and the API server does not store; spec_digest is of what it stores.
    outcome: `applied` (the PackageVariant has spec_digest), `error` (the template), `refused` (by the
    API server), `conflict`, `held`, `waiting` (until the former one is gone), `removed`, `expired` (the
    order was too old), `withdrawn` (only the withdrawal of an order is written), `defect` (a bug of
    ours). reported: digest of the last report to each set, by set name. on_hold: the set has the hold
    annotation, so no service writes anything for this PackageVariant; hold_reason: why. why: of the order
    that was carried out on the PackageVariant of this uid.
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
    dropped: tuple[str, ...] = ()
    why: str = ""


class ChildResult(_Row, frozen=True, kw_only=True):
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


class Counts(_Row, frozen=True, kw_only=True):
    desired: int = 0
    applied: int = 0
    ready: int = 0
    failed: int = 0
    held: int = 0
    removing: int = 0


class ChildFailure(_Row, frozen=True, kw_only=True):
    """A child that is not ready, or a failing target: its name and the reason."""

    name: str
    reason: str = ""
    message: str = ""


class Dispute(_Row, frozen=True, kw_only=True):
    """An expression about which two evaluators disagree. path: of its field. target: as messages name it.

    ours, theirs: the answers, strings as JSON, of pvbus and of cel-python.
    """

    path: str
    target: str
    ours: str
    theirs: str


class Hold(_Row, frozen=True, kw_only=True):
    """Removals of a set that the guard holds. id: of this hold, never reused. token: confirms its `count`
    removals; "" while they are being collected. generation: of the set whose change began the hold, 0 if
    targets changed; additions of that generation wait."""

    id: str
    token: str = ""
    count: int = 0
    generation: int = 0


class SetResult(_Row, frozen=True, kw_only=True):
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


class InjectedObject(_Row, frozen=True, kw_only=True):
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


class ResultRow(_Row, frozen=True, kw_only=True):
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


class Verdict(_Row, frozen=True, kw_only=True):
    """Promote's decision on one open revision of a variant.

    row_digest: digest of the ObjectRow that it was made on. reason: a word of a closed set
    (`pvbus.core.promotion.promote.verdicts`); message: for people. order: what release does to a revision
    that still has this digest; "" for nothing. content: digest of what a signature of its files is a
    statement on, "" if it was not needed. acknowledged: by name of a PackageSpecializer without a gate on it,
    the content that it has acknowledged. gates: its readiness gates. settles_at: a gate was removed from it
    while it was signed, so it is not proposed before this time, in seconds since 1970.
    """

    revision: str
    row_digest: str
    reason: str
    message: str = ""
    order: Literal["", "propose", "return"] = ""
    content: str = ""
    acknowledged: Mapping[str, str] = {}
    gates: tuple[str, ...] = ()
    settles_at: float = 0


class PromotionRow(_Row, frozen=True, kw_only=True):
    """Promote's decisions on the open revisions of a PackageVariant.

    uid, generation: of the PackageVariant that they were made on; release carries out no order for another.
    candidates: by name of a RolloutPolicy, a hash of the last CandidateRow that promote wrote for it.
    contents: by row_digest of a revision whose files promote has read, the digest of its content; by name of
    a revision that was a draft after promote had proposed it, the digest that it proposed: a person may have
    proposed it with other content since.
    """

    uid: str
    generation: int = 0
    verdicts: tuple[Verdict, ...] = ()
    candidates: Mapping[str, str] = {}
    contents: Mapping[str, str] = {}


class Carried(_Row, frozen=True, kw_only=True):
    """Outcome of an order. outcome: `done`; `refused` by the API server, with its `message`."""

    revision: str
    row_digest: str
    order: Literal["propose", "return"]
    outcome: Literal["done", "refused"]
    message: str = ""


class Approval(_Row, frozen=True, kw_only=True):
    """Outcome of an order of a rollout, which policy, attempt, order, revision and digest name.

    outcome: `done`; `refused`: the API server refuses it; `withdrawn`: the revision was not approved, and by
    this order will not be; `unrestored`: the content cannot be published again. message: why.
    """

    policy: str
    attempt: int
    order: Literal["approve", "withdraw", "restore"]
    revision: str
    digest: str
    outcome: Literal["done", "refused", "withdrawn", "unrestored"]
    message: str = ""


class ReleaseRow(_Row, frozen=True, kw_only=True):
    """The last outcome of each order of a PackageVariant, whose uid it has. carried: of the orders of its
    PromotionRow. approvals: of its ApprovalRows, one for each policy."""

    uid: str
    carried: tuple[Carried, ...] = ()
    approvals: tuple[Approval, ...] = ()


class SeenCondition(_Row, frozen=True, kw_only=True):
    """A condition of a PackageVariant as evidence of its published revision. is_bound: its message names the
    revision. words: what it says. digest: of all of it."""

    type: str
    status: str
    is_bound: bool
    words: str
    digest: str


class EvidenceSource(_Row, frozen=True, kw_only=True):
    """Where the evidence of a target is. commit: of the published revision. namespace, name: of the object;
    an empty namespace stands for any. query: PromQL. problem: why they are not known, "" if they are."""

    commit: str = ""
    namespace: str = ""
    name: str = ""
    query: str = ""
    problem: str = ""
    conditions: tuple[SeenCondition, ...] = ()


class CandidateRow(_Row, frozen=True, kw_only=True):
    """What a rollout knows of one target: promote's facts of a PackageVariant that a RolloutPolicy selects.

    uid: of the PackageVariant. winner: the policy that has the target instead; then nothing else is set but
    what this policy's last order came to, and the published revision then. canary, places: its position in
    the rollout, before its name. revision, digest: the proposed revision, and the
    `pvbus.core.variants.revisions.content.content_digest` of its files; is_proposed: nothing speaks against
    its approval. reason, message: why it may not be approved; of a canary also why it is not proposed, or is
    no target. upstream: the upstream revision that the variant follows. is_current: the variant is ready with
    the published revision, and has no open one. published, published_digest: the latest
    published revision, "" for none. is_good: whether that one is good, None while nothing says so; verdict:
    why not, or what is missing. refused, withdrawn, unrestored: the last attempt of this policy with that
    outcome, 0 for none; failure: the words of the outcome. source, files: the upstream revision that the
    proposed one is made of, and the digest of its files; published_source: that of the published one. runs:
    the Quarantine that covers the published one, "" for none. evidence: what else proves the published one,
    if the policy asks for that; is_good and verdict are of the variant's Ready alone. unit, part, release,
    published_release, banned: of a member of the policy's train, as in
    `pvbus.core.kernel.rolloutrows.TargetFacts`.
    is_upstream_held: a Quarantine covers the upstream revision that the variant follows, or it is not known
    that none does.
    """

    uid: str
    winner: str = ""
    canary: int = 0
    places: tuple[int, ...] = ()
    revision: str = ""
    digest: str = ""
    is_proposed: bool = False
    reason: str = ""
    message: str = ""
    published: str = ""
    published_digest: str = ""
    is_good: bool | None = None
    verdict: str = ""
    refused: int = 0
    withdrawn: int = 0
    unrestored: int = 0
    failure: str = ""
    upstream: str = ""
    is_current: bool = False
    source: str = ""
    files: str = ""
    published_source: str = ""
    runs: str = ""
    unit: str = ""
    part: int = 0
    release: str = ""
    published_release: str = ""
    banned: tuple[tuple[str, ...], ...] = ()
    evidence: EvidenceSource | None = None
    is_upstream_held: bool = False


class ApprovalRow(_Row, frozen=True, kw_only=True):
    """A rollout's order for one target. uid: of the PackageVariant.

    approve: publish this proposed revision if its content still has this digest. withdraw: take that back,
    and confirm that it was or will never be carried out. restore: publish the content of this earlier
    revision again, which has this digest. stranded: no order, but a note for the variant's conditions: the
    rollback is over, and this revision is still published, as no former one can be. files: with approve, the
    digest of the files of the upstream revision that it was made of, "" if they could not be read.
    combination: with approve, the upstream revisions of the train that it goes with. mates: with approve, the
    revisions that are published in one push with this one, or not at all; none if it goes alone. freeze: no
    order to release, but one to promote: this revision stays proposed though a newer upstream revision is
    there, and once it is published the newer one does not unsay that it is good. is_frozen: the same while an
    approval is ordered. replaces: with restore, the revision of the attempt, over which alone the former one
    goes; "" for any, in rows of before there was one.
    """

    uid: str
    attempt: int
    order: Literal["approve", "withdraw", "restore", "stranded", "freeze"]
    revision: str
    digest: str
    files: str = ""
    combination: tuple[str, ...] = ()
    is_frozen: bool = False
    replaces: str = ""
    mates: tuple[str, ...] = ()


class EventCause(_Row, frozen=True, kw_only=True):
    """What an event was derived from, to follow it back to the change that led to it.

    generation, resource_version: of the event's object as it was observed; the version is opaque, and in the
    API server's audit log. upstream: name of the PackageRevision that a variant follows. commit: of a
    PackageRevision in git, whose message and author say what was done and by whom. hold: id of the hold of a
    set's removals. set: of a PackageVariant that is gone, the name of the PackageVariantSet that made it.
    """

    generation: int = 0
    resource_version: str = ""
    upstream: str = ""
    commit: str = ""
    hold: str = ""
    set: str = ""


class ConditionEvent(_Row, frozen=True, kw_only=True):
    """The data of a public event: one condition of one object changed.

    Sent as CloudEvents 1.0 over Kafka, binary mode (attributes are `ce_` headers). id: the event's
    `ce_id`, made from the change and its time. previous: the status before, "" for a new condition.
    time: of the event, in UTC with milliseconds; it rises with every event of a condition. variant: the
    PackageVariant that owns a PackageRevision. The lifecycle of such a revision is its condition
    `Published`, with the lifecycle as the reason. last: whether the object no longer has the condition.
    cause: what the event was derived from; if the object is gone, at most the set of a PackageVariant. The
    message of its last events says why it went. task: the question behind the condition, if it asks a person
    and neither it nor its revision goes away. rollout: of a RolloutPolicy, how far it is.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    condition: Condition
    previous: str = ""
    id: str = ""
    time: str = ""
    variant: str = ""
    last: bool = False
    cause: EventCause = EventCause()
    task: EventTask = EventTask()
    rollout: EventRollout = EventRollout()


class DeadLetter(_Row, frozen=True, kw_only=True):
    """A record that could not be decoded, or that the sink's receiver refused, and its position."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes = b""
