"""`pvbus backup` and `pvbus restore`: a data folder as one file.

SQLite itself copies the databases, the bus first: the services see later changes in the API server at the
next start, like all changes during a downtime. Of a git repository the refs are read before the objects, so
that all objects that they refer to are in the backup.
"""

import gzip
import io
import json
import os
import shlex
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click

from pvbus import __version__
from pvbus.adapters.files import open_plain
from pvbus.adapters.sqlite.schema import check_all
from pvbus.adapters.sqlite.schema import damaged as damaged_bus
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.controlplane.apiserver.objectfile import ObjectFile
from pvbus.controlplane.apiserver.objectfile import damaged as damaged_objects
from pvbus.core.errors import PermanentError, UsageError

FORMAT = 1
MANIFEST = "backup.json"
BUS = "bus.db"
DATABASES = (BUS, "apiserver/objects.db")
FOLDERS = ("apiserver/pki", "repositories", "example")
FILES = ("apiserver/token", "apiserver/users.json", "applied.json")

RATIO_MAX = 200
"""A backup unpacks to about ten times its size; git's own files are compressed already and do not grow."""

BYTES_MAX_LEAST = 1 << 30  # a small backup can contain a nearly empty database
BYTES_LEFT = 64 << 20  # minimum free space on the disk
ENTRY_BYTES = 4096  # counted for each entry, so that millions of empty files exceed the limit, too
FACTS_BYTES_MAX = 64 << 10
NO_BACKUP = "it is no file that pvbus backup wrote"
READ_BYTES_MAX = 4 << 20  # tarfile reads content in smaller parts, but headers in one


@click.command(
    short_help="Write a data folder to a file.",
    epilog="""\b
Examples:
  pvbus backup pvbus.tar.gz                 of .pvbus; `pvbus up` may go on meanwhile
  pvbus backup pvbus.tar.gz --data /srv/pvbus
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", default=DEFAULT, show_default=True, help="Data folder of `pvbus up`.")
def backup(file: Path, data: str) -> None:
    """Write everything of a data folder to FILE: objects, bus, package repositories, certificates.

    FILE holds Secrets and the token of the API server; it is readable by its owner only. Repositories
    that are not in the data folder are somebody else's to back up. What is damaged is not backed up: the
    command ends with 1, and says what to do.
    """
    paths = DataPaths(Path(data))
    if not paths.objects.exists():
        raise UsageError(f"there are no data in {paths.root}: name the folder of `pvbus up` with --data")
    if file.exists():
        raise UsageError(f"{file} exists: choose another name, or remove it")
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        _write(paths, partial)
        partial.rename(file)
    except PermanentError:
        partial.unlink(missing_ok=True)
        raise
    except (OSError, sqlite3.Error) as exc:
        partial.unlink(missing_ok=True)
        raise PermanentError(f"the backup could not be written to {file}: {exc}") from exc
    click.echo(f"{file}: {file.stat().st_size:,} bytes")


def _write(paths: DataPaths, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with (
        os.fdopen(descriptor, "wb") as stream,
        tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as tar,
    ):
        facts = {"format": FORMAT, "pvbus": __version__, "data": str(paths.root), "made": int(time.time())}
        _add_text(tar, MANIFEST, json.dumps(facts, indent=2) + "\n")
        for name in DATABASES:
            if (paths.root / name).exists():
                _add_database(tar, paths.root / name, name)
        for name in FILES:
            if (paths.root / name).exists():
                _add(tar, paths.root / name, name)
        for folder in FOLDERS:
            for path in _paths_below(paths.root / folder):
                try:
                    _add(tar, path, path.relative_to(paths.root).as_posix())
                except FileNotFoundError:
                    continue  # git has packed it in the meantime; packs are read last


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a regular file or a folder. Raises PermanentError for other types: `restore` would refuse them."""
    mode = path.lstat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PermanentError(f"{path} is neither a file nor a folder, and nothing of pvbus: move it away")
    tar.add(path, name, recursive=False)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    data = text.encode()
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


def _add_database(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a consistent copy, made by SQLite."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="backup-") as folder:
        copy = Path(folder) / "copy.db"
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            source.execute("VACUUM INTO ?", (str(copy),))
            _check(path, copy)
        except (sqlite3.DatabaseError, PermanentError) as exc:
            error = _damage_of(path, exc) if isinstance(exc, sqlite3.Error) else exc
            if error is None:
                raise
            raise PermanentError(f"no backup was made: {error}", reason="DataDamaged") from exc
        finally:
            source.close()
        copy.chmod(0o600)
        tar.add(copy, name)


def _check(path: Path, copy: Path) -> None:
    """Compare the rows of a copy with their seals. Raises PermanentError, sqlite3.Error."""
    database = sqlite3.connect(copy, isolation_level=None)
    try:
        if path.name == BUS:
            check_all(database, str(path))
        else:
            ObjectFile(path, database).check()
    finally:
        database.close()


def _damage_of(path: Path, error: sqlite3.Error) -> PermanentError | None:
    """Return the error for a damaged database, None if SQLite says that something else is wrong."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)  # Python's own, of a text, has none
    if code & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return None
    return damaged_bus(str(path), error) if path.name == BUS else damaged_objects(path, error)


def _paths_below(folder: Path) -> Iterator[Path]:
    """Yield all paths below a folder: folders first; in git, refs before loose objects before packs."""
    if not folder.exists():
        return
    found = sorted(path for path in folder.rglob("*") if not path.name.endswith(".lock"))
    yield folder
    yield from sorted(
        found, key=lambda path: (not path.is_dir(), "objects" in path.parts, "pack" in path.parts)
    )


@click.command(
    short_help="Make a data folder from such a file.",
    epilog="""\b
Examples:
  pvbus restore pvbus.tar.gz --data .pvbus
  pvbus restore pvbus.tar.gz --data /srv/other && pvbus up --data /srv/other
""",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--data", default=DEFAULT, show_default=True, help="Folder to make; it must not exist yet.")
def restore(file: Path, data: str) -> None:
    """Make a data folder from FILE, as `pvbus backup` wrote it.

    The next `pvbus up` on it takes a free port, compares everything with the repositories as they are
    then, and goes on. FILE has the token and the certificates that the API server will use: restore only what
    you trust.
    """
    target = Path(data).absolute()
    with open_plain(file) as stream:
        _check_target(target)
        limit = _bytes_max(os.fstat(stream.fileno()).st_size, target)
        try:
            with _Bounded(fileobj=stream) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
                facts = _facts(tar, file)
                target.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
                    made = Path(folder) / "data"
                    made.mkdir(mode=0o700)
                    _extract(tar, made, limit)
                    if target.exists():
                        target.rmdir()
                    made.rename(target)
        except (OSError, tarfile.TarError, EOFError, zlib.error, ValueError, RecursionError) as exc:
            problem = NO_BACKUP if isinstance(exc, gzip.BadGzipFile) else exc
            raise PermanentError(f"{file} could not be restored: {problem}; {target} is as it was") from exc
    click.echo(f"{target}: restored; start it with: pvbus up --data {shlex.quote(str(target))}")
    if facts.get("data") != str(target) and (target / "example").exists():
        click.echo(f"its Repositories still name the folder they were in: {facts.get('data')}/example")


def _check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UsageError(f"{target} is no folder: choose another one with --data")
    try:
        is_used = target.exists() and any(target.iterdir())
    except OSError as exc:
        raise UsageError(f"{target} cannot be read ({exc.strerror}): choose another one with --data") from exc
    if is_used:
        raise UsageError(f"{target} is not empty: choose another folder with --data, or move it away first")


def _bytes_max(size: int, target: Path) -> int:
    """Return the maximum unpacked size of a backup of this size, limited by the free disk space."""
    path = next(parent for parent in target.parents if parent.exists())
    return min(max(BYTES_MAX_LEAST, size * RATIO_MAX), shutil.disk_usage(path).free - BYTES_LEFT)


class _Bounded(gzip.GzipFile):
    """The unpacked archive, with limited reads: `tarfile` reads headers of any declared length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0 or size > READ_BYTES_MAX:
            raise tarfile.ReadError(f"a header of {size or 0:,} bytes does not belong in a backup")
        return super().read(size)


def _facts(tar: tarfile.TarFile, file: Path) -> dict[str, Any]:
    first = tar.next()
    stream = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
    if first is None or stream is None or first.size > FACTS_BYTES_MAX:
        raise UsageError(f"{file} is no backup of pvbus")
    facts = json.load(stream)
    if not isinstance(facts, dict):
        raise UsageError(f"{file} is no backup of pvbus")
    if facts.get("format") != FORMAT:
        raise UsageError(
            f"{file} has format {facts.get('format')}, this pvbus reads {FORMAT}: "
            f"restore it with pvbus {facts.get('pvbus')}"
        )
    return facts


def _extract(tar: tarfile.TarFile, folder: Path, bytes_max: int) -> None:
    """Unpack regular files and folders inside the folder; a backup contains nothing else.

    No file becomes executable: in a git repository those would be its hooks.
    """
    left = bytes_max
    for entry in tar:
        if entry.offset == 0:  # the manifest
            continue
        if not _belongs(entry):
            raise tarfile.TarError(f"{entry.name[:200]!r} does not belong in a backup")
        left -= entry.size + ENTRY_BYTES
        if left < 0:
            raise tarfile.TarError(
                f"it unpacks to more than {bytes_max:,} bytes, as no backup does, or no room is left"
            )
        path = folder / PurePosixPath(entry.name)
        if entry.isdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source = tar.extractfile(entry)
        assert source is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(path, flags, entry.mode & 0o600 | 0o400)
        with os.fdopen(descriptor, "wb") as stream:
            for chunk in _chunks(source):
                stream.write(chunk)


def _belongs(entry: tarfile.TarInfo) -> bool:
    """Return whether `backup` writes such an entry."""
    path = PurePosixPath(entry.name)
    name = path.as_posix()
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name or entry.issparse():
        return False
    if entry.isfile() and name in (*DATABASES, *FILES):
        return True
    return (entry.isfile() or entry.isdir()) and any(
        name == folder or name.startswith(f"{folder}/") for folder in FOLDERS
    )


def _chunks(source: Any) -> Iterable[bytes]:
    return iter(lambda: source.read(1 << 20), b"")
