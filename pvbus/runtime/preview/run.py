"""Previews changes: runs the services on a cluster and a bus in memory, in virtual time.

The controllers are those of production, so a preview cannot drift from them. Nothing outside the given
objects is read or written. Changes are applied once the services have settled on the objects without
them, so a set has had its children for a while before a removal, as on a live system.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast

import msgspec

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.spill import Spill
from pvbus.adapters.memory.virtual_time import EPOCH, SimulatedClock, run_simulated
from pvbus.adapters.memory.writes import Write
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.store import ON_DISK
from pvbus.controlplane.packages.functions.registry import FunctionRegistry
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Controller, Effect, Outcome, Reconciliation
from pvbus.core.kernel.keys import ChildKey
from pvbus.core.kernel.objectrows import REVISION
from pvbus.core.kernel.objects import timestamp
from pvbus.core.kernel.records import UNROLL, ChildRow
from pvbus.core.kernel.topics import topic_specs
from pvbus.core.variants.unroll.removal import RemovalLimits
from pvbus.ports.bus import Bus
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.runtime.failures import causes
from pvbus.runtime.preview.changes import Changes, ObjectName, lay_over
from pvbus.runtime.preview.meaning import digest_of_object
from pvbus.runtime.preview.packages import StoreRules
from pvbus.runtime.preview.returning import Frozen, drafts_again, kept_as_planned, nothing_frozen
from pvbus.runtime.process.assembly import Service, Surroundings, build_service, is_settled, run_all
from pvbus.runtime.process.settings import ServicesConfig

Only = Literal["sets", "variants"]
QUIET_SECONDS = 30.0
"""Virtual seconds without a write or a record after which nothing more is expected. No pause between two of
them (waiting removals, checks, retries after a wait) is longer; later writes are retries of failures."""
STEP_SECONDS = 0.5  # virtual: how often the state is checked
LIMIT_SECONDS = 3_600.0  # virtual: an evaluation that has not settled by then never will
AGE_SECONDS = 3_600.0  # virtual: age of the newest object at the start; the guard counts 10 minutes
SERVICES_OF: dict[Only | None, tuple[str, ...]] = {
    None: ("ingest", "unroll", "render", "inject", "conditions"),
    "sets": ("ingest", "unroll", "render", "conditions"),
    "variants": ("ingest", "inject", "conditions"),
}
_EXPECTED_ERRORS = (ConflictError, PermanentError, TransientError, GeneratorExit)
_child = msgspec.json.Decoder(ChildRow)


class World(NamedTuple):
    """The system to preview.

    objects: the objects of the cluster
    resources: kinds that are served besides those of the objects
    server: the package server; None copies files and checks nothing
    functions: the functions that the server can run, None for the built-in ones
    frozen: tells what rollouts keep proposed as planned
    """

    objects: Sequence[Object]
    resources: Sequence[Resource] = ()
    server: Literal["pvbus", "porch"] | None = None
    functions: FunctionRegistry | None = None
    frozen: Frozen = nothing_frozen


class PreviewChild(NamedTuple):
    """A set's last decision on one PackageVariant.

    skey: the key of the set
    name: the name of the PackageVariant
    state: the state that the set gave it
    okey: the key of the object that makes it a target
    """

    skey: str
    name: str
    state: str
    okey: str


class Preview(NamedTuple):
    """The writes of a preview, and the cluster afterwards.

    writes: the writes, in order
    objects: the objects of the cluster afterwards
    pending: the number of writes that happen without the changes
    defects: decisions that failed because of a bug, in words
    children: the last decisions of the sets
    unserved: the kinds that were requested and that the input does not serve
    without_files: (namespace, name) of the revisions whose files were requested and are not in the input
    unmerged: upgrade drafts whose merge is not computed
    states: the digests of the states that each written object went through, in order, without the first one
    settled: how many of them there were before the changes
    frozen: NAMESPACE/NAME of each variant whose proposal stays as planned, and why
    """

    writes: Iterable[Write]
    objects: Sequence[Object]
    pending: int = 0
    defects: tuple[str, ...] = ()
    children: tuple[PreviewChild, ...] = ()
    unserved: frozenset[Kind] = frozenset()
    without_files: frozenset[tuple[str, str]] = frozenset()
    unmerged: frozenset[str] = frozenset()
    states: Mapping[ObjectName, Sequence[str]] = MappingProxyType({})
    settled: Mapping[ObjectName, int] = MappingProxyType({})
    frozen: Mapping[str, str] = MappingProxyType({})


Progress = Callable[[str], None]


def preview(
    world: World | Sequence[Object],
    *,
    only: Only | None = None,
    limits: RemovalLimits | None = None,
    changes: Changes | None = None,
    progress: Progress = lambda _: None,
    has_states: bool = False,
) -> Preview:
    """Run the services until nothing changes; then again after the changes, if there are any.

    has_states: whether to note the states of each object, which takes time
    """
    given = world if isinstance(world, World) else World(world)
    running = _Run(given, only, limits, progress, has_states=has_states)
    try:
        return run_simulated(running.result(changes))
    except Exception as exc:  # a defect of ours is part of the result, and gives exit code 1
        return running.report_failure(exc)


class _Run:
    """One evaluation."""

    def __init__(
        self,
        world: World,
        only: Only | None,
        limits: RemovalLimits | None,
        progress: Progress,
        *,
        has_states: bool,
    ) -> None:
        self._world = world
        self._only = only
        self._config = ServicesConfig(**limits._asdict()) if limits else ServicesConfig()
        self._progress = progress
        self._defects: dict[str, None] = {}
        self._pending = 0
        self._clock = SimulatedClock(_epoch(world.objects))
        self._cluster = MemoryCluster(
            now=self._stamp, collects_garbage=world.server is not None, spill=Spill()
        )
        self._rules: StoreRules | None = None
        self._has_states = has_states
        self._states: dict[ObjectName, list[str]] = {}
        self._settled: dict[ObjectName, int] = {}
        self._cluster.before_write = self._said

    def _said(self, _verb: str, _obj: Object) -> None:
        """Report progress by writes: virtual time stands still while there is work."""
        self._progress(f"{len(self._cluster.writes)} writes so far")

    def _note_state(self, kind: Kind, namespace: str, name: str, obj: Object | None) -> None:
        states = self._states.setdefault(ObjectName(kind, namespace, name), [])
        digest = digest_of_object(obj)
        if states[-1:] != [digest]:
            states.append(digest)

    def _stamp(self) -> str:
        return timestamp(self._clock.now())

    async def result(self, changes: Changes | None) -> Preview:
        if self._world.server is not None:
            functions = self._world.functions or FunctionRegistry({})
            is_embedded = self._world.server == "pvbus"
            self._rules = self._cluster.rules = StoreRules(self._cluster, functions, is_embedded=is_embedded)
        for resource in self._world.resources:
            self._cluster.serve(resource)
        for obj in self._world.objects:
            self._cluster.put(obj)
        if self._has_states:
            self._cluster.on_store = self._note_state
        bus = await SqliteBus.open(ON_DISK, clock=self._clock)
        await bus.create_topics(topic_specs())
        services = [
            build_service(
                name,
                bus.peer(),
                self._cluster,
                self._clock,
                self._config,
                Surroundings(observe=self._observed, checks_plans=False, keeps_specs=False),
                children_report=self._only != "sets",
            )
            for name in SERVICES_OF[self._only]
        ]
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_all(services))
            await self._settle_with_promotion(services, bus)
            if changes is not None:
                self._pending = sum(write.subresource != "status" for write in self._cluster.writes)
                self._settled = {name: len(states) for name, states in self._states.items()}
                lay_over(self._cluster, changes)
                await self._settle_with_promotion(services, bus)
            for service in services:
                service.stop()
        children = await _children(bus) if self._only != "variants" else ()
        await bus.close()
        return self._preview(children)

    def report_failure(self, error: Exception) -> Preview:
        """Return the preview so far, after the services ended with a defect."""
        self._defects.update(dict.fromkeys(f"{type(e).__name__}: {e}" for e in causes(error)))
        return self._preview(())

    def _preview(self, children: tuple[PreviewChild, ...]) -> Preview:
        cluster = self._cluster
        return Preview(
            cluster.writes,
            cluster.objects(),
            pending=self._pending,
            defects=tuple(self._defects),
            children=children,
            unserved=frozenset(cluster.unserved),
            without_files=frozenset(cluster.without_files),
            unmerged=frozenset(self._rules.unmerged) if self._rules is not None else frozenset(),
            states=self._states,
            settled=self._settled,
            frozen=dict(kept_as_planned(cluster, self._world.frozen)),
        )

    async def _settle_with_promotion(self, services: Sequence[Service], bus: Bus) -> None:
        """Settle, and again after promotion has taken back proposals: a draft is no proposal any more."""
        await self._settle(services, bus)
        frozen = self._world.frozen
        while self._only is None and (drafts := list(drafts_again(self._cluster, frozen))):
            resource = await self._cluster.resource(REVISION)
            assert resource is not None
            for draft in drafts:
                await self._cluster.update(resource, draft)
            await self._settle(services, bus)

    async def _settle(self, services: Sequence[Service], bus: Bus) -> None:
        """Wait until nothing has been written for a while, and all services are idle."""
        began = quiet_since = self._clock.monotonic()
        before: tuple[int, int] | None = None
        while self._clock.monotonic() - quiet_since < QUIET_SECONDS:
            await self._clock.sleep(STEP_SECONDS)
            now = (len(self._cluster.writes), await _records(bus))
            if now != before or not await is_settled(services, bus, horizon_seconds=-1.0):
                before, quiet_since = now, self._clock.monotonic()
            if self._clock.monotonic() - began > LIMIT_SECONDS:
                self._defects["the services still write after an hour: two of them undo each other"] = None
                return

    def _observed(self, controller: Controller) -> Controller:
        return cast(Controller, _Observed(controller, self._defects))


class _Observed:
    """Wraps a controller to record its defects; everything else passes through."""

    def __init__(self, controller: Controller, defects: dict[str, None]) -> None:
        self._controller = controller
        self._defects = defects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._controller, name)

    def reconcile(self, partition: int, key: str, now: float) -> Reconciliation:
        return self._note(key, self._controller.reconcile(partition, key, now))

    def _note(self, key: str, steps: Reconciliation) -> Generator[Effect, Any, Outcome]:
        try:
            return (yield from steps)
        except _EXPECTED_ERRORS:
            raise
        except Exception as exc:  # recorded, then handled by the shell
            text = f"{self._controller.name} failed to decide on {key} ({type(exc).__name__}: {exc})"
            self._defects[f"{text}; this is a bug in pvbus, please report it with the input"] = None
            raise


async def _records(bus: Bus) -> int:
    parts = [(spec.name, number) for spec in topic_specs() for number in range(spec.partitions)]
    return sum((await bus.end_offsets(parts)).values())


async def _children(bus: Bus) -> tuple[PreviewChild, ...]:
    """Read the sets' last decisions on their children."""
    count = next(spec.partitions for spec in topic_specs() if spec.name == UNROLL)
    ends = await bus.end_offsets([(UNROLL, number) for number in range(count)])
    rows: dict[str, bytes | None] = {}
    reader = bus.reader({tp: 0 for tp, end in ends.items() if end > 0})
    try:
        while any(reader.position(tp) < end for tp, end in ends.items() if end > 0):
            for record in await reader.poll(timeout_seconds=1.0, max_records=10_000):
                rows[record.key.decode()] = record.value
    finally:
        await reader.close()
    found = []
    for key, value in sorted(rows.items()):
        if value is not None:
            skey, name = ChildKey.parse(key)
            row = _child.decode(value)
            found.append(PreviewChild(skey, name, row.state, row.okey))
    return tuple(found)


def _epoch(objects: Sequence[Object]) -> float:
    """Return the start of the evaluation: after every creation, and equal for equal objects."""
    latest = EPOCH
    for obj in objects:
        created = obj["metadata"].get("creationTimestamp")
        try:
            latest = max(latest, datetime.fromisoformat(created).timestamp() + AGE_SECONDS)
        except (TypeError, ValueError):
            continue
    return latest
