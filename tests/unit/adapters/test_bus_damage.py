"""Damage of the bus's file: what is read is what was written, or one sentence says what to do."""

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

import pytest

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.schema import SCHEMA_VERSION
from pvbus.core.errors import PermanentError
from pvbus.ports.bus import Lease, Output, Record, TopicPartition, TopicSpec

FLIPS = int(os.environ.get("PVBUS_TEST_FLIPS", "3"))
"""A twentieth of the random damages; a campaign sets some hundreds."""

TABLE = TopicSpec(name="table", partitions=3, cleanup="compact")
LOG = TopicSpec(name="log", partitions=3, cleanup="delete", retention_seconds=10**6)
LEASE = Lease(group="g", partition=0, epoch=1)


class Position(IntEnum):
    """The sink's position is a stage, not only a number: a seal is of the number."""

    TABLE = 20


async def nothing(lease: Lease) -> None:
    """A callback."""


def output(number: int) -> Output:
    headers = (("kind", b"%d" % number),)
    topic = "log" if number % 2 else "table"
    return Output(topic, number % 3, b"key-%d" % (number % 40), b"value %d " % number * 20, headers)


async def contents(
    path: Path,
) -> tuple[Mapping[str, TopicSpec], list[Record], Mapping[str, int], Mapping[TopicPartition, int]]:
    """Open a file; return topics, records, positions and ends."""
    bus = await SqliteBus.open(path)
    try:
        partitions = [(spec.name, number) for spec in (TABLE, LOG) for number in range(3)]
        reader = bus.reader(dict.fromkeys(partitions, 0))
        records: list[Record] = []
        while batch := await reader.poll(timeout_seconds=0):
            records += batch
        positions = await bus.committed(LEASE, ["table", "log"])
        return await bus.topics(), sorted(records), positions, await bus.end_offsets(partitions)
    finally:
        await bus.close()


async def make(path: Path) -> None:
    bus = await SqliteBus.open(path)
    await bus.create_topics([TABLE, LOG])
    await bus.join("g", ["table", "log"], assigned=nothing, revoked=nothing)
    await bus.step(LEASE, [output(number) for number in range(200)], {"table": Position.TABLE, "log": 10})
    await bus.abandon()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bus") / "bus.db"
    asyncio.run(make(path))
    asyncio.run(contents(path))  # a clean stop writes the log back
    return path


async def test_flipped_bits(made: Path, tmp_path: Path) -> None:
    """Anywhere in the file: in records, positions, ends, topics, and SQLite's own pages."""
    before = await contents(made)
    assert len(before[1]) == 100 + 60
    refused = 0
    for seed in range(20 * FLIPS):
        draw = random.Random(seed)
        path = tmp_path / "bus.db"
        content = bytearray(made.read_bytes())
        start = draw.randrange(len(content))
        for position in range(start, min(len(content), start + draw.choice((1, 8, 64)))):
            content[position] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            after = await contents(path)
        except PermanentError as exc:
            words = str(exc)
            refused += 1
        else:
            words = "" if after == before else f"{seed}: other content"
        assert is_clear(words), (seed, words)
        for rest in tmp_path.glob("bus.db*"):
            rest.unlink()
    assert refused > FLIPS


def is_clear(words: str) -> bool:
    """Whether these are no words at all, or one sentence that names the file and says what to do."""
    steps = ("move the bus's file away", "install that version", "use that version", "not a bus", "or move")
    is_sentence = "\n" not in words and "bus.db" in words and any(step in words for step in steps)
    return not words or is_sentence


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE log SET value = replace(CAST(value AS TEXT), '199', '198') WHERE hex(value) LIKE '%313939%'",
        "UPDATE log SET key = 'other' WHERE position = (SELECT max(position) FROM log)",
        "UPDATE lanes SET next = next + 1",
        "UPDATE offsets SET next = next - 1",
    ],
)
async def test_a_row_that_nobody_wrote(statement: str, made: Path, tmp_path: Path) -> None:
    """SQLite has no reason to complain; the seals do."""
    path = tmp_path / "bus.db"
    shutil.copy(made, path)
    database = sqlite3.connect(path, isolation_level=None)
    database.execute(statement)
    database.close()
    with pytest.raises(PermanentError, match=r"damaged .*restore a backup.*tables are made again") as refused:
        await contents(path)
    assert refused.value.reason == "Corrupt"


async def test_a_file_of_version_3_is_read_on(made: Path, tmp_path: Path) -> None:
    """It has no seals; what is written from now on has."""
    path = tmp_path / "bus.db"
    shutil.copy(made, path)
    before = await contents(path)
    database = sqlite3.connect(path, isolation_level=None)
    for table in ("log", "lanes", "offsets"):
        database.execute(f"ALTER TABLE {table} DROP COLUMN seal")
    database.execute("PRAGMA user_version = 3")
    assert await contents(path) == before
    assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    bus = await SqliteBus.open(path)
    await bus.step(LEASE, [output(1000)], {"table": 21})
    await bus.close()
    sealed = {
        table: database.execute(f"SELECT count(*) FROM {table} WHERE seal IS NOT NULL").fetchone()[0]
        for table in ("log", "lanes", "offsets")
    }
    assert sealed == {"log": 1, "lanes": 1, "offsets": 1}
    database.close()
