"""The SQLite side of the bus: statements, transactions, and the listeners for new records.

One `Store` per file and process (or per memory bus), with one connection. A transaction runs from
BEGIN to COMMIT without yielding to the event loop, so tasks of one process never overlap inside one;
processes wait for each other in `write`, without blocking the loop.

A *lane* is one partition of one topic, as an integer. A *position* is a lane and an offset in one integer,
which is the row id of the log: a partition is a contiguous range of rows, in offset order.
"""

import asyncio
import contextlib
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from pvbus.adapters.checks import check_partition
from pvbus.adapters.sqlite.liveness import ProcessLock
from pvbus.adapters.sqlite.schema import (
    RECORD_COLUMNS,
    check,
    check_records,
    damaged,
    prepare,
    seal_of,
    seal_of_record,
)
from pvbus.adapters.sqlite.tail import Tail
from pvbus.core.errors import NO_MEMORY, InvariantError, PermanentError, PvbusError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.ports.bus import Output, Record, TopicSpec

T = TypeVar("T")

MEMORY = ":memory:"
ON_DISK = ""
"""A file without a name, which goes with its connection. Only what is in the cache takes memory."""

# 63 bits of a row id: 11 for the topic, 12 for the partition, 40 for the offset. 2000 topics of
# 4096 partitions, and 10,000 records a second for three years in each of them.
PARTITION_BITS = 12
OFFSET_BITS = 40
CACHE_BYTES = 8 << 20
"""Pages that SQLite has in memory, in each process. Reads of the file itself go by the mapping; what is left
are pages of the log before a checkpoint. With 32 MB, making 10,000 variants took no less CPU."""
OFFSET_MASK = (1 << OFFSET_BITS) - 1
PARTITIONS_MAX = 1 << PARTITION_BITS
TOPICS_MAX = (1 << 11) - 1

BUSY_JITTER: Jitter = random.uniform
BUSY_DELAY_SECONDS = (0.001, 0.02)  # the first wait and the longest: transactions take milliseconds
BUSY_SECONDS_MAX = 5.0  # half a session: a worker that waits longer risks its leases
OPEN_BUSY_SECONDS = 5.0
EXPIRE_ROWS_MAX = 500  # about 5 ms of the loop's time
CHECKPOINT_PAGES = 4000  # 16 MB instead of the default 4 MB: a checkpoint waits for the disk

_Headers = tuple[tuple[str, bytes], ...]
_encode_headers = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(_Headers).decode
_encode_spec = msgspec.json.Encoder(order="deterministic").encode
_decode_spec = msgspec.json.Decoder(TopicSpec).decode


class StoredTopic(NamedTuple):
    """A topic as it is stored.

    spec: its declaration
    lane: the lane of its first partition
    keep_ms: how long records are retained, in milliseconds; None is forever
    tombstone_ms: how long tombstones are retained, in milliseconds; None is forever
    """

    spec: TopicSpec
    lane: int
    keep_ms: int | None
    tombstone_ms: int | None


class Listener(Protocol):
    """Called when a lane has grown, and when the store fails."""

    def note_growth(self, lane: int) -> None: ...

    def wake(self) -> None: ...


_NO_ROOM = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NO_TEXT = "Could not decode to UTF-8"  # Python's own error, which has no code


def translated(exc: sqlite3.Error | MemoryError, path: str) -> PvbusError:
    """Return the bus's error for a SQLite error; SQLite's own lack of memory is a MemoryError."""
    if isinstance(exc, MemoryError):
        return TransientError(f"bus: {NO_MEMORY}")
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF  # the primary code, without the extension
    if code in _DAMAGED or _NO_TEXT in str(exc):
        return damaged(path, exc)
    if code in _NO_ROOM:
        return TransientError(
            f"the bus's file cannot be written ({exc}): make room on the disk, or see why nothing can be "
            "written to it; it is tried again"
        )
    return TransientError(f"bus: {exc}")


def _not_opened(exc: Exception, path: str) -> PvbusError:
    """Return the error for a file that cannot be opened."""
    if isinstance(exc, PvbusError):
        return exc
    if not isinstance(exc, sqlite3.Error | OSError):
        return damaged(path, exc)
    error = translated(exc, path) if isinstance(exc, sqlite3.Error) else None
    if isinstance(error, PermanentError):
        return error
    advice = "check that its folder is there, that it is a file that may be written, and that there is room"
    if getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        advice = "the process that has it may be stopped in the middle of a write; let it go on and try again"
    return PermanentError(f"{path} cannot be opened as a bus: {exc}: {advice}", reason="CannotOpen")


class Store:
    """The log, and all tables that must change with it in one transaction.

    A compacted record replaces the former one of its key in the same statement: the log has at most one row
    of a lane and a key, so nothing needs to be compacted later. The ends of lanes are in memory, too. They
    change after COMMIT only (`_grown` and `_appended` have those of the running transaction), or when another
    process has committed, so listeners never see an offset that a rollback takes back.

    topics: the topics, by name
    ends: the next offset of each lane, as of the last commit that was read
    is_shared: whether other processes may have the file open
    lock: shows other processes that this one runs, None for a memory bus
    """

    def __init__(self, path: str, *, poll_seconds: float) -> None:
        self.path = path
        self._poll_seconds = poll_seconds
        self.is_shared = path not in (MEMORY, ON_DISK)
        self.topics: dict[str, StoredTopic] = {}
        self.ends: dict[int, int] = {}
        self._listeners: defaultdict[int, set[Listener]] = defaultdict(set)
        self._grown: dict[int, int] = {}
        self._appended: dict[int, list[Record]] = {}
        self._tail = Tail()
        self._data_version = 0
        self._watchers = 0
        self._watch_task: asyncio.Task[None] | None = None
        self.is_closed = False
        self.lock: ProcessLock | None = None
        try:
            self.db = self._connect()
            self.lock = ProcessLock(path) if self.is_shared else None
            if self.lock is not None and self.lock.is_alone():
                check(self.db, path)
            self._load()
        except (sqlite3.Error, OSError, msgspec.MsgspecError, ValueError, TypeError, PvbusError) as exc:
            if self.lock is not None:
                self.db.close()
                self.lock.release()
            raise _not_opened(exc, path) from exc

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=OPEN_BUSY_SECONDS, isolation_level=None)
        if self.is_shared:
            db.execute("PRAGMA journal_mode = WAL")
            # A killed process loses nothing; a power failure may lose the last steps, but no part of a step.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            db.execute("PRAGMA mmap_size = 268435456")
        db.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
        prepare(db, self.path)
        db.execute("PRAGMA busy_timeout = 0")  # from here on `write` waits without blocking the event loop
        return db

    def close(self) -> None:
        """Close the file, and wake all listeners, which then raise that the bus is closed."""
        if not self.is_closed:
            self.is_closed = True
            self.db.close()
            if self.lock is not None:
                self.lock.release()
            self._wake_all()

    def check_open(self) -> None:
        if self.is_closed:
            raise TransientError("the bus is closed")

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:
        """Read outside of a transaction: a single statement, so a consistent one."""
        self.check_open()
        try:
            return self.db.execute(sql, parameters).fetchall()
        except (sqlite3.Error, MemoryError) as exc:
            raise translated(exc, self.path) from exc

    # Transactions

    async def write(self, work: Callable[[], T]) -> T:
        """Run `work` in one transaction.

        While another process has the file locked, this waits and yields to the event loop; from BEGIN to
        COMMIT it does not yield. Raises any error of `work`, after a rollback; TransientError or
        PermanentError for an error of the file itself.
        """
        if not self._begin():
            await self._begin_later()
        try:
            result = work()
            self.db.execute("COMMIT")
        except BaseException as exc:
            self._grown, self._appended = {}, {}
            if self.db.in_transaction:  # SQLite rolls back by itself after some errors
                self.db.execute("ROLLBACK")
            if isinstance(exc, sqlite3.Error | MemoryError):
                raise translated(exc, self.path) from exc
            raise
        for lane, records in self._appended.items():
            is_compacted = self.topics[records[0].topic].spec.cleanup == "compact"
            self._tail.add(lane, records, is_compacted=is_compacted)
        grown, self._grown, self._appended = self._grown, {}, {}
        self._publish(grown)
        return result

    async def _begin_later(self) -> None:
        """Begin when the other process unlocks the file."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BUSY_SECONDS_MAX
        backoff = Backoff(*BUSY_DELAY_SECONDS, BUSY_JITTER)
        while True:
            await asyncio.sleep(backoff.next_seconds())
            if self._begin():
                return
            if loop.time() > deadline:
                raise TransientError(f"{self.path}: another process keeps the bus's file locked")

    def _begin(self) -> bool:
        self.check_open()
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise translated(exc, self.path) from exc
            return False
        return True

    # Changes of other processes

    def refresh(self) -> None:
        """Read the commits of other processes, and notify the listeners."""
        self.check_open()
        if self.is_shared:
            ((version,),) = self.query("PRAGMA data_version")
            if version != self._data_version:
                self._data_version = version
                self._load()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Poll for other processes' records while a reader waits; one poll serves all readers."""
        self._watchers += 1
        if self.is_shared and self._watch_task is None:
            self._watch_task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self._watchers -= 1

    async def _watch(self) -> None:
        try:
            while self._watchers:
                await asyncio.sleep(self._poll_seconds)
                self.refresh()
        except PvbusError:
            self._wake_all()  # each reader then queries the store and raises the error
        finally:
            self._watch_task = None

    def _load(self) -> None:
        ends: list[tuple[int, int]] = self.query("SELECT lane, next FROM lanes")
        if len(ends) != len(self.ends):
            self.load_topics()
        self._publish({lane: end for lane, end in ends if self.ends.get(lane) != end})

    def load_topics(self) -> None:
        self.topics = {
            spec.name: StoredTopic(spec, number << PARTITION_BITS, *_lifetime_ms(spec))
            for number, spec in self._stored_topics()
        }

    def _stored_topics(self) -> list[tuple[int, TopicSpec]]:
        rows = self.query("SELECT id, spec FROM topics ORDER BY id")
        return [(number, _decode_spec(spec)) for number, spec in rows]

    # Listeners

    def listen(self, lane: int, listener: Listener) -> None:
        self._listeners[lane].add(listener)

    def unlisten(self, lane: int, listener: Listener) -> None:
        self._listeners[lane].discard(listener)

    def _wake_all(self) -> None:
        for listener in set().union(*self._listeners.values()):
            listener.wake()

    def _publish(self, ends: Mapping[int, int]) -> None:
        self.ends.update(ends)
        for lane in ends:
            for listener in tuple(self._listeners.get(lane, ())):
                listener.note_growth(lane)

    # Topics

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create missing topics. Call inside `write`, and `load_topics` after it."""
        known = {spec.name: spec for _, spec in self._stored_topics()}
        for spec in specs:
            before = known.setdefault(spec.name, spec)
            if before is spec:
                self._create_topic(spec)
            elif before != spec:
                raise PermanentError(
                    f"topic {spec.name} exists with other settings: {before}, wanted {spec}",
                    reason="TopicDiffers",
                )

    def _create_topic(self, spec: TopicSpec) -> None:
        number = self.db.execute("INSERT INTO topics (spec) VALUES (?)", (_encode_spec(spec),)).lastrowid
        if number is None or number > TOPICS_MAX or not 0 < spec.partitions <= PARTITIONS_MAX:
            raise PermanentError(
                f"topic {spec.name}: at most {TOPICS_MAX} topics of 1 to {PARTITIONS_MAX} partitions",
                reason="InvalidTopic",
            )
        first = number << PARTITION_BITS
        lanes = range(first, first + spec.partitions)
        self.db.executemany(
            "INSERT INTO lanes VALUES (?, 0, ?)", ((lane, seal_of(lane, 0)) for lane in lanes)
        )
        self._grown.update(dict.fromkeys(lanes, 0))

    def topic(self, name: str) -> StoredTopic:
        """Return a topic. Raises PermanentError for an unknown one, which is a bug of the caller."""
        if name not in self.topics:
            self.refresh()  # another process may have created it
        if (topic := self.topics.get(name)) is None:
            raise PermanentError(f"no topic {name}", reason="UnknownTopic")
        return topic

    def lane(self, name: str, partition: int) -> int:
        topic = self.topic(name)
        check_partition(name, partition, topic.spec.partitions)
        return topic.lane + partition

    # The log

    def append(self, outputs: Sequence[Output], now_ms: int) -> None:
        """Write records at the ends of their partitions. Call inside `write`, with checked outputs."""
        topics = {name: self.topic(name) for name in {output.topic for output in outputs}}
        ends: dict[int, int] = {}
        rows = []
        for name, partition, key, value, headers in outputs:
            spec, first, keep_ms, tombstone_ms = topics[name]
            lane = first + partition
            offset = ends.get(lane)
            if offset is None:
                (offset,) = self.db.execute("SELECT next FROM lanes WHERE lane = ?", (lane,)).fetchone()
            ends[lane] = offset + 1
            lifetime_ms = tombstone_ms if value is None else keep_ms
            position = lane << OFFSET_BITS | offset
            encoded = _encode_headers(headers) if headers else None
            record = Record(name, partition, offset, key, value, headers, now_ms)
            self._appended.setdefault(lane, []).append(record)
            rows.append(
                (
                    position,
                    lane if spec.cleanup == "compact" else None,
                    key,
                    value,
                    encoded,
                    now_ms,
                    None if lifetime_ms is None else now_ms + lifetime_ms,
                    seal_of_record(position, key, value, encoded, now_ms),
                )
            )
        self.db.executemany("INSERT OR REPLACE INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        self.db.executemany(
            "UPDATE lanes SET next = ?, seal = ? WHERE lane = ?",
            ((end, seal_of(lane, end), lane) for lane, end in ends.items()),
        )
        self._grown.update(ends)

    def read(self, name: str, partition: int, lane: int, start: int, end: int, limit: int) -> list[Record]:
        """Read at most `limit` records of a lane from `start` on, before `end`."""
        self.check_open()
        newest = self._tail.read(lane, start, end, limit)
        if newest is not None:
            return newest
        rows = self.query(
            f"SELECT {RECORD_COLUMNS} FROM log"
            " WHERE position >= ? AND position < ? ORDER BY position LIMIT ?",
            (lane << OFFSET_BITS | start, lane << OFFSET_BITS | end, limit),
        )
        check_records(rows, self.path, name)
        return [
            Record(
                name,
                partition,
                position & OFFSET_MASK,
                key,
                value,
                _decode_headers(headers) if headers else (),
                timestamp_ms,
            )
            for position, key, value, headers, timestamp_ms, _ in rows
        ]

    def begin(self, lane: int) -> int:
        """Return the offset of the first record of a lane, its end if there is none."""
        end = self.ends[lane]
        ((first,),) = self.query(
            "SELECT min(position) FROM log WHERE position >= ? AND position < ?",
            (lane << OFFSET_BITS, lane << OFFSET_BITS | end),
        )
        return end if first is None else first & OFFSET_MASK

    def expire(self, now_ms: int) -> int:
        """Delete up to `EXPIRE_ROWS_MAX` expired records; return the number deleted. Call inside `write`."""
        deleted = self.db.execute(
            "DELETE FROM log WHERE position IN"
            " (SELECT position FROM log WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?)",
            (now_ms, EXPIRE_ROWS_MAX),
        ).rowcount
        if deleted:
            self._tail.clear()
        return deleted

    # Leases and their offsets

    def epoch(self, group: str, partition: int) -> int | None:
        row = self.db.execute(
            "SELECT epoch FROM leases WHERE consumer_group = ? AND partition = ?", (group, partition)
        ).fetchone()
        return None if row is None else row[0]

    def commit_offsets(self, group: str, partition: int, offsets: Mapping[str, int]) -> None:
        """Advance the committed offsets of a lease. Call inside `write`.

        Raises InvariantError if one would move back.
        """
        for topic, offset in offsets.items():
            changed = self.db.execute(
                "INSERT INTO offsets VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT DO UPDATE SET next = excluded.next, seal = excluded.seal"
                " WHERE excluded.next >= next",
                (group, partition, topic, offset, seal_of(group, partition, topic, offset)),
            ).rowcount
            if offset < 0 or not changed:
                raise InvariantError(f"step would move {group}/{partition} back to {topic}@{offset}")

    def committed(self, group: str, partition: int) -> tuple[int | None, dict[str, int]]:
        """Return a lease's epoch and its committed offsets by topic, read consistently."""
        rows = self.query(
            "SELECT l.epoch, o.topic, o.next FROM leases l"
            " LEFT JOIN offsets o USING (consumer_group, partition)"
            " WHERE l.consumer_group = ? AND l.partition = ?",
            (group, partition),
        )
        return (rows[0][0] if rows else None), {topic: offset for _, topic, offset in rows if topic}


def _lifetime_ms(spec: TopicSpec) -> tuple[int | None, int | None]:
    """Return the retention of records and of tombstones, in milliseconds; None is forever."""
    if spec.cleanup == "compact":
        return None, spec.tombstone_seconds * 1000
    keep_ms = None if spec.retention_seconds is None else spec.retention_seconds * 1000
    return keep_ms, keep_ms
