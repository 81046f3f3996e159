"""Release over the revisions of one package in memory, with a rollout's orders written by hand."""

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from pvbus.core.api.stops import StopEntry
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.effects import Create, Get, List, Outcome, Update
from pvbus.core.kernel.keys import APPROVE_TOGETHER, StopKey, okey, sync_key
from pvbus.core.kernel.objectrows import QUARANTINE, STOP
from pvbus.core.kernel.promotionrows import Approval, ApprovalRow, ReleaseRow
from pvbus.core.kernel.records import APPROVALS, DESIRED, POLICIES, RELEASES, VARIANTS, SyncMarker
from pvbus.core.promotion.release.controller import ReleaseController
from pvbus.core.variants.revisions.content import content_digest
from tests.kit.deciding import Partition
from tests.unit.core.promotion.promoting import FILES, KEY, NOW, Object, quarantine, stop, variant

POLICY = "fleet"
V1, V2 = "edge.web.packagevariant-1", "edge.web.packagevariant-2"
OLD, NEW = FILES, {**FILES, "a.yaml": "a: 2\n"}
OWNER = {"kind": "PackageVariant", "name": "web-edge", "uid": "uid-v", "controller": True}
DOWNSTREAM = {"spec": {"downstream": {"repo": "edge", "package": "web"}}}


class Package:
    """The revisions of a package. writes: (name, what) of each, in order. refuses: those that are
    refused. renders: what a pipeline makes of a new revision's files. together: of each update the
    revisions that it goes with, as it names them."""

    def __init__(self) -> None:
        self.revisions: dict[str, Object] = {}
        self.files: dict[str, dict[str, str]] = {}
        self.writes: list[tuple[str, str]] = []
        self.together: list[str] = []
        self.reads = 0
        self.refuses: set[str] = set()
        self.renders: Callable[[dict[str, str]], dict[str, str]] = dict
        self.before_write: Callable[[], Any] = lambda: None
        self._version = 0

    def put(self, name: str, lifecycle: str, files: dict[str, str], **metadata: Any) -> None:
        """Write a revision as another program does; a published one gets the next number."""
        present = self.revisions.get(name)
        spec = {
            "repository": "edge",
            "packageName": "web",
            "workspaceName": name.rpartition(".")[2],
            "lifecycle": lifecycle,
            "revision": present["spec"]["revision"] if present else 0,
        }
        meta = {"name": name, "namespace": "default", "ownerReferences": [OWNER], **metadata}
        self.files[name] = dict(files)
        self._store({"metadata": meta, "spec": spec})

    def _store(self, obj: Object) -> Object:
        self._version += 1
        name = obj["metadata"]["name"]
        numbers = [each["spec"]["revision"] for each in self.revisions.values()]
        is_published = obj["spec"]["lifecycle"] in ("Published", "DeletionProposed")
        if is_published and not obj["spec"]["revision"]:
            obj["spec"]["revision"] = max(numbers, default=0) + 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self.revisions[name] = obj
        return copy.deepcopy(obj)

    def lifecycles(self) -> dict[str, str]:
        return {name: obj["spec"]["lifecycle"] for name, obj in self.revisions.items()}

    def perform(self, effect: Any) -> Any:
        match effect:
            case Get():
                self.reads += 1
                if effect.name not in self.revisions:
                    return None
                if effect.kind.kind == "PackageRevisionResources":
                    return {"spec": {"resources": dict(self.files[effect.name])}}
                return copy.deepcopy(self.revisions[effect.name])
            case List():
                self.reads += 1
                return [copy.deepcopy(obj) for obj in self.revisions.values()]
            case Create() | Update():
                self.before_write()
                return self._created(effect) if isinstance(effect, Create) else self._updated(effect)
        raise AssertionError(effect)

    def _created(self, effect: Create) -> Object:
        obj = copy.deepcopy(effect.object)
        name = f"edge.web.{obj['spec']['workspaceName']}"
        assert name not in self.revisions, f"{name} is created twice"
        if "Draft" in self.refuses:
            raise PermanentError("no drafts here")
        source = obj["spec"]["tasks"][0]["edit"]["sourceRef"]["name"]
        self.files[name] = self.renders(self.files[source])
        obj["metadata"]["name"], obj["spec"]["revision"] = name, 0
        self.writes.append((name, "created"))
        return self._store(obj)

    def _updated(self, effect: Update) -> Object:
        wanted = copy.deepcopy(effect.object)
        name, lifecycle = wanted["metadata"]["name"], wanted["spec"]["lifecycle"]
        present = self.revisions.get(name)
        if present is None:
            raise PermanentError("gone", reason="NotFound")
        if wanted["metadata"]["resourceVersion"] != present["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed")
        before = present["spec"]["lifecycle"]
        moves = {("Proposed", "Published", "approval"), ("Draft", "Proposed", "")}
        assert before == lifecycle or (before, lifecycle, effect.subresource) in moves
        what = lifecycle if before != lifecycle else "noted"
        self.together.append((wanted["metadata"].get("annotations") or {}).get(APPROVE_TOGETHER, ""))
        if what in self.refuses:
            raise PermanentError("unmet readiness gates: ip")
        if effect.subresource:
            wanted = copy.deepcopy(present) | {"spec": present["spec"] | {"lifecycle": lifecycle}}
        self.writes.append((name, what))
        return self._store(wanted)


class ReleaseWorld(Partition):
    """Release with one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.restart()
        self.package = Package()
        self.variant = {**variant(), **DOWNSTREAM}
        self.list_quarantines()
        self.list_stops()
        self.write(VARIANTS, KEY, msgspec.json.encode(self.variant))

    def restart(self) -> None:
        self.release = ReleaseController(partitions=1)
        self.open(self.release)

    def order(self, order: Any, revision: str, content: Any, *, policy: str = POLICY, **fields: Any) -> None:
        given: dict[str, Any] = {"uid": "uid-v", "attempt": 1} | fields
        row = ApprovalRow(order=order, revision=revision, digest=content_digest(content), **given)
        self.write(APPROVALS, f"{KEY}|{policy}", row)

    def list_quarantines(self, state: Any = "ok", message: str = "") -> None:
        """Say how complete the list of Quarantines is."""
        marker = SyncMarker(state=state, epoch=1, message=message)
        self.write(POLICIES, sync_key(*QUARANTINE), marker)

    def list_stops(self, state: Any = "ok", message: str = "") -> None:
        """Say how complete the list of RolloutStops is."""
        marker = SyncMarker(state=state, epoch=1, message=message)
        self.write(POLICIES, sync_key(*STOP), marker)

    def stop(self, *entries: StopEntry) -> None:
        self.write(POLICIES, str(StopKey("default", "fleet")), msgspec.json.encode(stop(*entries)))

    def quarantine(self, name: str, **spec: Any) -> None:
        self.write(
            POLICIES, okey(*QUARANTINE, "default", name), msgspec.json.encode(quarantine(name, **spec))
        )

    def no_order(self, *, policy: str = POLICY) -> None:
        self.write(APPROVALS, f"{KEY}|{policy}", None)

    def hold(self, value: str) -> None:
        self.variant["metadata"]["annotations"] = {"pvbus.dev/hold": value}
        self.write(VARIANTS, KEY, msgspec.json.encode(self.variant))

    def run(self, *, crash_after: int = 0) -> Outcome | None:
        """Run one decision; None if it ended in a conflict. crash_after: effects until the process ends."""
        try:
            return self.decide(self.release, KEY, NOW, self.package.perform, crash_after=crash_after or None)
        except ConflictError:
            return None

    @property
    def outcomes(self) -> tuple[Approval, ...]:
        value = self.rows.get((RELEASES, KEY))
        return msgspec.json.decode(value, type=ReleaseRow).approvals if value is not None else ()

    @property
    def outcome(self) -> str:
        """The outcome of the one order, "" without any."""
        return self.outcomes[0].outcome if self.outcomes else ""

    @property
    def message(self) -> str:
        return self.outcomes[0].message

    def desired(self, row: Any) -> None:
        self.write(DESIRED, KEY, row)


def planned() -> ReleaseWorld:
    """v1 is published, and v2 is proposed."""
    world = ReleaseWorld()
    world.package.put(V1, "Published", OLD)
    world.package.put(V2, "Proposed", NEW)
    return world


def published() -> ReleaseWorld:
    """v2 is published after v1."""
    world = planned()
    world.package.put(V2, "Published", NEW)
    return world
