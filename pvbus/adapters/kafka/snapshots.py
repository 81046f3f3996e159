"""Copies of the beginnings of partitions in local files: a start then reads only what came since.

A snapshot has the last record of each key before a position. Who applies it and reads on from that position
has what one has who read from 0, as long as the log before the position is still the one that was read, and
Kafka has dropped no tombstone behind it. Where this cannot be shown (`problem_of`), the file is left out, the
log says why, and the partition is read from 0.

The files are of this machine alone, and may be deleted at any time. Several processes may share a folder:
each file is replaced as a whole, and any of them is right.
"""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from pvbus.adapters.clock import Stopwatch
from pvbus.adapters.files import open_plain, reason_of, seal_of, write_private
from pvbus.core.errors import PvbusError, TransientError, UsageError
from pvbus.ports.bus import Reader, Record, Snapshot, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.telemetry.logs import get_logger

FORMAT = 1
NEWS_MIN = 100
"""A file is written again after so many offsets, or `NEWS_SHARE` of its records if these are more: reading
them takes some milliseconds, and writing a file costs as much as reading it."""
NEWS_SHARE = 0.1
RENEWAL_SHARE = 0.5
"""A file is written again at this share of the age at which it is left out, whatever is new."""

READ_SECONDS_MAX = 600.0
"""How long reading on for one file may take. A log that is made again meanwhile may never get so far."""

LOOK_SECONDS_MAX = 5.0
"""How long a start waits for what Kafka says of its logs."""
PAUSE_SECONDS = 60.0
"""How long it does not ask again: each partition that is restored would wait anew."""

_Row = tuple[int, bytes, bytes, tuple[tuple[str, bytes], ...], int]  # offset, key, value, headers, time in ms


class LogState(NamedTuple):
    """What Kafka says of a partition.

    topic_id: a UUID as hex digits, which a topic that is made again does not have
    leader_epoch: rises with each new leader
    begin: the offset before which all records were deleted on demand
    end: the offset behind the last record
    tombstone_seconds: how long tombstones stay at least
    """

    topic_id: str
    leader_epoch: int
    begin: int
    end: int
    tombstone_seconds: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of the partition, as it was when the file was written.

    read_at: wall seconds; everything that was written before is in the file
    """

    format: int
    topic: str
    partition: int
    topic_id: str
    leader_epoch: int
    begin: int
    tombstone_seconds: int
    position: int
    read_at: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Head, list[_Row]])
_SEAL_BYTES = len(seal_of(b""))


def problem_of(head: Head, name: TopicPartition, log: LogState, now: float) -> str:
    """Return why a snapshot may differ from what the log says now, "" if it cannot.

    name: the topic's name in the cluster, and the partition
    now: wall seconds. A clock that is set back makes a file younger: half of the tombstones' time is the
        margin, as reading on takes seconds.
    """
    age = now - head.read_at
    if head.format != FORMAT:
        return f"it has the format {head.format}, and this version reads {FORMAT}"
    if (head.topic, head.partition) != name:
        return f"it is of {head.topic}-{head.partition}"
    if head.topic_id != log.topic_id:
        return "the topic was deleted and made again"
    if head.begin != log.begin:
        return f"the log began at {head.begin}, and begins at {log.begin}: records were deleted"
    if head.position > log.end:
        return f"it ends at {head.position}, and the log at {log.end}: records were lost"
    if head.leader_epoch > log.leader_epoch:
        return "the leader's epoch went back: the cluster was restored from a copy"
    if head.tombstone_seconds != log.tombstone_seconds or not log.tombstone_seconds:
        return "the time that tombstones stay was changed"
    if age < 0:
        return "it is from the future: a clock was set back"
    if age >= log.tombstone_seconds / 2:
        return f"it is {age / 3600:.0f} hours old: tombstones that came since may be gone"
    return ""


def encoded(head: Head, rows: Iterable[_Row]) -> bytes:
    body = _encoder.encode((head, list(rows)))
    return seal_of(body).encode() + body


def decoded(content: bytes) -> tuple[Head, list[_Row]]:
    """Raises ValueError or MsgspecError if a byte is not as `encoded` returned it."""
    seal, body = content[:_SEAL_BYTES], content[_SEAL_BYTES:]
    if seal != seal_of(body).encode():
        raise ValueError("it is damaged, or was never written to its end")
    return _decoder.decode(body)


_File = tuple[Head, list[_Row]]


class _Known(NamedTuple):
    """What is known of a partition.

    head, rows: of its file; None and none without a file that can be trusted
    log: its state, after the file was read
    """

    head: Head | None
    rows: list[_Row]
    log: LogState


class _Due(NamedTuple):
    """When a file is written again: if the log ends there, or at this time in wall seconds."""

    end: int
    time: float


class Snapshots:
    """The files of one process, and the task that writes them.

    wanted: the partitions that were asked for, whose files are written
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        named: Callable[[str], str],
        look: Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, LogState]]],
        reader: Callable[[Mapping[TopicPartition, int]], Reader],
    ) -> None:
        """Read and write nothing yet. Raises UsageError for a folder that cannot be, or is not ours alone.

        named: returns a topic's name in the cluster, which files are named after
        look: returns the state of each of these partitions that exists and is compacted
        reader: returns a new reader
        """
        self._folder = folder
        self._clock = clock
        self._named = named
        self._look = look
        self._reader = reader
        self._due: dict[TopicPartition, _Due] = {}
        self._failed: Stopwatch | None = None
        self._log = get_logger("snapshots")
        self.wanted: set[TopicPartition] = set()
        _make_own(folder)

    async def load(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Snapshot]:
        """Return the snapshots that there are of partitions, none of them after a request that failed.

        Without them a start takes longer, but it must not wait for what it can do without.
        """
        self.wanted.update(partitions)
        if self._failed is not None and self._failed.seconds < PAUSE_SECONDS:
            return {}
        files = [partition for partition in partitions if self._path(partition).exists()]
        found: dict[TopicPartition, Snapshot] = {}
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX):
                known = await self._read_files(files)
        except (TransientError, TimeoutError) as exc:
            self._failed = Stopwatch(self._clock)
            why = reason_of(exc) or "Kafka does not answer"
            self._log.warning("snapshots are left out", seconds=PAUSE_SECONDS, why=why)
            return {}
        for (topic, number), (head, rows, _) in known.items():
            if head is not None:
                records = [Record(topic, number, *row) for row in rows]
                found[topic, number] = Snapshot(head.position, records)
        return found

    async def _read_files(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, _Known]:
        """Return the file and the log of each of these partitions that exists and is compacted.

        The log is looked at after the file was read: another process may write a newer one meanwhile.
        """
        files = {partition: await asyncio.to_thread(_read, self._path(partition)) for partition in partitions}
        logs = await self._look(partitions) if partitions else {}
        return {partition: self._check(partition, files[partition], log) for partition, log in logs.items()}

    def _check(self, partition: TopicPartition, file: _File | str, log: LogState) -> _Known:
        if isinstance(file, str):
            problem = file
        else:
            name = self._named(partition[0]), partition[1]
            problem = problem_of(file[0], name, log, self._clock.now())
            if not problem:
                self._due[partition] = _due_after(file[0], len(file[1]))
                return _Known(*file, log)
        if problem:
            self._log.warning("a snapshot is left out", file=self._path(partition).name, why=problem)
        return _Known(None, [], log)

    def _path(self, partition: TopicPartition) -> Path:
        return self._folder / f"{self._named(partition[0])}-{partition[1]}.snapshot"

    # ------------------------------------------------------------ writing

    async def keep(self, seconds: float, is_read: Callable[[TopicPartition], bool]) -> None:
        """Bring the files of the partitions that are read here up to date, again and again; never return.

        seconds: between two rounds
        is_read: whether a partition that was asked for is still this process's
        """
        while True:
            await self._clock.sleep(seconds)
            self.wanted = {partition for partition in self.wanted if is_read(partition)}
            with self._telling():
                for partition, log in (await self._look(sorted(self.wanted))).items():
                    due = self._due.get(partition)
                    if due is None or log.end >= due.end or self._clock.now() >= due.time:
                        with self._telling():
                            await self.update(partition)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Log what prevents a file: the service goes on, and so do the other files."""
        try:
            yield
        except (PvbusError, OSError) as exc:  # a TimeoutError is an OSError
            why = reason_of(exc) or "it took too long"
            self._log.warning("a snapshot cannot be written", folder=str(self._folder), why=why)

    async def update(self, partition: TopicPartition) -> None:
        """Bring a file up to date with the log. Raises PvbusError and OSError; TimeoutError is one."""
        asked = self._clock.now()
        known = (await self._read_files([partition])).get(partition)
        if known is None:
            return
        position, log = known.head.position if known.head is not None else 0, known.log
        rows = {row[1]: row for row in known.rows}
        async with asyncio.timeout(READ_SECONDS_MAX):
            position = await self._read_on(partition, position, log.end, rows)
        after = (await self._look([partition])).get(partition)
        if after is None or (after.topic_id, after.begin) != (log.topic_id, log.begin):
            return
        head = Head(
            format=FORMAT,
            topic=self._named(partition[0]),
            partition=partition[1],
            topic_id=log.topic_id,
            leader_epoch=after.leader_epoch,
            begin=log.begin,
            tombstone_seconds=log.tombstone_seconds,
            position=position,
            read_at=asked,
        )
        await asyncio.to_thread(_write, self._path(partition), head, sorted(rows.values()))
        self._due[partition] = _due_after(head, len(rows))

    async def _read_on(
        self, partition: TopicPartition, position: int, end: int, rows: dict[bytes, _Row]
    ) -> int:
        """Update rows by what the log has up to an end; return the position that was reached."""
        reader = self._reader({partition: position})
        try:
            while reader.position(partition) < end:
                for record in await reader.poll(timeout_seconds=1.0):
                    if record.value is None:
                        rows.pop(record.key, None)
                    else:
                        rows[record.key] = (record.offset, record.key, record.value, *record[5:])
            return reader.position(partition)
        finally:
            await reader.close()


def _make_own(folder: Path) -> None:
    """Make a folder that only we can write to: who can plant a file there decides what is deleted."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError as exc:
        raise UsageError(f"PVBUS_KAFKA_SNAPSHOTS: {folder}: {reason_of(exc)}") from exc
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UsageError(f"PVBUS_KAFKA_SNAPSHOTS: {folder}: others may write there: name a folder below it")


def _due_after(head: Head, count: int) -> _Due:
    """Return when a file of so many rows is worth writing again."""
    news = int(max(NEWS_MIN, count * NEWS_SHARE))
    return _Due(head.position + news, head.read_at + head.tombstone_seconds / 2 * RENEWAL_SHARE)


def _read(path: Path) -> _File | str:
    """Return a file's content, or why it has none; "" if there is no file."""
    try:
        if not path.exists():
            return ""
        with open_plain(path) as stream:
            return decoded(stream.read())
    except (OSError, ValueError, msgspec.MsgspecError, UsageError) as exc:
        return str(exc)


def _write(path: Path, head: Head, rows: list[_Row]) -> None:
    write_private(path, encoded(head, rows))
