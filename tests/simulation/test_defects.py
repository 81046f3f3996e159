"""Each known defect, put back, is found: a scenario that holds for the code as it is, and fails with it.

| defect | found by |
| --- | --- |
| removal without the sync gate | `gate` |
| removal without the end-offset barrier | `barrier` |
| a relist without `syncing` | `relist` |
| a watch request shared by two sets under one key | `requests` |
| a cancel without a write | `cancel` |
| the guard counted per evaluation | `guard` |
| outputs and offset in two transactions | `tests/contract/bus/test_contract.py`, TwoTransactions |
| the offset read before the epoch is taken | `tests/contract/bus/test_contract.py`, OffsetBeforeFence |
| a write although the digest is equal | `silence` |
| the finalizer taken off without the live list | `finalizer` |
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from pvbus.adapters.memory.cluster import MemoryCluster
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import ConflictError
from pvbus.core.kernel.effects import WRITES, List, Reconciliation
from pvbus.core.kernel.keys import FINALIZER, partition, sync_key
from pvbus.core.kernel.markers import SyncView, is_marker
from pvbus.core.kernel.objectrows import Emission, rows_of, topics_of
from pvbus.core.kernel.records import OBJECTS, VARIANTS, ChildState, SyncMarker, WatchRequest
from pvbus.core.variants.ingest.published import KindRows
from pvbus.core.variants.inject.controller import InjectController
from pvbus.core.variants.unroll.controller import UnrollController
from pvbus.core.variants.unroll.preparing import Preparing
from pvbus.core.variants.unroll.removal import Removal, RemovalLimits
from pvbus.ports.cluster import Kind
from pvbus.runtime.ingest.informer import InformerShell
from pvbus.runtime.reconcile.effects import perform
from tests.contract.bus import test_contract
from tests.kit.deciding import drive_live
from tests.kit.processes import run_simulated
from tests.simulation.parts import (
    REPOSITORY,
    REVISION,
    SET,
    SITE,
    VARIANT,
    RenderPart,
    UnrollPart,
    marker,
    obj,
    site,
    site_set,
    upstream,
)
from tests.simulation.world import PARTITIONS, SimulatedWorld
from tests.simulation.world import REPOSITORY as WORLD_REPOSITORY
from tests.simulation.world import SET as WORLD_SET
from tests.simulation.world import SITE as WORLD_SITE

CHILD = "alpha-r1-s1"


def unrolled(*names: str, limits: RemovalLimits | None = None) -> UnrollPart:
    """A set whose children exist, one for each Site."""
    part = UnrollPart(limits=limits)
    part.tell(REVISION, upstream())
    part.tell(REPOSITORY, obj(REPOSITORY, "r1", spec={}))
    part.tell(SET, site_set())
    for name in names:
        part.tell(SITE, site(name, env="prod"))
    part.synced()
    part.run()
    for name in list(part.children):
        part.made(name)
    part.run()
    return part


# ------------------------------------------------------------ scenarios


async def gate() -> None:
    """While a kind is being listed, missing objects remove nothing."""
    part = unrolled("s1", "s2")
    part.mark(SITE, "syncing", epoch=2)
    part.tell_gone(SITE, site("s1", env="prod"))
    for _ in range(5):
        part.now += 10
        part.run()
    assert part.orders()[CHILD] == "present"
    part.mark(SITE, "ok", epoch=2)
    for _ in range(2):
        part.now += 10
        part.run()
    assert part.orders()[CHILD] == "removed"


async def barrier() -> None:
    """A removal is decided only after all records that are already on the bus are read."""
    part = unrolled("s1", "s2")
    part.tell(SITE, site("s1", env="test"))
    part.run()
    assert part.states()[CHILD] == "waiting"
    part.on_catch_up = lambda: part.tell(SITE, site("s1", env="prod"))
    part.now += 10
    part.run()
    assert part.orders()[CHILD] == "present"


async def relist() -> None:
    """At no moment of a relist does a reader trust incomplete rows."""
    clock = SimulatedClock()
    cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
    kind = Kind("", "ConfigMap")
    for name in "ab":
        cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    emitted: list[Emission] = []
    known: dict[str, dict[str, str]] = {OBJECTS: {}, "pvbus.injectables": {}}
    markers: dict[str, SyncMarker] = {}
    for change in ("first", "second"):
        watch = InformerShell(
            rows_kind := type(SITE)(*kind),
            cluster,
            clock,
            emitted.append,
            partitions=2,
            topics=topics_of(rows_kind, requested=True),
            known=known,
            markers=markers,
            content=frozenset(),
        )
        task = asyncio.ensure_future(watch.run())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait({task})
        if change == "first":
            cluster.remove(kind, "default", "a")
            cluster.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}})
    views: list[dict[str, None]] = []
    sync, rows = SyncView(2), dict[str, None]()
    for emission in emitted:
        if is_marker(emission.key):
            sync.load(emission.partition or 0, emission.key, emission.value)
        elif emission.value is None:
            rows.pop(emission.key)
        else:
            rows[emission.key] = None
        if sync.ok("/ConfigMap", "default"):
            views.append(dict(rows))
    complete = [{f"/ConfigMap|default|{name}" for name in names} for names in ("ab", "bc")]
    believed = [set(view) for view in views]
    assert believed[-1] == complete[1]
    assert all(view in complete for view in believed), believed


async def requests() -> None:
    """A deleted set leaves the watches of other sets unchanged."""
    world = SimulatedWorld(limits=RemovalLimits(removal_quiet_seconds=1.0))
    world.upstream()
    world.serve_sites()
    world.put(WORLD_REPOSITORY, "r1", spec={})
    target = site_set()["spec"]["targets"]
    assert partition("default/alpha", PARTITIONS) != partition("default/beta", PARTITIONS)
    for name in ("alpha", "beta"):
        world.set(name, target)
    await world.start()
    await world.converge()
    await world.delete(WORLD_SET, "alpha")
    await world.converge()
    world.put(WORLD_SITE, "s9", metadata={"labels": {"env": "prod"}})
    await world.converge()
    await world.close()
    assert set(world.variants()) == {"default/beta-r1-s9"}


async def cancel() -> None:
    """A DELETE that was sent before its order was withdrawn does not delete the variant."""
    part = unrolled("s1", "s2")
    cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
    cluster.put({**site_set(), "apiVersion": "config.porch.kpt.dev/v1alpha2"})
    vkey, old, new = f"default/{CHILD}", RenderPart(), RenderPart()

    def observe() -> Any:
        thing = next(o for o in cluster.objects() if o["kind"] == "PackageVariant")
        for render in (old, new):
            render.variant(thing, vkey)
        return thing

    old.target(part.targets[CHILD], vkey)
    steps, effect = old.begin(vkey)
    old.go_on(steps, await perform(cluster, effect))
    uid = observe()["metadata"]["uid"]
    part.tell(SITE, site("s1", env="test"))
    for _ in range(3):
        part.now += 10
        part.run()
    old.now = new.now = part.now
    old.target(part.targets[CHILD], vkey)
    steps, effect = old.begin(vkey)
    frozen = old.go_on(steps, await perform(cluster, effect))  # the DELETE, on its way
    part.tell(SITE, site("s1", env="prod"))
    part.run()
    new.target(part.targets[CHILD], vkey)
    steps, effect = new.begin(vkey)
    if effect is not None:
        new.go_on(steps, await perform(cluster, effect))
    with pytest.raises(ConflictError):
        assert not await perform(cluster, frozen), "the variant was deleted"
    assert observe()["metadata"]["uid"] == uid


async def guard() -> None:
    """Removals that trickle in, each pass a few, are held like those that come at once."""
    names = [f"s{i}" for i in range(12)]
    part = unrolled(*names, limits=RemovalLimits(removals_max=3, removals_share=0.3))
    for first in range(0, 12, 2):
        for name in names[first : first + 2]:
            part.tell(SITE, site(name, env="test"))
        for _ in range(3):
            part.now += 6
            part.run()
    for _ in range(12):  # the last ones join the hold when its token has stood for a minute
        part.now += 6
        part.run()
    assert list(part.orders().values()).count("removed") <= 3
    assert list(part.states().values()).count("held") == 10


async def silence() -> None:
    """Where the variant is what it should be, nothing is sent."""
    part = unrolled("s1")
    cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
    render, vkey = RenderPart(), f"default/{CHILD}"
    render.target(part.targets[CHILD], vkey)
    steps, effect = render.begin(vkey)
    made = await perform(cluster, effect)
    render.go_on(steps, made)
    render.variant(made, vkey)
    _, effect = render.begin(vkey)
    assert effect is None
    again = RenderPart()  # a worker that takes the lease over, without the memory of a decision
    again.target(part.targets[CHILD], vkey)
    again.variant(made, vkey)
    _, effect = again.begin(vkey)
    assert not isinstance(effect, WRITES)


async def finalizer() -> None:
    """A draft that was not observed yet is deleted before its variant."""
    cluster = MemoryCluster(now=lambda: "2026-01-01T00:00:00Z")
    downstream = {"repo": "r1", "package": "p"}
    spec = {"upstream": {"repo": "up", "package": "base", "revision": 1}, "downstream": downstream}
    going = {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    variant = cluster.put(
        {**obj(VARIANT, "v", spec=spec, metadata=going), "apiVersion": "config.porch.kpt.dev/v1alpha1"}
    )
    owner = {"apiVersion": variant["apiVersion"], "kind": "PackageVariant", "name": "v", "uid": "uid-v"}
    draft = {
        "repository": "r1",
        "packageName": "p",
        "workspaceName": "packagevariant-1",
        "lifecycle": "Draft",
    }
    cluster.put(
        {
            **obj(REVISION, "r1.p.packagevariant-1", spec=draft, metadata={"ownerReferences": [owner]}),
            "apiVersion": "porch.kpt.dev/v1alpha1",
        }
    )
    controller = InjectController(partitions=1, elapsed=lambda: 0.0)
    controller.open(0)
    for kind in ("porch.kpt.dev/PackageRevision", "config.porch.kpt.dev/Repository"):
        controller.load(OBJECTS, 0, f"!sync|{kind}", marker("ok"))
    controller.load(VARIANTS, 0, sync_key(*VARIANT), marker("ok"))
    for row in rows_of(VARIANT, variant, (VARIANTS,)):
        controller.load(row.topic, 0, row.key, row.value)
    for now in (0.0, 5.0):
        if any(o["kind"] == "PackageVariant" for o in cluster.objects()):
            await drive_live(controller.reconcile(0, "default/v", now), partial(perform, cluster))
    gone = [
        write.kind for write in cluster.writes if write.verb == "delete" or write.kind == "PackageVariant"
    ]
    assert gone == ["PackageRevision", "PackageVariant"], gone


# ------------------------------------------------------------ defects


def no_gate() -> AbstractContextManager[Any]:
    return patch.object(SyncView, "ok", lambda self, kind, namespace: True), patch.object(  # type: ignore[return-value]
        Preparing, "_require_served", lambda self, kinds, namespace: None
    )


def no_barrier() -> AbstractContextManager[Any]:
    def reconcile(self: UnrollController, number: int, key: str, now: float) -> Reconciliation:
        outcome = self._pass(number, key, now, caught_up=False)
        outcome = outcome or self._pass(number, key, now, caught_up=True)
        assert outcome is not None
        return outcome
        yield

    return patch.object(UnrollController, "reconcile", reconcile)


def no_syncing() -> AbstractContextManager[Any]:
    mark = KindRows.mark

    def only_ok(self: KindRows, topic: str, state: Any, message: str = "") -> None:
        if state != "syncing":
            mark(self, topic, state, message)

    return patch.object(KindRows, "mark", only_ok)


def shared_requests() -> AbstractContextManager[Any]:
    def key(request: WatchRequest) -> str:
        return f"{request.group}/{request.kind}|everybody"

    return patch("pvbus.core.variants.unroll.facts.watch_key", key)


def silent_cancel() -> AbstractContextManager[Any]:
    return patch("pvbus.core.variants.render.controller.is_cancelled", lambda lease, living: True), patch(  # type: ignore[return-value]
        "pvbus.core.variants.render.controller.cancel", lambda obj, token: None
    )


def guard_per_evaluation() -> AbstractContextManager[Any]:
    exceeds = Removal.exceeds

    def forgetful(self: Removal, *rest: Any) -> bool:
        children = self._children
        leaving, children.leaving = children.leaving, set(children.in_state(ChildState.WAITING))
        try:
            return exceeds(self, *rest)
        finally:
            children.leaving = leaving

    return patch.object(Removal, "exceeds", forgetful)


def write_anyway() -> AbstractContextManager[Any]:
    numbers = iter(range(10**6))
    return patch("pvbus.core.variants.render.controller.digest", lambda value: f"digest {next(numbers)}")


def no_live_list() -> AbstractContextManager[Any]:
    reconcile = InjectController.reconcile

    def blind(self: InjectController, number: int, key: str, now: float) -> Reconciliation:
        steps = reconcile(self, number, key, now)
        try:
            effect = next(steps)
            while True:
                effect = steps.send([] if isinstance(effect, List) else (yield effect))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return patch.object(InjectController, "reconcile", blind)


DEFECTS: tuple[tuple[Callable[[], Any], Callable[[], Any]], ...] = (
    (no_gate, gate),
    (no_barrier, barrier),
    (no_syncing, relist),
    (shared_requests, requests),
    (silent_cancel, cancel),
    (guard_per_evaluation, guard),
    (write_anyway, silence),
    (no_live_list, finalizer),
)


def contexts(found: Any) -> Iterable[AbstractContextManager[Any]]:
    return found if isinstance(found, tuple) else (found, nullcontext())


@pytest.mark.parametrize("scenario", [s for _, s in DEFECTS], ids=lambda s: s.__name__)
def test_holds(scenario: Callable[[], Any]) -> None:
    run_simulated(scenario())


@pytest.mark.parametrize(("defect", "scenario"), DEFECTS, ids=lambda f: f.__name__)
def test_finds(defect: Callable[[], Any], scenario: Callable[[], Any]) -> None:
    """With this defect the scenario fails, by one of its own assertions."""
    first, second = contexts(defect())
    with first, second, pytest.raises((AssertionError, pytest.fail.Exception)) as found:
        run_simulated(scenario())
    assert "Timeout" not in str(found.value)  # the limit of a test fails it by the same exception


@pytest.mark.parametrize("defect", ["TwoTransactions", "OffsetBeforeFence"])
def test_the_bus_contract_finds_its_own(defect: str) -> None:
    """The two defects of the bus are in the contract suite's own table."""
    assert defect in {found.__name__ for found, _ in test_contract.DEFECTS}
