"""Steps of a worker: how much goes into one, and what waits for the next."""

import asyncio
from typing import Any

import msgspec
import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.keys import partition
from pvbus.ports.bus import Lease, Output
from pvbus.runtime.reconcile import leases
from pvbus.runtime.reconcile.leases import OpenLease, StepLimits, finished
from pvbus.runtime.reconcile.worker import TICK_SECONDS
from tests.unit.runtime.fakes import IN, OUT, PARTITIONS, FakeBus, FakeWorld, Row, simulated

LEASE = Lease(group="g", partition=0, epoch=1)


def outcome(key: str, *sizes: int) -> leases.Finished:
    return finished(key, tuple(Put(OUT, f"{key}.{n}", Row("x" * s)) for n, s in enumerate(sizes)), PARTITIONS)


def batches(limits: StepLimits, *outcomes: leases.Finished) -> list[list[str]]:
    opened = OpenLease(LEASE, (IN,), SystemClock(), limits)
    for each in outcomes:
        opened.add(each)
    taken = []
    while opened.puts:
        taken.append([each.key for each in opened.take_puts()])
    return taken


def test_a_step_takes_what_is_ready_up_to_its_records_and_never_half_an_outcome() -> None:
    outcomes = [outcome(key, *[1] * rows) for key, rows in [("a", 2), ("b", 2), ("c", 3), ("d", 9), ("e", 1)]]
    assert batches(StepLimits(5, 10**6), *outcomes) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_a_step_takes_what_is_ready_up_to_its_bytes() -> None:
    outcomes = [
        outcome(key, size) for key, size in [("a", 400), ("b", 400), ("c", 400), ("d", 5000), ("e", 1)]
    ]
    assert batches(StepLimits(100, 1000), *outcomes) == [["a", "b"], ["c"], ["d"], ["e"]]


def test_the_size_of_an_outcome_is_that_of_its_records() -> None:
    headers = (("ce_id", b"12345"),)
    done = finished("k", (Put(OUT, "k", Row("abc"), headers), Put(OUT, "gone", None)), PARTITIONS)
    values = [msgspec.json.encode(Row("abc")), None]
    assert [o.value for o in done.outputs] == values
    assert done.size == len("k") + len(values[0] or b"") + len("ce_id") + 5 + len("gone")


@pytest.mark.parametrize(
    ("records", "size", "most"), [(3, 10**6, 3), (1000, 250, 2)], ids=["by records", "by bytes"]
)
def test_the_bus_says_how_much_one_step_holds(
    monkeypatch: pytest.MonkeyPatch, records: int, size: int, most: int
) -> None:
    monkeypatch.setattr(FakeBus, "step_records_max", records)
    monkeypatch.setattr(FakeBus, "step_bytes_max", size)

    async def scenario(world: FakeWorld) -> None:
        for n in range(40):
            await world.send(f"default/n{n:02}", {"size": 100})
        *_, bus = world.worker()
        steps: list[list[Output]] = []
        step = bus.step

        async def watched(lease: Any, outputs: Any, offsets: Any = None) -> None:
            steps.append(list(outputs))
            await step(lease, outputs, offsets)

        bus.step = watched  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert len(world.out()) == 40
        assert max(map(len, steps)) == most

    simulated(scenario)


def test_a_row_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    encode = encode_row
    monkeypatch.setattr(leases, "encode_row", lambda row: encoded.append(row) or encode(row))  # type: ignore[func-returns-value]

    async def scenario(world: FakeWorld) -> None:
        for n in range(20):
            await world.send(f"default/n{n}", "a")
        world.worker()
        await asyncio.sleep(5)
        assert len(world.out()) == len(encoded) == 20

    simulated(scenario)


def test_while_steps_are_slow_keys_wait_and_not_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBus, "step_records_max", 10)

    async def scenario(world: FakeWorld) -> None:
        keys = [f"default/n{n}" for n in range(600)]
        for key in keys:
            await world.send(key, "a")
        worker, fake, _, bus = world.worker()
        step, waiting = bus.step, []

        async def slow(lease: Any, outputs: Any, offsets: Any = None) -> None:
            waiting.append(max(len(opened.puts) for opened in worker.leases().values()))
            await asyncio.sleep(0.03)
            await step(lease, outputs, offsets)

        bus.step = slow  # type: ignore[method-assign]
        await asyncio.sleep(20)
        assert world.out() == dict.fromkeys(sorted(keys), "a")
        assert len(fake.looks) == len(keys)
        assert 10 < max(waiting) <= leases.STEPS_WAITING_MAX * 10

    simulated(scenario)


def of_one_lease(count: int) -> list[str]:
    """Return keys of one partition."""
    return [key for n in range(1000) if partition(key := f"default/k{n}", PARTITIONS) == 0][:count]


@pytest.mark.parametrize("hangs", [False, True], ids=["all calls end", "one call never ends"])
def test_outcomes_gather_while_other_keys_are_in_flight(hangs: bool) -> None:
    """Twelve outcomes that come one by one go in few steps, and none waits long for a call that hangs."""
    *keys, last = of_one_lease(13)

    async def scenario(world: FakeWorld) -> None:
        async def answer(name: str) -> None:
            if name == last and hangs:
                await asyncio.Event().wait()
            elif name in keys:
                await asyncio.sleep(0.02 + 0.02 * keys.index(name))

        world.cluster.answer = answer
        *_, bus = world.worker()
        await asyncio.sleep(3)
        steps, step = [0], bus.step

        async def counted(lease: Any, outputs: Any, offsets: Any = None) -> None:
            steps[0] += bool(outputs)
            await step(lease, outputs, offsets)

        bus.step = counted  # type: ignore[method-assign]
        await asyncio.gather(*(world.send(key, {"write": True}) for key in (*keys, last)))
        await asyncio.sleep(0.3 + leases.GATHER_SECONDS + TICK_SECONDS)
        assert set(keys) <= world.out().keys()
        assert steps[0] <= 3

    simulated(scenario)


def test_an_outcome_alone_is_written_at_once() -> None:
    """One change waits for no other."""
    (key,) = of_one_lease(1)

    async def scenario(world: FakeWorld) -> None:
        world.worker()
        await asyncio.sleep(3)
        await world.send(key, {"write": True})
        await asyncio.sleep(leases.GATHER_SECONDS / 2)
        assert key in world.out()

    simulated(scenario)


@pytest.mark.parametrize("call_seconds", [1.0, float("inf")], ids=["all calls end", "one call never ends"])
def test_stopping_writes_what_is_finished_and_frees_the_leases_at_once(call_seconds: float) -> None:
    """SIGTERM: within the drain time, and a moment, whatever the API server does."""
    key, other = "default/k0", "default/k1"

    async def scenario(world: FakeWorld) -> None:
        async def answer(name: str) -> None:
            if name == other or call_seconds < 10:
                await asyncio.sleep(1.0)  # after the stop: an outcome that is finished while draining
            elif len(world.cluster.calls) < 3:
                await asyncio.Event().wait()

        world.cluster.answer = answer
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        await world.send(key, {"write": True})
        await world.send(other, {"write": True})
        await asyncio.sleep(0.2)
        loop = asyncio.get_running_loop()
        worker.stop()
        begun = loop.time()
        await asyncio.gather(*world.tasks)
        assert loop.time() - begun < (2.5 if call_seconds > 10 else 1.5)
        assert other in world.out()
        assert (key in world.out()) == (call_seconds < 10)
        second, *_ = world.worker()
        await asyncio.sleep(2)
        assert second.ready
        assert len(second.leases()) == PARTITIONS  # and not after a session
        await asyncio.sleep(3)
        assert list(world.out()) == [key, other]
        assert {world.committed(k) for k in (key, other)} <= {1, 2}
        assert partition(key, PARTITIONS) in second.leases()

    simulated(scenario)
