"""Keys, names, partitions and digests: every encoding that two services must agree on.

Source of the object name: Porch v1.5.8, packagevariantset_controller.go; of the workspace name:
packagevariant_controller.go; checked against the conformance cases.
"""

import hashlib
import re
from collections.abc import Iterable
from sys import intern
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from pvbus.core.kernel.packagerows import SCOPE
from pvbus.core.kernel.records import WatchRequest

NAME_BYTES_MAX = 63
NAME_HEAD_BYTES = 54
WORKSPACE_PREFIX = "packagevariant-"
FINALIZER = "config.porch.kpt.dev/packagevariants"
SET_UID_LABEL = "config.porch.kpt.dev/packagevariantset"
CONFIRM_DELETION = "pvbus.dev/confirm-deletion"
REMOVAL_CANCELLED = "pvbus.dev/removal-cancelled"
REMOVALS_MAX = "pvbus.dev/removals-max"
REMOVALS_SHARE = "pvbus.dev/removals-share"
HOLD = "pvbus.dev/hold"
HOLD_REASON = "pvbus.dev/hold-reason"
PLANNED_BY = "pvbus.dev/applied-plan"
"""On a set that `pvbus apply` wrote: the plan's checksum, and who applied it when."""
REQUIRE_PLAN = "pvbus.dev/require-plan"
"""On a set: "true", or the names of the signers of whom one must sign, separated by commas."""
SIGNED_PLAN = "pvbus.dev/signed-plan"
"""On a set: the statement of its plan, and the SSH signature of it."""
RETRY = "pvbus.dev/retry"
"""On a variant: a new value is a new input of inject, which tries again at once what was refused."""
OVERRIDE_GATES = "pvbus.dev/override-gates"
"""In the request that proposes or approves a PackageRevision: why its unmet gates are overridden."""
OVERRIDE_QUARANTINE = "pvbus.dev/override-quarantine"
"""On a PackageRevision: who proposed or approved it in spite of a quarantine or a stop, and why."""
COPIED_CONDITIONS = "pvbus.dev/copied-conditions"
"""On a new PackageRevision or its Repository: keep, unknown or remove the conditions of its source."""
CONDITION_ORDER = "pvbus.dev/condition-order"
"""In a Kptfile: which conditions come after which, as JSON: `{"Deployed": ["Certified"]}`."""
GATE_STEPS = "pvbus.dev/gate-steps"
"""In a Kptfile: the one step that a readiness gate is for, as JSON: `{"Certified": "approve"}`."""
TASKS = "pvbus.dev/tasks"
"""In a Kptfile: the questions behind conditions, as JSON: `{"Certified": {"question": "..."}}`."""
TASK_HISTORY = "pvbus.dev/task-history"
"""In a Kptfile: who changed the conditions of tasks, and when, as JSON. Only the package store writes it."""
SIGNATURES = "pvbus.dev/signatures"
"""In a Kptfile: the content that each True condition was found on, as JSON. Only the package store writes
it."""
STORE_RECORDS = (TASK_HISTORY, SIGNATURES)
"""Annotations of a Kptfile that are of one package revision, and not of its content or its copies."""
SURVIVES = "pvbus.dev/survives"
"""In a Kptfile: the changes that do not void a condition, as JSON: `{"Certified": ["README.md"]}`."""
SIGNED_CONTENT = "pvbus.dev/signed-content"
"""In a request on a package revision: the digest of the content that the writer has looked at."""
AUTO_LIFECYCLE = "config.porch.kpt.dev/auto-lifecycle-mgmt"
"""On a PackageRevision, or on its variant: "true" lets promote propose it. The name is of Porch's design."""
IS_LATER = "pvbus.dev/is-later"
"""On PackageRevisionResources that are read at a commit: whether it is the one of the revision, or comes
after it."""
PROPOSED_CONTENT = "pvbus.dev/proposed-content"
"""On a PackageRevision that promote has proposed: the digest of its content then. A draft that still has this
content was rejected by a person, and is not proposed again while it has the annotation."""
RETURNED = "pvbus.dev/returned"
"""On a draft that promote has proposed and taken back: why."""
WITHDRAWN = "pvbus.dev/approval-withdrawn"
"""On a PackageRevision: the policy and attempt that has taken its approval back."""
APPROVE_TOGETHER = "pvbus.dev/approve-together"
"""In an approval: the names of the PackageRevisions of one repository that are published with this one, or
not at all, with commas between them. Each has a request of its own."""
RESTORES = "pvbus.dev/restores"
"""On a PackageRevision that a rollback made: the published revision whose content it has."""
EDITED_BY = "pvbus.dev/edited-by"
"""On an open PackageRevision: the people who wrote to it, as git has them. The package store writes it."""
KEPT_FOR = "pvbus.dev/kept-for"
"""On a draft that people edited and whose variant was deleted: `[<set>/]<variant>@` of that variant."""
KEPT_LABEL = "pvbus.dev/kept"
"""On the same drafts: "true", so that a label selector finds them."""
DELETE_EDITS = "pvbus.dev/delete-edits"
"""On a variant or a PackageRevision: "true" deletes edited drafts, too, when the variant is deleted."""
REMOVE_LAST_REVISION = "pvbus.dev/remove-last-revision"
"""On a Repository: "true" removes the folder of a package with its last published revision."""
ACKNOWLEDGED_PREFIX = "acknowledged.promotion.pvbus.dev/"
"""On a PackageRevision, with the name of a PackageSpecializer behind it. The value is the name of the very
PackageRevision, so that a copied annotation acknowledges nothing; `@` and the digest of the content that the
program has looked at may follow."""
SYNC_PREFIX = "!sync|"
STOP_PREFIX = "stop|"
CHECK_PREFIX = "check|"

_INT64_MAX = 2**63 - 1

_canonical = msgspec.json.Encoder(order="sorted")


def maker_of(record: str) -> tuple[str, str]:
    """Return set and variant of `[<set>/]<variant>@...`, the set "" for none."""
    set_name, _, variant = record.rpartition("@")[0].rpartition("/")
    return set_name, variant


class Key(NamedTuple):
    """A namespace and a name: of a PackageVariant (vkey) or a PackageVariantSet (skey)."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        namespace, _, name = text.partition("/")
        return cls(namespace, name)


class ObjectKey(NamedTuple):
    """An observed object, the okey: `<group>/<kind>|<namespace>|<name>`."""

    group: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return okey(*self)

    @classmethod
    def parse(cls, text: str) -> "ObjectKey":
        gk, namespace, name = text.split("|", 2)
        group, _, kind = gk.rpartition("/")
        return cls(group, kind, intern(namespace), intern(name))


def okey(group: str, kind: str, namespace: str, name: str) -> str:
    """Encode an object's key."""
    return f"{group}/{kind}|{namespace}|{name}"


def namespaced_name(okey: str) -> str:
    """Return the namespace and the name in an okey, as people write them."""
    key = ObjectKey.parse(okey)
    return f"{key.namespace}/{key.name}"


parse_okey = ObjectKey.parse


class StopKey(NamedTuple):
    """A RolloutStop, of which every partition has the row: `stop|<namespace>|<name>`."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{STOP_PREFIX}{self.namespace}|{self.name}"

    @classmethod
    def parse(cls, text: str) -> "StopKey":
        namespace, name = text.removeprefix(STOP_PREFIX).split("|")
        return cls(namespace, name)


class ChildKey(NamedTuple):
    """A set's row of one child: `<skey>|<variant>`."""

    skey: str
    variant: str

    def __str__(self) -> str:
        return f"{self.skey}|{self.variant}"

    @classmethod
    def parse(cls, text: str) -> "ChildKey":
        skey, variant = text.split("|")
        return cls(skey, variant)


def is_child(key: str) -> bool:
    """Return whether a key is a child's, not its set's."""
    return "|" in key


class TargetKey(NamedTuple):
    """A set's row for one variant: `<vkey>|<set>`."""

    vkey: str
    set_name: str

    def __str__(self) -> str:
        return f"{self.vkey}|{self.set_name}"

    @classmethod
    def parse(cls, text: str) -> "TargetKey":
        vkey, set_name = text.split("|")
        return cls(intern(vkey), intern(set_name))


class SubjectKey(NamedTuple):
    """An object with conditions: `<Kind>|<namespace>/<name>`. name: `<namespace>/<name>`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}|{self.name}"

    @classmethod
    def parse(cls, text: str) -> "SubjectKey":
        kind, name = text.split("|")
        return cls(kind, name)


class ConditionKey(NamedTuple):
    """One condition of an object: `<Kind>|<namespace>/<name>|<condition type>`. subject: see SubjectKey."""

    subject: str
    type: str

    def __str__(self) -> str:
        return f"{self.subject}|{self.type}"

    @classmethod
    def parse(cls, text: str) -> "ConditionKey":
        kind, name, condition = text.split("|")
        return cls(f"{kind}|{name}", condition)


class CheckKey(NamedTuple):
    """A set's check request for a kind, and its answer: `check|<group>/<kind>|<skey>`.

    kind: `<group>/<kind>`.
    """

    kind: str
    skey: str

    def __str__(self) -> str:
        return f"{CHECK_PREFIX}{self.kind}|{self.skey}"

    @classmethod
    def parse(cls, text: str) -> "CheckKey":
        kind, skey = text.removeprefix(CHECK_PREFIX).split("|")
        return cls(kind, skey)


def check_key(group: str, kind: str, skey: str) -> str:
    """Encode the key of a set's check request for a kind, and of its answer."""
    return str(CheckKey(f"{group}/{kind}", skey))


def is_check(key: str) -> bool:
    """Return whether a key is that of a check request or its answer."""
    return key.startswith(CHECK_PREFIX)


class WatchKey(NamedTuple):
    """A watch request: `<group>/<kind>|<requester>`, for an object's content also `|<namespace>|<name>`.

    The requesting lease is part of the key, so requests never merge.

    kind: `<group>/<kind>`
    content: namespace and name of the object, None for the metadata of all objects of the kind
    """

    kind: str
    requester: str
    content: tuple[str, str] | None = None

    def __str__(self) -> str:
        key = f"{self.kind}|{self.requester}"
        return key if self.content is None else f"{key}|{'|'.join(self.content)}"

    @classmethod
    def parse(cls, text: str) -> "WatchKey":
        kind, requester, *content = text.split("|")
        if not content:
            return cls(kind, requester)
        namespace, name = content
        return cls(kind, requester, (namespace, name))


def watch_key(request: WatchRequest) -> str:
    """Encode the key of a watch request."""
    content = (request.namespace, request.name) if request.content else None
    return str(WatchKey(f"{request.group}/{request.kind}", request.requester, content))


class MarkerKey(NamedTuple):
    """The sync marker of a kind: `!sync|<group>/<kind>`."""

    group: str
    kind: str

    def __str__(self) -> str:
        return f"{SYNC_PREFIX}{self.group}/{self.kind}"

    @classmethod
    def parse(cls, text: str) -> "MarkerKey":
        group, _, kind = text.removeprefix(SYNC_PREFIX).rpartition("/")
        return cls(group, kind)


def kind_of(key: str) -> str:
    """Return `<group>/<kind>` of a row's key, which is an okey, or a scope and an okey."""
    head, _, rest = key.partition("|")
    return rest.partition("|")[0] if head == SCOPE else head


def sync_key(group: str, kind: str) -> str:
    """Encode the key of a kind's marker."""
    return str(MarkerKey(group, kind))


def partition(partition_key: str, partitions: int) -> int:
    """Choose the partition of a key: CRC-32 modulo N, stable across languages and releases."""
    return crc32(partition_key.encode()) % partitions


def reconciled_partition(key: str, partitions: int) -> int:
    """Return the partition of a key that controllers reconcile: a vkey, an skey, a SubjectKey, or a scope
    with or without more."""
    scope = key.partition("|")[0]
    if scope == SCOPE:
        return partition(scope, partitions)
    return partition(key.rpartition("|")[2], partitions)


def digest(value: Any) -> str:
    """Return 16 hex digits over the canonical JSON of a value (Structs and dicts alike)."""
    return hashlib.sha1(_canonical.encode(value), usedforsecurity=False).hexdigest()[:16]


def sha1_head(text: str) -> str:
    """Return the first 8 hex digits of SHA-1."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]


def variant_name(set_name: str, repository: str, package: str) -> str:
    """Return Porch's name of a set's PackageVariant: at most 63 bytes."""
    identifier = f"{set_name}-{repository}-{package}"
    raw = identifier.encode()
    if len(raw) <= NAME_BYTES_MAX:
        return identifier
    return f"{raw[:NAME_HEAD_BYTES].decode(errors='ignore')}-{sha1_head(identifier)}"


def colliding_variant_name(set_name: str, repository: str, package: str) -> str:
    """Return the PackageVariant name for a downstream whose Porch name another one of the set has."""
    head = f"{set_name}-{repository}-{package}".encode()[:NAME_HEAD_BYTES].decode(errors="ignore")
    return f"{head}-{sha1_head(f'{set_name}/{repository}/{package}')}"


def revision_name(repository: str, package: str, workspace: str) -> str:
    """Return the name that Porch's server gives a PackageRevision."""
    return f"{repository}.{package.replace('/', '.')}.{workspace}"


def next_workspace(workspaces: Iterable[str]) -> str:
    """Return `packagevariant-N`, N one above the highest in use.

    A suffix is read like Go's strconv.Atoi: a sign is part of the number, digits are ASCII. A suffix that is
    not a number, or exceeds 64 bits, counts as 0.
    """
    highest = 0
    for workspace in workspaces:
        if workspace.startswith(WORKSPACE_PREFIX):
            suffix = workspace.removeprefix(WORKSPACE_PREFIX)
            number = int(suffix) if re.fullmatch(r"[+-]?[0-9]+", suffix) else 0
            highest = max(highest, number if number <= _INT64_MAX else 0)
    return f"{WORKSPACE_PREFIX}{highest + 1}"


def hold_token(hold: str, children: Iterable[tuple[str, str]]) -> str:
    """Return the token that confirms exactly these removals (vkey, uid) of a hold, whose id is unique."""
    return digest([hold, *(f"{vkey} {uid}" for vkey, uid in sorted(children))])
