"""`pvbus restore` of what nobody should restore: a clear refusal, and the folder is as it was."""

import gzip
import io
import json
import os
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pvbus.cli import backup as module
from pvbus.cli.main import run

Build = Callable[[tarfile.TarFile], None]
FACTS = {"format": 1, "pvbus": "1", "data": "/x"}


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE, **more: object) -> Build:
    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.size, info.mode = kind, len(content), 0o777
        for field, value in more.items():
            setattr(info, field, value)
        tar.addfile(info, io.BytesIO(content))

    return add


def archive(path: Path, *entries: Build, facts: object = FACTS) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        entry("backup.json", json.dumps(facts).encode())(tar)
        for add in entries:
            add(tar)
    return path


def bomb(size: int) -> Build:
    """Zeros, which pack to a thousandth."""

    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo("bus.db")
        info.size = size
        tar.addfile(info, Zeros(size))  # type: ignore[arg-type]

    return add


class Zeros:
    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int) -> bytes:
        given = min(size, self._left)
        self._left -= given
        return bytes(given)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (entry("../evil", b"x"), "does not belong"),
        (entry("repositories/../../evil", b"x"), "does not belong"),
        (entry("/etc/evil", b"x"), "does not belong"),
        (entry("lock", b"x"), "does not belong"),
        (entry("repositories", kind=tarfile.SYMTYPE, linkname="/etc"), "does not belong"),
        (entry("repositories/a", kind=tarfile.LNKTYPE, linkname="apiserver/token"), "does not belong"),
        (entry("repositories/a", kind=tarfile.CHRTYPE), "does not belong"),
        (entry("repositories/a", kind=tarfile.FIFOTYPE), "does not belong"),
        (entry("repositories/a\0b", b"x", pax_headers={"path": "repositories/a\0b"}), "does not belong"),
        (entry("a", b"x", kind=tarfile.XHDTYPE), "could not be restored"),
        (entry("\x1b[2J", b"x"), r"'\x1b[2J' does not belong"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_entries_that_do_not_belong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], build: Build, words: str
) -> None:
    """Paths out of the folder, links, devices, pipes, strange names and broken headers."""
    file = archive(tmp_path / "b.tar.gz", entry("bus.db", b"x"), build)
    assert run(["restore", str(file), "--data", str(tmp_path / "data")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert "could not be restored" in error
    assert os.listdir(tmp_path) == ["b.tar.gz"]


def test_a_bomb_is_refused_before_it_fills_the_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its ratio; and by the room that there is, where the ratio would pass."""
    monkeypatch.setattr(module, "BYTES_MAX_LEAST", 1 << 20)
    file = archive(tmp_path / "b.tar.gz", bomb(64 << 20))
    assert run(["restore", str(file), "--data", str(tmp_path / "data")]) == 1
    assert "it unpacks to more than" in capsys.readouterr().err
    monkeypatch.setattr(module, "RATIO_MAX", 1 << 40)
    monkeypatch.setattr(module, "BYTES_LEFT", 1 << 60)
    assert run(["restore", str(file), "--data", str(tmp_path / "data")]) == 1
    assert "it unpacks to more than" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["b.tar.gz"]


def test_a_header_that_is_a_bomb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tarfile would read it whole into memory."""
    file = tmp_path / "b.tar.gz"
    with gzip.open(file, "wb") as stream:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1 << 34
        stream.write(info.tobuf(tarfile.GNU_FORMAT))
    assert run(["restore", str(file), "--data", str(tmp_path / "data")]) == 1
    assert "a header of 17,179,869,184 bytes" in capsys.readouterr().err


def gzipped(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(gzip.compress(content))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b"no archive"), "could not be restored"),
        (gzipped(b""), "could not be restored"),
        (lambda path: path.write_bytes(archive(path).read_bytes()[:-60]), "could not be restored"),
        (lambda path: archive(path, facts=[1]), "is no backup of pvbus"),
        (lambda path: archive(path, facts={"format": 9, "pvbus": "7"}), "restore it with pvbus 7"),
        (lambda path: archive(path, facts="x" * 100_000), "is no backup of pvbus"),
        (os.mkfifo, "is a named pipe, not a file"),
        (os.mkdir, "is a folder, not a file"),
        (lambda path: path.symlink_to("/dev/zero"), "is a device, not a file"),
        (lambda path: None, "no such file"),
    ],
)
def test_files_that_are_no_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], object], words: str
) -> None:
    """Each ends at once, with what it is and no trace."""
    make(tmp_path / "b")
    assert run(["restore", str(tmp_path / "b"), "--data", str(tmp_path / "data")]) in (1, 2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to(path.parent / "elsewhere")])
def test_a_target_that_is_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    """A file, or a link to where somebody else wants it."""
    make(tmp_path / "data")
    file = archive(tmp_path / "b.tar.gz")
    assert run(["restore", str(file), "--data", str(tmp_path / "data")]) == 2
    assert "is no folder" in capsys.readouterr().err


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with what a backup needs."""
    folder = tmp_path / "data"
    (folder / "apiserver").mkdir(parents=True)
    (folder / "repositories" / "hooks").mkdir(parents=True)
    for name in ("bus.db", "apiserver/objects.db"):
        sqlite3.connect(folder / name).execute("CREATE TABLE a (b)").connection.close()
    (folder / "apiserver" / "token").write_text("secret")
    (folder / "applied.json").write_text("{}")
    hook = folder / "repositories" / "hooks" / "post-update"
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o777)
    return folder


def test_what_is_restored_is_private_and_runs_nothing(data: Path, tmp_path: Path) -> None:
    """Everything is its owner's alone whatever the umask; hooks of a repository are not executable."""
    former = os.umask(0)
    try:
        assert run(["backup", str(tmp_path / "b"), "--data", str(data)]) == 0
        assert run(["restore", str(tmp_path / "b"), "--data", str(tmp_path / "other")]) == 0
    finally:
        os.umask(former)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    restored = [tmp_path / "other", *(tmp_path / "other").rglob("*")]
    names = {str(path.relative_to(tmp_path / "other")) for path in restored}
    assert {"bus.db", "apiserver/token", "applied.json", "repositories/hooks/post-update"} <= names
    for path in restored:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_backup_follows_no_links(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link in the folder is named; nothing is written through one that lies where the backup goes."""
    (data / "repositories" / "a").symlink_to("/etc/passwd")
    assert run(["backup", str(tmp_path / "b"), "--data", str(data)]) == 1
    assert "repositories/a is neither a file nor a folder" in capsys.readouterr().err
    (data / "repositories" / "a").unlink()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "b.partial").symlink_to(victim)
    assert run(["backup", str(tmp_path / "b"), "--data", str(data)]) == 0
    assert victim.read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["b", "b.partial", "data", "victim"]
