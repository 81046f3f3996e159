"""Damaged files of a data folder: a start serves what was there, or is refused with one sentence."""

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pvbus.controlplane.apiserver.entries import Entry
from pvbus.controlplane.apiserver.rbac.users import Account, Grant, UserFile, digest_of
from pvbus.controlplane.apiserver.server import ApiServer
from pvbus.controlplane.apiserver.store import Store
from pvbus.core.errors import PermanentError
from pvbus.ports.cluster import Kind
from tests.integration.apiserver.client import crd

WIDGET = Kind("example.com", "Widget")
FILES = (
    "apiserver/objects.db",
    "apiserver/token",
    "apiserver/users.json",
    "apiserver/port",
    "apiserver/lock",
    "apiserver/pki/ca.crt",
    "apiserver/pki/server.crt",
    "apiserver/pki/server.key",
    "kubeconfig",
    "services.kubeconfig",
)
MADE_ANEW = ("apiserver/port", "apiserver/pki/", "kubeconfig", "services.kubeconfig", "apiserver/lock")
"""What has nothing that is nowhere else: damage of the content is no reason to refuse a start."""

FLIPS = int(os.environ.get("PVBUS_TEST_FLIPS", "3"))
"""Random damages of each file; a campaign sets some thousands."""


async def contents(data: Path, *, tls: bool = False) -> dict[str, Any]:
    """Start a server on a folder; return its Widgets and users. Raises as the start does.

    Its own objects, such as roles, may still be completed by a start.
    """
    server = ApiServer(data, tls=tls)
    await server.start()
    await server.stop()
    widgets = await widgets_of(data / "apiserver" / "objects.db")
    return {"widgets": widgets, "users": UserFile(data / "apiserver").read()}


async def widgets_of(file: Path) -> dict[Any, Any]:
    store = Store(file)
    widgets = {entry.key: (entry.rv, entry.raw) for entry in store.table(WIDGET).in_order()}
    await store.stop()
    return widgets


def add_user(accounts: dict[str, Account]) -> None:
    grants = (Grant(role="viewer", namespaces=("team-a",)),)
    accounts["ann"] = Account(name="ann", digest=digest_of("x" * 40), grants=grants)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with some objects and a user, and what it has."""
    data = tmp_path_factory.mktemp("made") / "data"

    async def make() -> dict[str, Any]:
        server = ApiServer(data, crds=[crd()])
        await server.start()
        await server.stop()
        store = Store(data / "apiserver" / "objects.db")
        store.start()
        for number in range(60):
            metadata = {"name": f"w{number}", "namespace": "default", "uid": f"uid-{number}"}
            store.put(WIDGET, {"metadata": metadata, "spec": {"size": number, "note": "x" * 40 * number}})
        await store.durable()
        await store.stop()
        UserFile(data / "apiserver").change(add_user)
        return await contents(data)

    return data, asyncio.run(make())


def is_sentence(error: PermanentError, file: str) -> bool:
    """Whether the user is given the file, one line, and what to do."""
    text = str(error)
    steps = ("restore", "remove", "move it away", "make room", "use that version", "give yourself")
    named = file.rpartition("/")[2] in text or "pki" in text
    return named and "\n" not in text and any(step in text for step in steps)


async def refusal(reading: Coroutine[Any, Any, Any], before: Any) -> PermanentError | None:
    """Return why nothing was read; what is read is what was there before."""
    try:
        found = await reading
    except PermanentError as exc:
        return exc
    assert found == before
    return None


def assert_clear(name: str, error: PermanentError | None, case: object) -> None:
    if error is not None:
        assert is_sentence(error, name), (case, error)
        assert not name.startswith(MADE_ANEW), (case, error)


def flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    if not content:
        return
    start = draw.randrange(len(content))
    for position in range(start, min(len(content), start + draw.choice((1, 1, 8, 64)))):
        content[position] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
async def test_a_flipped_byte_is_never_served(
    name: str, made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Random bits of each file: the same objects and users, or one sentence that names the file."""
    source, before = made
    for seed in range(FLIPS):
        data = tmp_path / str(seed)
        shutil.copytree(source, data)
        flip(data / name, random.Random(f"{name}/{seed}"))
        assert_clear(name, await refusal(contents(data, tls="pki" in name), before), seed)
        shutil.rmtree(data)


async def test_flipped_bits_of_the_objects(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Anywhere in the file, also inside a value, where SQLite and JSON have no reason to complain."""
    source, before = made
    file = tmp_path / "objects.db"
    refused = 0
    for seed in range(20 * FLIPS):
        shutil.copy(source / "apiserver" / "objects.db", file)
        flip(file, random.Random(seed))
        error = await refusal(widgets_of(file), before["widgets"])
        assert_clear(file.name, error, seed)
        refused += error is not None
        for rest in tmp_path.glob("objects.db*"):
            rest.unlink()
    assert refused > 5 * FLIPS, "most of the file is objects"


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()
    (file / "x").touch()


def fill_with_noise(file: Path) -> None:
    file.write_bytes(random.Random(7).randbytes(40))


@pytest.mark.parametrize("damage", [truncate, empty, make_folder, fill_with_noise])
@pytest.mark.parametrize("name", FILES)
async def test_a_file_that_is_no_longer_itself(
    name: str, damage: Callable[[Path], None], made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Cut, emptied, a folder, noise: as for a flipped byte; a folder is refused in place of any file."""
    source, before = made
    data = tmp_path / "data"
    shutil.copytree(source, data)
    damage(data / name)
    error = await refusal(contents(data, tls="pki" in name), before)
    if damage is make_folder and error is not None:
        assert is_sentence(error, name), error
    else:
        assert_clear(name, error, damage)
        assert error is not None or name.startswith(MADE_ANEW)


ROWS = {
    "a row that is gone": "DELETE FROM objects WHERE name = 'w7'",
    "a row of another name": "UPDATE objects SET name = 'w700' WHERE name = 'w7'",
    "a row that came back": "INSERT INTO objects SELECT kind, namespace, 'w700', rv, data, seal FROM objects "
    "WHERE name = 'w7'",
    "an older version": "UPDATE revision SET rv = rv - 1",
    "no version": "DELETE FROM revision",
    "another size": "UPDATE objects SET data = replace(CAST(data AS TEXT), '\"size\":7', '\"size\":8') "
    "WHERE name = 'w7'",
    "a number": "UPDATE objects SET data = 7 WHERE name = 'w7'",
    "no UTF-8": "UPDATE objects SET kind = CAST(x'ff' AS TEXT) WHERE name = 'w7'",
}


@pytest.mark.parametrize("statement", ROWS.values(), ids=ROWS)
async def test_a_row_that_nobody_wrote(
    statement: str, made: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """SQLite has no reason to complain; the seals do."""
    file = tmp_path / "objects.db"
    shutil.copy(made[0] / "apiserver" / "objects.db", file)
    database = sqlite3.connect(file, isolation_level=None)
    database.execute(statement)
    database.close()
    with pytest.raises(PermanentError, match="restore a backup") as refused:
        Store(file)
    assert refused.value.reason == "DataDamaged"
    assert "\n" not in str(refused.value)


async def test_a_file_of_version_1_gets_seals(tmp_path: Path) -> None:
    """Nothing of it is lost or changed; after that it is as protected as a new one."""
    file = tmp_path / "objects.db"
    raw = b'{"metadata":{"name":"a","namespace":"n","uid":"u"},"spec":{"size":1}}'
    database = sqlite3.connect(file, isolation_level=None)
    database.executescript(
        "CREATE TABLE objects (kind TEXT, namespace TEXT, name TEXT, rv INTEGER NOT NULL, data BLOB NOT NULL,"
        " PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;"
        "CREATE TABLE revision (id INTEGER PRIMARY KEY CHECK (id = 1), rv INTEGER NOT NULL);"
        "INSERT INTO revision VALUES (1, 41); PRAGMA user_version = 1"
    )
    database.execute("INSERT INTO objects VALUES (?, 'n', 'a', 40, ?)", (str(WIDGET), raw))
    for _ in range(2):
        store = Store(file)
        store.start()
        entry = store.get(WIDGET, ("n", "a"))
        assert isinstance(entry, Entry)
        assert (store.rv, entry.rv, entry.raw) == (41, 40, raw)
        await store.stop()
    store = Store(file)
    store.start()
    store.remove(WIDGET, ("n", "a"))
    await store.durable()
    await store.stop()
    database.execute("UPDATE revision SET count = 1")
    database.close()
    with pytest.raises(PermanentError, match="restore a backup"):
        Store(file)


async def test_a_log_without_its_database_is_not_applied_to_a_new_one(tmp_path: Path) -> None:
    """Somebody moved away one file of two: SQLite would put old pages into the new database."""
    (tmp_path / "objects.db-wal").write_bytes(b"x" * 5000)
    with pytest.raises(PermanentError, match=r"objects\.db-wal.*move it away"):
        Store(tmp_path / "objects.db")
