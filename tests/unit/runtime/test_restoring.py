"""What must have been read before anything is decided."""

import asyncio
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import FencedError, PermanentError, TransientError
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.keys import partition
from pvbus.ports.bus import Lease, Record, Snapshot, TopicPartition, TopicSpec
from pvbus.runtime.reconcile.leases import Finished, OpenLease, StepLimits, finished
from pvbus.runtime.reconcile.reader import StaleError, TableReader
from pvbus.runtime.reconcile.retries import Timers
from pvbus.runtime.reconcile.states import LeaseEvent, LeaseState
from pvbus.runtime.reconcile.steps import Stepper
from pvbus.runtime.reconcile.tables import Tables
from tests.kit.processes import run_simulated
from tests.unit.runtime import fakes

PARTITIONS = 3
LEASE = Lease(group="g", partition=1, epoch=1)


class Log:
    """Partitions of records, and who reads them: nothing of `late` is there before its second."""

    def __init__(self, late: Mapping[TopicPartition, float], length: int = 2) -> None:
        self.late = late
        self.length = length
        self.poll_seconds = 0.0
        self.failures = 0
        self.known: dict[TopicPartition, Snapshot] = {}
        self.readers: list[LogReader] = []

    def end(self, tp: TopicPartition) -> int:
        return self.length

    async def topics(self) -> Mapping[str, TopicSpec]:
        spec = TopicSpec(name="own", partitions=PARTITIONS, cleanup="compact", tombstone_seconds=200)
        return {"own": spec}

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        return {}

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {tp: self.end(tp) for tp in partitions}

    async def snapshots(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Snapshot]:
        return {tp: self.known[tp] for tp in partitions if tp in self.known}

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> "LogReader":
        self.readers.append(LogReader(self, dict(positions or {})))
        return self.readers[-1]


class LogReader:
    def __init__(self, log: Log, positions: dict[TopicPartition, int]) -> None:
        self._log = log
        self._positions = positions

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        self._positions.update(positions)

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            self._positions.pop(tp, None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        return

    resume = pause

    def position(self, tp: TopicPartition) -> int:
        return self._positions[tp]

    async def poll(self, *, timeout_seconds: float, max_records: int = 2000) -> list[Record]:
        await asyncio.sleep(max(0.5, self._log.poll_seconds))
        now, found = asyncio.get_running_loop().time(), []
        for tp, position in self._positions.items():
            if now >= self._log.late.get(tp, 0.0):
                for offset in range(position, self._log.end(tp)):
                    found.append(Record(*tp, offset, f"{offset}".encode(), b"{}", (), 0))
                self._positions[tp] = self._log.end(tp)
        if self._log.failures:
            self._log.failures -= 1
            raise TransientError("the connection is lost")
        return found

    async def close(self) -> None:
        self._log.readers.remove(self)


class Reading:
    """A controller that notes which partitions it has records of."""

    name = "reading"
    inputs = pausable = ("own",)
    memory = ()
    broadcast = ("wide",)

    def __init__(self) -> None:
        self.loaded: set[TopicPartition] = set()

    def open(self, partition: int) -> None:
        return

    def close(self, partition: int) -> None:
        return

    def keys(self, partition: int) -> list[str]:
        return []

    def load(self, topic: str, partition: int, key: str, value: bytes | None) -> tuple[str, ...]:
        self.loaded.add((topic, partition))
        return ()


def restoring(log: Log) -> tuple[Tables, OpenLease, Reading]:
    """Return tables, and a lease that nobody restores but the test."""
    reading = Reading()
    leases: dict[int, OpenLease] = {}
    bus: Any = log
    make: Any = lambda: reading  # noqa: E731 - the type of a controller is wider
    tables = Tables(make, bus, SimulatedClock(), partitions=PARTITIONS, leases=leases, stale=lambda: None)
    opened = OpenLease(LEASE, ("own",), SimulatedClock(), StepLimits(10, 1000))
    leases[LEASE.partition] = opened
    return tables, opened, reading


@pytest.fixture(autouse=True)
def any_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pvbus.runtime.reconcile.tables.checked_key", lambda record, partitions: record.key.decode()
    )


WIDE = {("wide", number) for number in range(PARTITIONS)}


def test_a_lease_is_not_restored_before_the_tables_that_all_have() -> None:
    """One partition of a broadcast table comes late: until then nothing may be decided."""

    async def main() -> None:
        tables, opened, reading = restoring(Log({("wide", 2): 30.0}))
        keeping = asyncio.create_task(tables.keep_broadcast())
        task = asyncio.create_task(tables.restore(opened))
        await asyncio.sleep(20.0)
        assert not task.done()
        await asyncio.sleep(20.0)
        assert task.done()
        assert reading.loaded >= WIDE
        keeping.cancel()

    run_simulated(main())


def test_a_catch_up_waits_for_every_partition_of_a_broadcast_table() -> None:
    async def main() -> None:
        log = Log({})
        tables, opened, _ = restoring(log)
        tasks = [asyncio.create_task(tables.keep_broadcast())]
        await tables.restore(opened)

        async def read() -> None:
            while True:
                await tables.table_reader.poll(tables.consume)

        tasks.append(asyncio.create_task(read()))
        now = asyncio.get_running_loop().time()
        log.length, log.late = 4, {("wide", 0): now + 30.0}
        catching = asyncio.create_task(tables.catch_up(opened, ("wide", "own")))
        await asyncio.sleep(20.0)
        assert not catching.done()
        await asyncio.sleep(20.0)
        assert catching.done()
        for task in tasks:
            task.cancel()

    run_simulated(main())


def test_keys_that_were_dirty_when_a_lease_went_are_dirty_when_it_is_back() -> None:
    async def main() -> None:
        tables, opened, _ = restoring(Log({}))
        keeping = asyncio.create_task(tables.keep_broadcast())
        await tables.restore(opened)
        opened.mark("default/a")
        opened.positions = {tp: tables.table_reader.positions[tp] for tp in [("own", 1)]}
        tables.table_reader.unassign([("own", 1)])
        reading = asyncio.create_task(_read(tables))
        await tables.restore(opened)
        assert opened.take() == "default/a"
        keeping.cancel()
        reading.cancel()

    run_simulated(main())


async def _read(tables: Tables) -> None:
    while True:
        await tables.table_reader.poll(tables.consume)


@pytest.mark.parametrize(("seconds", "is_stale"), [(1.0, False), (90.0, False), (110.0, True)])
def test_a_replay_that_took_longer_than_tombstones_live_is_not_believed(
    seconds: float, is_stale: bool
) -> None:
    """Tombstones live for 200 s here; half of that is the limit."""

    async def main() -> None:
        log = Log({})
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        table_reader.assign({("own", 0): 2})
        await table_reader.poll(lambda record: None)  # it learns how long tombstones live
        log.poll_seconds = seconds
        replay = table_reader.replay({("own", 0): 2}, lambda record: None, lambda read, total: None)
        if is_stale:
            with pytest.raises(StaleError):
                await replay
        else:
            await replay

    run_simulated(main())


def test_restores_at_the_same_time_share_a_reader_and_end_apart() -> None:
    """Each has the records of its partition alone, whoever reads. One that is cancelled ends no other."""

    async def main() -> None:
        log = Log({("own", 1): 5.0, ("own", 2): 9.0}, length=3)
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        found: list[list[Record]] = [[], [], []]
        restores = [
            asyncio.create_task(
                table_reader.replay({("own", number): 3}, found[number].append, lambda read, total: None)
            )
            for number in range(3)
        ]
        await asyncio.sleep(2)
        assert len(log.readers) == 2  # the other one reads what is restored
        assert [restore.done() for restore in restores] == [True, False, False]
        restores[1].cancel()
        assert await restores[2] == {("own", 2): 3}
        assert restores[1].cancelled()
        assert [[(*record[:2], record.offset) for record in records] for records in found] == [
            [("own", 0, offset) for offset in range(3)],
            [],
            [("own", 2, offset) for offset in range(3)],
        ]
        assert len(log.readers) == 1

    run_simulated(main())


@pytest.mark.parametrize(("position", "end"), [(1, 4), (3, 4), (4, 4), (4, 2)])
def test_a_restore_reads_only_what_came_after_a_snapshot(position: int, end: int) -> None:
    """Its records come first. It may have what was written after the ends were asked for."""

    async def main() -> None:
        log = Log({}, length=4)
        tp = ("own", 0)
        known = [Record(*tp, offset, b"known", b"{}") for offset in range(position)]
        log.known[tp] = Snapshot(position, known)
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        found: list[tuple[int, bytes]] = []
        progress: list[tuple[int, int]] = []
        reached = await table_reader.replay(
            {tp: end},
            lambda record: found.append((record.offset, record.key)),
            lambda *now: progress.append(now),
        )
        assert reached == {tp: 4}
        read = [(offset, f"{offset}".encode()) for offset in range(position, 4)]
        assert found == [*((offset, b"known") for offset in range(position)), *read]
        assert progress[-1] == (end, end)

    run_simulated(main())


def test_restores_at_the_same_time_have_few_snapshots_in_memory() -> None:
    class Rows(list[Record]):
        """A list that says when it is gone."""

    class FileLog(Log):
        """Whose snapshots are in no other place than in what it returns."""

        def __init__(self) -> None:
            super().__init__({})
            self.made: list[weakref.ref[Rows]] = []
            self.most = 0

        async def snapshots(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Snapshot]:
            rows = {tp: Rows([Record(*tp, 0, b"key", b"{}")] * 500) for tp in partitions}
            self.made += map(weakref.ref, rows.values())
            self.most = max(self.most, sum(made() is not None for made in self.made))
            await asyncio.sleep(0.01)
            return {tp: Snapshot(2, each) for tp, each in rows.items()}

    async def main() -> None:
        log = FileLog()
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        found: list[Record] = []
        restores = [{("own", 10 * lease + number): 2 for number in range(6)} for lease in range(3)]
        reached = await asyncio.gather(
            *(table_reader.replay(ends, found.append, lambda *_: None) for ends in restores)
        )
        assert reached == restores
        assert len(found) == 500 * 18
        assert log.most <= 4

    run_simulated(main())


def test_a_restore_whose_reading_fails_costs_the_others_no_record() -> None:
    """The one that read restores its lease again; the reader goes back to what all of them have applied."""

    async def main() -> None:
        log = Log({})
        log.failures = 1
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        found: list[int] = []
        failing = asyncio.create_task(
            table_reader.replay({("own", 0): 2}, lambda record: None, lambda read, total: None)
        )
        other = asyncio.create_task(
            table_reader.replay(
                {("own", 1): 2}, lambda record: found.append(record.offset), lambda read, total: None
            )
        )
        with pytest.raises(TransientError):
            await failing
        await other
        assert found == [0, 1]

    run_simulated(main())


class Rewriting:
    """A reader of a table that is written while it is read: one record at a time, and each time before it
    reads, some keys are written again, which takes their older records away."""

    def __init__(self, world: fakes.FakeWorld, rewritten: list[list[str]]) -> None:
        self._world = world
        self._rewritten = rewritten

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> Any:
        made = self._world.bus.reader(positions)
        poll = made.poll

        async def poll_one(*, timeout_seconds: float, max_records: int = 1) -> list[Record]:
            for key in self._rewritten.pop(0) if self._rewritten else ():
                await self._world.send(key, "new")
            return await poll(timeout_seconds=timeout_seconds, max_records=1)

        made.poll = poll_one  # type: ignore[method-assign]
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.bus, name)


A, B, C = [key for i in range(50) if partition(key := f"default/k{i}", fakes.PARTITIONS) == 0][:3]


@pytest.mark.parametrize(
    "rewritten",
    [
        [[], [B]],
        [[], [C, B]],
        [[A], [C, B]],
        [[], [C, B], [C], [A, B]],
    ],
    ids=["behind the end", "behind a new key", "from the start", "again in the next round"],
)
@pytest.mark.parametrize("way", ["replay", "catch up"])
def test_what_is_rewritten_while_a_table_is_read_is_not_missing_from_it(
    way: str, rewritten: list[list[str]]
) -> None:
    """Else a set whose status was just written would count as deleted, and let all its children go."""

    async def scenario(world: fakes.FakeWorld) -> None:
        await world.send(A, "old")
        await world.send(B, "old")
        bus: Any = Rewriting(world, [list(keys) for keys in rewritten])
        table_reader = TableReader(bus, SimulatedClock())
        tp, found = (fakes.IN, 0), dict[str, int]()

        def apply(record: Record) -> None:
            found[record.key.decode()] = record.offset

        if way == "replay":
            ends = await bus.end_offsets([tp])
            reached = await table_reader.replay(ends, apply, lambda read, total: None)
            assert reached == await bus.end_offsets([tp])
        else:
            table_reader.assign({tp: 0})
            catching = asyncio.create_task(table_reader.catch_up([tp]))
            await asyncio.sleep(0)
            while not catching.done():
                await table_reader.poll(apply)
                await asyncio.sleep(0)
            await catching
        assert found == {record.key.decode(): record.offset for record in world.records(fakes.IN)}

    fakes.simulated(scenario)


def test_a_wait_for_a_partition_that_goes_names_it() -> None:
    async def main() -> None:
        bus: Any = Log({})
        table_reader = TableReader(bus, SimulatedClock())
        table_reader.assign({("own", 0): 0, ("own", 1): 0})
        waiting = asyncio.create_task(table_reader.wait_for({("own", 0): 3, ("own", 1): 4}))
        await asyncio.sleep(0)
        table_reader.unassign([("own", 1)])
        with pytest.raises(TransientError) as caught:
            await waiting
        assert str(caught.value) == "own-1: partition unassigned while waiting for offset 4; retrying"

    asyncio.run(main())


def test_a_table_that_always_grows_is_read_nevertheless() -> None:
    async def main() -> None:
        log = Log({})
        ends = log.end_offsets

        async def growing(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
            log.length += 1
            return await ends(partitions)

        log.end_offsets = growing  # type: ignore[method-assign]
        bus: Any = log
        table_reader = TableReader(bus, SimulatedClock())
        reported: list[tuple[int, int]] = []
        tp = ("own", 0)
        reached = await table_reader.replay({tp: 2}, lambda record: None, lambda *now: reported.append(now))
        assert reached[tp] > 2
        assert reported == sorted(reported), "a restore never goes back"
        assert all(read <= total for read, total in reported)
        table_reader.assign(reached)
        catching = asyncio.create_task(table_reader.catch_up([tp]))
        while not catching.done():
            await table_reader.poll(lambda record: None)

    run_simulated(main())


@pytest.mark.parametrize(
    ("error", "stored", "state"),
    [
        (None, ["a"], LeaseState.RUNNING),
        (TransientError("no answer"), [], LeaseState.OUTCOME_UNKNOWN),
        (FencedError("old epoch"), [], LeaseState.LOST),
        (PermanentError("the file is damaged"), [], LeaseState.OUTCOME_UNKNOWN),
    ],
    ids=["done", "unknown", "fenced", "refused"],
)
def test_tables_take_over_what_a_step_wrote_and_nothing_else(
    error: Exception | None, stored: list[str], state: LeaseState
) -> None:
    async def main() -> None:
        taken: list[str] = []
        tasks: list[asyncio.Task[None]] = []

        class Storing:
            partitions = PARTITIONS

            @staticmethod
            def note_refusal(opened: OpenLease, outcome: Finished, error: PermanentError) -> bool:
                return False

            @staticmethod
            def store(opened: OpenLease, puts: Sequence[Put]) -> None:
                taken.extend(put.key for put in puts)

        class Stepping:
            @staticmethod
            async def step(lease: Lease, outputs: Any, offsets: Any) -> None:
                if error is not None:
                    raise error

        opened = OpenLease(LEASE, ("own",), SimulatedClock(), StepLimits(10, 1000))
        tables: Any = Storing()
        bus: Any = Stepping()
        stepper = Stepper(
            "reading",
            tables,
            bus,
            SimulatedClock(),
            spawn=lambda opened, work: tasks.append(asyncio.ensure_future(work)),
            on_step=lambda: None,
        )
        opened.enter(LeaseEvent.RESTORED)
        opened.mark("a")
        opened.take()
        opened.add(finished("a", (Put("own", "a", None),), PARTITIONS))
        stepper.flush(opened)
        await asyncio.gather(*tasks)
        assert taken == stored
        assert opened.state is state
        assert ("a" in opened.busy) is (state is not LeaseState.RUNNING), (
            "what is not known to be written is not done"
        )

    run_simulated(main())


def test_the_last_time_that_was_set_for_a_key_is_its_time() -> None:
    timers = Timers()
    timers.set("a", 5.0)
    timers.set("a", 10.0)
    assert timers.next() == 10.0
    assert timers.due(7.0) == []
    assert timers.due(10.0) == ["a"]
    timers.set("b", 5.0)
    timers.cancel("b")
    assert timers.next() is None
