"""The parts of a simulated world: kinds, the cluster that reports its writes, and a world's options."""

from typing import Any, NamedTuple, Protocol

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import TransientError
from pvbus.core.variants.unroll.controller import TURN_TARGETS
from pvbus.ports.cluster import Kind, Object
from tests.simulation.watching import Watcher

PARTITIONS = 3
VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
SET = Kind("config.porch.kpt.dev", "PackageVariantSet")
REPOSITORY = Kind("config.porch.kpt.dev", "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")
SITE = Kind("example.org", "Site")
CONFIG_MAP = Kind("", "ConfigMap")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
SPECIALIZER = Kind("promotion.pvbus.dev", "PackageSpecializer")
POLICY = Kind("promotion.pvbus.dev", "RolloutPolicy")
QUARANTINE = Kind("promotion.pvbus.dev", "Quarantine")
STOP = Kind("promotion.pvbus.dev", "RolloutStop")
API_VERSIONS = {
    VARIANT: "config.porch.kpt.dev/v1alpha1",
    SET: "config.porch.kpt.dev/v1alpha2",
    REPOSITORY: "config.porch.kpt.dev/v1alpha1",
    REVISION: "porch.kpt.dev/v1alpha1",
    RESOURCES: "porch.kpt.dev/v1alpha1",
    SITE: "example.org/v1",
    CONFIG_MAP: "v1",
    CRD: "apiextensions.k8s.io/v1",
    SPECIALIZER: "promotion.pvbus.dev/v1alpha1",
    POLICY: "promotion.pvbus.dev/v1alpha1",
    QUARANTINE: "promotion.pvbus.dev/v1alpha1",
    STOP: "promotion.pvbus.dev/v1alpha1",
}

SETTINGS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  annotations:
    kpt.dev/config-injection: optional
data:
  region: none
"""


class Options(NamedTuple):
    """The options of a world, beside its seed.

    step_records: records of one step, so also of one chunk of an outcome. turn_targets: targets that a set
    evaluates in one pass. record_bytes: size of the largest record that the bus accepts. tombstone_seconds:
    how long the bus keeps tombstones; a reader that is behind for half of that starts again. replays:
    whether watches of Porch's kinds replay.
    """

    step_records: int = SqliteBus.step_records_max
    turn_targets: int = TURN_TARGETS
    record_bytes: int = 1_000_000
    tombstone_seconds: int | None = None
    replays: bool = False


class Watching(Protocol):
    """Receives the writes of a cluster."""

    watcher: Watcher

    def wrote(self, verb: str, obj: Object, subresource: str) -> None: ...


class WatchedCluster(MemoryCluster):
    """A cluster that reports each applied write, and its writer, to the world.

    As package servers do, it takes files for a Draft only: a write on its way may arrive after the proposal.
    """

    world: Watching

    def _before(self, verb: str, obj: Object) -> None:
        super()._before(verb, obj)
        if verb == "update" and obj["kind"] == RESOURCES.kind:
            revision = self.peek(REVISION, obj["metadata"]["namespace"], obj["metadata"]["name"])
            if revision is not None and (lifecycle := revision["spec"].get("lifecycle", "Draft")) != "Draft":
                raise TransientError(f"the package revision is {lifecycle}: its files cannot be changed")

    def _store(self, kind: Kind, obj: Object) -> Object:
        stored = super()._store(kind, obj)
        self._changed_kind(kind)
        return stored

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        super().remove(kind, namespace, name)
        self._changed_kind(kind)

    def _changed_kind(self, kind: Kind) -> None:
        if kind in (VARIANT, REVISION):
            both = (obj for k in (VARIANT, REVISION) for obj in self.objects_of(k))
            self.world.watcher.changed(both)

    def _wrote(self, verb: str, obj: Object, *, subresource: str = "", **more: Any) -> None:
        super()._wrote(verb, obj, subresource=subresource, **more)
        self.world.wrote(verb, obj, subresource)

    def by_uid(self, uid: str) -> Object | None:
        return next((obj for obj in self.objects() if obj["metadata"]["uid"] == uid), None)
