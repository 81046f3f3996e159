"""The tables of the bus's file, and the checks that a file is a bus, and a whole one.

SQLite notices damage of its own structures only. So what decides what is read has a seal, a checksum of the
row: records, the ends of partitions, and the positions of workers. Versions of the file: 4 has seals; 3 had
none, and gets the columns when it is opened.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from pvbus.core.errors import PermanentError

APPLICATION_ID = 0x70766275  # "pvbu"
SCHEMA_VERSION = 4
UNSEALED_VERSION = 3
_SEALED = ("log", "lanes", "offsets")

# `log.lane` and `log.key` are used for compaction only: an INSERT OR REPLACE deletes the older record
# of the key. Topics with retention leave lane NULL, and NULLs do not collide. `expires_ms` is when a
# tombstone, or a record of a topic with retention, may be deleted.
SCHEMA = """
    CREATE TABLE topics (id INTEGER PRIMARY KEY, spec BLOB NOT NULL);
    CREATE TABLE lanes (lane INTEGER PRIMARY KEY, next INTEGER NOT NULL, seal INTEGER);
    CREATE TABLE log (
        position INTEGER PRIMARY KEY, lane INTEGER, key BLOB NOT NULL, value BLOB, headers BLOB,
        timestamp_ms INTEGER NOT NULL, expires_ms INTEGER, seal INTEGER
    );
    CREATE UNIQUE INDEX log_latest ON log (lane, key) WHERE lane IS NOT NULL;
    CREATE INDEX log_expires ON log (expires_ms) WHERE expires_ms IS NOT NULL;
    CREATE TABLE members (
        id INTEGER PRIMARY KEY AUTOINCREMENT, consumer_group TEXT NOT NULL, process TEXT NOT NULL,
        label TEXT NOT NULL, beat INTEGER NOT NULL DEFAULT 0, leaving INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE leases (
        consumer_group TEXT, partition INTEGER, epoch INTEGER NOT NULL, owner INTEGER,
        PRIMARY KEY (consumer_group, partition)
    ) WITHOUT ROWID;
    CREATE TABLE offsets (
        consumer_group TEXT, partition INTEGER, topic TEXT, next INTEGER NOT NULL, seal INTEGER,
        PRIMARY KEY (consumer_group, partition, topic)
    ) WITHOUT ROWID
"""


RECORD_COLUMNS = "position, key, value, headers, timestamp_ms, seal"


def how_to_empty(path: str) -> str:
    return f"move the bus's file away (mv {path} {path}.old)"


def seal_of(*columns: str | int) -> int:
    """Return the checksum of a row's columns, as they are read back: a member of an IntEnum is a number."""
    plain = tuple(int(column) if isinstance(column, int) else column for column in columns)
    return crc32(repr(plain).encode())


def seal_of_record(position: int, key: bytes, value: bytes | None, headers: bytes | None, ms: int) -> int:
    """Return the checksum of a record. A value that is empty differs from none."""
    state = crc32(b"%d %d %d" % (position, -1 if value is None else len(value), ms))
    return crc32(headers or b"", crc32(value or b"", crc32(key, state)))


def damaged(path: str, problem: object) -> PermanentError:
    why = " ".join(str(problem).split())[:200]
    return PermanentError(
        f"{path}, the bus's file, is damaged ({why}): stop all services, then restore a backup, or "
        f"{how_to_empty(path)}: all tables are made again from the API server",
        reason="Corrupt",
    )


def check(db: sqlite3.Connection, path: str) -> None:
    """Check the whole file, at 3 ms per MB. Raises PermanentError, sqlite3.Error."""
    (problem,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if problem != "ok":
        raise damaged(path, problem)
    for table, columns in (("lanes", "lane, next"), ("offsets", "consumer_group, partition, topic, next")):
        for *row, seal in db.execute(f"SELECT {columns}, seal FROM {table}"):
            if seal is not None and seal != seal_of(*row):
                raise damaged(path, f"a row of {table} is not what was written")


def check_records(rows: Iterable[tuple[Any, ...]], path: str, name: str) -> None:
    """Compare records with their seals, the last column. Raises PermanentError."""
    for *columns, seal in rows:
        try:
            is_whole = seal is None or seal_of_record(*columns) == seal
        except TypeError:
            is_whole = False
        if not is_whole:
            raise damaged(path, f"a record of {name} is not what was written")


def check_all(db: sqlite3.Connection, path: str) -> None:
    """Check the whole file and each record. Raises PermanentError, sqlite3.Error.

    A file of another version is not looked at: it has no seals yet, or others.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version == SCHEMA_VERSION:
        check(db, path)
        check_records(db.execute(f"SELECT {RECORD_COLUMNS} FROM log"), path, "a topic")


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Create the tables in a new file. Raises PermanentError if the file is not a bus of this schema."""
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and (application, version) == (APPLICATION_ID, UNSEALED_VERSION):
        for table in _SEALED:
            db.execute(f"ALTER TABLE {table} ADD COLUMN seal INTEGER")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif error := _refusal(path, application, version) if tables else None:
        db.close()
        raise error
    if not tables:
        for statement in SCHEMA.split(";"):  # executescript would commit first
            db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def _refusal(path: str, application: int, version: int) -> PermanentError | None:
    """Return why a file with tables cannot be used."""
    if application != APPLICATION_ID:
        return PermanentError(f"{path} is some other program's database, not a bus", reason="NotABus")
    if version > SCHEMA_VERSION:
        return PermanentError(
            f"{path} was written by a newer pvbus (schema {version}, known here: {SCHEMA_VERSION});"
            " install that version, or restore a backup made by this one",
            reason="NewerSchema",
        )
    if version < SCHEMA_VERSION:
        return PermanentError(
            f"{path} was written by an older pvbus (schema {version}, needed here: {SCHEMA_VERSION});"
            f" use that version, or stop all services and {how_to_empty(path)}: all tables are made again"
            " from the API server",
            reason="OlderSchema",
        )
    return None
