"""A fleet in virtual time: a cluster in memory, a bus in memory, and several workers per service.

The world can be told to misbehave (`pvbus.testing.faults`), its users act at random from one seed, and
afterwards it can be asked whether everything is as the oracle wants it.
"""

import asyncio
import copy
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from prometheus_client import REGISTRY

from pvbus.adapters.embedded.cluster import MemoryCluster, Write
from pvbus.contracts import topics
from pvbus.core.expressions import default_engine
from pvbus.core.ids import CONFIRM_DELETION, Key
from pvbus.core.model import PackageVariant, PackageVariantSet
from pvbus.core.porch import PackageRevision, Repository
from pvbus.core.records import META, SETRESULTS, UNROLL, ChildRow, SetResult
from pvbus.core.unroll.children import Limits
from pvbus.ports.bus import Record, TopicPartition
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.assembly import SERVICES, Service, build_service
from pvbus.testing.clock import Process, ProcessClock, SimulatedClock
from pvbus.testing.faults import Faults, FaultyBus, FaultyCluster
from pvbus.testing.oracle import Expected, Thing, expected_variants

PARTITIONS = 3
ENGINE = default_engine()
VARIANT = Kind("config.porch.kpt.dev", "PackageVariant")
SET = Kind("config.porch.kpt.dev", "PackageVariantSet")
REPOSITORY = Kind("config.porch.kpt.dev", "Repository")
REVISION = Kind("porch.kpt.dev", "PackageRevision")
RESOURCES = Kind("porch.kpt.dev", "PackageRevisionResources")
SITE = Kind("example.org", "Site")
CONFIG_MAP = Kind("", "ConfigMap")
CRD = Kind("apiextensions.k8s.io", "CustomResourceDefinition")
API_VERSIONS = {
    VARIANT: "config.porch.kpt.dev/v1alpha1",
    SET: "config.porch.kpt.dev/v1alpha2",
    REPOSITORY: "config.porch.kpt.dev/v1alpha1",
    REVISION: "porch.kpt.dev/v1alpha1",
    RESOURCES: "porch.kpt.dev/v1alpha1",
    SITE: "example.org/v1",
    CONFIG_MAP: "v1",
    CRD: "apiextensions.k8s.io/v1",
}


def defects() -> float:
    """Return how often a decision failed by a bug, in this process so far."""
    names = [{"service": service, "outcome": "defect"} for service in SERVICES]
    return sum(REGISTRY.get_sample_value("pvbus_reconcile_total", name) or 0.0 for name in names)


class Running(NamedTuple):
    """One worker of one service."""

    name: str
    service: Service
    bus: FaultyBus
    process: Process
    clock: ProcessClock
    cluster: FaultyCluster
    task: "asyncio.Task[None]"


class Inputs(NamedTuple):
    """What users wrote, at one moment."""

    time: float
    sets: list[PackageVariantSet]
    things: list[Thing]
    repositories: list[Repository]
    revisions: list[PackageRevision]
    unknown_kinds: tuple[str, ...]


class World:
    """Caller: `start`, act, `converge`, ask, `close`; all inside one simulated loop."""

    def __init__(self, seed: int = 0, *, limits: Limits | None = None, workers: int = 1) -> None:
        self.clock = SimulatedClock()
        self.faults = Faults(seed)
        self.random = random.Random(seed)
        self.limits = limits or Limits()
        self.workers = workers
        self.cluster = MemoryCluster(now=self._stamp)
        self.cluster.before_write = self._before_write
        self.running: dict[str, Running] = {}
        self.history: list[Inputs] = []
        self.deleted: list[tuple[float, str, str]] = []
        self._number = 0
        self._defects = defects()
        self._collector: asyncio.Task[None] | None = None

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self.clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        self.bus = await FaultyBus.open(":memory:", clock=self.clock)
        self.bus.faults = Faults(0)
        specs = topics()
        await self.bus.create_topics(
            [s if s.name == META else msgspec.structs.replace(s, partitions=PARTITIONS) for s in specs]
        )
        self._collector = asyncio.create_task(self._collecting())

    async def start(self, names: Sequence[str] = SERVICES) -> None:
        """Open the bus if need be, and start workers of every service."""
        if self._collector is None:
            await self.open()
        for name in names:
            for _ in range(self.workers):
                self.add_worker(name)

    def add_worker(self, service: str) -> Running:
        self._number += 1
        name = f"{service}-{self._number}"
        process, clock = Process(name), ProcessClock()
        with process.entered():
            bus = self.bus.peer(clock=clock)
            bus.faults, bus.process = self.faults, process
            cluster = FaultyCluster(self.cluster, clock, self.faults, process, strict=service != "ingest")
            built = build_service(
                service, bus, cluster, clock, engine=ENGINE, limits=self.limits, partitions=PARTITIONS
            )
            task = asyncio.create_task(built.run(), name=name)
        self.running[name] = Running(name, built, bus, process, clock, cluster, task)
        return self.running[name]

    def of(self, service: str) -> Any:
        """Return the first worker of a service."""
        return next(r.service for r in self.running.values() if r.name.startswith(service))

    async def kill(self, name: str) -> None:
        """End a worker as SIGKILL would."""
        running = self.running.pop(name)
        running.process.kill()
        running.task.cancel()
        await asyncio.wait({running.task})
        await running.bus.abandon()

    async def stop(self) -> None:
        """Stop all workers in good order."""
        for running in self.running.values():
            running.service.stop()
        for running in self.running.values():
            await running.task
            await running.bus.close()
        self.running.clear()

    async def close(self) -> None:
        assert defects() == self._defects, "a decision raised what it must not: see the log"
        self.faults.calm()
        for running in self.running.values():
            running.process.thaw()
        for running in list(self.running.values()):
            if running.task.done():
                running.task.result()
        await self.stop()
        if self._collector is not None:
            self._collector.cancel()
            await asyncio.wait({self._collector})
        await self.bus.close()

    # ------------------------------------------------------------ the cluster's own part

    async def _collecting(self) -> None:
        """Collect garbage as Kubernetes does: what lost all its owners is deleted."""
        while True:
            await asyncio.sleep(2.0)
            objects = self.cluster.objects()
            uids = {obj["metadata"]["uid"] for obj in objects}
            for obj in objects:
                owners = obj["metadata"].get("ownerReferences") or ()
                if owners and not any(owner["uid"] in uids for owner in owners):
                    await self._user_delete(obj)

    async def _user_delete(self, obj: Object) -> None:
        meta = obj["metadata"]
        group = obj["apiVersion"].rpartition("/")[0]
        resource = await self.cluster.resource(Kind(group, obj["kind"]))
        if resource is not None:
            self.by_user = True
            try:
                await self.cluster.delete(resource, meta.get("namespace", ""), meta["name"])
            finally:
                self.by_user = False

    by_user = False

    def _before_write(self, verb: str, obj: Object) -> None:
        if verb == "delete" and obj["kind"] == "PackageVariant" and not self.by_user:
            meta = obj["metadata"]
            self.deleted.append((self.clock.now(), f"{meta['namespace']}/{meta['name']}", meta["uid"]))
            assert self._was_unwanted(f"{meta['namespace']}/{meta['name']}"), f"deleted in error: {meta}"

    # ------------------------------------------------------------ users

    def put(self, kind: Kind, name: str, *, namespace: str = "default", **fields: Any) -> Object:
        """Create or change an object as a user does: its metadata is merged, its spec replaced."""
        current = self.find(kind, name, namespace)
        metadata = dict(fields.pop("metadata", {}))
        obj = copy.deepcopy(current) if current else {"apiVersion": API_VERSIONS[kind], "kind": kind.kind}
        old_spec = obj.get("spec")
        scope = {} if kind == CRD else {"namespace": namespace}
        obj["metadata"] = {**obj.get("metadata", {}), "name": name, **scope, **metadata}
        obj.update(fields)
        if current is not None and fields.get("spec", old_spec) != old_spec:
            obj["metadata"]["generation"] = obj["metadata"].get("generation", 1) + 1
        elif current is None:
            self._number += 1
            obj["metadata"].setdefault("uid", f"uid-{name}-{self._number}")
        if current is None or obj != current:
            stored = self.cluster.put(obj)
            self.remember()
            return stored
        return obj

    def find(self, kind: Kind, name: str, namespace: str = "default") -> Object | None:
        for obj in self.cluster.objects():
            same = obj["kind"] == kind.kind and obj["metadata"]["name"] == name
            if same and obj["metadata"].get("namespace", namespace) == namespace:
                return obj
        return None

    async def delete(self, kind: Kind, name: str) -> None:
        obj = self.find(kind, name)
        if obj is not None:
            await self._user_delete(obj)
            self.remember()

    def unserve(self, kind: Kind) -> None:
        """Take a kind away, with its objects, as the deletion of its definition does."""
        for obj in self.cluster.objects():
            if obj["kind"] == kind.kind and obj["apiVersion"] == API_VERSIONS[kind]:
                self.cluster.remove(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self.cluster.unserve(kind)
        self.cluster.remove(CRD, "", "sites.example.org")
        self.remember()

    def serve_sites(self) -> None:
        names = {"kind": "Site", "plural": "sites"}
        spec = {"group": "example.org", "names": names, "versions": [{"name": "v1", "served": True}]}
        self.put(CRD, "sites.example.org", spec=spec)

    def upstream(self, revision: int = 1, *, package: str = "base") -> None:
        name = f"up.{package}.v{revision}"
        spec = {
            "repository": "up",
            "packageName": package,
            "revision": revision,
            "workspaceName": f"v{revision}",
            "lifecycle": "Published",
        }
        self.put(REVISION, name, spec=spec)
        kptfile = f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {package}\n"
        place = {"repository": "up", "packageName": package, "workspaceName": f"v{revision}"}
        self.put(RESOURCES, name, spec={**place, "resources": {"Kptfile": kptfile}})

    def set(self, name: str, targets: list[Object], *, revision: int = 1, **metadata: Any) -> Object:
        spec = {"upstream": {"repo": "up", "package": "base", "revision": revision}, "targets": targets}
        return self.put(SET, name, spec=spec, metadata=metadata)

    # ------------------------------------------------------------ truth

    def objects(self, kind: Kind) -> list[Object]:
        return [o for o in self.cluster.objects() if o["kind"] == kind.kind]

    def variants(self) -> dict[str, Object]:
        return {f"default/{o['metadata']['name']}": o for o in self.objects(VARIANT)}

    def remember(self) -> None:
        """Note what users want now."""
        self.history.append(self.inputs())

    def inputs(self) -> Inputs:
        known = {SET.kind, VARIANT.kind, REPOSITORY.kind, REVISION.kind}
        things = []
        for obj in self.cluster.objects():
            if obj["kind"] not in known:
                group, meta = obj["apiVersion"].rpartition("/")[0], obj["metadata"]
                kind = f"{group}/{obj['kind']}"
                things.append(
                    Thing(kind, meta.get("namespace", ""), meta["name"], dict(meta.get("labels") or {}))
                )
        unknown = () if self.cluster.serves(SITE) else (str(SITE),)
        return Inputs(
            self.clock.now(),
            [msgspec.convert(o, PackageVariantSet) for o in self.objects(SET)],
            things,
            [msgspec.convert(o, Repository) for o in self.objects(REPOSITORY)],
            [msgspec.convert(o, PackageRevision) for o in self.objects(REVISION)],
            unknown,
        )

    def expected(self, inputs: Inputs | None = None) -> dict[str, Expected]:
        """Ask the oracle, with the names that the sets remember."""
        now = inputs or self.inputs()
        return expected_variants(
            now.sets,
            now.things,
            now.repositories,
            now.revisions,
            remembered_names=self.names(),
            existing_children=[msgspec.convert(o, PackageVariant) for o in self.objects(VARIANT)],
            unknown_kinds=now.unknown_kinds,
            engine=ENGINE,
        )

    def _was_unwanted(self, vkey: str, seconds: float = 150.0) -> bool:
        """Whether at some moment of the recent past the oracle did not want a variant."""
        since = self.clock.now() - seconds
        recent = [i for i in self.history if i.time >= since]
        before = [i for i in self.history if i.time < since][-1:]
        return any(vkey not in self.expected(inputs) for inputs in (self.inputs(), *before, *recent))

    # ------------------------------------------------------------ the bus

    def table(self, topic: str) -> dict[str, bytes]:
        """Return the last value of every key of a topic."""
        rows: dict[str, bytes] = {}
        for record in self.records(topic):
            rows.pop(record.key.decode(), None)
            if record.value is not None:
                rows[record.key.decode()] = record.value
        return rows

    def records(self, topic: str) -> list[Record]:
        """Return all records of a topic that are still there, partition by partition."""
        store, found = self.bus._store, []
        for partition in range(PARTITIONS):
            lane = store.lane(topic, partition)
            found += store.read(topic, partition, lane, 0, store.ends[lane], 1_000_000)
        return found

    def children(self) -> dict[str, ChildRow]:
        return {k: msgspec.json.decode(v, type=ChildRow) for k, v in self.table(UNROLL).items()}

    def names(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for key, row in self.children().items():
            skey, _, name = key.partition("|")
            if row.state != "gone":
                found.setdefault(skey, {})[name] = row.downstream
        return found

    def rollup(self, name: str) -> SetResult | None:
        value = self.table(SETRESULTS).get(f"default/{name}")
        return msgspec.json.decode(value, type=SetResult) if value is not None else None

    async def ends(self) -> dict[TopicPartition, int]:
        specs = await self.bus.topics()
        return dict(
            await self.bus.end_offsets([(n, p) for n, spec in specs.items() for p in range(spec.partitions)])
        )

    # ------------------------------------------------------------ convergence

    async def converge(self, *, quiet: float = 8.0, limit: float = 1500.0) -> None:
        """Wait until nothing happens any more; fail when that takes too long, or a worker failed."""
        deadline, since, last = self.clock.now() + limit, self.clock.now(), None
        while self.clock.now() - since < quiet:
            await asyncio.sleep(1.0)
            for running in self.running.values():
                if running.task.done():
                    running.task.result()
                    raise AssertionError(f"{running.name} ended")
            state = (len(self.cluster.writes), sum((await self.ends()).values()))
            busy = [r.name for r in self.running.values() if not r.service.idle]
            if busy or state != last:
                last, since = state, self.clock.now()
            assert self.clock.now() < deadline, f"never quiet: {busy}, {state}"

    async def confirm_all(self) -> None:
        """Confirm every held removal, as a user does who reads the conditions."""
        for _ in range(50):
            tokens: dict[str, set[str]] = {}
            for key, row in self.children().items():
                if row.state == "held":
                    tokens.setdefault(key.partition("|")[0], set()).add(row.token)
            tokens = {skey: t for skey, t in tokens.items() if self.find(SET, Key.parse(skey).name)}
            if not tokens:
                return
            for skey, wanted in tokens.items():
                name = Key.parse(skey).name
                obj = self.find(SET, name)
                assert obj is not None
                annotations = {**(obj["metadata"].get("annotations") or {})}
                annotations[CONFIRM_DELETION] = ",".join(sorted(wanted))
                self.put(SET, name, metadata={"annotations": annotations})
            await self.converge(quiet=20.0)

    def writes_of(self, verb: str, kind: Kind = VARIANT, *, since: int = 0) -> list[Write]:
        """Return the writes of the services, without those of users."""
        return [w for w in self.cluster.writes[since:] if w.verb == verb and w.kind == kind.kind]
