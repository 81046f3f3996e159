"""Local copies of partitions: a start with them has the same table as one without, or does not use them."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from pvbus.adapters.kafka.snapshots import FORMAT, NEWS_MIN, Head, LogState, Snapshots, problem_of
from pvbus.adapters.memory.virtual_time import SimulatedClock, run_simulated
from pvbus.core.errors import TransientError, UsageError
from pvbus.ports.bus import Record, TopicPartition

TP = ("pvbus.targets", 3)
DAY = 86_400
LOG = LogState("a" * 32, leader_epoch=5, begin=0, end=100, tombstone_seconds=DAY)
HEAD = Head(
    format=FORMAT,
    topic=TP[0],
    partition=TP[1],
    topic_id=LOG.topic_id,
    leader_epoch=5,
    begin=0,
    tombstone_seconds=DAY,
    position=100,
    read_at=1_000_000.0,
)


class Partition:
    """A compacted partition. `compact` drops what is written again, and tombstones that are old enough.

    meanwhile: runs once, before the next look at the log returns what was found
    """

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.state = LOG._replace(end=0)
        self.failing = False
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    def write(self, key: str, value: str | None, now: float = 0.0) -> None:
        end = self.state.end
        text = None if value is None else value.encode()
        headers = (("ce_id", b"1"),) if end % 2 else ()
        self.records.append(Record(*TP, end, key.encode(), text, headers, int(now * 1000)))
        self.state = self.state._replace(end=end + 1)

    def compact(self, now: float) -> None:
        last = {record.key: record.offset for record in self.records}
        old = 1000 * (now - self.state.tombstone_seconds)
        self.records = [
            record
            for record in self.records
            if last[record.key] == record.offset and (record.value is not None or record.timestamp_ms > old)
        ]

    async def look(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogState]:
        if self.failing:
            raise TransientError("no broker answers")
        found = dict.fromkeys(partitions, self.state)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return found

    def reader(self, positions: Mapping[TopicPartition, int]) -> Any:
        if TP not in positions:
            raise TransientError("the partition has no leader")
        return Reading(self, positions[TP])


class Reading:
    """Reads a few records at a time; others may write and compact in between."""

    def __init__(self, partition: Partition, position: int) -> None:
        self._partition = partition
        self._position = position

    def position(self, partition: TopicPartition) -> int:
        return self._position

    async def poll(self, *, timeout_seconds: float, max_records: int = 7) -> list[Record]:
        await asyncio.sleep(0.01)
        found = [record for record in self._partition.records if record.offset >= self._position][:7]
        self._position = found[-1].offset + 1 if found else self._partition.state.end
        return found

    async def close(self) -> None:
        return


def snapshots_of(partition: Partition, folder: Path) -> Snapshots:
    return Snapshots(
        folder,
        SimulatedClock(),
        named=lambda topic: f"prefix.{topic}",
        look=partition.look,
        reader=partition.reader,
    )


Table = dict[bytes, tuple[Any, ...]]


def table_of(records: Sequence[Record], table: Table | None = None) -> Table:
    """Return the rows that are left after these records."""
    rows = dict(table or {})
    for record in records:
        if record.value is None:
            rows.pop(record.key, None)
        else:
            rows[record.key] = record
    return rows


async def restored(partition: Partition, folder: Path) -> tuple[Table, int]:
    """Return the table of a start, and the position up to which nothing was read."""
    found = await snapshots_of(partition, folder).load([TP])
    records, position = (found[TP].records, found[TP].position) if TP in found else ((), 0)
    assert [record.offset for record in records] == sorted(record.offset for record in records)
    rest = [record for record in partition.records if record.offset >= position]
    return table_of(rest, table_of(records)), position


@pytest.mark.parametrize("seed", range(20))
def test_a_start_with_files_has_the_table_that_one_without_has(seed: int, tmp_path: Path) -> None:
    """Whatever is written, deleted and compacted, before, between and while files are written."""
    dice, partition = random.Random(seed), Partition()

    def change() -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(dice.randrange(30)):
            key = f"key-{dice.randrange(25)}"
            partition.write(key, None if dice.random() < 0.3 else f"{dice.random()}", now)
        if dice.random() < 0.5:
            partition.compact(now)

    async def main() -> None:
        used = 0
        for _ in range(15):
            change()
            update = asyncio.create_task(snapshots_of(partition, tmp_path).update(TP))
            await asyncio.sleep(dice.choice((0.0, 0.01, 0.03)))
            change()
            await update
            change()
            await asyncio.sleep(dice.choice((1.0, DAY / 10, DAY / 3, DAY / 2, DAY)))
            partition.compact(asyncio.get_running_loop().time())
            table, position = await restored(partition, tmp_path)
            assert table == table_of(partition.records)
            used += position > 0
        assert used

    run_simulated(main())


@pytest.mark.parametrize(
    ("head", "log", "age", "why"),
    [
        ({}, {}, DAY / 2 - 1, ""),
        ({"position": 60}, {"end": 1000, "leader_epoch": 9}, 0, ""),
        ({}, {}, DAY / 2, "hours old"),
        ({}, {}, -1, "from the future"),
        ({"format": FORMAT + 1}, {}, 0, "format"),
        ({"topic": "pvbus.sets"}, {}, 0, "it is of pvbus.sets-3"),
        ({"partition": 2}, {}, 0, "it is of pvbus.targets-2"),
        ({}, {"topic_id": "b" * 32}, 0, "made again"),
        ({}, {"begin": 50}, 0, "records were deleted"),
        ({"position": 101}, {}, 0, "records were lost"),
        ({"leader_epoch": 6}, {}, 0, "restored from a copy"),
        ({}, {"tombstone_seconds": 2 * DAY}, 0, "was changed"),
        ({"tombstone_seconds": 0}, {"tombstone_seconds": 0}, 0, "was changed"),
    ],
)
def test_what_may_be_wrong_is_named(head: dict[str, Any], log: dict[str, Any], age: float, why: str) -> None:
    made, state = msgspec.structs.replace(HEAD, **head), LOG._replace(**log)
    found = problem_of(made, TP, state, HEAD.read_at + age)
    assert why in found
    assert bool(found) == bool(why)


async def _filled(folder: Path) -> tuple[Partition, Path]:
    partition = Partition()
    for number in range(50):
        partition.write(f"key-{number}", "{}")
    await snapshots_of(partition, folder).update(TP)
    (file,) = folder.iterdir()
    return partition, file


def test_a_file_of_which_any_byte_is_wrong_is_left_out_and_written_again(tmp_path: Path) -> None:
    async def main() -> None:
        partition, file = await _filled(tmp_path)
        content = file.read_bytes()
        flipped = content.replace(b"key-7", b"key-6", 1)
        assert flipped != content
        for damaged in (b"", content[:20], content[:-1], flipped, b"{}" + content):
            file.write_bytes(damaged)
            with capture_logs() as lines:
                assert await restored(partition, tmp_path) == (table_of(partition.records), 0)
            assert [line["log_level"] for line in lines] == ["warning"]
            await snapshots_of(partition, tmp_path).update(TP)
            assert await restored(partition, tmp_path) == (table_of(partition.records), 50)

    run_simulated(main())


def test_a_file_under_another_partitions_name_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        partition, file = await _filled(tmp_path)
        file.rename(tmp_path / file.name.replace("-3.", "-4."))
        found = await snapshots_of(partition, tmp_path).load([("pvbus.targets", 4)])
        assert found == {}

    run_simulated(main())


def test_a_topic_that_is_made_again_while_it_is_read_gets_no_file(tmp_path: Path) -> None:
    async def main() -> None:
        partition = Partition()
        partition.write("key", "{}")
        update = asyncio.create_task(snapshots_of(partition, tmp_path).update(TP))
        await asyncio.sleep(0.005)
        partition.state = partition.state._replace(topic_id="b" * 32)
        await update
        assert list(tmp_path.iterdir()) == []

    run_simulated(main())


def test_a_file_is_written_again_for_news_or_with_age(tmp_path: Path) -> None:
    async def main() -> None:
        partition, file = await _filled(tmp_path)
        snapshots = snapshots_of(partition, tmp_path)
        await snapshots.load([TP])
        keeping = asyncio.create_task(snapshots.keep(60.0, lambda _: True))

        async def is_written_within(seconds: float) -> bool:
            before = file.read_bytes()
            await asyncio.sleep(seconds)
            return file.read_bytes() != before

        for _ in range(NEWS_MIN - 1):
            partition.write("key-0", "{}")
        assert not await is_written_within(120)
        partition.write("key-0", "{}")
        assert await is_written_within(120)
        assert not await is_written_within(DAY / 4 - 600)
        assert await is_written_within(600)
        keeping.cancel()

    run_simulated(main())


def test_files_are_written_of_what_was_asked_for_and_is_still_read_here(tmp_path: Path) -> None:
    """A round that fails is not the last one; what other processes read is left to them."""

    async def main() -> None:
        partition, held = Partition(), {TP}
        partition.write("key", "{}")
        snapshots = snapshots_of(partition, tmp_path)
        keeping = asyncio.create_task(snapshots.keep(10.0, held.__contains__))
        await asyncio.sleep(11)
        assert list(tmp_path.iterdir()) == []  # no restore has asked for the partition
        assert await snapshots.load([TP]) == {}
        partition.failing = True
        await asyncio.sleep(10)
        partition.failing = False
        await asyncio.sleep(10)
        (file,) = tmp_path.iterdir()
        assert file.name == "prefix.pvbus.targets-3.snapshot"
        file.unlink()
        held.clear()
        await asyncio.sleep(10)
        assert list(tmp_path.iterdir()) == []
        keeping.cancel()

    run_simulated(main())


def test_a_file_that_another_process_has_just_written_is_no_loss_of_records(tmp_path: Path) -> None:
    """The log is looked at after the file was read."""

    async def main() -> None:
        partition, _ = await _filled(tmp_path)

        async def write_another() -> None:
            for number in range(NEWS_MIN):
                partition.write(f"key-{number}", "{}")
            await snapshots_of(partition, tmp_path).update(TP)

        partition.meanwhile = write_another
        with capture_logs() as lines:
            assert (await restored(partition, tmp_path))[1] == 50
        assert lines == []

    run_simulated(main())


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_start_does_not_wait_for_a_kafka_that_says_nothing_of_its_logs(
    is_silent: bool, tmp_path: Path
) -> None:
    """It reads from 0, as all partitions do that are restored in the next minute."""

    async def main() -> None:
        partition, _ = await _filled(tmp_path)
        snapshots, loop = snapshots_of(partition, tmp_path), asyncio.get_running_loop()
        partition.failing = not is_silent
        partition.meanwhile = partial(asyncio.sleep, 1000) if is_silent else None
        began = loop.time()
        with capture_logs() as lines:
            assert await snapshots.load([TP]) == {}
            assert await snapshots.load([TP]) == {}
        assert [line["event"] for line in lines] == ["snapshots are left out"]
        assert loop.time() - began <= 5
        partition.failing = False
        await asyncio.sleep(61)
        assert (await snapshots.load([TP]))[TP].position == 50

    run_simulated(main())


def test_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"PVBUS_KAFKA_SNAPSHOTS: .*file/folder: Not a directory"):
        snapshots_of(Partition(), tmp_path / "file" / "folder")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    """One below it is made, and is ours alone."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(UsageError, match="others may write there"):
        snapshots_of(Partition(), tmp_path / "open")
    snapshots_of(Partition(), tmp_path / "open" / "own")
    assert (tmp_path / "open" / "own").stat().st_mode & 0o777 == 0o700


def test_a_partition_that_cannot_be_read_costs_the_others_no_file(tmp_path: Path) -> None:
    async def main() -> None:
        partition, stuck = Partition(), ("pvbus.sets", 3)
        partition.write("key", "{}")
        snapshots = snapshots_of(partition, tmp_path)
        await snapshots.load([stuck, TP])
        keeping = asyncio.create_task(snapshots.keep(10.0, lambda _: True))
        await asyncio.sleep(11)
        assert [file.name for file in tmp_path.iterdir()] == ["prefix.pvbus.targets-3.snapshot"]
        keeping.cancel()

    run_simulated(main())
