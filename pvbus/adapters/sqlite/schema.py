"""The tables of the bus's file, and the check that a file is a bus."""

import sqlite3

from pvbus.core.errors import PermanentError

APPLICATION_ID = 0x70766275  # "pvbu"
SCHEMA_VERSION = 3

# `log.lane` and `log.key` are used for compaction only: an INSERT OR REPLACE deletes the older record
# of the key. Topics with retention leave lane NULL, and NULLs do not collide. `expires_ms` is when a
# tombstone, or a record of a topic with retention, may be deleted.
SCHEMA = """
    CREATE TABLE topics (id INTEGER PRIMARY KEY, spec BLOB NOT NULL);
    CREATE TABLE lanes (lane INTEGER PRIMARY KEY, next INTEGER NOT NULL);
    CREATE TABLE log (
        position INTEGER PRIMARY KEY, lane INTEGER, key BLOB NOT NULL, value BLOB, headers BLOB,
        timestamp_ms INTEGER NOT NULL, expires_ms INTEGER
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
        consumer_group TEXT, partition INTEGER, topic TEXT, next INTEGER NOT NULL,
        PRIMARY KEY (consumer_group, partition, topic)
    ) WITHOUT ROWID
"""


def how_to_empty(path: str) -> str:
    return f"move the bus's file away (mv {path} {path}.old)"


def prepare(db: sqlite3.Connection, path: str) -> None:
    """Create the tables in a new file. Raises PermanentError if the file is not a bus of this schema."""
    db.execute("BEGIN IMMEDIATE")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if error := _refusal(path, application, version) if tables else None:
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
