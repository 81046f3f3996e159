"""Tables of a worker: kept while nobody else could change them, read anew when they may be wrong."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from pvbus.core.errors import TransientError
from pvbus.core.kernel.keys import partition
from pvbus.ports.bus import Lease, Output
from pvbus.runtime.reconcile import holder
from pvbus.runtime.reconcile import worker as worker_module
from pvbus.runtime.reconcile.leases import OpenLease
from tests.kit.busbeside import cut_off, delete_tombstones, end_sessions, hold_for_a_moment, write_beside
from tests.unit.runtime.fakes import (
    IN,
    OUT,
    PARTITIONS,
    SEEN,
    TOMBSTONE_SECONDS,
    Fake,
    FakeBus,
    FakeWorld,
    answer_at_once,
    simulated,
)

KEYS = [f"default/k{i}" for i in range(8)]
HALF_SECONDS = TOMBSTONE_SECONDS / 2


def count_reads(bus: FakeBus) -> Counter[str]:
    """Count the records that a worker's readers return from now on, by topic."""
    counted: Counter[str] = Counter()
    make = bus.reader

    def reader(positions: Any = None) -> Any:
        made = make(positions)
        poll = made.poll

        async def counting(**options: Any) -> Any:
            records = await poll(**options)
            counted.update(record.topic for record in records)
            return records

        made.poll = counting  # type: ignore[method-assign]
        return made

    bus.reader = reader  # type: ignore[method-assign]
    return counted


def rows(texts: dict[str, str], topic: str) -> list[Output]:
    return [
        Output(topic, partition(key, PARTITIONS), key.encode(), b'{"text":"%s"}' % text.encode())
        for key, text in texts.items()
    ]


# ---------------------------------------------------------------- leases that come back


def test_a_lease_that_comes_back_with_nobody_between_keeps_its_tables() -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in KEYS:
            await world.send(key, "a")
        worker, fake, _, bus = world.worker()
        await asyncio.sleep(5)
        before = {n: c.lease.epoch for n, c in worker.leases().items()}
        opened = list(fake.opened)
        counted = count_reads(bus)
        await end_sessions(world.bus, "pvbus-toy")
        while worker.leases():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
        await world.send(KEYS[0], "b")  # while nobody holds the lease
        await asyncio.sleep(5)
        assert {n: c.lease.epoch - 1 for n, c in worker.leases().items()} == before
        assert worker.ready
        assert fake.opened == opened
        assert counted[OUT] == 0  # a replay has its own reader, and this counts only new ones
        assert counted[IN] == 0
        assert world.out() == dict.fromkeys(KEYS, "a") | {KEYS[0]: "b"}
        await world.send(KEYS[1], "c")
        await asyncio.sleep(3)
        assert world.out()[KEYS[1]] == "c"
        assert len(world.records(OUT)) == len(KEYS)

    simulated(scenario)


def test_a_lease_that_somebody_else_held_meanwhile_is_restored_in_full() -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in KEYS:
            await world.send(key, "a")
        _, fake, _, bus = world.worker()
        await asyncio.sleep(5)
        opened = list(fake.opened)
        counted = count_reads(bus)
        await end_sessions(world.bus, "pvbus-toy")
        number = partition(KEYS[0], PARTITIONS)
        await hold_for_a_moment(world.bus, "pvbus-toy", [number], rows({KEYS[0]: "theirs"}, OUT))
        await asyncio.sleep(5)
        mine = [key for key in KEYS if partition(key, PARTITIONS) == number]
        assert fake.opened == [*opened, number]  # this one, and the other lease kept its tables
        assert counted == {IN: len(mine), OUT: len(mine)}
        assert world.out() == dict.fromkeys(KEYS, "a")  # their row was seen, and set right

    simulated(scenario)


@pytest.mark.parametrize("reason", ["in flight", "in doubt"])
def test_tables_that_are_ahead_of_the_bus_are_not_kept(reason: str) -> None:
    async def scenario(world: FakeWorld) -> None:
        async def forever(name: str) -> None:
            await asyncio.Event().wait()

        world.cluster.answer = forever
        _, fake, _, bus = world.worker()
        await asyncio.sleep(3)
        opened = list(fake.opened)
        number = partition(KEYS[0], PARTITIONS)
        if reason == "in doubt":
            bus.failures.append(("after", TransientError("no answer")))
        await world.send(KEYS[0], {"write": reason == "in flight"})
        await asyncio.sleep(0.1)
        await end_sessions(world.bus, "pvbus-toy")
        world.cluster.answer = answer_at_once
        await asyncio.sleep(12)
        assert number in fake.opened[len(opened) :]
        assert list(world.out()) == [KEYS[0]]

    simulated(scenario)


def test_tables_of_a_lease_that_does_not_come_back_are_dropped() -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in KEYS:
            await world.send(key, "a")
        worker, fake, *_ = world.worker()
        await asyncio.sleep(5)
        world.worker()
        await asyncio.sleep(10)
        (number,) = worker.leases()
        assert sorted(fake.rows) == list(range(PARTITIONS))  # it might have come back
        await asyncio.sleep(holder.KEEP_SECONDS)
        assert list(fake.rows) == [number]

    simulated(scenario)


# ---------------------------------------------------------------- behind for too long


async def forget_tombstone(world: FakeWorld, key: str, topic: str) -> None:
    """Delete a row as compaction leaves it after a day: no record, and no tombstone either."""
    await write_beside(world.bus, Output(topic, partition(key, PARTITIONS), key.encode(), None))
    await delete_tombstones(world.bus)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "is_anew"), [(-150, False), (5, True)], ids=["shorter than half", "longer than half"]
)
def test_away_for_half_of_the_tombstones_time_all_tables_are_read_anew(seconds: float, is_anew: bool) -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in KEYS:
            await world.send(key, "a")
            await world.send(key, "seen", SEEN)
        worker, fake, *_ = world.worker()
        await asyncio.sleep(200)
        mend = cut_off(world.bus)
        await asyncio.sleep(HALF_SECONDS + seconds)
        await forget_tombstone(world, KEYS[0], SEEN)
        await forget_tombstone(world, KEYS[1], IN)
        mend()
        await asyncio.sleep(10)
        assert worker.ready
        assert (worker.controller is not fake) == is_anew
        now = worker.controller
        assert isinstance(now, Fake)
        assert (KEYS[0] in now.seen) == (not is_anew)
        known = {key for table in now.rows.values() for key in table}
        assert (KEYS[1] in known) == (not is_anew)
        assert known | {KEYS[1]} == set(KEYS)
        await world.send(KEYS[2], "b")
        await world.send(KEYS[3], {"catch": True})
        await asyncio.sleep(3)
        assert (world.out()[KEYS[2]], world.out()[KEYS[3]]) == ("b", "seen")

    simulated(scenario)


@pytest.mark.slow
def test_a_worker_that_keeps_up_is_never_emptied() -> None:
    async def scenario(world: FakeWorld) -> None:
        worker, fake, *_ = world.worker()
        for n in range(30):
            await world.send(KEYS[n % 8], str(n))
            await asyncio.sleep(HALF_SECONDS / 8)
        assert worker.controller is fake
        assert fake.opened == [0, 1]

    simulated(scenario)


def test_inputs_that_pause_for_too_long_count_as_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 20)

    async def scenario(world: FakeWorld) -> None:
        released = asyncio.Event()

        async def stuck(name: str) -> None:
            await released.wait()

        world.cluster.answer = stuck
        worker, fake, *_ = world.worker()
        await asyncio.sleep(3)
        for n in range(30):
            await world.send(f"default/n{n}", {"write": True})
        await asyncio.sleep(1)
        await world.send(KEYS[0], "late")
        await asyncio.sleep(HALF_SECONDS - 150)
        assert worker.controller is fake
        assert KEYS[0] not in world.out()
        await asyncio.sleep(300)
        assert worker.controller is not fake
        released.set()
        await asyncio.sleep(100)
        assert len(world.out()) == 31

    simulated(scenario)


# ---------------------------------------------------------------- a slow API server


def test_with_an_api_server_that_never_answers_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not read stays on the bus; when answers come, reading goes on and nothing is lost."""
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 100)

    async def scenario(world: FakeWorld) -> None:
        released = asyncio.Event()

        async def stuck(name: str) -> None:
            await released.wait()

        world.cluster.answer = stuck
        worker, fake, *_ = world.worker()
        await asyncio.sleep(3)
        counted: list[int] = []
        for n in range(3000):
            await world.send(f"default/n{n}", {"write": True})
            if n % 20 == 0:
                await asyncio.sleep(0.01)
            counted.append(worker.dirty_keys)
        await asyncio.sleep(60)
        assert max(counted) < 200
        known = sum(map(len, fake.rows.values()))
        undone = sum(len(u) for c in worker.leases().values() for u in c._undone.values())
        assert known < 200
        assert undone < 200
        await world.send("default/other", "x", SEEN)  # what all workers read whole is read
        await asyncio.sleep(1)
        assert fake.seen == {"default/other": "x"}
        released.set()
        await asyncio.sleep(60)
        assert len(world.out()) == 3000
        assert worker.idle

    simulated(scenario)


def test_a_catch_up_ends_while_inputs_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots for effects are taken by keys that wait for records of topics that pause."""
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 20)
    monkeypatch.setattr(worker_module, "EFFECTS_INFLIGHT_MAX", 4)

    async def scenario(world: FakeWorld) -> None:
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        keys = [f"default/n{n}" for n in range(3000)]
        asking = dict.fromkeys(keys, '{\\"catch\\": true}')
        outputs = rows(asking, IN) + rows(dict.fromkeys(keys, "seen"), SEEN)
        await write_beside(world.bus, *outputs)
        await asyncio.sleep(60)
        assert world.out() == dict.fromkeys(sorted(keys), "seen")
        assert worker.idle

    simulated(scenario)


def test_inputs_go_on_when_the_lease_that_made_them_pause_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 20)

    async def scenario(world: FakeWorld) -> None:
        async def stuck(name: str) -> None:
            await asyncio.Event().wait()

        world.cluster.answer = stuck
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        numbers = range(200)
        full = [k for k in (f"default/n{n}" for n in numbers) if partition(k, PARTITIONS) == 0]
        for key in full:
            await world.send(key, {"write": True})
        await asyncio.sleep(1)
        assert worker.dirty_keys > 20
        opened = worker.leases()[0]
        await worker.holder.revoked(opened.lease)
        other = next(k for k in (f"default/m{n}" for n in numbers) if partition(k, PARTITIONS) == 1)
        await world.send(other, "a")
        await asyncio.sleep(3)
        assert world.out() == {other: "a"}

    simulated(scenario)


# ---------------------------------------------------------------- memberships


@pytest.mark.parametrize("how", ["its callback failed", "it is just over"])
def test_a_membership_that_ends_by_itself_ends_the_worker(how: str) -> None:
    async def scenario(world: FakeWorld) -> None:
        worker, _, _, bus = world.worker()
        if how == "its callback failed":

            def broken(lease: Lease) -> OpenLease:
                raise ValueError("no such table")

            worker.holder.make = broken
        await asyncio.sleep(3)
        if how == "it is just over":
            await bus.abandon()
            await asyncio.sleep(1)
        (task,) = world.tasks
        assert task.done()
        with pytest.raises(ExceptionGroup) as caught:
            task.result()
        expected = ValueError if how == "its callback failed" else TransientError
        assert caught.group_contains(expected)
        world.tasks.clear()

    simulated(scenario)
