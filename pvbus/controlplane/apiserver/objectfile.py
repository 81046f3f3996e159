"""The SQLite file of the objects: opens it, checks it, and writes transactions.

SQLite notices damage of its own structures only: a byte that changed inside an object would be served as if
somebody had written it. So each row has a seal, a hash of all its columns, and the row of the revision has
the number of objects and the exclusive or of their seals, with a seal of its own: a row that changed, is gone
or came back is noticed when the file is opened, which reads all rows anyway.

A file is made under another name and renamed, so one that is empty is damaged and not new. Versions of the
format (`PRAGMA user_version`): 1 had no seals, and gets them when it is opened; 2 is this one.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from pvbus.adapters.files import reason_of, write_private
from pvbus.controlplane.apiserver.entries import Change, Entry
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind

SCHEMA_VERSION = 2

_CREATE = """
CREATE TABLE objects (kind TEXT, namespace TEXT, name TEXT, rv INTEGER NOT NULL, data BLOB NOT NULL,
                      seal INTEGER NOT NULL, PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE revision (id INTEGER PRIMARY KEY CHECK (id = 1), rv INTEGER NOT NULL,
                       count INTEGER NOT NULL, sum INTEGER NOT NULL, seal INTEGER NOT NULL)
"""
_SEAL_1 = """
ALTER TABLE objects ADD COLUMN seal INTEGER NOT NULL DEFAULT 0;
ALTER TABLE revision ADD COLUMN count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE revision ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;
ALTER TABLE revision ADD COLUMN seal INTEGER NOT NULL DEFAULT 0
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?)"
_REMOVE = "DELETE FROM objects WHERE kind = ? AND namespace = ? AND name = ?"
_TOTAL = "UPDATE revision SET rv = ?, count = ?, sum = ?, seal = ?"

_DAMAGE = (sqlite3.Error, msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError)
"""The errors of reading rows of any content: a changed byte may also change the type of a column."""

_NO_ACCESS = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
PROBE_BYTES = 1 << 20
"""The size of the write that shows that the disk has room again. Nearly all requests are smaller."""


class ObjectFile:
    """An open file. Use it in one thread at a time. Its methods raise sqlite3.Error, but for `open`."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        """Call `open` instead."""
        self.path = path
        self._database = database
        self._count = self._sum = 0

    @classmethod
    def open(cls, path: Path) -> "ObjectFile":
        """Open the file; make it if there is none. Raises PermanentError: damaged, too new, no room."""
        try:
            if not path.exists():
                _make(path)
            database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (sqlite3.Error, OSError, ValueError) as exc:
            raise damaged(path, exc) from exc
        file = cls(path, database)
        try:
            file._prepare()
        except _DAMAGE as exc:
            database.close()
            raise damaged(path, exc) from exc
        except PermanentError:
            database.close()
            raise
        return file

    def _prepare(self) -> None:
        database = self._database
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise PermanentError(
                f"{self.path} was written by a newer pvbus (data version {version}, this one knows "
                f"{SCHEMA_VERSION}): use that version, or another data folder",
                reason="DataTooNew",
            )
        if version < 1:
            raise ValueError("it has no objects")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        (problem,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if problem != "ok":
            raise ValueError(" ".join(problem.split()))
        if version == 1:
            self._seal_all()

    def _seal_all(self) -> None:
        """Add the seals to a file of version 1."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        for statement in _SEAL_1.split(";"):
            database.execute(statement)
        rows = database.execute("SELECT kind, namespace, name, rv, data FROM objects").fetchall()
        for row in rows:
            Entry.load(row[4], row[3])
        seals = [seal_of(*row) for row in rows]
        database.executemany(
            "UPDATE objects SET seal = ? WHERE kind = ? AND namespace = ? AND name = ?",
            [(seal, *row[:3]) for seal, row in zip(seals, rows, strict=True)],
        )
        (rv,) = database.execute("SELECT rv FROM revision").fetchone()
        database.execute(_TOTAL, _total(rv, len(rows), _joined(seals)))
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")

    def check(self) -> None:
        """Read everything, as a start does. Raises PermanentError if a row is damaged.

        A file of another version is not looked at: it has no seals yet, or others.
        """
        if self._database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
            self.load()

    def load(self) -> tuple[int, list[tuple[Kind, Entry]]]:
        """Return the last resource version, and all objects. Raises PermanentError if a row is damaged."""
        try:
            rv, count, total, seal = self._database.execute(
                "SELECT rv, count, sum, seal FROM revision"
            ).fetchone()
            if _total(rv, count, total)[-1] != seal:
                raise ValueError("the row of its version was changed")
            objects = list(self._entries())
            if (len(objects), self._sum) != (count, total):
                raise ValueError(
                    f"of {count} objects that were written, some are missing, or others are there"
                )
        except _DAMAGE as exc:
            raise damaged(self.path, exc) from exc
        self._count = count
        return rv, objects

    def _entries(self) -> Iterator[tuple[Kind, Entry]]:
        for *row, seal in self._database.execute("SELECT kind, namespace, name, rv, data, seal FROM objects"):
            group_kind, namespace, name, revision, data = row
            if seal_of(*row) != seal:
                key = f"{namespace}/{name}" if namespace else name
                raise ValueError(f"{group_kind.rpartition('/')[2]} {key} is not what was written"[:300])
            self._sum ^= seal
            group, _, kind = group_kind.rpartition("/")
            yield Kind(group, kind), Entry.load(data, revision)

    def write(self, changes: Sequence[Change]) -> None:
        """Write one transaction."""
        puts: dict[tuple[str, str, str], tuple[str, str, str, int, bytes, int] | None] = {}
        count, total = self._count, self._sum
        for change in changes:
            name = (str(change.kind), *change.entry.key)
            if change.old is not None:
                total ^= seal_of(*name, change.old.rv, change.old.raw)
                count -= 1
            if change.type == "DELETED":
                puts[name] = None
                continue
            seal = seal_of(*name, change.entry.rv, change.entry.raw)
            total ^= seal
            count += 1
            puts[name] = (*name, change.entry.rv, change.entry.raw, seal)
        cursor = self._database.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            cursor.executemany(_REMOVE, [name for name, row in puts.items() if row is None])
            cursor.executemany(_PUT, [row for row in puts.values() if row is not None])
            cursor.execute(_TOTAL, _total(changes[-1].rv, count, total))
            cursor.execute("COMMIT")
        except (sqlite3.Error, MemoryError):
            if self._database.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        self._count, self._sum = count, total

    def probe(self) -> None:
        """Write something of some size, to see that writes work again. Raises OSError, too."""
        write_private(self.path.with_name(".probe"), bytes(PROBE_BYTES))
        self.path.with_name(".probe").unlink()
        self._database.execute("UPDATE revision SET rv = rv")

    def close(self) -> None:
        self._database.close()


def _make(path: Path) -> None:
    """Make an empty file, whole or not at all."""
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists():
        raise ValueError(f"it is missing, but {wal}, the log of its last writes, exists")
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    database = sqlite3.connect(made, isolation_level=None)
    try:
        database.execute("BEGIN")
        for statement in _CREATE.split(";"):
            database.execute(statement)
        database.execute("INSERT INTO revision VALUES (1, ?, ?, ?, ?)", _total(1, 0, 0))
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
    finally:
        database.close()
    made.rename(path)


def damaged(path: Path, exc: Exception) -> PermanentError:
    """Return the error for a file that cannot be used, with what to do."""
    code = getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF  # the primary code
    if code in _NO_ACCESS or (isinstance(exc, OSError) and not path.is_dir()):
        return PermanentError(
            f"{path} cannot be used as the API server's database ({reason_of(exc)}): make room on the disk, "
            "check that it is a file that may be written, and that the disk is not read-only",
            reason="DiskFull",
        )
    return PermanentError(
        f"{path} cannot be opened as the API server's database, as it is damaged: {reason_of(exc)}; "
        f"restore a backup (pvbus restore FILE --data NEW), or move it away with {path.name}-*: "
        "then all objects but package revisions are gone",
        reason="DataDamaged",
    )


def seal_of(kind: str, namespace: str, name: str, rv: int, data: bytes) -> int:
    """Return the hash of a row, as SQLite stores it. 64 bits: one damage in 10^19 is not noticed."""
    state = blake2b(f"{kind}\0{namespace}\0{name}\0{rv}\0".encode(), digest_size=8)
    state.update(data)
    return int.from_bytes(state.digest(), "big", signed=True)


def _joined(seals: Iterable[int]) -> int:
    total = 0
    for seal in seals:
        total ^= seal
    return total


def _total(rv: int, count: int, total: int) -> tuple[int, int, int, int]:
    """Return the row of the revision with its seal."""
    return rv, count, total, seal_of("", "", str(count), rv, str(total).encode())
