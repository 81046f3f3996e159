"""What travels on the bus: one Struct per kind of row.

Rows are JSON. New fields have defaults, types never change, unknown fields are allowed. A row
carries the uid of the object it speaks of; a row of another uid is not acted upon. Rows of `sets`
and `variants` are the objects themselves (`pvbus.core.api.variants`) without managedFields. Which rows a
topic has, and under which keys, says `pvbus.core.topics`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

import msgspec

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
CONDITIONS = "pvbus.conditions"
LATEST = "pvbus.conditions.latest"
DLQ = "pvbus.dlq"

SCHEMA_VERSION = 1


class _Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """Options shared by all rows. gc: frozen plain data makes no cycles, so there is nothing to look for."""


class MetaRow(_Row, frozen=True, kw_only=True, omit_defaults=False):
    """The installation: written once, compared by every worker at its start. Key: `installation`.

    Defaults are written out: a version left out would later read as the version of then.
    """

    partitions: int
    incarnation: str
    schema_version: int = SCHEMA_VERSION


class SyncMarker(_Row, frozen=True, kw_only=True):
    """How complete a kind's rows are in this partition.

    state `ok`: every object of the kind that exists has its row. `syncing`: rows may be missing or
    stale. `unavailable`: the kind is not served, or may not be read (`message` in the API's words).
    `unwatched`: nobody asked for it any more. versions: those served, preferred one first.
    """

    state: Literal["syncing", "ok", "unavailable", "unwatched"]
    epoch: int
    versions: tuple[str, ...] = ()
    message: str = ""


class ObjectOwner(_Row, frozen=True, kw_only=True):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class RevisionFacts(_Row, frozen=True, kw_only=True):
    """What a PackageRevision adds. `lock_*`: status.upstreamLock.git; `self_*`: status.selfLock.git."""

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


class ObjectRow(_Row, frozen=True, kw_only=True):
    """Metadata of an observed object, and the few facts of its kind that others need. ready: the condition
    Ready of a Repository."""

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
    ready: Condition | None = None


class InjectableRow(_Row, frozen=True, kw_only=True):
    """Content of an object somebody asked for by name; or, with an empty name in the key, whether
    the namespace has any object of the kind. exists False: looked for and not there.

    content: `spec`, or `data` of a core ConfigMap; UNSET when the object has no such field.
    """

    exists: bool
    uid: str = ""
    content: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    digest: str = ""


class WatchRequest(_Row, frozen=True, kw_only=True):
    """One lease's wish to see a kind (metadata), or the content of one object of it."""

    group: str
    kind: str
    requester: str
    content: bool = False
    namespace: str = ""
    name: str = ""


class CheckRequest(_Row, frozen=True, kw_only=True):
    """A set's question whether the rows of a kind are up to date, before it orders removals.

    The holder of the kind's watch answers after a consistent read that began after it consumed the
    request, and after everything that the read found different was committed. nonce: 128 random bits,
    repeated by the answer. names: `<namespace>/<name>` of the objects to read; empty: the whole kind.
    """

    group: str
    kind: str
    nonce: str
    names: tuple[str, ...] = ()


class CheckAnswer(_Row, frozen=True, kw_only=True):
    """The answer to the CheckRequest with this nonce."""

    nonce: str


class ChildState(StrEnum):
    """State of a set's child: `present`, or how far its removal is (`pvbus.core.unroll.states`).

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

    since: when the state began, seconds since the epoch, for people only. digest: that of the present row
    in `targets`, "" while render has another row or none. created, unwanted: numbers of the set's passes in
    which it was created, and last became unwanted; 0: before any, or long ago; where a row waits on hold,
    it was never compared with the targets. hold: id of the hold that
    holds it, or that was confirmed. cancelled: token of the last order that was withdrawn; the next order
    waits until render has written it. generation: of the set at the order. on_hold: render was told to
    write nothing for it.
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


class Root(_Row, frozen=True, kw_only=True):
    """One CEL root, cut down to what the expressions read. repo, package: a list target's."""

    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    repo: str = ""
    package: str = ""


class TargetRow(_Row, frozen=True, kw_only=True):
    """Everything render needs for one PackageVariant, or the order to remove it.

    state `present`: make it. `removed`: the order to delete it. `withdrawn`: write nothing but the
    annotation that withdraws an order. digest covers what the result depends on, never the set's
    generation. cancelled: token of the last withdrawn order; the living PackageVariant must carry it in its
    annotation, so that a DELETE decided earlier fails on its precondition. generation, ordered: of the
    set and the time of the order (seconds since the epoch), only with `removed`: render deletes while the
    live set is at that generation and the order is fresh. on_hold: the set has the hold annotation.
    """

    state: Literal["present", "removed", "withdrawn"]
    set_name: str
    set_uid: str
    set_created: str = ""
    digest: str = ""
    generation: int = 0
    ordered: float = 0
    cancelled: str = ""
    on_hold: bool = False
    target: int = 0
    upstream: Upstream | None = None
    template: VariantTemplate | None = None
    downstream: Downstream = Downstream()
    repo_default: str = ""
    package_default: str = ""
    list_target: bool = False
    roots: Mapping[str, Root] = {}


class DesiredRow(_Row, frozen=True, kw_only=True):
    """What render last decided for a PackageVariant.

    outcome: `applied` (the PackageVariant has spec_digest), `error` (the template), `refused` (by the
    API server), `conflict`, `held`, `waiting` (for the former one to go), `removed`, `expired` (an order
    that was too old), `withdrawn` (nothing but the withdrawal of an order is written), `defect`
    (a bug of ours). told: digest of what each set was last told, by set name. on_hold: the set that makes
    it has the hold annotation, so nobody writes anything for this PackageVariant.
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


class ChildResult(_Row, frozen=True, kw_only=True):
    """What render reports to a set about one child.

    evaluated, applied: digests of the target row. expression_failed: the template could not be evaluated.
    ready: the living PackageVariant's own Ready, False while it does not answer for its present
    generation; unready: why not; failing: it reports a failure, not work in progress.
    cancelled: token that the living PackageVariant carries. expired: time of the order that was too
    old to be carried out.
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


class Counts(_Row, frozen=True, kw_only=True):
    desired: int = 0
    applied: int = 0
    ready: int = 0
    failed: int = 0
    held: int = 0
    removing: int = 0


class ChildFailure(_Row, frozen=True, kw_only=True):
    """A child that is not ready, or a target that fails: its name, and why."""

    name: str
    reason: str = ""
    message: str = ""


class Hold(_Row, frozen=True, kw_only=True):
    """Removals of a set that the guard holds. id: of this hold, never used again. token: confirms the
    count removals behind it; "" while they are being collected. generation: of the set whose change
    began the hold, 0 when targets changed; additions of that generation wait."""

    id: str
    token: str = ""
    count: int = 0
    generation: int = 0


class SetResult(_Row, frozen=True, kw_only=True):
    """A set's roll-up. reason: of Stalled, `Valid` when it is not stalled; on_hold: the user's annotation.

    hold: removals that the guard holds, None without any. released: id of the hold that was confirmed
    last. waiting: what removals wait for, in words. unready: the first three children that are not ready,
    or targets that fail.
    """

    uid: str
    generation: int
    reason: str = "Valid"
    message: str = ""
    counts: Counts = Counts()
    on_hold: bool = False
    hold: Hold | None = None
    released: str = ""
    waiting: str = ""
    unready: tuple[ChildFailure, ...] = ()


class InjectedObject(_Row, frozen=True, kw_only=True):
    """One injection point and what became of it. hash: of the injected content, "" if none."""

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
    """What inject last did for a PackageVariant, and what it must remember.

    input_digest: over everything the outcome depends on; equal means nothing to do. downstreams:
    every (repo, package) that ever had a revision of ours and may still have one.
    requests: keys in `watches` that this variant needs. waiting: what it waits for, in words. cause:
    wall time in seconds at which the attempt began that answered the last change.
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


class ConditionEvent(_Row, frozen=True, kw_only=True):
    """The data of a public event: one condition of one object changed.

    Sent as CloudEvents 1.0 over Kafka, binary mode (attributes are `ce_` headers). id: the event's
    `ce_id`, made from the change and the id of the event before it, so a repeated step sends the
    same one. previous: the status before, "" for a new condition. time: of the event, in UTC with
    milliseconds; it never goes back within one key. variant: the PackageVariant that owns a
    PackageRevision. The lifecycle of such a revision is its condition `Published`, with the lifecycle
    as the reason.
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


class DeadLetter(_Row, frozen=True, kw_only=True):
    """Bytes that could not be decoded, and where they came from."""

    topic: str
    partition: int
    offset: int
    error: str
    value: bytes = b""
