"""The worker: what it does with errors, pauses, bad bytes and leases that come and go."""

import asyncio
import sys
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import (
    AlreadyExistsError,
    ConflictError,
    InvariantError,
    PermanentError,
    TransientError,
)
from pvbus.core.kernel.effects import Put, Reconciliation
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.records import DeadLetter
from pvbus.ports.bus import Record
from pvbus.runtime.reconcile import holder
from pvbus.runtime.reconcile import worker as worker_module
from pvbus.runtime.reconcile.leases import OpenLease, finished, output_bytes
from pvbus.runtime.reconcile.tables import LETTER_BYTES_MAX, dead_letter
from pvbus.runtime.reconcile.worker import AGAIN_SECONDS_MAX
from tests.kit.processes import Process, run_simulated
from tests.unit.runtime.fakes import DLQ, IN, OUT, PARTITIONS, SEEN, FakeWorld, simulated

KEYS = [f"default/k{i}" for i in range(8)]
SAME = [key for key in KEYS if partition(key, PARTITIONS) == partition(KEYS[0], PARTITIONS)]


def test_every_row_is_copied_and_offsets_follow() -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in KEYS:
            await world.send(key, "a")
        world.worker()
        await asyncio.sleep(5)
        assert world.out() == dict.fromkeys(KEYS, "a")
        ends = await world.bus.end_offsets([(IN, n) for n in range(PARTITIONS)])
        assert {world.committed(key) for key in KEYS} == set(ends.values())

    simulated(scenario)


def test_a_row_that_is_written_again_during_a_restore_is_not_missing_behind_it() -> None:
    """Compaction removes its former record, and the new one is beyond the ends that were to be read."""

    async def scenario(world: FakeWorld) -> None:
        await world.send(KEYS[0], "a")
        _, fake, _, bus = world.worker()
        end_offsets, names = bus.end_offsets, fake.keys
        missing: list[bool] = []
        rewritten: list[bool] = []

        async def interrupted(topic_partitions: Any) -> Any:
            ends = await end_offsets(topic_partitions)
            if (IN, partition(KEYS[0], PARTITIONS)) in ends and not rewritten:
                rewritten.append(True)
                await world.send(KEYS[0], "b")
            return ends

        def restored(number: int) -> Any:
            if number == partition(KEYS[0], PARTITIONS):
                missing.append(KEYS[0] not in fake.rows[number])
            return names(number)

        bus.end_offsets = interrupted  # type: ignore[method-assign, assignment]
        fake.keys = restored  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert (rewritten, missing) == ([True], [False])

    simulated(scenario)


def test_an_outcome_and_the_offset_of_its_cause_are_one_step() -> None:
    async def scenario(world: FakeWorld) -> None:
        *_, bus = world.worker()
        await asyncio.sleep(3)
        steps: list[tuple[Any, Any]] = []
        step = bus.step

        async def watched(lease: Any, outputs: Any, offsets: Any = None) -> None:
            steps.append((list(outputs), dict(offsets or {})))
            await step(lease, outputs, offsets)

        bus.step = watched  # type: ignore[method-assign]
        await world.send(KEYS[0], "a")
        await asyncio.sleep(5)
        assert [(len(outputs), offsets) for outputs, offsets in steps] == [(1, {IN: 1})]

    simulated(scenario)


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (TransientError("503"), 0.2, 0.7),
        (TransientError("429", retry_after_seconds=7.0), 7.0, 7.3),
        (ConflictError("409"), 10.0, 10.3),
        (AlreadyExistsError("409"), 10.0, 10.3),
        (PermanentError("422"), 60.0, 60.3),
    ],
    ids=lambda value: str(value),
)
def test_a_failed_call_is_tried_again_in_its_time(error: Exception, least: float, most: float) -> None:
    async def scenario(world: FakeWorld) -> None:
        async def fail_once(name: str) -> None:
            if len(world.cluster.calls) == 1:
                raise error

        world.cluster.answer = fail_once
        world.worker()
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(80)
        times = [time for time, _ in world.cluster.calls]
        assert len(times) == 2
        assert least <= times[1] - times[0] <= most
        assert list(world.out()) == [KEYS[0]]

    simulated(scenario)


def test_transient_errors_back_off_further_and_further() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def fail(name: str) -> None:
            raise TransientError("503")

        world.cluster.answer = fail
        world.worker()
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(1000)
        times = [time for time, _ in world.cluster.calls]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert max(gaps) <= 60.3
        assert sum(gaps[-5:]) > sum(gaps[:5])
        assert len(times) < 60  # a thousand seconds, and not one try a second

    simulated(scenario)


def test_an_echo_ends_the_wait_of_a_conflict() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def conflict_once(name: str) -> None:
            if len(world.cluster.calls) == 1:
                raise ConflictError("409")

        world.cluster.answer = conflict_once
        world.worker()
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"write": True, "echo": 1})
        await asyncio.sleep(30)
        times = [time for time, _ in world.cluster.calls]
        assert len(times) == 2  # and none when the ten seconds were over
        assert times[1] - times[0] < 3.5

    simulated(scenario)


def test_told_to_wait_all_keys_wait() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def throttle_once(name: str) -> None:
            if len(world.cluster.calls) == 1:
                raise TransientError("429", retry_after_seconds=5.0)

        world.cluster.answer = throttle_once
        world.worker()
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(3)
        for key in KEYS[1:]:
            await world.send(key, {"write": True})
        await asyncio.sleep(20)
        first, *others = [time for time, _ in world.cluster.calls]
        assert len(others) == len(KEYS)
        assert min(others) >= first + 5.0

    simulated(scenario)


def test_one_key_never_has_two_calls_and_a_mark_meanwhile_runs_it_again() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def slow(name: str) -> None:
            await asyncio.sleep(4)

        world.cluster.answer = slow  # the toy cluster fails when two calls of a key meet
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"write": True})
        for i in range(3):
            await asyncio.sleep(1)
            await world.send(KEYS[0], {"write": True, "n": i})
        await asyncio.sleep(20)
        assert len(fake.looks) == 2
        assert world.out() == {KEYS[0]: '{"write": true, "n": 2}'}

    simulated(scenario)


def test_calls_under_way_are_bounded() -> None:
    async def scenario(world: FakeWorld) -> None:
        at_once: list[int] = []

        async def slow(name: str) -> None:
            at_once.append(len(world.cluster.busy))
            await asyncio.sleep(1)

        world.cluster.answer = slow
        world.worker()
        for i in range(200):
            await world.send(f"default/n{i}", {"write": True})
        await asyncio.sleep(30)
        assert max(at_once) == worker_module.EFFECTS_INFLIGHT_MAX
        assert len(world.out()) == 200

    simulated(scenario)


@pytest.mark.parametrize("topic", [IN, SEEN])
def test_bytes_that_mean_nothing_go_to_the_dead_letters_once(topic: str) -> None:
    key = next(key for key in KEYS if partition(key, PARTITIONS) == 1)

    async def scenario(world: FakeWorld) -> None:
        for _ in range(2):  # of two workers, one tells
            world.worker()
        await asyncio.sleep(12)
        await world.send_bytes(key, b"{not json", topic)
        await world.send(key, "good")
        await asyncio.sleep(5)
        letters = [msgspec.json.decode(r.value, type=DeadLetter) for r in world.records(DLQ)]
        assert [(d.topic, d.offset, d.value) for d in letters] == [(topic, 0, b"{not json")]
        assert [r.partition for r in world.records(DLQ)] == [1]  # its own partition
        assert world.out() == {key: "good"}
        for worker in world.workers:
            worker.stop()
        await asyncio.gather(*world.tasks)
        world.worker()  # whoever reads it again later does not tell again
        await asyncio.sleep(5)
        assert len(world.records(DLQ)) == 1

    simulated(scenario)


def test_an_outcome_that_is_too_large_leaves_the_others_alone() -> None:
    async def scenario(world: FakeWorld) -> None:
        for key in SAME:
            await world.send(key, {"size": 5000 if key == SAME[1] else 10})
        world.worker()
        await asyncio.sleep(5)
        assert sorted(world.out()) == sorted(key for key in SAME if key != SAME[1])

    simulated(scenario)


def test_a_catch_up_returns_when_everything_before_it_was_applied() -> None:
    async def scenario(world: FakeWorld) -> None:
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], "now", SEEN)
        await world.send(KEYS[0], {"catch": True})
        await asyncio.sleep(3)
        assert world.out() == {KEYS[0]: "now"}
        assert fake.seen == {KEYS[0]: "now"}

    simulated(scenario)


@pytest.mark.parametrize("when", ["before", "after"])
def test_after_a_step_of_unknown_outcome_the_lease_is_restored(when: str) -> None:
    """Whether it was written or not, the row is there once and nothing is decided on stale tables."""

    async def scenario(world: FakeWorld) -> None:
        _, fake, _, bus = world.worker()
        await asyncio.sleep(3)
        bus.failures.append((when, TransientError("no answer")))
        number, opened = partition(KEYS[0], PARTITIONS), list(fake.opened)
        await world.send(KEYS[0], "a")
        await asyncio.sleep(5)
        assert fake.opened == [*opened, number]
        assert world.out() == {KEYS[0]: "a"}
        assert len([r for r in world.records(OUT) if r.key == KEYS[0].encode()]) == 1
        await world.send(KEYS[0], "b")
        await asyncio.sleep(3)
        assert world.out() == {KEYS[0]: "b"}

    simulated(scenario)


def test_a_revoked_lease_drains_before_it_goes() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def slow(name: str) -> None:
            await asyncio.sleep(1)

        world.cluster.answer = slow
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(0.5)
        worker.stop()
        await asyncio.gather(*world.tasks)
        assert list(world.out()) == [KEYS[0]]  # the call had its answer, and the answer was written

    simulated(scenario)


def test_a_call_without_end_does_not_keep_a_worker_from_stopping() -> None:
    async def scenario(world: FakeWorld) -> None:
        async def forever(name: str) -> None:
            await asyncio.Event().wait()

        world.cluster.answer = forever
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(1)
        worker.stop()
        async with asyncio.timeout(10):
            await asyncio.gather(*world.tasks)

    simulated(scenario)


def test_a_worker_without_heartbeats_sends_nothing() -> None:
    """Frozen for half a session, its leases may belong to somebody else."""

    async def scenario(world: FakeWorld) -> None:
        _, _, clock, _ = world.worker()
        await asyncio.sleep(3)
        clock.freeze()
        await asyncio.sleep(6)
        await world.send(KEYS[0], {"write": True})
        await asyncio.sleep(1)
        assert world.cluster.calls == []
        clock.thaw()
        await asyncio.sleep(20)
        assert [name for _, name in world.cluster.calls] == [KEYS[0]]

    simulated(scenario)


def test_a_lease_that_is_uncertain_is_no_error_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a minute nothing is written, no row says that an object failed, and no key waits longer for it."""

    async def scenario(world: FakeWorld) -> None:
        _, fake, _, _ = world.worker()
        with monkeypatch.context() as patched:
            patched.setattr(OpenLease, "may_write", lambda *_: False)
            await world.send(KEYS[0], {"write": True, "report": True})
            await asyncio.sleep(60)
            assert (world.cluster.calls, world.out()) == ([], {})
            assert 100 < len(fake.looks) < 130
        await asyncio.sleep(1)
        assert [name for _, name in world.cluster.calls] == [KEYS[0]]
        assert list(world.out()) == [KEYS[0]]

    simulated(scenario)


def test_leases_move_and_nothing_is_lost_or_written_twice() -> None:
    async def scenario(world: FakeWorld) -> None:
        first, *_ = world.worker()
        await asyncio.sleep(3)
        for key in KEYS:
            await world.send(key, "a")
        await asyncio.sleep(3)
        second, fake, _, _ = world.worker()
        await asyncio.sleep(12)
        assert first.ready
        assert second.ready
        assert len(first.leases()) == len(second.leases()) == 1
        ends = await world.bus.end_offsets([(OUT, n) for n in range(PARTITIONS)])
        assert sum(ends.values()) == len(KEYS)  # the new holder looked at its keys, and wrote none
        assert fake.looks
        for key in KEYS:
            await world.send(key, "b")
        await asyncio.sleep(3)
        assert world.out() == dict.fromkeys(KEYS, "b")

    simulated(scenario)


def test_a_spare_worker_is_ready_after_a_session() -> None:
    """Who joins a group whose leases all have workers waits for a session, and is ready to take over."""

    async def scenario(world: FakeWorld) -> None:
        busy = [world.worker()[0] for _ in range(PARTITIONS)]
        await asyncio.sleep(12)
        spare, *_ = world.worker()
        await asyncio.sleep(5)
        assert [len(worker.leases()) for worker in (*busy, spare)] == [1, 1, 0]
        assert not spare.ready
        await asyncio.sleep(7)
        assert spare.ready
        busy[0].stop()
        await asyncio.sleep(5)
        assert len(spare.leases()) == 1
        assert spare.ready

    simulated(scenario)


def test_inputs_pause_while_there_is_too_much_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "DIRTY_KEYS_MAX", 100)
    monkeypatch.setattr(worker_module, "EFFECTS_INFLIGHT_MAX", 4)

    async def scenario(world: FakeWorld) -> None:
        async def slow(name: str) -> None:
            await asyncio.sleep(0.2)

        world.cluster.answer = slow
        worker, *_ = world.worker()
        await asyncio.sleep(3)
        most = 0
        for i in range(600):
            await world.send(f"default/n{i}", {"write": True})
            if i % 50 == 0:
                await asyncio.sleep(0.1)
            most = max(most, worker.dirty_keys)
        await asyncio.sleep(60)
        assert most < 250
        assert len(world.out()) == 600

    simulated(scenario)


def test_a_time_that_was_asked_for_is_kept_once_per_key() -> None:
    async def scenario(world: FakeWorld) -> None:
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        for i in range(5):
            await world.send(KEYS[0], {"again": 10, "n": i})
            await asyncio.sleep(1)
        looks = len(fake.looks)
        await asyncio.sleep(31)
        assert len(fake.looks) - looks == 3

    simulated(scenario)


def test_a_long_wait_is_looked_at_meanwhile() -> None:
    """The wall clock that it is for may be set, or the machine may sleep."""

    async def scenario(world: FakeWorld) -> None:
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], {"again": 86_400})
        await asyncio.sleep(1)
        looks = len(fake.looks)
        await asyncio.sleep(AGAIN_SECONDS_MAX + 1)
        assert len(fake.looks) == looks + 1

    simulated(scenario)


def test_a_bug_in_one_decision_leaves_the_other_keys_running() -> None:
    async def scenario(world: FakeWorld) -> None:
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        await world.send(KEYS[0], "{not JSON")
        await world.send(KEYS[1], "a")
        await asyncio.sleep(3)
        out = world.out()
        assert out.pop(KEYS[0]).startswith("the decision fails, which is a bug in pvbus: JSONDecodeError: ")
        assert out == {KEYS[1]: "a"}
        looks = fake.looks.count(KEYS[0])
        await asyncio.sleep(61)
        assert fake.looks.count(KEYS[0]) == looks + 1
        await world.send(KEYS[0], "b")
        await asyncio.sleep(3)
        assert world.out() == {KEYS[0]: "b", KEYS[1]: "a"}

    simulated(scenario)


def test_an_impossible_transition_ends_the_worker() -> None:
    async def main() -> None:
        world = await FakeWorld().open()
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)

        def broken(number: int, put: Any) -> Any:
            raise InvariantError("impossible")

        fake.store = broken  # type: ignore[method-assign]
        await world.send(KEYS[0], "a")
        with pytest.raises(ExceptionGroup) as caught:
            await asyncio.gather(*world.tasks)
        assert caught.group_contains(InvariantError)
        await world.bus.close()

    run_simulated(main())


def test_a_worker_that_failed_leaves_at_once_and_without_a_second_error() -> None:
    """What it had under way does not hold its leases back, and nothing is begun any more."""
    noise: list[object] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: noise.append(context))
        world = await FakeWorld().open()
        _, fake, _, _ = world.worker()
        await asyncio.sleep(3)
        reconcile = fake.reconcile

        def broken(number: int, key: str, now: float) -> Reconciliation:
            if key == SAME[1]:
                raise InvariantError("impossible")
            return reconcile(number, key, now)

        fake.reconcile = broken  # type: ignore[method-assign]  # this controller alone decides wrongly
        for key in SAME[:2]:
            await world.send(key, "a")
        with pytest.raises(ExceptionGroup):
            await asyncio.gather(*world.tasks)
        began = loop.time()
        await world.bus.close()
        assert loop.time() - began < 1

    run_simulated(main())
    assert noise == []


@pytest.mark.slow
def test_a_bus_that_is_away_for_very_long_does_not_end_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a lease could not be restored, it is tried again."""
    monkeypatch.setattr(holder, "AGAIN_SECONDS", (0.001, 0.001))

    async def scenario(world: FakeWorld) -> None:
        *_, peer = world.worker()
        tries = 0

        async def away(*_: object) -> dict[str, int]:
            nonlocal tries
            tries += 1
            raise TransientError("away")

        peer.committed = away  # type: ignore[assignment, method-assign]  # the bus is away for this worker
        await asyncio.sleep(5)
        assert tries > 2 * sys.float_info.max_exp
        assert not world.tasks[0].done()

    simulated(scenario)


@pytest.mark.parametrize("size", [LETTER_BYTES_MAX, 1_048_000])
def test_a_dead_letter_fits_into_a_record(size: int) -> None:
    """Of what is too large for a letter the beginning is kept, and it says so."""
    record = Record(IN, 0, 7, b"default/" + b"k" * 300, b"\xff" * size)
    letter = dead_letter(record, ValueError("no JSON"))
    (output,) = finished("", (Put(DLQ, record.key.decode(), letter),), 12).outputs
    assert output_bytes(output) < KafkaSettings(bootstrap=()).record_bytes_max
    assert letter.value == b"\xff" * LETTER_BYTES_MAX
    assert (str(size) in letter.error) == (size > LETTER_BYTES_MAX)


def test_a_lease_tells_how_far_its_restore_is_and_when_it_last_got_on() -> None:
    async def scenario(world: FakeWorld) -> None:
        for i in range(4100):  # three polls; in virtual time one turn may decide all
            await world.send(f"default/n{i}", "a")
        worker, *_ = world.worker()
        reported = set()
        while not worker.ready:
            await asyncio.sleep(0)
            reported |= {c.restore for c in worker.leases().values() if not c.restored}
        assert any(0 < read < total for read, total in reported)  # on the way, too, not only at the ends
        assert sum(c.restore[1] for c in worker.leases().values()) == 4100
        assert all(c.restored and c.restore[0] == c.restore[1] for c in worker.leases().values())
        await asyncio.sleep(30)
        number = partition(KEYS[0], PARTITIONS)
        before = {n: c.progress_at for n, c in worker.leases().items()}
        assert all(asyncio.get_running_loop().time() - at > 20 for at in before.values())
        await world.send(KEYS[0], "b")
        await asyncio.sleep(3)
        moved = {n for n, c in worker.leases().items() if c.progress_at > before[n]}
        assert moved == {number}

    simulated(scenario)


def test_an_idle_worker_rests() -> None:
    """One tick a second, three partitions' heartbeats and reads: a service without work leaves the processor
    to the others, and a simulation passes its hours quickly."""
    process = Process("idle")

    async def scenario(world: FakeWorld) -> None:
        with process.entered():
            world.worker()
        await asyncio.sleep(5)
        before = process.turns
        await asyncio.sleep(60)
        assert process.turns - before < 60 * 12

    simulated(scenario)
