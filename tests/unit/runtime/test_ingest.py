"""Ingest: requests become watches, rows keep their place among markers, and the bus may fail."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.core.errors import TransientError
from pvbus.core.kernel.keys import partition, watch_key
from pvbus.core.kernel.markers import SyncView, is_marker
from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.records import INJECTABLES, OBJECTS, POLICIES, SETS, WATCHES, SyncMarker, WatchRequest
from pvbus.ports.bus import Lease, Output
from pvbus.ports.cluster import Kind
from pvbus.runtime.ingest.digests import PublishedDigests
from pvbus.runtime.ingest.lease import IngestLease
from tests.kit.busbeside import write_beside
from tests.kit.processes import run_simulated
from tests.simulation.cluster import POLICY, QUARANTINE, STOP
from tests.simulation.world import CONFIG_MAP, CRD, PARTITIONS, SET, SITE, SimulatedWorld

LEASE = Lease(group="g", partition=0, epoch=1)


def simulated(scenario: Callable[[SimulatedWorld], Awaitable[None]], *, workers: int = 1) -> None:
    async def main() -> None:
        world = SimulatedWorld(workers=workers)
        world.serve_sites()
        await world.start(["ingest"])
        await world.converge(quiet=3)
        await scenario(world)
        await world.close()

    run_simulated(main())


async def ask(world: SimulatedWorld, request: WatchRequest | str, *, withdraw: bool = False) -> None:
    """Write a request as another service would, past any lease."""
    key = request if isinstance(request, str) else watch_key(request)
    value = None if withdraw or isinstance(request, str) else msgspec.json.encode(request)
    kind = key.partition("|")[0]
    output = Output(WATCHES, partition(kind, PARTITIONS), key.encode(), value)
    await write_beside(world.bus, output)
    await world.converge(quiet=3)


def site_request(requester: str = "unroll-0", **fields: Any) -> WatchRequest:
    return WatchRequest(group="example.org", kind="Site", requester=requester, **fields)


def state(world: SimulatedWorld, kind: Kind, topic: str = OBJECTS) -> str:
    """Return what a reader of the whole topic knows of a kind."""
    view = SyncView(PARTITIONS)
    for record in world.records(topic):
        key = record.key.decode()
        if is_marker(key):
            view.load(record.partition, key, record.value)
    marker = view.marker(str(kind))
    return marker.state if marker is not None else ""


def served(world: SimulatedWorld, kind: Kind) -> tuple[str, ...]:
    """Return the versions that the markers of a kind name."""
    rows = [r for r in world.records(OBJECTS) if r.key.decode() == f"!sync|{kind}" and r.value is not None]
    found = {msgspec.json.decode(r.value or b"", type=SyncMarker) for r in rows}
    assert len(rows) == PARTITIONS
    (marker,) = found
    return marker.versions


def names(world: SimulatedWorld, topic: str = OBJECTS, kind: str = "Site") -> list[str]:
    rows = world.table(topic)
    return sorted(k.split("|")[2] for k in rows if f"{kind}|" in k and not is_marker(k))


def test_a_kind_is_watched_while_somebody_asks_for_it() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        await world.converge(quiet=3)
        assert names(world) == []
        await ask(world, site_request("unroll-0"))
        await ask(world, site_request("unroll-1"))
        assert (names(world), state(world, SITE)) == (["a"], "ok")
        await ask(world, site_request("unroll-0"), withdraw=True)
        assert (names(world), state(world, SITE)) == (["a"], "ok")
        await ask(world, site_request("unroll-1"), withdraw=True)
        assert (names(world), state(world, SITE)) == ([], "unwatched")
        await ask(world, site_request("unroll-1"))
        assert (names(world), state(world, SITE)) == (["a"], "ok")

    simulated(scenario)


def test_sets_can_be_selected_like_any_object() -> None:
    """Their rows as objects exist only while somebody asks, though sets are always watched."""

    async def scenario(world: SimulatedWorld) -> None:
        world.set("alpha", [])
        await world.converge(quiet=3)
        assert names(world, kind="PackageVariantSet") == []
        request = WatchRequest(group=SET.group, kind=SET.kind, requester="unroll-0")
        await ask(world, request)
        assert names(world, kind="PackageVariantSet") == ["alpha"]
        assert state(world, SET) == "ok"
        await ask(world, request, withdraw=True)
        assert (names(world, kind="PackageVariantSet"), state(world, SET)) == ([], "unwatched")
        assert state(world, SET, SETS) == "ok"

    simulated(scenario)


@pytest.mark.parametrize("kind", [SITE, SET], ids=["requested", "static"])
@pytest.mark.parametrize("is_requested_again", [False, True])
def test_what_nobody_requests_any_more_goes_when_its_worker_died(
    kind: Kind, is_requested_again: bool
) -> None:
    """The rows of a worker that ended before it could withdraw them are no proof of anything."""

    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        world.set("a", [])
        request = WatchRequest(group=kind.group, kind=kind.kind, requester="unroll-0")
        await ask(world, request)
        assert (names(world, kind=kind.kind), state(world, kind)) == (["a"], "ok")
        (worker,) = world.running
        await world.kill(worker)
        await asyncio.gather(*[world.delete(each, "a") for each in (SITE, SET)])
        written = world.records(OBJECTS)
        await ask(world, request, withdraw=True)
        assert world.records(OBJECTS) == written
        if is_requested_again:
            await ask(world, request)
        world.add_worker("ingest")
        await world.converge(quiet=3)
        assert (names(world, kind=kind.kind), state(world, kind)) == (
            [],
            "ok" if is_requested_again else "unwatched",
        )
        assert state(world, SET, SETS) == "ok"

    simulated(scenario)


def test_content_comes_with_its_request_and_goes_with_it() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a", spec={"x": 1})
        wish = {"content": True, "namespace": "default"}
        await ask(world, site_request("inject-0", name="a", **wish))
        assert names(world, INJECTABLES) == ["", "a"]
        await ask(world, site_request("inject-1", name="b", **wish))
        assert names(world, INJECTABLES) == ["", "a", "b"]
        await ask(world, site_request("inject-0", name="a", **wish), withdraw=True)
        assert names(world, INJECTABLES) == ["", "b"]

    simulated(scenario)


def test_a_definition_that_comes_later_is_noticed_at_once() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.unserve(SITE)
        await ask(world, site_request())
        await asyncio.sleep(5)
        assert state(world, SITE) == "unavailable"
        world.serve_sites()
        world.put(SITE, "a")
        await asyncio.sleep(5)
        assert (names(world), state(world, SITE)) == (["a"], "ok")

    simulated(scenario)


def test_a_version_that_comes_later_is_noticed_by_every_worker() -> None:
    """The definitions are observed by one worker, the kinds of their groups by others."""

    async def scenario(world: SimulatedWorld) -> None:
        await asyncio.sleep(30)
        holders = {tuple(sorted(running.service.leases())) for running in world.running.values()}
        assert len(holders) == 3
        for number in range(PARTITIONS):  # a kind in the partition of each worker
            group = next(
                g for n in range(99) if partition(f"{(g := f'g{n}.org')}/Site", PARTITIONS) == number
            )
            kind = Kind(group, "Site")
            names = {"kind": "Site", "plural": "sites"}
            spec = {"group": group, "names": names, "versions": [{"name": "v1", "served": True}]}
            world.put(CRD, f"sites.{group}", spec=spec)
            await ask(world, WatchRequest(group=group, kind="Site", requester="unroll-0"))
            assert served(world, kind) == ("v1",)
            world.put(CRD, f"sites.{group}", spec={**spec, "versions": [{"name": "v1"}, {"name": "v2"}]})
            await asyncio.sleep(2)
            assert served(world, kind) == ("v1", "v2")

    simulated(scenario, workers=3)


def test_a_restart_writes_nothing_though_steps_were_cut_anywhere() -> None:
    """Whatever prefix of a list reached the bus, the next worker completes it, and a third is silent."""

    async def scenario(world: SimulatedWorld) -> None:
        for i in range(5):
            world.put(CONFIG_MAP, f"c{i}", data={})
        request = WatchRequest(group="", kind="ConfigMap", requester="unroll-0")
        await ask(world, request)
        retained = world.table(OBJECTS)
        await world.stop()
        rows = [r for r in world.records(OBJECTS) if "ConfigMap" in r.key.decode()]
        for cut in range(len(rows)):
            number, marker = rows[cut].partition, SyncMarker(state="syncing", epoch=50 + cut)
            headers = (("pvbus-digest", f"syncing|{50 + cut}||".encode()),)
            key = b"!sync|/ConfigMap"
            output = Output(OBJECTS, number, key, msgspec.json.encode(marker), headers)
            gone = Output(OBJECTS, number, rows[cut].key, None)
            await write_beside(world.bus, output, gone)
            await world.start(["ingest"])
            await world.converge(quiet=3)
            assert state(world, CONFIG_MAP) == "ok"
            assert set(world.table(OBJECTS)) == set(retained)
            await world.stop()
            ends = await world.ends()
            await world.start(["ingest"])
            await world.converge(quiet=3)
            await world.stop()
            assert await world.ends() == ends

    simulated(scenario)


def test_policies_are_mirrored_whole_when_promote_asks_for_them_and_a_restart_writes_nothing() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        last = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
        noted = {"annotations": {**last, "mine": "x"}}
        world.put(POLICY, "web", spec={"approval": "Always"}, metadata=noted)
        await world.converge(quiet=3)
        assert (world.table(POLICIES), state(world, POLICY, POLICIES)) == ({}, "")
        await ask(world, WatchRequest(group=POLICY.group, kind=POLICY.kind, requester="promote-0"))
        assert (state(world, POLICY, POLICIES), state(world, POLICY)) == ("ok", "ok")
        row = msgspec.json.decode(world.table(POLICIES)["default/web"], type=dict)
        assert (row["spec"], row["metadata"]["annotations"]) == ({"approval": "Always"}, {"mine": "x"})
        await world.stop()
        ends = await world.ends()
        await world.start(["ingest"])
        await world.converge(quiet=3)
        await world.stop()
        assert await world.ends() == ends

    simulated(scenario)


def test_policies_and_quarantines_share_a_topic_and_a_list_of_one_removes_nothing_of_the_other() -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(POLICY, "web", spec={"approval": "Always"})
        world.put(QUARANTINE, "web-3-1", spec={"contents": ["bad"]})
        for kind in (POLICY, QUARANTINE):
            await ask(world, WatchRequest(group=kind.group, kind=kind.kind, requester="promote-0"))
        await world.converge(quiet=3)
        keys = {"default/web", "promotion.pvbus.dev/Quarantine|default|web-3-1"}
        assert {key for key in world.table(POLICIES) if not is_marker(key)} == keys
        assert (state(world, POLICY, POLICIES), state(world, QUARANTINE, POLICIES)) == ("ok", "ok")
        await world.stop()
        ends = await world.ends()
        await world.start(["ingest"])
        await world.converge(quiet=3)
        await world.stop()
        assert await world.ends() == ends, "a list of one kind wrote rows of the other"
        await world.delete(QUARANTINE, "web-3-1")
        await world.start(["ingest"])
        await world.converge(quiet=3)
        assert {key for key in world.table(POLICIES) if not is_marker(key)} == {"default/web"}

    simulated(scenario)


def test_every_partition_has_a_stop_and_a_partition_that_lost_it_gets_it_again() -> None:
    """A worker that ends between two steps may leave the row, or its tombstone, in some partitions only."""

    async def scenario(world: SimulatedWorld) -> None:
        key = "stop|default|fleet"

        async def restart() -> None:
            await world.start(["ingest"])
            await world.converge(quiet=3)
            await world.stop()

        async def leave(number: int, value: bytes | None) -> None:
            output = Output(POLICIES, number, key.encode(), value)
            await write_beside(world.bus, output)

        def holders() -> list[int]:
            records = (record for record in world.records(POLICIES) if record.key == key.encode())
            last = {record.partition: record for record in records}
            return sorted(number for number, record in last.items() if record.value is not None)

        world.put(STOP, "fleet", spec={"entries": [{"name": "1", "reason": "x"}]})
        await ask(world, WatchRequest(group=STOP.group, kind=STOP.kind, requester="promote-0"))
        await world.converge(quiet=3)
        await world.stop()
        assert holders() == [0, 1, 2]
        ends = await world.ends()
        await restart()
        assert await world.ends() == ends, "nothing is written anew"
        await leave(1, None)
        assert holders() == [0, 2]
        await restart()
        assert holders() == [0, 1, 2]
        await world.delete(STOP, "fleet")
        await restart()
        assert holders() == []
        await leave(2, b"{}")
        await restart()
        assert holders() == []

    simulated(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_step_of_unknown_outcome_the_rows_are_there(when: str) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        await ask(world, site_request())
        buses = [r.bus for r in world.running.values()]
        for bus in buses:
            step = bus.step

            async def failing(lease: Any, outputs: Any, offsets: Any = None, step: Any = step) -> None:
                if failures:
                    failure = failures.pop()
                    if failure == "after":
                        await step(lease, outputs, offsets)
                    raise TransientError("no answer")
                await step(lease, outputs, offsets)

            bus.step = failing  # type: ignore[method-assign]
        failures = [when, when]
        world.put(SITE, "a", metadata={"labels": {"env": "prod"}})
        await asyncio.sleep(1)
        world.put(SITE, "b")
        await world.converge(quiet=3)
        assert failures == []
        assert names(world) == ["a", "b"]

    simulated(scenario, workers=2)


def test_rows_do_not_move_past_markers() -> None:
    def emission(key: str, digest: str) -> Emission:
        return Emission(OBJECTS, key, digest.encode(), digest)

    opened = IngestLease(LEASE, SystemClock())
    for key, digest in [
        ("a", "a1"),
        ("a", "a2"),
        ("!sync|x", "syncing"),
        ("b", "b1"),
        ("a", "a3"),
        ("!sync|x", "ok"),
        ("b", "b2"),
        ("b", "b3"),
    ]:
        opened.add(OBJECTS, key, 0, emission(key, digest))
    assert [e.digest for e in opened.pending.values()] == ["a2", "syncing", "b1", "a3", "ok", "b3"]


def test_markers_that_disagree_are_no_completeness() -> None:
    async def main() -> None:
        world = SimulatedWorld()
        await world.open()
        key = b"!sync|/ConfigMap"

        def marker(number: int, marker: SyncMarker, header: bytes) -> Output:
            return Output(OBJECTS, number, key, msgspec.json.encode(marker), (("pvbus-digest", header),))

        mirror = PublishedDigests(world.bus, world.clock, (OBJECTS,), PARTITIONS)
        ok, outcome_unknown = (
            SyncMarker(state="ok", epoch=4, versions=("v1",)),
            SyncMarker(state="syncing", epoch=7),
        )
        later = Output(OBJECTS, 1, key, b'{"state":"of a later version","epoch":9}')
        not_yet = SyncMarker(state="syncing", epoch=4)
        for outputs, expected in (
            ([marker(n, ok, b"ok|4|v1|") for n in range(PARTITIONS - 1)], not_yet),
            ([marker(PARTITIONS - 1, ok, b"")], ok),
            ([marker(1, outcome_unknown, b"no such header")], outcome_unknown),
            ([later], not_yet),
        ):
            await write_beside(world.bus, *outputs)
            await mirror.catch_up(lambda read, total: None)
            assert mirror.marker(OBJECTS, key.decode()) == expected
        await mirror.close()
        await world.close()

    run_simulated(main())
