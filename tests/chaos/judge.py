"""The checker: takes what was observed, in the order of its time, and names each broken promise.

It is pure: whoever observes calls it with facts, and `now` is the time of the last one. Deletions are judged
by the watcher of the simulation, which asks the oracle what was wanted from the check to the order.

| check | judged at | compares |
| --- | --- | --- |
| lost | each reading of the topics | no end goes back; what was read is there at the end |
| doubled | each new variant, draft, event | one variant per set and downstream, one open draft per package |
| reordered | each record, event, status | versions and generations never go back; events are a chain |
| deletion without proof | each DELETE of a service | check, order and oracle; a draft goes with its variant |
| draft lost | each branch that goes, each edit | a DELETE of its revision; a person's file stays |
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.kernel.records import OBJECTS, SETS, VARIANTS
from pvbus.ports.bus import Output
from pvbus.ports.cluster import Kind, Object
from tests.e2e.faults.fleet import CLUSTER, REPOSITORY, REVISION, SET, VARIANT
from tests.kit.oracle import Thing
from tests.kit.processes import Process
from tests.simulation.facts import Inputs
from tests.simulation.watching import Watcher
from tests.tools.busfile import CONDITIONS, EventChain, Row
from tests.tools.faultyapi import Write
from tests.tools.topicreader import ReadRecord, row_of

LOST, DOUBLED, REORDERED = "lost", "doubled", "reordered"
UNPROVEN, DRAFT_LOST = "deletion without proof", "draft lost"
CHECKS = (LOST, DOUBLED, REORDERED, UNPROVEN, DRAFT_LOST)
OPEN = ("Draft", "Proposed")
READ_SECONDS = 150.0
"""How long before its answer the read behind a check may have been: the longest freeze of a service and of
the API server, one after the other, and the step that waits for brokers."""
EXPLAINED_SECONDS = 90.0
"""How long after its branch the object of a draft may be seen to go: the API server may be frozen or away
between the push and the event."""
_LEASE: Any = None  # the watcher does not look at it


class Found(NamedTuple):
    """A broken promise. time: seconds since the epoch."""

    check: str
    time: float
    text: str


class Branch(NamedTuple):
    """A draft in git."""

    repository: str
    package: str
    workspace: str

    @property
    def revision(self) -> str:
        """The name of its PackageRevision."""
        return f"{self.repository}.{self.package}.{self.workspace}"


class Edit(NamedTuple):
    """A file that a person added to a draft. uid: of the PackageRevision."""

    branch: Branch
    uid: str
    file: str


class Judge:
    """See the module. found: what is broken; judged: how often each check had something to decide."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.judged: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.now = 0.0
        self.calm_since: float | None = None
        self._objects: dict[tuple[Kind, str], Object] = {}
        self._last: dict[tuple[Kind, str], Object] = {}
        self._inputs: dict[Kind, dict[str, Any]] = {
            CLUSTER: {},
            SET: {},
            REPOSITORY: {},
            REVISION: {},
            VARIANT: {},
        }
        self._watcher = Watcher(self, read_seconds=READ_SECONDS)
        self._chain = EventChain()
        self._ends: Mapping[tuple[str, int], int] = {}
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._versions: dict[tuple[str, str, str], int] = {}
        self._generations: dict[tuple[str, str], int] = {}
        self._branches: dict[Branch, str] = {}
        self._missing: dict[Branch, float] = {}
        self._gone: dict[str, float] = {}
        self._edits: dict[Edit, float] = {}

    def _broken(self, check: str, text: str) -> None:
        self.found.append(Found(check, self.now, text))

    # ------------------------------------------------------------ the world of the watcher

    def inputs(self) -> Inputs:
        """Return what users want now, as the oracle takes it."""
        read = {kind: tuple(found.values()) for kind, found in self._inputs.items()}
        names = self._watcher.names()
        return Inputs(
            self.now, read[SET], read[CLUSTER], read[REPOSITORY], read[REVISION], (), names, read[VARIANT]
        )

    def find_uid(self, uid: str) -> Object | None:
        return next((obj for obj in self._objects.values() if obj["metadata"].get("uid") == uid), None)

    def guard_limits(self) -> tuple[int, float]:
        """Nobody is there to confirm removals, so the services' limit is as high as this one."""
        return 1_000_000, 1.0

    # ------------------------------------------------------------ objects

    def object(self, kind: Kind, key: str, obj: Object | None) -> None:
        """Take the new state of an object, None when it is gone. key: `<namespace>/<name>`."""
        before = self._objects.pop((kind, key), None)
        if obj is not None:
            self._objects[kind, key] = self._last[kind, key] = obj
        self.counts["object events"] += 1
        if _wish(before) != _wish(obj):
            self._wished(kind, key, obj)
        if obj is not None and kind in (SET, VARIANT):
            self._status(key, obj)
        is_new = obj is not None and (before is None or _uid(before) != _uid(obj))
        if kind == VARIANT and is_new and obj is not None:
            self._one_variant(key, obj)
        if kind == REVISION:
            if before is not None and (obj is None or _is_terminating(obj)):
                self._gone[before["metadata"]["name"]] = self.now
            if is_new and obj is not None:
                self._one_draft(key, obj)

    def _wished(self, kind: Kind, key: str, obj: Object | None) -> None:
        if obj is None:
            self._inputs[kind].pop(key, None)
        else:
            self._inputs[kind][key] = _converted(kind, obj)
        if kind != VARIANT:
            self._watcher.wished()

    def _status(self, key: str, obj: Object) -> None:
        for condition in (obj.get("status") or {}).get("conditions") or ():
            self.judged[REORDERED] += 1
            subject, generation = (_uid(obj), condition["type"]), condition.get("observedGeneration", 0)
            if generation < self._generations.get(subject, 0):
                newer = self._generations[subject]
                self._broken(REORDERED, f"{key}: {subject[1]} observes generation {generation} after {newer}")
            self._generations[subject] = generation

    def _one_variant(self, key: str, obj: Object) -> None:
        self.judged[DOUBLED] += 1
        mine = _owner(obj), _downstream(obj)
        for (kind, other), living in self._objects.items():
            if kind != VARIANT or other == key or _is_terminating(living) or not mine[0]:
                continue
            if (_owner(living), _downstream(living)) == mine:
                self._broken(DOUBLED, f"{key} and {other} are variants of one set for {mine[1]}")

    def _one_draft(self, key: str, obj: Object) -> None:
        if not _is_open(obj):
            return
        self.judged[DOUBLED] += 1
        package = obj["spec"]["repository"], obj["spec"]["packageName"]
        for (kind, other), living in self._objects.items():
            if kind == REVISION and other != key and _is_open(living):
                if (living["spec"]["repository"], living["spec"]["packageName"]) == package:
                    self._broken(DOUBLED, f"{key} and {other} are open drafts of one package")

    # ------------------------------------------------------------ writes of the services

    def sent(self, write: Write) -> None:
        """Take a write when the proxy has it from the service. Order: before `answered`."""
        if write.request.verb == "delete" and write.request.resource == "packagevariants":
            obj = self._last.get((VARIANT, f"{write.namespace}/{write.name}"))
            if obj is not None and write.is_passed:
                self.judged[UNPROVEN] += 1
                self._watched(lambda: self._watcher.sent(Process(write.agent), "delete", obj, ""))

    def answered(self, write: Write) -> None:
        """Take a write when the API server has answered it."""
        self.counts["writes of services"] += 1
        if write.request.verb != "delete" or not write.is_accepted:
            return
        key = f"{write.namespace}/{write.name}"
        if write.request.resource == "packagevariants":
            self._variant_deleted(write, key)
        elif write.request.resource == "packagerevisions":
            self._revision_deleted(write, key)

    def _variant_deleted(self, write: Write, key: str) -> None:
        obj = self._last.get((VARIANT, key))
        if obj is None:
            self._broken(UNPROVEN, f"{key}: {write.agent} deleted it, and nobody has seen it")
            return
        self.judged[UNPROVEN] += 1
        self.counts["variants deleted by render"] += 1
        if write.agent != "render":
            self._broken(UNPROVEN, f"{key}: deleted by {write.agent}")
        if (key, _set_name(obj)) not in self._watcher.orders:
            self._broken(UNPROVEN, f"{key}: deleted without an order")
        self._watched(lambda: self._watcher.deleted(obj))

    def _revision_deleted(self, write: Write, key: str) -> None:
        """A draft goes only with its variant: nobody in these worlds moves a downstream."""
        obj = self._last.get((REVISION, key))
        if obj is None:
            return  # it came and went between two looks
        self.judged[UNPROVEN] += 1
        self.counts["drafts deleted by inject"] += 1
        self._gone.setdefault(write.name, self.now)
        owners = [self.find_uid(each["uid"]) for each in obj["metadata"].get("ownerReferences") or ()]
        living = [each for each in owners if each is not None and not _is_terminating(each)]
        if living:
            self._broken(UNPROVEN, f"{key}: {write.agent} deleted it, its variant lives")

    def _watched(self, call: Any) -> None:
        known = len(self._watcher.violations)
        call()
        for violation in self._watcher.violations[known:]:
            self._broken(UNPROVEN, f"{violation.invariant}: {violation.text}")

    # ------------------------------------------------------------ topics

    def ends(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Take where each partition ends now."""
        for tp, end in self._ends.items():
            self.judged[LOST] += 1
            if ends.get(tp, -1) < end:
                self._broken(LOST, f"{tp[0]}[{tp[1]}] ended at {end}, and now at {ends.get(tp)}")
        self._ends = {**self._ends, **ends}

    def record(self, record: ReadRecord) -> None:
        """Take a committed record. Those of a partition come in their order."""
        self.counts["records"] += 1
        row, key = row_of(record), record.key or b""
        table = self._tables.setdefault(record.topic, {})
        table.pop(key, None)
        if record.value is not None:
            table[key] = record.value
        if record.topic == CONDITIONS:
            self.judged[DOUBLED] += 1
            self.judged[REORDERED] += 1
            for problem in self._chain.see(row):
                self._broken(DOUBLED if "occurs" in problem else REORDERED, problem)
        if (
            record.topic in (OBJECTS, SETS, VARIANTS)
            and row.value is not None
            and not row.key.startswith("!")
        ):
            self._version(row, row.value)
        output = Output(record.topic, record.partition, key, record.value)
        self._watched(lambda: self._watcher.stepped(_LEASE, [output]))

    def _version(self, row: Row, value: Mapping[str, Any]) -> None:
        facts = value.get("metadata", value)
        uid, version = facts.get("uid"), str(facts.get("resourceVersion", ""))
        if uid is None or not version.isdigit():
            return
        self.judged[REORDERED] += 1
        subject = (row.topic, row.key, uid)
        if int(version) < self._versions.get(subject, 0):
            self._broken(
                REORDERED, f"{row.topic} {row.key}: version {version} after {self._versions[subject]}"
            )
        self._versions[subject] = int(version)

    def replayed(self, records: Iterable[ReadRecord]) -> None:
        """Compare a reading of all topics from their beginning with what was read once."""
        again: dict[str, dict[bytes, bytes]] = {}
        for record in records:
            table = again.setdefault(record.topic, {})
            table.pop(record.key or b"", None)
            if record.value is not None:
                table[record.key or b""] = record.value
        for topic, table in self._tables.items():
            for key, value in table.items():
                self.judged[LOST] += 1
                if again.get(topic, {}).get(key) != value:
                    self._broken(
                        LOST, f"{topic} {key.decode(errors='replace')}: the last record is not there"
                    )

    # ------------------------------------------------------------ what clients were answered

    def client_writes(self, answered: int, lost: Sequence[str]) -> None:
        """Take how many writes a client was answered, and which of them are not there."""
        self.judged[LOST] += answered
        for problem in lost:
            self._broken(LOST, problem)

    # ------------------------------------------------------------ git

    def branches(self, seen: Mapping[Branch, str]) -> None:
        """Take all drafts in git, each with its commit."""
        for branch in self._branches.keys() - seen.keys():
            self._missing.setdefault(branch, self.now)
        for branch in seen:
            self._missing.pop(branch, None)
        self.counts["drafts seen"] += len(seen.keys() - self._branches.keys())
        self._branches = dict(seen)
        self._explain_missing(self.now - EXPLAINED_SECONDS)

    def _explain_missing(self, until: float) -> None:
        for branch, since in list(self._missing.items()):
            if since - self._gone.get(branch.revision, 0.0) < 2 * EXPLAINED_SECONDS:
                self.judged[DRAFT_LOST] += 1
                del self._missing[branch]
            elif since <= until:
                self.judged[DRAFT_LOST] += 1
                self._broken(DRAFT_LOST, f"{branch.revision}: its branch is gone, and nobody deleted it")
                del self._missing[branch]

    def edited(self, edit: Edit) -> None:
        """Take that a person's file was stored in a draft."""
        self._edits[edit] = self.now
        self.counts["drafts edited by people"] += 1

    def files(self, files: Mapping[Branch, frozenset[str]]) -> None:
        """Take the files of all drafts, when nothing is under way."""
        for edit, since in self._edits.items():
            living = self._objects.get((REVISION, f"default/{edit.branch.revision}"))
            went = self._gone.get(edit.branch.revision, 0.0) >= since
            if living is None or _uid(living) != edit.uid or went:
                continue
            self.judged[DRAFT_LOST] += 1
            if edit.file not in files.get(edit.branch, frozenset()):
                self._broken(DRAFT_LOST, f"{edit.branch.revision}: the file {edit.file} of a person is gone")

    def finish(self) -> None:
        """Decide what is still open: no more facts come."""
        self._explain_missing(self.now)


def _converted(kind: Kind, obj: Object) -> Any:
    match kind:
        case _ if kind == SET:
            return msgspec.convert(obj, PackageVariantSet)
        case _ if kind == VARIANT:
            return msgspec.convert(obj, PackageVariant)
        case _ if kind == REPOSITORY:
            return msgspec.convert(obj, Repository)
        case _ if kind == REVISION:
            return msgspec.convert(obj, PackageRevision)
    meta = obj["metadata"]
    return Thing(
        str(kind), meta["namespace"], meta["name"], meta.get("labels") or {}, meta.get("annotations") or {}
    )


def _wish(obj: Object | None) -> Any:
    """Return the part of an object that decisions depend on."""
    if obj is None:
        return None
    meta = obj["metadata"]
    fields = ("uid", "generation", "labels", "annotations", "deletionTimestamp", "ownerReferences")
    return [meta.get(field) for field in fields], obj.get("spec")


def _uid(obj: Object) -> str:
    return str(obj["metadata"].get("uid", ""))


def _is_terminating(obj: Object) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _is_open(revision: Object) -> bool:
    return revision["spec"].get("lifecycle") in OPEN and not _is_terminating(revision)


def _controller(obj: Object) -> Mapping[str, Any]:
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def _owner(obj: Object) -> str:
    return str(_controller(obj).get("uid", ""))


def _set_name(obj: Object) -> str:
    return str(_controller(obj).get("name", ""))


def _downstream(obj: Object) -> tuple[str, str]:
    downstream = obj["spec"].get("downstream") or {}
    return downstream.get("repo", ""), downstream.get("package", "")
