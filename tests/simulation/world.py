"""A fleet in virtual time: a cluster in memory, a bus in memory, and several workers per service.

Faults can be enabled (`tests.kit.faults`), users act at random from one seed, and afterwards the state
can be compared with the oracle's.
"""

import asyncio
import copy
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from prometheus_client import REGISTRY

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.adapters.memory.writes import Write
from pvbus.core.api.packages import PackageRevision, Repository
from pvbus.core.api.variants import PackageVariant, PackageVariantSet
from pvbus.core.kernel.keys import CONFIRM_DELETION, Key
from pvbus.core.kernel.records import DESIRED, META, SETRESULTS, TARGETS, UNROLL, ChildRow, SetResult
from pvbus.core.kernel.topics import ALL_SERVICES, SERVICES, topic_specs
from pvbus.core.variants.inject.mutations.injection import INJECTED
from pvbus.core.variants.unroll.controller import CHUNK_PUTS, TURN_TARGETS, UnrollController
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.bus import Record, TopicPartition
from pvbus.ports.cluster import Kind, Object
from pvbus.runtime.process.assembly import Service, Surroundings, build_service
from pvbus.runtime.process.settings import ServicesConfig
from pvbus.runtime.reconcile.worker import Worker
from tests.kit.busbeside import records_of, topics_of
from tests.kit.clocks import ProcessClock
from tests.kit.faults import Faults, FaultyBus, FaultyCluster
from tests.kit.oracle import Expected, Thing
from tests.kit.processes import Process
from tests.simulation.cluster import (
    API_VERSIONS,
    CONFIG_MAP,
    CRD,
    PARTITIONS,
    REPOSITORY,
    RESOURCES,
    REVISION,
    SET,
    SETTINGS,
    SITE,
    VARIANT,
    Options,
    WatchedCluster,
)
from tests.simulation.facts import Inputs
from tests.simulation.watching import Watcher

__all__ = [
    "API_VERSIONS",
    "CONFIG_MAP",
    "CRD",
    "PARTITIONS",
    "REPOSITORY",
    "RESOURCES",
    "REVISION",
    "SET",
    "SITE",
    "VARIANT",
    "Options",
    "SimulatedWorld",
]


def is_injected(text: str) -> bool:
    """Whether a file of a package has content that inject took from an object."""
    return INJECTED in text


def defects() -> float:
    """Return how often a decision failed by a bug, in this process so far."""
    names = [{"service": service, "outcome": "defect"} for service in ALL_SERVICES]
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


class SimulatedWorld:
    """Caller: `start`, act, `converge`, ask, `close`; all inside one simulated loop."""

    def __init__(
        self,
        seed: int = 0,
        *,
        limits: RemovalLimits | None = None,
        workers: int = 1,
        options: Options | None = None,
        watched: bool = True,
    ) -> None:
        """watched: whether each change is judged; the cost of one grows with the number of objects."""
        self.clock = SimulatedClock()
        self.faults = Faults(seed)
        self.random = random.Random(seed)
        self.limits = limits or RemovalLimits()
        self.workers = workers
        self.options = options or Options()
        self.faults.replays = self.options.replays
        self.calm_since: float | None = 0.0
        self.watcher = Watcher(self)
        self.watcher.is_on = watched
        self.cluster = WatchedCluster(now=self._stamp)
        self.cluster.world = self
        self.running: dict[str, Running] = {}
        self._number = 0
        self._defects = defects()
        self._collector: asyncio.Task[None] | None = None
        self.namespaces: tuple[str, ...] = ()  # of workers that start from now on

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self.clock.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # ------------------------------------------------------------ life

    async def open(self) -> None:
        self.bus = await FaultyBus.open(
            ":memory:", clock=self.clock, record_bytes_max=self.options.record_bytes
        )
        self.bus.faults = Faults(0)
        specs = []
        for spec in topic_specs():
            if spec.name != META:
                spec = replace(spec, partitions=PARTITIONS)
                if self.options.tombstone_seconds is not None:
                    spec = replace(spec, tombstone_seconds=self.options.tombstone_seconds)
            specs.append(spec)
        await self.bus.create_topics(specs)
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
            bus = self.bus.peer(clock=SimulatedClock())  # the bus's own: a broker's, or the machine's
            bus.faults, bus.process, bus.on_step = self.faults, process, self.watcher.stepped
            bus.step_records_max = self.options.step_records
            cluster = FaultyCluster(
                self.cluster,
                clock,
                self.faults,
                process,
                strict=service != "ingest",
                on_send=partial(self.watcher.sent, process),
            )
            built = self._build(service, bus, cluster, clock)
            task = asyncio.create_task(built.run(), name=name)
        self.running[name] = Running(name, built, bus, process, clock, cluster, task)
        return self.running[name]

    def _nonce(self) -> str:
        return f"{self.faults.random.getrandbits(128):032x}"

    def _build(self, service: str, bus: FaultyBus, cluster: FaultyCluster, clock: ProcessClock) -> Service:
        config = ServicesConfig(**self.limits._asdict(), namespaces=",".join(self.namespaces))
        around = Surroundings(nonce=self._nonce, jitter=self.faults.random.uniform)
        turns = partial(UnrollController, turn_targets=self.options.turn_targets)
        built = build_service(service, bus, cluster, clock, config, around, partitions=PARTITIONS)
        if service != "unroll" or self.options.turn_targets == TURN_TARGETS:
            return built

        def make() -> UnrollController:
            chunk = min(CHUNK_PUTS, bus.step_records_max)
            return turns(
                partitions=PARTITIONS,
                elapsed=clock.monotonic,
                nonce=self._nonce,
                limits=self.limits,
                chunk_puts=chunk,
            )

        return Worker(make, bus, cluster, clock, partitions=PARTITIONS, jitter=around.jitter)

    def of(self, service: str) -> Any:
        """Return the first worker of a service."""
        return next(r.service for r in self.running.values() if r.name.startswith(service))

    async def kill(self, name: str) -> None:
        """End a worker as SIGKILL does."""
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
        """Collect garbage as Kubernetes does: delete objects that have lost all their owners."""
        while True:
            await asyncio.sleep(2.0)
            objects = self.cluster.objects()
            uids = {(o["metadata"].get("namespace", ""), o["metadata"]["uid"]) for o in objects}
            for obj in objects:
                meta = obj["metadata"]
                owners = meta.get("ownerReferences") or ()
                if owners and not any((meta.get("namespace", ""), o["uid"]) in uids for o in owners):
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

    def wrote(self, verb: str, obj: Object, subresource: str) -> None:
        """Report a write that the server has just applied to the watcher. Caller: the cluster."""
        if self.by_user:
            return
        if verb == "create":
            self.watcher.counts[f"creates of {obj['kind']}"] += 1
        if verb == "delete" and obj["kind"] == "PackageVariant":
            self.watcher.deleted(obj)
        if obj["kind"] == RESOURCES.kind and any(map(is_injected, obj["spec"]["resources"].values())):
            self.watcher.counts["objects injected"] += 1
        if subresource == "status":
            self.watcher.status(obj)

    # ------------------------------------------------------------ what the watcher asks

    @property
    def now(self) -> float:
        return self.clock.monotonic()

    def find_uid(self, uid: str) -> Object | None:
        return self.cluster.by_uid(uid)

    def guard_limits(self) -> tuple[int, float]:
        return self.limits.removals_max, self.limits.removals_share

    def storm(self) -> None:
        """Begin with faults."""
        self.calm_since = None
        self.faults.storm()

    async def calm(self) -> None:
        """End all faults, and wait until nothing sent before is under way."""
        self.faults.calm()
        for running in self.running.values():
            running.process.thaw()
            running.clock.skew = 0.0
        await self.faults.settle()
        self.calm_since = self.now

    # ------------------------------------------------------------ users

    def put(self, kind: Kind, name: str, *, namespace: str = "default", **fields: Any) -> Object:
        """Create or change an object as a user does: its metadata is merged, its spec replaced."""
        current = self.find(kind, name, namespace)
        metadata = dict(fields.pop("metadata", {}))
        obj: Any = (
            copy.deepcopy(current) if current else {"apiVersion": API_VERSIONS[kind], "kind": kind.kind}
        )
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
            self.watcher.held(stored)
            self.watcher.wished()
            return stored
        return dict(obj)

    def find(self, kind: Kind, name: str, namespace: str = "default") -> Object | None:
        for obj in self.cluster.objects():
            same = obj["kind"] == kind.kind and obj["metadata"]["name"] == name
            if same and obj["metadata"].get("namespace", namespace) == namespace:
                return obj
        return None

    async def delete(self, kind: Kind, name: str, namespace: str = "default") -> None:
        obj = self.find(kind, name, namespace)
        if obj is not None:
            await self._user_delete(obj)
            self.watcher.wished()

    def unserve(self, kind: Kind) -> None:
        """Remove a kind with its objects, as the deletion of its definition does."""
        for obj in self.cluster.objects():
            if obj["kind"] == kind.kind and obj["apiVersion"] == API_VERSIONS[kind]:
                self.cluster.remove(kind, obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self.cluster.unserve(kind)
        self.cluster.remove(CRD, "", "sites.example.org")
        self.watcher.wished()

    def serve_sites(self) -> None:
        names = {"kind": "Site", "plural": "sites"}
        spec = {"group": "example.org", "names": names, "versions": [{"name": "v1", "served": True}]}
        self.put(CRD, "sites.example.org", spec=spec)

    def upstream(self, revision: int = 1, *, package: str = "base", namespace: str = "default") -> None:
        name = f"up.{package}.v{revision}"
        spec = {
            "repository": "up",
            "packageName": package,
            "revision": revision,
            "workspaceName": f"v{revision}",
            "lifecycle": "Published",
        }
        self.put(REVISION, name, namespace=namespace, spec=spec)
        kptfile = f"apiVersion: kpt.dev/v1\nkind: Kptfile\nmetadata:\n  name: {package}\n"
        package_key = {"repository": "up", "packageName": package, "workspaceName": f"v{revision}"}
        files = {"Kptfile": kptfile, "settings.yaml": SETTINGS}
        self.put(RESOURCES, name, namespace=namespace, spec={**package_key, "resources": files})

    def set(
        self,
        name: str,
        targets: list[Object],
        *,
        revision: int = 1,
        namespace: str = "default",
        **metadata: Any,
    ) -> Object:
        spec = {"upstream": {"repo": "up", "package": "base", "revision": revision}, "targets": targets}
        return self.put(SET, name, namespace=namespace, spec=spec, metadata=metadata)

    # ------------------------------------------------------------ truth

    def objects(self, kind: Kind) -> list[Object]:
        return [o for o in self.cluster.objects() if o["kind"] == kind.kind]

    def variants(self) -> dict[str, Object]:
        return {f"{o['metadata']['namespace']}/{o['metadata']['name']}": o for o in self.objects(VARIANT)}

    def inputs(self) -> Inputs:
        known = {SET.kind, VARIANT.kind, REPOSITORY.kind, REVISION.kind}
        things = []
        for obj in self.cluster.objects():
            if obj["kind"] not in known:
                group, meta = obj["apiVersion"].rpartition("/")[0], obj["metadata"]
                kind = f"{group}/{obj['kind']}"
                annotations = dict(meta.get("annotations") or {})
                labels = dict(meta.get("labels") or {})
                things.append(Thing(kind, meta.get("namespace", ""), meta["name"], labels, annotations))
        unknown = () if self.cluster.serves(SITE) else (str(SITE),)
        return Inputs(
            self.now,
            [msgspec.convert(o, PackageVariantSet) for o in self.objects(SET)],
            things,
            [msgspec.convert(o, Repository) for o in self.objects(REPOSITORY)],
            [msgspec.convert(o, PackageRevision) for o in self.objects(REVISION)],
            unknown,
            self.watcher.names(),
            [msgspec.convert(o, PackageVariant) for o in self.objects(VARIANT)],
        )

    def expected(self) -> dict[str, Expected]:
        """Return the current state that the oracle expects."""
        return self.watcher.expected(self.inputs())

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
        return records_of(self.bus, topic, PARTITIONS)

    def children(self) -> dict[str, ChildRow]:
        return {k: msgspec.json.decode(v, type=ChildRow) for k, v in self.table(UNROLL).items()}

    def rows_of(self, vkey: str) -> dict[str, str]:
        """Return the rows of a variant on the bus, for a person to read."""
        name = vkey.partition("/")[2]
        return {
            f"{topic} {key}": value.decode()
            for topic in (UNROLL, TARGETS, DESIRED)
            for key, value in self.table(topic).items()
            if key == vkey or key.startswith(f"{vkey}|") or key.endswith(f"|{name}")
        }

    def rollup(self, name: str, namespace: str = "default") -> SetResult | None:
        value = self.table(SETRESULTS).get(f"{namespace}/{name}")
        return msgspec.json.decode(value, type=SetResult) if value is not None else None

    async def ends(self) -> dict[TopicPartition, int]:
        specs = await self.bus.topics()
        return dict(
            await self.bus.end_offsets([(n, p) for n, spec in specs.items() for p in range(spec.partitions)])
        )

    # ------------------------------------------------------------ convergence

    async def converge(self, *, quiet: float = 8.0, limit: float = 1500.0) -> None:
        """Wait until nothing happens any more; fail if that takes too long, or a worker failed."""
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
            if self.clock.now() >= deadline:
                raise AssertionError(f"never quiet: {busy}, {self._latest()}")

    def _latest(self) -> list[str]:
        """Return the last writes, for a person to read."""
        writes = [
            f"{w.verb} {w.kind} {w.namespace}/{w.name} {w.subresource}" for w in self.cluster.writes[-4:]
        ]
        names = [name for name in topics_of(self.bus) if name != META]
        records = sorted((r for name in names for r in self.records(name)), key=lambda r: r.timestamp_ms)
        return writes + [f"{r.topic} {r.key.decode()} {str(r.value)[:300]}" for r in records[-6:]]

    def tokens(self, skey: str) -> tuple[list[str], list[str]]:
        """Return the tokens that a set shows, and the names of the children they stand for."""
        key = Key.parse(skey)
        rows = {k.partition("|")[2]: r for k, r in self.children().items() if k.startswith(f"{skey}|")}
        held = {name: row for name, row in rows.items() if row.state == "held"}
        rollup = self.rollup(key.name, key.namespace)
        if rollup is not None and rollup.hold is not None:
            return [rollup.hold.token] if rollup.hold.token else [], sorted(held)
        return [], sorted(held)

    def confirm(self, skey: str, tokens: Sequence[str]) -> None:
        """Write the annotation that confirms removals, as a user does who read the condition."""
        key = Key.parse(skey)
        shown, names = self.tokens(skey)
        obj = self.find(SET, key.name, key.namespace)
        if obj is not None and tokens:
            self.watcher.confirmed(skey, names, valid=list(tokens) == shown)
            annotations = {
                **(obj["metadata"].get("annotations") or {}),
                CONFIRM_DELETION: ",".join(tokens),
            }
            self.put(SET, key.name, namespace=key.namespace, metadata={"annotations": annotations})

    async def confirm_all(self) -> None:
        """Confirm every held removal, as a user does who reads the conditions."""
        tried: set[tuple[str, tuple[str, ...]]] = set()
        while True:
            rows = self.children().items()
            held = sorted({key.partition("|")[0] for key, row in rows if row.state == "held"})
            shown = [(skey, tuple(self.tokens(skey)[0])) for skey in held]
            fresh = [pair for pair in shown if pair not in tried]
            if not fresh:
                return  # whether what is still held should be is the oracle's question
            for skey, tokens in fresh:
                tried.add((skey, tokens))
                self.confirm(skey, tokens)
            await self.converge(quiet=70.0)

    def writes_of(self, verb: str, kind: Kind = VARIANT, *, since: int = 0) -> list[Write]:
        """Return the writes of the services, without those of users."""
        return [w for w in self.cluster.writes[since:] if w.verb == verb and w.kind == kind.kind]
