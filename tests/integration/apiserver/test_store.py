"""The store by itself: past versions, commits that fail, and what is visible when."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pvbus.controlplane.apiserver.entries import Change
from pvbus.controlplane.apiserver.store import ExpiredError, Store, StoreError, Table
from pvbus.ports.cluster import Kind, Object

KIND = Kind("example.com", "Widget")


def obj(name: str, size: int = 0) -> Object:
    return {"metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}"}, "spec": {"size": size}}


@asynccontextmanager
async def opened(path: Path | None) -> AsyncIterator[Store]:
    store = Store(path)
    store.start()
    yield store
    await store.stop()


def sizes(table: Table) -> dict[str, int]:
    return {entry.key[1]: entry.share()["spec"]["size"] for entry in table.in_order()}


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9)), st.booleans()), max_size=30
)


@settings(deadline=None, max_examples=100)
@given(operations=OPERATIONS, compacted=st.integers(0, 20))
def test_every_version_in_the_log_can_be_read_again(
    operations: list[tuple[str, int | None, bool]], compacted: int
) -> None:
    """A snapshot of any version is what was there; the changes after it lead to what is there now."""

    async def run() -> None:
        async with opened(None) as store:
            table = store.table(KIND)
            model: dict[str, int] = {}
            history = {store.rv: dict(model)}
            for name, size, wait in operations:
                entry = store.remove(KIND, ("n", name)) if size is None else store.put(KIND, obj(name, size))
                if entry is None:
                    continue
                if size is None:
                    del model[name]
                else:
                    model[name] = size
                history[entry.rv] = dict(model)
                if wait:
                    await store.durable()
            await store.durable()
            assert sizes(table) == model
            table.compact(compacted)
            for rv, state in history.items():
                if rv < table.compacted:
                    with pytest.raises(ExpiredError):
                        table.snapshot(rv)
                    continue
                assert sizes(table.snapshot(rv)) == state
                replayed = dict(state)
                for change in table.since(table.position(rv), 1000):
                    name = change.entry.key[1]
                    assert (change.type == "ADDED") == (name not in replayed)
                    if change.type == "DELETED":
                        del replayed[name]
                    else:
                        replayed[name] = change.entry.share()["spec"]["size"]
                assert replayed == model

    asyncio.run(run())


@settings(deadline=None, max_examples=25)
@given(operations=OPERATIONS)
def test_what_was_committed_is_there_after_a_restart(
    operations: list[tuple[str, int | None, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Objects and the version are those of before; versions go on from there."""
    path = tmp_path_factory.mktemp("store") / "objects.db"

    async def run() -> None:
        async with opened(path) as store:
            for name, size, wait in operations:
                if size is None:
                    store.remove(KIND, ("n", name))
                else:
                    store.put(KIND, obj(name, size))
                if wait:
                    await store.durable()
            await store.durable()
            before, version = sizes(store.table(KIND)), store.rv
        async with opened(path) as store:
            assert (sizes(store.table(KIND)), store.rv) == (before, version)
            assert store.put(KIND, obj("z")).rv == version + 1

    asyncio.run(run())


class Gate:
    """Holds a store's commits until it is opened; then they run, or fail."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.error: Exception | None = None
        self.batches: list[int] = []
        write: Any = store._write

        def held(changes: Sequence[Change]) -> None:
            self.batches.append(len(changes))
            loop.call_soon_threadsafe(self.reached.set)
            self.open.wait(20)
            if self.error is not None:
                raise self.error
            write(changes)

        monkeypatch.setattr(store, "_write", held)


async def test_nothing_is_visible_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a commit runs readers see the old state, writers build on the new, and all writes since
    share the next transaction; whoever depends on the running commit waits for it."""
    async with opened(tmp_path / "objects.db") as store:
        gate = Gate(store, monkeypatch)
        first = store.put(KIND, obj("a"))
        waiting = [asyncio.create_task(store.durable())]
        await gate.reached.wait()
        assert store.get(KIND, first.key) is None
        assert store.head(KIND, first.key) is first
        waiting.append(asyncio.create_task(store.durable()))
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        for number in range(50):
            store.put(KIND, obj(f"w{number}"))
        waiting.append(asyncio.create_task(store.durable()))
        gate.open.set()
        await asyncio.gather(*waiting)
        assert gate.batches == [1, 50]
        assert len(store.table(KIND).in_order()) == 51


async def test_a_failed_commit_takes_what_was_built_upon_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both writers are told, head is what is committed again, and the store goes on."""
    async with opened(tmp_path / "objects.db") as store:
        store.put(KIND, obj("a", 1))
        await store.durable()
        gate = Gate(store, monkeypatch)
        gate.error = sqlite3.OperationalError("database or disk is full")
        store.put(KIND, obj("a", 2))
        waiting = [asyncio.create_task(store.durable())]
        await gate.reached.wait()
        store.put(KIND, obj("a", 3))
        waiting.append(asyncio.create_task(store.durable()))
        await asyncio.sleep(0)
        gate.open.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [StoreError, StoreError]
        assert sizes(store.table(KIND)) == {"a": 1}
        head = store.head(KIND, ("n", "a"))
        assert head is not None
        assert head.decode()["spec"]["size"] == 1
        gate.error = None
        store.put(KIND, obj("a", 4))
        await store.durable()
        assert sizes(store.table(KIND)) == {"a": 4}


async def test_the_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By changes and by bytes; what is dropped is expired, what is kept can be followed."""
    monkeypatch.setattr("pvbus.controlplane.apiserver.store.LOG_CHANGES_MAX", 100)
    async with opened(None) as store:
        table = store.table(KIND)
        for number in range(1000):
            store.put(KIND, obj("a", number))
            await store.durable()
            assert len(table.changes) <= 100
        with pytest.raises(ExpiredError):
            table.position(2)
        assert table.since(table.position(store.rv - 1), 10)[0].rv == store.rv
        monkeypatch.setattr("pvbus.controlplane.apiserver.store.LOG_BYTES_MAX", 1000)
        for number in range(100):
            store.put(KIND, obj("a", number))
        await store.durable()
        assert len(table.changes) < 20


async def test_all_logs_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind with most bytes gives way; versions before a change count, too."""
    monkeypatch.setattr("pvbus.controlplane.apiserver.store.LOG_BYTES_MAX", 20_000)
    small, large = Kind("example.com", "Small"), Kind("example.com", "Large")
    async with opened(None) as store:
        store.put(small, obj("a"))
        for number in range(300):
            store.put(large, obj("a", number))
            await store.durable()
            tables = (store.table(small), store.table(large))
            held = {raw for table in tables for change in table.changes for raw in held_by(change)}
            assert sum(map(len, held)) <= 20_000
        assert len(store.table(small).changes) == 1
        store.remove(large, ("n", "a"))
        await store.durable()
        assert store.table(large).log_bytes == sum(len(raw) for c in tables[1].changes for raw in held_by(c))


def held_by(change: Change) -> list[bytes]:
    return [change.entry.raw, *([change.old.raw] if change.old is not None else [])]


async def test_the_log_forgets_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst does not stay in memory; what came within the time can still be followed."""
    monkeypatch.setattr("pvbus.controlplane.apiserver.store.LOG_SECONDS", 100.0)
    async with opened(None) as store:
        table = store.table(KIND)
        for number in range(10):
            store.put(KIND, obj("a", number))
        await store.durable()
        burst = store.rv
        store.expire(now=0.0)
        store.put(KIND, obj("b"))
        await store.durable()
        for now in (60.0, 99.0):
            store.expire(now=now)
            assert len(table.changes) == 11
        store.expire(now=100.0)
        assert [change.entry.key[1] for change in table.changes] == ["b"]
        assert table.since(table.position(burst), 10) == table.changes
        with pytest.raises(ExpiredError):
            table.position(burst - 1)
        store.expire(now=161.0)
        assert table.changes == []
        assert table.position(store.rv) == table.dropped
        assert table.log_bytes == 0


async def test_only_current_objects_stay_decoded() -> None:
    """A decoded object takes several times its bytes, and the log holds thousands of old ones."""
    async with opened(None) as store:
        for number in range(5):
            store.put(KIND, obj("a", number))
            await store.durable()
            found = store.get(KIND, ("n", "a"))
            assert found is not None
            assert found.share() is found.share()
        store.put(KIND, obj("b"))
        store.remove(KIND, ("n", "b"))
        await store.durable()
        old = [change.entry for change in store.table(KIND).changes if change.entry is not found]
        assert len(old) == 6
        for entry in old:
            assert entry.share() == entry.decode()
            assert entry.share() is not entry.share()
