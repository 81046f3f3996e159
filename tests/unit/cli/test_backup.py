"""`pvbus backup` of a data folder that is damaged: a sentence, and no file that a person would rely on."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from pvbus.cli.main import run
from pvbus.controlplane.apiserver.store import Store
from pvbus.ports.cluster import Kind
from tests.unit.adapters.test_bus_damage import make

OBJECTS = "apiserver/objects.db"
DAMAGES = {
    "an object": (
        OBJECTS,
        "UPDATE objects SET data = replace(CAST(data AS TEXT), '\"size\":7', '\"size\":8')",
    ),
    "an object that is gone": (OBJECTS, "DELETE FROM objects WHERE name = 'w7'"),
    "a record": ("bus.db", "UPDATE log SET key = 'other' WHERE position = (SELECT max(position) FROM log)"),
    "a text that is none": ("bus.db", "UPDATE offsets SET topic = CAST(x'ff' AS TEXT) WHERE topic = 'log'"),
    "an end": ("bus.db", "UPDATE lanes SET next = next + 1"),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "apiserver").mkdir(parents=True)

    async def fill() -> None:
        store = Store(folder / OBJECTS)
        store.start()
        for number in range(20):
            metadata = {"name": f"w{number}", "namespace": "default", "uid": f"uid-{number}"}
            store.put(Kind("example.com", "Widget"), {"metadata": metadata, "spec": {"size": number}})
        await store.durable()
        await store.stop()
        await make(folder / "bus.db")

    asyncio.run(fill())
    return folder


def test_a_folder_that_is_whole_or_older_is_backed_up(data: Path, tmp_path: Path) -> None:
    """An older file has no seals to compare, and stays as it is."""
    assert run(["backup", str(tmp_path / "b"), "--data", str(data)]) == 0
    for name in (OBJECTS, "bus.db"):
        database = sqlite3.connect(data / name, isolation_level=None)
        database.execute("PRAGMA user_version = 1")
        database.close()
    assert run(["backup", str(tmp_path / "older"), "--data", str(data)]) == 0


@pytest.mark.parametrize(("name", "statement"), DAMAGES.values(), ids=DAMAGES)
def test_a_row_that_nobody_wrote_is_not_backed_up(
    data: Path, tmp_path: Path, name: str, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    database = sqlite3.connect(data / name, isolation_level=None)
    database.execute(statement)
    database.close()
    assert_refused(data, tmp_path, name, capsys)


@pytest.mark.parametrize("name", [OBJECTS, "bus.db"])
def test_a_file_that_sqlite_cannot_read_is_not_backed_up(
    data: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / name).write_bytes(b"x" * 8192)
    assert_refused(data, tmp_path, name, capsys)


def assert_refused(data: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["backup", str(tmp_path / "b"), "--data", str(data)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: no backup was made: {data / name}")
    assert "damaged" in error
    assert "move" in error, "the next step"
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["data"], "nothing is left that looks like a backup"
