"""`pvbus backup` and `pvbus restore`: a data folder as one file.

The databases are copied by SQLite itself, the bus first: what the API server learns in between is seen
at the next start like anything else that happened while nobody looked. Of a git repository the refs
are read before the objects, so that everything they name is there.
"""

import io
import json
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import click

from pvbus import __version__
from pvbus.cli.datafolder import DEFAULT, DataPaths
from pvbus.errors import PermanentError, UsageError

FORMAT = 1
MANIFEST = "backup.json"
DATABASES = ("bus.db", "apiserver/objects.db")
FOLDERS = ("apiserver/pki", "repositories", "example")
FILES = ("apiserver/token", "applied.json")


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
    that are not in the data folder are somebody else's to back up.
    """
    paths = DataPaths(Path(data))
    if not paths.objects.exists():
        raise UsageError(f"there are no data in {paths.root}: name the folder of `pvbus up` with --data")
    if file.exists():
        raise UsageError(f"{file} exists: choose another name, or remove it")
    partial = file.with_name(f"{file.name}.partial")
    try:
        _write(paths, partial)
        partial.rename(file)
    except (OSError, sqlite3.Error) as exc:
        partial.unlink(missing_ok=True)
        raise PermanentError(f"the backup could not be written to {file}: {exc}") from exc
    click.echo(f"{file}: {file.stat().st_size:,} bytes")


def _write(paths: DataPaths, target: Path) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
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
                tar.add(paths.root / name, name)
        for folder in FOLDERS:
            for path in _ordered(paths.root / folder):
                try:
                    tar.add(path, path.relative_to(paths.root).as_posix(), recursive=False)
                except FileNotFoundError:
                    continue  # git packed it meanwhile; packs are read last


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    data = text.encode()
    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
    tar.addfile(entry, io.BytesIO(data))


def _add_database(tar: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a copy that SQLite makes of one moment."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="backup-") as folder:
        copy = Path(folder) / "copy.db"
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            source.execute("VACUUM INTO ?", (str(copy),))
        finally:
            source.close()
        copy.chmod(0o600)
        tar.add(copy, name)


def _ordered(folder: Path) -> Iterator[Path]:
    """Yield all paths below a folder, folders first; of git the refs, then loose objects, then packs."""
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
    then, and goes on.
    """
    target = Path(data).absolute()
    if target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} is not empty: choose another folder with --data, or move it away first")
    try:
        with tarfile.open(file, "r:gz") as tar:
            facts = _facts(tar, file)
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
                made = Path(folder) / "data"
                made.mkdir(mode=0o700)
                _extract(tar, made)
                if target.exists():
                    target.rmdir()
                made.rename(target)
    except (OSError, tarfile.TarError, EOFError) as exc:
        raise PermanentError(f"{file} could not be restored: {exc}") from exc
    click.echo(f"{target}: restored; start it with: pvbus up --data {target}")
    if facts.get("data") != str(target) and (target / "example").exists():
        click.echo(f"its Repositories still name the folder they were in: {facts.get('data')}/example")


def _facts(tar: tarfile.TarFile, file: Path) -> dict[str, Any]:
    first = tar.next()
    stream = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
    if stream is None:
        raise UsageError(f"{file} is no backup of pvbus")
    facts: dict[str, Any] = json.load(stream)
    if facts.get("format") != FORMAT:
        raise UsageError(
            f"{file} has format {facts.get('format')}, this pvbus reads {FORMAT}: "
            f"restore it with pvbus {facts.get('pvbus')}"
        )
    return facts


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack plain files and folders that stay inside; a backup of ours has nothing else."""
    for entry in tar:
        place = PurePosixPath(entry.name)
        if place.is_absolute() or ".." in place.parts or not (entry.isfile() or entry.isdir()):
            raise tarfile.TarError(f"{entry.name} does not belong in a backup")
        path = folder / place
        if entry.isdir():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            continue
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        source = tar.extractfile(entry)
        assert source is not None
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, entry.mode & 0o700 | 0o400)
        with os.fdopen(descriptor, "wb") as stream:
            for chunk in _chunks(source):
                stream.write(chunk)


def _chunks(source: Any) -> Iterable[bytes]:
    return iter(lambda: source.read(1 << 20), b"")
