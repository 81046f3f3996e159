"""The newest records of the SQLite bus, which all readers of a process share."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.tail import Tail
from pvbus.ports.bus import Lease, Output, Record, TopicSpec

TOPIC = TopicSpec(name="t", partitions=1, cleanup="compact")


def records(first: int, count: int, size: int = 1) -> list[Record]:
    return [Record("t", 0, first + n, b"k", b"v" * size, (), 0) for n in range(count)]


async def opened(path: Path) -> tuple[SqliteBus, Lease]:
    bus = await SqliteBus.open(path)
    await bus.create_topics([TOPIC])
    leases: asyncio.Queue[Lease] = asyncio.Queue()
    await bus.join("g", ["t"], assigned=leases.put, revoked=leases.put)
    return bus, await leases.get()


async def test_readers_of_a_process_share_what_it_wrote(tmp_path: Path) -> None:
    """Two services that read a row have one copy of it, and of the records of others each reads all."""
    bus, lease = await opened(tmp_path / "bus.db")
    other = await SqliteBus.open(tmp_path / "bus.db")
    try:
        await bus.step(lease, [Output("t", 0, b"k", b"value", (("h", b"x"),))])
        seen = [await bus.reader({("t", 0): 0}).poll(timeout_seconds=5) for _ in range(2)]
        elsewhere = await other.reader({("t", 0): 0}).poll(timeout_seconds=5)
        assert seen[0] == seen[1] == elsewhere
        assert seen[0][0].value is seen[1][0].value
        await bus.step(lease, [Output("t", 0, b"l", b"more", ())])
        assert [r.key for r in await other.reader({("t", 0): 0}).poll(timeout_seconds=5)] == [b"k", b"l"]
    finally:
        await other.close()
        await bus.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=8), st.integers(0, 40))
def test_a_tail_has_all_from_its_start_to_its_end_or_nothing(runs: list[tuple[int, int]], start: int) -> None:
    """Whatever other processes wrote in between, and whatever was dropped for its size."""
    tail, end = Tail(bytes_max=16), 0
    for gap, count in runs:
        end += gap
        tail.add(0, records(end, count))
        end += count
        answer = tail.read(0, start, end, 100)
        assert answer is None or [record.offset for record in answer] == list(range(start, end))
        assert answer is None or len(answer) <= 8
        assert tail.read(0, end - 1, end, 100) == records(end - 1, 1)
        assert tail.read(0, end - 1, end + 1, 100) is None


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([b"a", b"b", b"c"])), max_size=30))
def test_a_compacted_tail_has_what_the_file_has(writes: list[tuple[int, bytes]]) -> None:
    """Of each key the last record only, wherever one reads from and however many at once."""
    tail, end = Tail(bytes_max=16), 0
    file: dict[bytes, Record] = {}
    for gap, key in writes:
        for n in range(gap + 1):
            record = Record("t", 0, end, key, b"v", (), 0)
            file.pop(key, None)
            file[key] = record
            if n == gap:  # another process wrote those before it
                tail.add(0, [record], is_compacted=True)
            end += 1
        assert tail.read(0, end - 1, end, 1) == [file[key]]
        for start in range(end):
            for limit in (1, 100):
                answer = tail.read(0, start, end, limit)
                expected = [r for r in file.values() if r.offset >= start][:limit]
                assert answer is None or answer == expected


async def test_readers_get_no_record_that_its_tombstone_replaced(tmp_path: Path) -> None:
    bus, lease = await opened(tmp_path / "bus.db")
    try:
        await bus.step(lease, [Output("t", 0, b"k", b"value", ()), Output("t", 0, b"l", b"other", ())])
        await bus.step(lease, [Output("t", 0, b"k", None, ())])
        read = await bus.reader({("t", 0): 0}).poll(timeout_seconds=5)
        assert [(r.offset, r.key, r.value) for r in read] == [(1, b"l", b"other"), (2, b"k", None)]
    finally:
        await bus.close()


def test_a_tail_forgets_what_has_expired() -> None:
    tail = Tail()
    tail.add(0, records(0, 3))
    tail.clear()
    assert tail.read(0, 0, 3, 10) is None
    tail.add(0, records(3, 2, size=3_000_000))
    assert [tail.read(0, first, 5, 10) for first in (3, 4)] == [None, records(4, 1, size=3_000_000)]
