"""What the SQLite bus makes of files that are not what it expects, and of SQLite's errors."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.adapters.sqlite.liveness import ProcessLock
from pvbus.adapters.sqlite.schema import SCHEMA_VERSION, UNSEALED_VERSION
from pvbus.adapters.sqlite.store import Store, translated
from pvbus.core.errors import PermanentError, TransientError
from pvbus.ports.bus import Lease, PartitionState, TopicSpec


def database(path: Path, *statements: str) -> Path:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()
    return path


async def refusal(path: Path) -> PermanentError:
    with pytest.raises(PermanentError) as caught:
        await SqliteBus.open(path)
    return caught.value


async def test_a_file_of_a_newer_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    await (await SqliteBus.open(path)).close()
    database(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    error = await refusal(path)
    assert error.reason == "NewerSchema"
    assert "install that version" in str(error)
    assert path.read_bytes() == before


async def test_a_file_of_an_older_version_is_refused_and_kept(tmp_path: Path) -> None:
    """The message says what to do: the tables can be made again."""
    path = tmp_path / "bus.db"
    await (await SqliteBus.open(path)).close()
    database(path, f"PRAGMA user_version = {UNSEALED_VERSION - 1}")
    before = path.read_bytes()
    error = await refusal(path)
    assert error.reason == "OlderSchema"
    assert f"schema {UNSEALED_VERSION - 1}, needed here: {SCHEMA_VERSION}" in str(error)
    assert f"mv {path} {path}.old" in str(error)
    assert path.read_bytes() == before


async def test_a_file_that_another_process_keeps_locked_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    await (await SqliteBus.open(path)).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    error = await refusal(path)
    db.close()
    assert error.reason == "CannotOpen"
    assert "the process that has it may be stopped in the middle of a write" in str(error)


async def test_another_programs_database_is_refused_and_kept(tmp_path: Path) -> None:
    path = database(tmp_path / "photos.db", "CREATE TABLE photos (id)", "INSERT INTO photos VALUES (1)")
    assert (await refusal(path)).reason == "NotABus"
    db = sqlite3.connect(path)
    assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("photos",)]
    db.close()


@pytest.mark.parametrize("location", ["text", "folder", "missing/bus.db"])
async def test_what_is_no_database_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "text").write_text("not a database\n" * 1000)
    (tmp_path / "folder").mkdir()
    error = await refusal(tmp_path / location)
    assert error.reason == ("Corrupt" if location == "text" else "CannotOpen")
    assert str(tmp_path / location) in str(error)


async def test_a_file_is_opened_again_with_what_was_in_it(tmp_path: Path) -> None:
    spec = TopicSpec(name="t", partitions=3, cleanup="delete", retention_seconds=60)
    bus = await SqliteBus.open(tmp_path / "bus.db")
    await bus.create_topics([spec])
    await bus.close()
    await bus.close()  # twice does no harm
    again = await SqliteBus.open(tmp_path / "bus.db")
    assert await again.topics() == {"t": spec}
    await again.close()


async def test_a_closed_bus_says_so(tmp_path: Path) -> None:
    bus = await SqliteBus.open(tmp_path / "bus.db")
    await bus.create_topics([TopicSpec(name="t", partitions=1, cleanup="compact")])
    reader = bus.reader({("t", 0): 0})
    await bus.close()
    with pytest.raises(TransientError, match="closed"):
        await reader.poll(timeout_seconds=10)
    with pytest.raises(TransientError, match="closed"):
        await bus.topics()


async def test_a_file_that_stays_locked_is_a_transient_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pvbus.adapters.sqlite.store.BUSY_SECONDS_MAX", 0.05)
    bus = await SqliteBus.open(tmp_path / "bus.db")
    other = sqlite3.connect(tmp_path / "bus.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    spec = TopicSpec(name="t", partitions=1, cleanup="compact")
    with pytest.raises(TransientError, match="locked"):
        await bus.create_topics([spec])
    other.close()
    await bus.create_topics([spec])
    assert await bus.topics() == {"t": spec}
    await bus.close()


@pytest.mark.parametrize("partitions", [0, 4097])
async def test_partition_counts_have_limits(partitions: int) -> None:
    bus = await SqliteBus.open(":memory:")
    with pytest.raises(PermanentError) as caught:
        await bus.create_topics([TopicSpec(name="t", partitions=partitions, cleanup="compact")])
    assert caught.value.reason == "InvalidTopic"
    assert await bus.topics() == {}
    await bus.close()


async def test_a_full_disk_does_not_keep_a_member_from_leaving(tmp_path: Path) -> None:
    """Neither heartbeat nor release can be written; the others take the leases once the process is gone."""
    bus = await SqliteBus.open(tmp_path / "bus.db", heartbeat_seconds=0.01, drain_seconds=0.01)
    await bus.create_topics([TopicSpec(name="t", partitions=2, cleanup="compact")])
    held: set[int] = set()
    both = asyncio.Event()

    async def assigned(lease: Lease) -> None:
        held.add(lease.partition)
        if len(held) == 2:
            both.set()

    async def revoked(lease: Lease) -> None:
        held.remove(lease.partition)

    await bus.join("g", ["t"], assigned=assigned, revoked=revoked)
    async with asyncio.timeout(30):
        await both.wait()
        full = "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        database(
            tmp_path / "bus.db",
            f"CREATE TRIGGER no_beat BEFORE UPDATE ON members {full}",
            f"CREATE TRIGGER no_release BEFORE UPDATE ON leases {full}",
        )
        await bus.close()
    assert not held


def test_errors_of_sqlite_are_told_apart() -> None:
    for code, expected in (
        (sqlite3.SQLITE_FULL, TransientError),
        (sqlite3.SQLITE_IOERR | 3 << 8, TransientError),
        (sqlite3.SQLITE_BUSY, TransientError),
        (sqlite3.SQLITE_CORRUPT, PermanentError),
        (sqlite3.SQLITE_NOTADB, PermanentError),
    ):
        error = sqlite3.DatabaseError("why")
        error.sqlite_errorcode = code
        assert type(translated(error, "bus.db")) is expected, code
        assert "why" in str(translated(error, "bus.db"))


def test_a_process_lock_tells_the_living_from_the_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "bus.db")
    ours, other = ProcessLock(path), ProcessLock(path)
    assert not ours.is_gone(other.process)
    assert not ours.is_gone(ours.process)
    other.release()
    assert ours.is_gone(other.process)
    assert ours.is_gone("1-nobody")
    ours.release()
    assert list(tmp_path.iterdir()) == []


def test_the_path_of_a_store_is_its_file(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "a b.db"), poll_seconds=1)
    assert (tmp_path / "a b.db").exists()
    store.close()


async def test_who_was_killed_holds_nothing_even_before_others_notice(tmp_path: Path) -> None:
    bus = await SqliteBus.open(tmp_path / "bus.db")
    await bus.create_topics([TopicSpec(name="t", partitions=1, cleanup="compact")])
    worker = await SqliteBus.open(tmp_path / "bus.db", heartbeat_seconds=0.01)
    worker.label = "worker"
    given: asyncio.Queue[Lease] = asyncio.Queue()

    async def revoked(lease: Lease) -> None:
        """Nothing is left to do."""

    membership = await worker.join("group", ["t"], assigned=given.put, revoked=revoked)
    await given.get()
    member = membership.member_id
    assert await bus.describe("group", ["t"]) == ({member: "worker"}, {0: PartitionState(member, {"t": 0})})
    await worker.abandon()
    assert await bus.describe("group", ["t"]) == ({}, {0: PartitionState("", {"t": 0})})
    await bus.close()
