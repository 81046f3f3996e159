"""A data folder that an older pvbus made is the same fleet today; one of a newer pvbus is refused."""

import gzip
import re
import sqlite3
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.e2e.cli.command import git, pvbus

RECORDED = Path(__file__).parents[2] / "data" / "upgrade"
DATABASES = {"objects": "apiserver/objects.db", "bus": "bus.db"}
FOLDER = b"/FOLDER"
WRITTEN = ("PackageVariant", "PackageVariantSet", "PackageRevision", "Cluster")
"""Not Repositories, whose full sync is due an hour after the recorded one."""

BY_HAND = ("porch.kpt.dev/PackageRevision", "default/blueprints.web.main")
"""A package's folder on a branch, pushed with git."""


class Stored(NamedTuple):
    """What is in a data folder. objects: the stored bytes by kind and name. refs: of all its repositories."""

    objects: dict[tuple[str, str], bytes]
    refs: Mapping[str, str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The recorded folder, as it was left."""
    data = tmp_path / "data"
    (data / "apiserver").mkdir(parents=True)
    names = {FOLDER: bytes(data)}
    for file in RECORDED.glob("*.fastexport.gz"):
        names |= made_repository(data / "example" / f"{file.name.partition('.')[0]}.git", bytes(data))
    for name, path in DATABASES.items():
        script = recorded(f"{name}.sql")
        for before, after in names.items():
            script = script.replace(before, after)
        database = sqlite3.connect(data / path)
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {script.decode()} COMMIT;")
        database.close()
    return data


def recorded(name: str) -> bytes:
    return gzip.decompress((RECORDED / f"{name}.gz").read_bytes())


def made_repository(remote: Path, folder: bytes) -> dict[bytes, bytes]:
    """Make a recorded repository; returns what its commits are called now: they name the folder, too."""
    remote.mkdir(parents=True)
    git(remote, "init", "--quiet", "--bare", "--initial-branch=main")
    history = with_folder(recorded(f"{remote.stem}.fastexport"), folder)
    command = ["git", "fast-import", "--quiet", "--export-marks=marks"]
    subprocess.run(command, cwd=remote, input=history, check=True)
    made = marks((remote / "marks").read_bytes())
    return {before: made[mark] for mark, before in marks(recorded(f"{remote.stem}.marks")).items()}


def marks(lines: bytes) -> dict[bytes, bytes]:
    pairs = [line.split() for line in lines.splitlines()]
    return {pair[0]: pair[1] for pair in pairs}


def with_folder(history: bytes, folder: bytes) -> bytes:
    """Put a folder into the files of a `git fast-export`, each of which comes after its length."""
    made, position = [], 0
    while head := re.compile(rb"^data (\d+)\n", re.MULTILINE).search(history, position):
        end = head.end() + int(head[1])
        content = history[head.end() : end].replace(FOLDER, folder)
        made += [history[position : head.start()], b"data %d\n" % len(content), content]
        position = end
    return b"".join((*made, history[position:]))


def stored(data: Path) -> Stored:
    database = sqlite3.connect(data / DATABASES["objects"])
    rows = database.execute("SELECT kind, namespace || '/' || name, data FROM objects").fetchall()
    database.close()
    objects = {(kind, name): content for kind, name, content in rows if kind.rpartition("/")[2] in WRITTEN}
    refs = {str(remote): git(remote, "for-each-ref") for remote in (data / "example").iterdir()}
    return Stored(objects, refs)


def test_a_folder_of_an_older_pvbus_is_the_same_fleet(folder: Path, tmp_path: Path) -> None:
    """Nothing is written to what is up to date: neither an object, nor a commit. The folder of a package on a
    branch no longer names who published it, where no approval did."""
    before = stored(folder)
    by_hand = before.objects.pop(BY_HAND)
    assert sum(kind.endswith("/PackageVariant") for kind, _ in before.objects) == 4
    done = pvbus("up", "--once", "--data", folder, cwd=tmp_path)
    assert done.code == 0, done.out + done.err
    assert "sets 1/1 ready, variants 4/4 ready" in done.out
    assert "Traceback" not in done.err
    after = stored(folder)
    now = msgspec.json.decode(after.objects.pop(BY_HAND))
    assert after == before
    expected = msgspec.json.decode(by_hand)
    for field in ("publishedBy", "publishTimestamp"):
        del expected["status"][field]
    expected["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
    assert now == expected


@pytest.mark.parametrize("path", DATABASES.values())
def test_a_folder_of_a_newer_pvbus_is_refused(folder: Path, tmp_path: Path, path: str) -> None:
    database = sqlite3.connect(folder / path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = (folder / path).read_bytes()
    done = pvbus("up", "--once", "--data", folder, cwd=tmp_path)
    assert done.code == 1
    assert done.err.startswith(f"error: {folder / path} was written by a newer pvbus ("), done.err
    assert done.err.count("\n") == 1
    assert (folder / path).read_bytes() == before
