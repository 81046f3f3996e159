"""The bus contract: checks that the tests of every bus adapter run, unchanged.

A check is a coroutine function that takes a `Harness` (a fresh, empty bus of the adapter, and the
means to kill, freeze and thaw its workers) and raises AssertionError. Its docstring states the
requirement. This module has the checks of the log; those of groups are in `bus_contract_groups` and
`bus_contract_churn`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from pvbus.core.errors import FencedError, InvariantError, PermanentError, TooLargeError
from pvbus.ports.bus import Bus, Lease, Output, Record, TopicPartition, TopicSpec

PARTITIONS = 4
TOMBSTONE_SECONDS = 60
RETENTION_SECONDS = 60
TABLE = TopicSpec(name="table", partitions=PARTITIONS, cleanup="compact", tombstone_seconds=TOMBSTONE_SECONDS)
OUT = TopicSpec(name="out", partitions=PARTITIONS, cleanup="compact")
EVENTS = TopicSpec(
    name="events", partitions=PARTITIONS, cleanup="delete", retention_seconds=RETENTION_SECONDS
)
TOPICS = (TABLE, OUT, EVENTS)
GROUP = "group"
SUSPENSIONS_MAX = 200


class Harness(Protocol):
    """One empty bus, and the control of its workers.

    handover_seconds: longest time until leases have new owners, once the old ones are known to be gone or
    have released them. expiry_seconds: longest delay until an expired record is removed. wake_seconds:
    longest delay from a step to a waiting reader. visible_within_seconds: longest delay between the
    visible parts of a step (0: none). margin_seconds: allowance for callbacks, commits and reading in real
    time. suspensions_min: least number of points at which a contended step can be cancelled.
    """

    record_bytes_max: int
    session_seconds: float
    drain_seconds: float
    handover_seconds: float
    expiry_seconds: float
    wake_seconds: float
    visible_within_seconds: float
    margin_seconds: float
    suspensions_min: int

    async def open(self) -> Bus:
        """Return the bus of one more worker, as if in another process."""
        ...

    async def kill(self, bus: Any) -> None:
        """End a worker (a bus that `open` returned) like kill -9."""
        ...

    def freeze(self, bus: Any) -> None:
        """Stop a worker like SIGSTOP."""
        ...

    def thaw(self, bus: Any) -> None: ...

    def contended(self) -> AbstractAsyncContextManager[None]:
        """Make steps take their slowest path, with every possible wait."""
        ...


Check = Callable[[Harness], Coroutine[Any, Any, None]]


# Helpers of the checks


async def settled(is_so: Callable[[], bool | Awaitable[bool]], within_seconds: float, lease: str) -> None:
    """Wait until a condition holds; fail after `within_seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_seconds
    while True:
        answer = is_so()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert loop.time() < deadline, f"not within {within_seconds} s: {lease}"
        await asyncio.sleep(min(0.05, within_seconds / 4))


async def turns(number: int) -> None:
    """Let other tasks run for this number of loop iterations."""
    for _ in range(number):
        await asyncio.sleep(0)


async def ignore(lease: Lease) -> None:
    """Do nothing: a callback."""


@asynccontextmanager
async def holder(
    harness: Harness, topics: Sequence[str] = ("table",)
) -> AsyncIterator[tuple[Bus, list[Lease]]]:
    """Yield a worker's bus and all leases, which the worker holds, by partition."""
    bus = await harness.open()
    await bus.create_topics(TOPICS)
    membership = await bus.join(GROUP, topics, assigned=ignore, revoked=ignore)
    await settled(
        lambda: len(membership.leases()) == PARTITIONS, harness.handover_seconds, "one worker holds all"
    )
    yield bus, [membership.leases()[number] for number in range(PARTITIONS)]
    await bus.close()


def everything(topic: str) -> dict[TopicPartition, int]:
    return {(topic, number): 0 for number in range(PARTITIONS)}


async def read_all(bus: Bus, topic: str) -> list[Record]:
    """Read a topic from its beginning to its present ends."""
    positions = everything(topic)
    ends = await bus.end_offsets(tuple(positions))
    reader = bus.reader(positions)
    records: list[Record] = []
    while any(reader.position(partition) < end for partition, end in ends.items()):
        records += await reader.poll(timeout_seconds=1)
    await reader.close()
    return records


def fold(records: Sequence[Record]) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


class cut_at:  # noqa: N801  (reads as a verb: `await cut_at(...)`)
    """Await a coroutine, but cancel it at its n-th suspension (from 0); return whether it ended before."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], suspension: int) -> None:
        self._coroutine = coroutine
        self._suspension = suspension

    def __await__(self) -> Generator[Any, Any, bool]:
        for _ in range(self._suspension):
            try:
                waited_for = self._coroutine.send(None)
            except StopIteration:
                return True
            yield waited_for
        try:
            self._coroutine.send(None)
        except StopIteration:
            return True
        try:
            self._coroutine.throw(asyncio.CancelledError())
        except (StopIteration, asyncio.CancelledError):
            return False
        raise AssertionError("step continued after it was cancelled")


# The log


async def check_order_per_key(harness: Harness) -> None:
    """A reader sees the values of a key in the order of their steps, up to the last one."""
    rng = random.Random(1)
    async with holder(harness) as (bus, leases):
        reader = (await harness.open()).reader(everything("out"))
        seen: dict[bytes, list[int]] = {}
        for number in range(300):
            outputs = [
                Output("out", key % PARTITIONS, b"key-%d" % key, b"%d" % number)
                for key in rng.sample(range(20), rng.randint(1, 5))
            ]
            await bus.step(leases[0], outputs)
            if rng.random() < 0.2:
                for record in await reader.poll(timeout_seconds=0, max_records=rng.randint(1, 30)):
                    seen.setdefault(record.key, []).append(int(record.value or b""))
        while records := await reader.poll(timeout_seconds=1):
            for record in records:
                seen.setdefault(record.key, []).append(int(record.value or b""))
        assert len(seen) == 20
        last = fold(await read_all(bus, "out"))
        for key, values in seen.items():
            assert values == sorted(set(values)), key
            assert values[-1] == int(last[key])


async def check_offsets_rise(harness: Harness) -> None:
    """Within a partition offsets rise, and every record has the written content."""
    async with holder(harness) as (bus, leases):
        headers = (("cause", b"table/1/2"), ("empty", b""))
        await bus.step(leases[1], [Output("out", 1, b"a", b"1", headers), Output("out", 1, b"b", None)])
        await bus.step(leases[1], [Output("out", 1, b"c", b"")])
        records = await read_all(bus, "out")
        assert [record[3:6] for record in records] == [
            (b"a", b"1", headers),
            (b"b", None, ()),
            (b"c", b"", ()),
        ]
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        assert all(record[:2] == ("out", 1) and record.timestamp_ms > 0 for record in records)


async def check_failed_step_leaves_nothing(harness: Harness) -> None:
    """A step that raises leaves no record and no offset behind, and the next one works."""
    good = Output("out", 0, b"good", b"1")
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [], {"table": 5})
        ends = await bus.end_offsets(tuple(everything("out")))
        for error, lease, outputs, offsets in (
            (
                TooLargeError,
                leases[0],
                [good, good._replace(value=b"x" * harness.record_bytes_max)],
                {"table": 6},
            ),
            (PermanentError, leases[0], [good, good._replace(topic="nowhere")], {"table": 6}),
            (PermanentError, leases[0], [good, good._replace(partition=PARTITIONS)], {"table": 6}),
            (InvariantError, leases[0], [good], {"table": 4}),
            (FencedError, Lease(group=GROUP, partition=0, epoch=leases[0].epoch - 1), [good], {"table": 6}),
            (FencedError, Lease(group="nobody", partition=0, epoch=1), [good], {"table": 6}),
        ):
            await expect(error, bus.step(lease, outputs, offsets))
            assert await read_all(bus, "out") == []
            assert await bus.committed(leases[0], ["table"]) == {"table": 5}
        assert await bus.end_offsets(tuple(everything("out"))) == ends
        await bus.step(leases[0], [good], {"table": 6})
        assert fold(await read_all(bus, "out")) == {b"good": b"1"}


async def expect(error: type[Exception], awaitable: Awaitable[object]) -> None:
    try:
        await awaitable
    except error:
        return
    raise AssertionError(f"did not raise {error.__name__}")


async def check_oversize_record(harness: Harness) -> None:
    """A record above the limit is refused, one below it is not, and the bus stays usable."""
    async with holder(harness) as (bus, leases):
        large = b"x" * (harness.record_bytes_max - 1000)
        for number in range(3):
            too_large = Output("out", 0, b"k", large, (("h", b"y" * 1000),))
            await expect(TooLargeError, bus.step(leases[0], [too_large]))
            await bus.step(leases[0], [Output("out", 0, b"k%d" % number, large)])
        assert len(await read_all(bus, "out")) == 3


async def check_crash_at_every_await(harness: Harness) -> None:
    """A step that is cancelled at any suspension is visible whole or not at all."""
    async with holder(harness) as (bus, leases):
        for suspension in range(SUSPENSIONS_MAX):
            outputs = [Output("out", n, b"%d-%d" % (suspension, n), b"v") for n in range(PARTITIONS)]
            offset = suspension + 1
            async with harness.contended():
                is_done = await cut_at(bus.step(leases[2], outputs, {"table": offset}), suspension)
            keys = {record.key for record in await read_all(bus, "out")}
            seen = keys & {output.key for output in outputs}
            committed = await bus.committed(leases[2], ["table"])
            assert len(seen) in (0, PARTITIONS), f"a part of the step, cut at suspension {suspension}"
            assert (committed["table"] == offset) == bool(seen), f"cut at suspension {suspension}"
            if is_done:
                assert seen
                assert suspension >= harness.suspensions_min
                return
        raise AssertionError(f"a step with more than {SUSPENSIONS_MAX} suspensions")


async def check_outputs_and_offset_together(harness: Harness) -> None:
    """An observer that sees a step's output sees its offset, and vice versa."""
    steps = 200
    rng = random.Random(3)
    async with holder(harness) as (bus, leases):
        observer = await harness.open()
        reader = observer.reader(everything("out"))
        seen = committed = 0

        async def has_seen(number: int) -> bool:
            nonlocal seen
            records = await reader.poll(timeout_seconds=0)
            seen = max([seen, *(int(record.value or b"") for record in records)])
            return seen >= number

        async def has_committed(number: int) -> bool:
            nonlocal committed
            committed = (await observer.committed(leases[0], ["table"]))["table"]
            return committed >= number

        async def write() -> None:
            for number in range(1, steps + 1):
                await bus.step(leases[0], [Output("out", 3, b"k", b"%d" % number)], {"table": number})

        writing = asyncio.create_task(write())
        while seen < steps:
            await turns(rng.randrange(4))
            await has_seen(0)
            await settled(lambda: has_committed(seen), harness.visible_within_seconds, "offset of an output")
            await turns(rng.randrange(4))
            await has_committed(0)
            await settled(lambda: has_seen(committed), harness.visible_within_seconds, "output of an offset")
        await writing


async def check_offsets_are_monotone(harness: Harness) -> None:
    """A lease's offsets start at 0, are each topic's own, and never go back."""
    async with holder(harness, ("table", "events")) as (bus, leases):
        assert await bus.committed(leases[1], ["table", "events"]) == {"table": 0, "events": 0}
        await bus.step(leases[1], [], {"table": 7})
        await bus.step(leases[1], [], {"events": 3})
        await bus.step(leases[1], [], {"table": 7, "events": 4})
        await expect(InvariantError, bus.step(leases[1], [], {"table": 8, "events": 3}))
        assert await bus.committed(leases[1], ["table", "events"]) == {"table": 7, "events": 4}
        assert await bus.committed(leases[0], ["table"]) == {"table": 0}


async def check_end_offsets_count_what_is_committed(harness: Harness) -> None:
    """Reading up to the end offsets returns every record committed before the call, in each partition."""
    async with holder(harness) as (bus, leases):
        other = await harness.open()
        empty = await other.end_offsets([("out", 0), ("out", 1)])
        for number in range(1, 4):
            await bus.step(leases[0], [Output("out", 1, b"%d" % number, b"v")])
            await expect(
                TooLargeError,
                bus.step(leases[0], [Output("out", 1, b"large", b"x" * (harness.record_bytes_max + 1))]),
            )
            ends = await other.end_offsets([("out", 0), ("out", 1)])
            assert ends[("out", 0)] == empty[("out", 0)]
            records = await read_all(other, "out")
            assert len(records) == number
            assert records[-1].offset < ends[("out", 1)]


async def check_restore_equals_fold(harness: Harness) -> None:
    """A table read from offset 0 equals the result of all its steps in order."""
    rng = random.Random(2)
    model: dict[bytes, bytes] = {}
    async with holder(harness) as (bus, leases):
        for number in range(200):
            outputs = []
            for key in (rng.randrange(30) for _ in range(rng.randint(1, 8))):
                value = None if rng.random() < 0.3 else b"%d" % number
                outputs.append(Output("table", key % PARTITIONS, b"key-%d" % key, value))
            await bus.step(leases[0], outputs)
            for output in outputs:
                model.pop(output.key, None)
                if output.value is not None:
                    model[output.key] = output.value
            if number % 50 == 49:
                assert fold(await read_all(await harness.open(), "table")) == model


async def check_tombstones_stay_and_go(harness: Harness) -> None:
    """A tombstone survives compaction for its time, then is removed; its key does not come back."""
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [Output("table", 0, b"kept", b"1"), Output("table", 0, b"gone", b"1")])
        await bus.step(leases[0], [Output("table", 0, b"gone", None)])

        async def write_on(seconds: float) -> None:
            """Keep writing: compaction may not remove records at the end of a log."""
            for _ in range(10):
                await asyncio.sleep(seconds / 10)
                await bus.step(leases[0], [Output("table", 0, b"kept", b"1")])

        await write_on(TOMBSTONE_SECONDS * 0.8)
        assert [r.value for r in await read_all(bus, "table") if r.key == b"gone"][-1:] == [None]
        end = (await bus.end_offsets([("table", 0)]))["table", 0]
        await write_on(TOMBSTONE_SECONDS * 0.2 + harness.expiry_seconds)
        records = await read_all(bus, "table")
        assert fold(records) == {b"kept": b"1"}
        assert [record for record in records if record.key == b"gone"] == []
        assert records[-1].offset >= end


async def check_retention(harness: Harness) -> None:
    """A topic with retention keeps every record of a key for that time; offsets are never reused."""
    async with holder(harness) as (bus, leases):
        for number in range(3):
            await bus.step(leases[0], [Output("events", 2, b"same", b"%d" % number)])
        before = await read_all(bus, "events")
        assert [record.value for record in before] == [b"0", b"1", b"2"]
        assert await bus.begin_offsets([("events", 2)]) == {("events", 2): before[0].offset}
        await asyncio.sleep(RETENTION_SECONDS + harness.expiry_seconds)
        assert await read_all(bus, "events") == []
        assert (await bus.begin_offsets([("events", 2)]))["events", 2] > before[-1].offset
        await bus.step(leases[0], [Output("events", 2, b"same", b"3")])
        (record,) = await read_all(bus, "events")
        assert record.offset > before[-1].offset
        begins = await bus.begin_offsets([("events", 2), ("events", 3)])
        assert before[-1].offset < begins["events", 2] <= record.offset
        assert begins["events", 3] == 0


# Readers


async def check_readers_wake_at_once(harness: Harness) -> None:
    """A waiting reader gets a record as soon as it is committed; an idle one waits until its timeout."""
    loop = asyncio.get_running_loop()
    async with holder(harness) as (bus, leases):
        readers = [(await harness.open()).reader(everything("out")) for _ in range(3)]
        polls = [asyncio.create_task(reader.poll(timeout_seconds=60)) for reader in readers]
        nothing = bus.reader({("out", 3): 0})
        idle = asyncio.create_task(nothing.poll(timeout_seconds=5))
        began = loop.time()
        await asyncio.sleep(3)
        assert not any(poll.done() for poll in polls)
        await bus.step(leases[0], [Output("out", 2, b"k", b"v")])
        stepped = loop.time()
        for poll in polls:
            assert [record.value for record in await poll] == [b"v"]
        assert loop.time() - stepped <= harness.wake_seconds
        assert await idle == []
        assert 4.9 <= loop.time() - began <= 6


async def check_pause_assign_unassign(harness: Harness) -> None:
    """A paused partition keeps its position, an unassigned one ends, an assigned one starts as given."""
    async with holder(harness) as (bus, leases):
        reader = bus.reader({("out", 0): 0, ("out", 1): 0})

        async def keys() -> list[bytes]:
            found = []
            while records := await reader.poll(timeout_seconds=harness.wake_seconds + 0.1):
                found += [record.key for record in records]
            return sorted(found)

        async def write(name: bytes) -> None:
            await bus.step(leases[0], [Output("out", n, name + b"%d" % n, b"v") for n in range(PARTITIONS)])

        await write(b"a")
        assert await keys() == [b"a0", b"a1"]
        reader.pause([("out", 1)])
        position = reader.position(("out", 1))
        await write(b"b")
        assert await keys() == [b"b0"]
        assert reader.position(("out", 1)) == position
        reader.resume([("out", 1)])
        assert await keys() == [b"b1"]
        reader.unassign([("out", 0)])
        reader.assign({("out", 2): 0, ("out", 1): position})
        assert await keys() == [b"a2", b"b1", b"b2"]
        await write(b"c")
        assert await keys() == [b"c1", b"c2"]
        reader.assign({("out", 0): reader.position(("out", 1))})
        await reader.close()


async def check_no_partition_starves(harness: Harness) -> None:
    """A long backlog in one partition does not delay the records of another."""
    async with holder(harness) as (bus, leases):
        for number in range(20):
            await bus.step(leases[0], [Output("out", 0, b"%d-%d" % (number, i), b"v") for i in range(50)])
        await bus.step(leases[0], [Output("out", 1, b"single", b"v")])
        reader = bus.reader(everything("out"))
        polls = 0
        while True:
            polls += 1
            records = await reader.poll(timeout_seconds=1, max_records=100)
            if polls == 1:
                await asyncio.sleep(harness.wake_seconds)  # until the other partitions' records are there
            assert 0 < len(records) <= 100
            if any(record.key == b"single" for record in records):
                break
        assert polls <= PARTITIONS


async def check_topics(harness: Harness) -> None:
    """Topics can be created twice; different settings are reported and refused; all workers see them."""
    bus, other = await harness.open(), await harness.open()
    await bus.create_topics(TOPICS)
    await other.create_topics(TOPICS)
    changed = TopicSpec(name="out", partitions=PARTITIONS * 2, cleanup="compact")
    new = TopicSpec(name="new", partitions=1, cleanup="compact")
    states = await other.check_topics([new, changed, TABLE])
    assert [(state.name, state.is_there) for state in states] == [
        ("new", False),
        ("out", True),
        ("table", True),
    ]
    assert [bool(state.problems) for state in states] == [False, True, False]
    assert other.how_to_empty() in states[1].problems[0]
    await expect(PermanentError, other.create_topics([new, changed]))
    assert dict(await other.topics()) == {spec.name: spec for spec in TOPICS}
    await other.create_topics([new])
    assert (await bus.topics())["new"] == new
    await expect(PermanentError, bus.join(GROUP, ["out", "new"], assigned=ignore, revoked=ignore))


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
"""All checks of this module, by name."""
