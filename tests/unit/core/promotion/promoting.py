"""Promote and release over a package server in memory: rows by hand, effects one by one."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pvbus.core.api.stops import RolloutStop, RolloutStopSpec, StopEntry
from pvbus.core.api.variants import ObjectMeta
from pvbus.core.errors import ConflictError, PermanentError
from pvbus.core.kernel.effects import Get, Outcome, Update
from pvbus.core.kernel.keys import AUTO_LIFECYCLE, sync_key
from pvbus.core.kernel.objectrows import (
    POLICY,
    QUARANTINE,
    REVISION,
    SPECIALIZER,
    STOP,
    VARIANT,
    rows_of,
    topics_of,
)
from pvbus.core.kernel.promotionrows import PromotionRow, ReleaseRow, Verdict
from pvbus.core.kernel.records import (
    DESIRED,
    OBJECTS,
    POLICIES,
    PROMOTIONS,
    RELEASES,
    VARIANTS,
    DesiredRow,
    SyncMarker,
)
from pvbus.core.promotion.promote.controller import PromoteController
from pvbus.core.promotion.release.controller import ReleaseController
from tests.kit.deciding import Partition

Object = dict[str, Any]
KINDS = (REVISION, SPECIALIZER, VARIANT, POLICY, QUARANTINE, STOP)
OBSERVED = (OBJECTS, VARIANTS, POLICIES)
KEY = "default/web-edge"
NAME = "edge.web.packagevariant-1"
CREATED = "2026-01-02T03:04:05Z"
NOW = 1_767_323_045.0 + 60  # a minute after CREATED
FILES = {"Kptfile": "apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: web\n", "a.yaml": "a: 1\n"}


def variant(*, opted_in: bool = True, generation: int = 2, ready: Any = None, **metadata: Any) -> Object:
    condition = {"type": "Ready", "status": "True", "reason": "NoErrors", "observedGeneration": 2}
    return {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "metadata": {
            "name": "web-edge",
            "namespace": "default",
            "uid": "uid-v",
            "generation": generation,
            "annotations": {AUTO_LIFECYCLE: "true"} if opted_in else {},
            **metadata,
        },
        "status": {"conditions": [condition | (ready or {})], "downstreamTargets": [{"name": NAME}]},
    }


def draft(*, lifecycle: str = "Draft", gates: Any = (), conditions: Any = (), **metadata: Any) -> Object:
    """gates: types; conditions: (type, status) pairs."""
    owner = {
        "apiVersion": "config.porch.kpt.dev/v1alpha1",
        "kind": "PackageVariant",
        "name": "web-edge",
        "uid": "uid-v",
    }
    return {
        "apiVersion": "porch.kpt.dev/v1alpha1",
        "kind": "PackageRevision",
        "metadata": {
            "name": NAME,
            "namespace": "default",
            "uid": "uid-r",
            "resourceVersion": "1",
            "creationTimestamp": CREATED,
            "ownerReferences": [owner],
            **metadata,
        },
        "spec": {
            "repository": "edge",
            "packageName": "web",
            "workspaceName": "packagevariant-1",
            "lifecycle": lifecycle,
            "readinessGates": [{"conditionType": gate} for gate in gates],
        },
        "status": {"conditions": [{"type": type_, "status": status} for type_, status in conditions]},
    }


def specializer(name: str = "ipam", **spec: Any) -> Object:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "PackageSpecializer",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": spec,
    }


def quarantine(name: str = "q1", **spec: Any) -> Object:
    return {
        "apiVersion": "promotion.pvbus.dev/v1alpha1",
        "kind": "Quarantine",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": spec,
    }


def stop(*entries: StopEntry) -> RolloutStop:
    """Return a stop of all rollouts, of generation 1."""
    meta = ObjectMeta(name="fleet", namespace="default", uid="uid-s", generation=1)
    return RolloutStop(metadata=meta, spec=RolloutStopSpec(entries=entries))


class Server:
    """One PackageRevision with its files. moves: the lifecycles that were written, in order."""

    def __init__(self, revision: Object | None) -> None:
        self.revision = revision
        self.files: dict[str, str] = dict(FILES)
        self.moves: list[str] = []
        self.gets: list[str] = []
        self.published: list[Object] = []
        self.files_of: dict[str, dict[str, str]] = {}
        self.unreadable: set[str] = set()
        self.refuses = ""
        self.before_write: Callable[[], None] = lambda: None

    def change(self, edit: Callable[[Object], None]) -> None:
        """Write as another program does."""
        assert self.revision is not None
        found = copy.deepcopy(self.revision)
        edit(found)
        found["metadata"]["resourceVersion"] = str(int(found["metadata"]["resourceVersion"]) + 1)
        self.revision = found

    def perform(self, effect: Any) -> Any:
        if isinstance(effect, Get):
            self.gets.append(effect.kind.kind)
            if effect.name in self.unreadable:
                raise PermanentError("it is broken")
            if effect.name in self.files_of:
                return {"metadata": {"name": effect.name}, "spec": {"resources": self.files_of[effect.name]}}
            if self.revision is None:
                return None
            if effect.kind.kind == "PackageRevisionResources":
                return {"metadata": {"name": NAME}, "spec": {"resources": dict(self.files)}}
            return copy.deepcopy(self.revision)
        assert isinstance(effect, Update)
        self.before_write()
        if self.refuses:
            raise PermanentError(self.refuses)
        if self.revision is None:
            raise PermanentError("gone", reason="NotFound")
        wanted = copy.deepcopy(effect.object)
        if wanted["metadata"]["resourceVersion"] != self.revision["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed")
        self.moves.append(wanted["spec"]["lifecycle"])
        wanted["metadata"]["resourceVersion"] = str(int(wanted["metadata"]["resourceVersion"]) + 1)
        self.revision = wanted
        return wanted


class PromoteWorld(Partition):
    """Both controllers with one partition. `settle` runs them until nothing changes."""

    def __init__(
        self,
        revision: Object | None = None,
        of: Object | None = None,
        *specializers: Object,
        returns: bool = True,
    ) -> None:
        super().__init__()
        self.server = Server(revision)
        self.variant: Object | None = of if of is not None else variant()
        self.desired: DesiredRow | None = None
        self.specializers = list(specializers)
        self.returns = returns
        self.policies: list[Object] = []
        self.quarantines: list[Object] = []
        self.now = NOW
        self.markers: dict[str, SyncMarker] = {str(kind): SyncMarker(state="ok", epoch=1) for kind in KINDS}
        self.restart()

    def restart(self) -> None:
        """Forget everything that is not a row on the bus, and read the present state of the cluster."""
        self.promote = PromoteController(partitions=1, returns=self.returns)
        self.release = ReleaseController(partitions=1)
        self.open(self.promote, self.release)
        self.observe()

    def observe(self) -> None:
        """Let the controllers see the cluster as it is."""
        for name, marker in self.markers.items():
            for topic in OBSERVED:
                self.write(topic, sync_key(*name.rsplit("/", 1)), marker)
        present = {("", "")}
        for kind, obj in (
            (VARIANT, self.variant),
            (REVISION, self.server.revision),
            *((SPECIALIZER, each) for each in self.specializers),
            *((POLICY, each) for each in self.policies),
            *((QUARANTINE, each) for each in self.quarantines),
            *((REVISION, each) for each in self.server.published),
        ):
            for row in rows_of(kind, obj, topics_of(kind, requested=False)) if obj is not None else ():
                present.add((row.topic, row.key))
                if self.rows.get((row.topic, row.key)) != row.value:
                    self.write(row.topic, row.key, row.value)
        for topic, key in [at for at in self.rows if at[0] in OBSERVED and "!sync" not in at[1]]:
            if (topic, key) not in present:
                self.write(topic, key, None)
        self.write(DESIRED, KEY, self.desired)

    def run(self, controller: Any, *, crash_after: int | None = None) -> Outcome | None:
        """Run one decision; None if it ended in a conflict. crash_after: effects until the process ends."""
        try:
            return self.decide(controller, KEY, self.now, self.server.perform, crash_after=crash_after)
        except ConflictError:
            return None

    def settle(self, rounds: int = 6) -> None:
        """Run both until they are done, as the shell does after each record."""
        for _ in range(rounds):
            self.observe()
            self.run(self.promote)
            self.run(self.release)

    @property
    def verdict(self) -> Verdict:
        row = msgspec.json.decode(self.rows[PROMOTIONS, KEY], type=PromotionRow)
        (found,) = row.verdicts
        return found

    @property
    def outcome(self) -> ReleaseRow | None:
        value = self.rows.get((RELEASES, KEY))
        return msgspec.json.decode(value, type=ReleaseRow) if value is not None else None

    def annotate(self, annotations: Mapping[str, str | None]) -> None:
        """Set annotations of the revision, or remove those that are None."""

        def edit(obj: Object) -> None:
            both = {**(obj["metadata"].get("annotations") or {}), **annotations}
            obj["metadata"]["annotations"] = {key: text for key, text in both.items() if text is not None}

        self.server.change(edit)

    def commit(self, name: str) -> None:
        """Show another commit, as after a change of files."""
        self.server.change(lambda obj: obj["status"].update(selfLock={"git": {"commit": name}}))

    def move(self, lifecycle: str) -> None:
        """Change the lifecycle, as a person does."""
        self.server.change(lambda obj: obj["spec"].update(lifecycle=lifecycle))

    def set_condition(self, type_: str, status: str) -> None:
        """Report a condition, as a program does: it is in the Kptfile, too."""
        text = FILES["Kptfile"] + f"status:\n  conditions:\n  - type: {type_}\n    status: '{status}'\n"
        self.server.files["Kptfile"] = text
        self.server.change(lambda obj: obj["status"].update(conditions=[{"type": type_, "status": status}]))
