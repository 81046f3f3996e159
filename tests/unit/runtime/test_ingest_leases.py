"""Ingest's leases: watches that wait for them, steps of a bounded size, tables that became too old."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from pvbus.core.errors import TransientError
from pvbus.core.kernel.keys import partition, watch_key
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.objectrows import Emission
from pvbus.core.kernel.records import OBJECTS, WATCHES, WatchRequest
from pvbus.core.kernel.topics import topic_specs
from pvbus.ports.bus import Output, TopicSpec
from pvbus.runtime.ingest.digests import DIGEST_HEADER, PublishedDigests
from pvbus.runtime.ingest.lease import IngestLease
from pvbus.runtime.reconcile.holder import KEEP_SECONDS
from pvbus.runtime.reconcile.leases import StepLimits, output_bytes
from tests.kit.busbeside import cut_off, delete_records, end_sessions, write_beside
from tests.kit.processes import run_simulated
from tests.simulation import world as world_module
from tests.simulation.world import PARTITIONS, SITE, SimulatedWorld

TOMBSTONE_SECONDS = 2400


def short_topics() -> list[TopicSpec]:
    """Return the contract's topics, with less than a day to wait."""
    return [msgspec.structs.replace(spec, tombstone_seconds=TOMBSTONE_SECONDS) for spec in topic_specs()]


def simulated(scenario: Callable[[SimulatedWorld], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module, "topic_specs", short_topics)

    async def main() -> None:
        world = SimulatedWorld()
        world.serve_sites()
        await world.start(["ingest"])
        await world.converge(quiet=3)
        await ask(world, WatchRequest(group="example.org", kind="Site", requester="unroll-0"))
        await scenario(world)
        await world.close()

    run_simulated(main())


async def ask(world: SimulatedWorld, request: WatchRequest, *, withdraw: bool = False) -> None:
    value = None if withdraw else msgspec.json.encode(request)
    key = watch_key(request)
    output = Output(WATCHES, partition(key.partition("|")[0], PARTITIONS), key.encode(), value)
    await write_beside(world.bus, output)
    await world.converge(quiet=3)


def sites(world: SimulatedWorld) -> list[str]:
    rows = world.table(OBJECTS)
    return sorted(k.split("|")[2] for k in rows if k.startswith("example.org/Site|"))


def watches(world: SimulatedWorld) -> dict[str, Any]:
    held = world.of("ingest").leases().values()
    return {str(kind): watched.watch for opened in held for kind, watched in opened.watches.items()}


def running_watches() -> int:
    return sum("InformerShell.run" in repr(task.get_coro()) for task in asyncio.all_tasks())


def markers(world: SimulatedWorld) -> Counter[str]:
    return Counter(record.key.decode() for record in world.records(OBJECTS) if is_marker(record.key.decode()))


async def lose_session(world: SimulatedWorld, *, between: list[int]) -> None:
    """Let the worker's leases be lost; somebody else holds some of them for a moment."""
    await end_sessions(world.bus, "pvbus-ingest", between)
    while world.of("ingest").leases():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.1)


def test_watches_wait_for_their_lease_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        await world.converge(quiet=3)
        before, reported = watches(world), markers(world)
        await lose_session(world, between=[])
        world.put(SITE, "b")  # seen while nobody holds the lease
        await world.converge(quiet=3)
        assert sites(world) == ["a", "b"]
        assert watches(world) == before  # the same objects
        assert markers(world) == reported  # nothing was listed again
        world.put(SITE, "c")
        await world.converge(quiet=3)
        assert sites(world) == ["a", "b", "c"]
        await ask(world, WatchRequest(group="example.org", kind="Site", requester="unroll-0"), withdraw=True)
        assert sites(world) == []

    simulated(scenario, monkeypatch)


def test_a_row_that_comes_as_the_lease_goes_is_written_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        await world.converge(quiet=3)
        before = watches(world)
        worker = world.of("ingest")
        opened = worker.leases()[partition(str(SITE), PARTITIONS)]
        going: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

        def add(topic: str, key: str, number: int, emission: Emission) -> None:
            if not going.done():  # comes to its turn before the stepper, which this row wakes
                going.set_result(asyncio.create_task(worker.holder.revoked(opened.lease)))
            IngestLease.add(opened, topic, key, number, emission)

        monkeypatch.setattr(opened, "add", add)
        world.put(SITE, "b")
        await (await going)
        await lose_session(world, between=[])
        await world.converge(quiet=3)
        assert sites(world) == ["a", "b"]
        elsewhere = {kind for kind in before if partition(kind, PARTITIONS) != opened.lease.partition}
        assert {kind for kind, watch in watches(world).items() if watch is before[kind]} >= elsewhere
        assert running_watches() == len(before)

    simulated(scenario, monkeypatch)


def test_a_lease_that_goes_before_it_is_restored_takes_its_watches_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        count = running_watches()
        (running,) = world.running.values()
        asked = asyncio.Event()

        async def unanswered(lease: Any, topics: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patched:
            patched.setattr(running.bus, "committed", unanswered)
            await lose_session(world, between=[])
            await asked.wait()
        await lose_session(world, between=[])
        world.put(SITE, "a")
        await world.converge(quiet=3)
        assert sites(world) == ["a"]
        assert running_watches() == count

    simulated(scenario, monkeypatch)


def test_watches_begin_anew_when_somebody_else_held_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        await world.converge(quiet=3)
        number = partition(str(SITE), PARTITIONS)
        before = watches(world)
        await lose_session(world, between=[number])
        world.put(SITE, "b")
        await world.converge(quiet=3)
        assert sites(world) == ["a", "b"]
        moved = {kind for kind, watch in watches(world).items() if watch is not before[kind]}
        assert moved == {kind for kind in before if partition(kind, PARTITIONS) == number}

    simulated(scenario, monkeypatch)


def test_watches_whose_lease_does_not_come_back_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        before = watches(world)
        world.add_worker("ingest")
        await asyncio.sleep(KEEP_SECONDS + 20)
        left = watches(world)
        assert 0 < len(left) < len(before)
        await world.converge(quiet=3)
        assert running_watches() == len(before)  # each kind is watched once

    simulated(scenario, monkeypatch)


@pytest.mark.parametrize("limits", [(7, 100_000), (1000, 1500)], ids=["records", "bytes"])
def test_a_step_of_ingest_holds_what_the_bus_says(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int]
) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        (running,) = world.running.values()
        world.of("ingest")._steps.limits = StepLimits(*limits)
        steps: list[int] = []
        sizes: list[int] = []
        step = running.bus.step

        async def watched(lease: Any, outputs: Any, offsets: Any = None) -> None:
            steps.append(len(outputs))
            sizes.append(sum(map(output_bytes, outputs)))
            await asyncio.sleep(0.1)  # meanwhile rows gather
            await step(lease, outputs, offsets)

        running.bus.step = watched  # type: ignore[method-assign]
        for n in range(50):
            world.put(SITE, f"s{n}", metadata={"labels": {"text": "x" * (10 if n % 2 else 400)}})
        await world.converge(quiet=3)
        assert len(sites(world)) == 50
        assert max(steps) <= limits[0]
        assert max(sizes) <= limits[1]
        assert 3 < len(steps) < 30

    simulated(scenario, monkeypatch)


def test_away_for_half_of_the_tombstones_time_ingest_reads_its_requests_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        world.put(SITE, "a")
        await world.converge(quiet=3)
        await asyncio.sleep(150)
        mend = cut_off(world.bus)
        await asyncio.sleep(TOMBSTONE_SECONDS / 2 + 10)
        await delete_records(world.bus, b"example.org/Site|unroll-0")  # as if withdrawn a day ago
        mend()
        await world.converge(quiet=5)
        requests = [r for opened in world.of("ingest").leases().values() for r in opened.requests]
        assert requests == []
        assert "example.org/Site" not in watches(world)

    simulated(scenario, monkeypatch)


@pytest.mark.slow
def test_a_mirror_that_was_not_caught_up_for_too_long_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        async def write(name: str) -> None:
            header = ((DIGEST_HEADER, name.encode()),)
            await write_beside(world.bus, Output(OBJECTS, 0, name.encode(), b"{}", header))

        mirror = PublishedDigests(world.bus, world.clock, (OBJECTS,), PARTITIONS)
        await write("x|a")
        await write("x|b")
        await mirror.catch_up(lambda read, total: None)
        await delete_records(world.bus, b"x|a")
        await asyncio.sleep(TOMBSTONE_SECONDS / 2 - 200)
        await write("x|c")
        await mirror.catch_up(lambda read, total: None)
        assert sorted(mirror.of_kind(OBJECTS, "x")) == ["x|a", "x|b", "x|c"]
        await asyncio.sleep(TOMBSTONE_SECONDS / 2 + 200)
        await write("x|d")
        await mirror.catch_up(lambda read, total: None)
        assert sorted(mirror.of_kind(OBJECTS, "x")) == ["x|b", "x|c", "x|d"]
        await mirror.close()

    simulated(scenario, monkeypatch)


def test_a_membership_that_ends_by_itself_ends_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: SimulatedWorld) -> None:
        (running,) = world.running.values()
        await running.bus.abandon()
        await asyncio.sleep(1)
        assert running.task.done()
        with pytest.raises(ExceptionGroup) as caught:
            running.task.result()
        assert caught.group_contains(TransientError)
        world.running.clear()

    simulated(scenario, monkeypatch)
