"""Objects in memory, and the SQLite file that makes them durable.

There are two views. *Head* is the base of the next write: it contains writes that are not on disk yet.
*Committed* is the view of all readers. Writes that arrive during a commit share the next transaction. After
it they become visible to observers, readers and watches, in the order of their resource versions, and only
then are they answered. If a commit fails, its writes and those based on them fail with StoreError, and head
falls back to committed.

The log of changes, from which watches and old snapshots are read, is in memory and bounded. After a restart
it starts empty: a watch from an older version gets the error Expired, and lists again.
"""

import asyncio
import sqlite3
import time
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from pvbus.controlplane.apiserver.entries import Change, Entry, ObjectKey
from pvbus.controlplane.apiserver.objectfile import ObjectFile
from pvbus.controlplane.apiserver.waiters import Waiters
from pvbus.core.errors import NO_MEMORY, lacks_memory
from pvbus.ports.cluster import Kind, Object

LOG_CHANGES_MAX = 20_000
"""Changes of a kind kept for watches: a watcher that is this far behind lists again. Two bursts of
10,000 variants fit; at 2 kB each they take 40 MB at most, shared with the objects themselves."""

LOG_BYTES_MAX = 128 * 1024 * 1024
"""Limit for all logs, with the versions before and after each change: the largest log is cut first."""

LOG_SECONDS = 600.0
"""Changes are dropped after about this time, so that a burst does not stay in memory forever. A client that
was disconnected for longer lists again; a real API server keeps 5 minutes."""

EXPIRY_SECONDS = 60.0
"""How often old changes are dropped."""

_ADVICE = "make room on the disk, or see why nothing can be written to it, and try"

PROBE_SECONDS = 1.0
"""How often a store that could not write tries whether it can again: /readyz follows as soon."""


class StoreError(Exception):
    """The write was not stored: the disk is full, the file is damaged, or the store has stopped."""


class UnavailableError(StoreError):
    """The objects cannot be written or read now, and can later."""


class StaleError(Exception):
    """Somebody else changed the object meanwhile: read it again, and decide again."""


class HeldError(StaleError):
    """Somebody else is changing the object just now."""


class ExpiredError(Exception):
    """The log no longer reaches back to this resource version."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")


class Table:
    """The committed objects of one kind, and its recent changes.

    A position in the log counts from the first change ever, so it stays valid when changes are dropped: the
    change at a position is `changes[position - dropped]`. Every change later than `compacted` is in the log.

    entries: the objects, by namespace and name
    changes: the log, the oldest change first
    dropped: the number of changes that were dropped from the log
    compacted: the resourceVersion of the last change that was dropped
    changed: set, and replaced, when objects change
    watchers: those who wait to send changes
    log_bytes: the size of the objects in the log
    """

    def __init__(self, compacted: int) -> None:
        self.entries: dict[ObjectKey, Entry] = {}
        self.changes: list[Change] = []
        self.dropped = 0
        self.compacted = compacted
        self.changed = asyncio.Event()
        self.watchers = Waiters()
        self.log_bytes = 0
        self._marks: deque[tuple[float, int]] = deque()
        self._order: list[ObjectKey] | None = None
        self._packages: dict[str, set[ObjectKey]] | None = None

    def in_order(self, namespace: str | None = None) -> list[Entry]:
        """Return the entries in order of namespace and name, of one namespace or all."""
        return [self.entries[key] for key in self.keys(namespace)]

    def keys(self, namespace: str | None = None, *, after: ObjectKey | None = None) -> Sequence[ObjectKey]:
        """Return the keys of `in_order`, those after one or all; the caller must not change them."""
        if self._order is None:
            self._order = sorted(self.entries)
        order = self._order
        if namespace is None and after is None:
            return order
        low = bisect_right(order, after) if after else bisect_left(order, (namespace or "", ""))
        high = len(order) if namespace is None else bisect_left(order, (namespace + "\0", ""))
        return order[low:high]

    def of_package(
        self, package: str, namespace: str | None, *, after: ObjectKey | None
    ) -> Sequence[ObjectKey]:
        """Return the keys of `keys` whose objects have this `spec.packageName`.

        A package has a few revisions, a repository ten thousand.
        """
        if self._packages is None:
            self._packages = {}
            for entry in self.entries.values():
                self._packages.setdefault(entry.package, set()).add(entry.key)
        found = sorted(self._packages.get(package, ()))
        return [key for key in found if namespace in (None, key[0]) and (after is None or key > after)]

    def apply(self, change: Change) -> None:
        key = change.entry.key
        if (replaced := self.entries.get(key)) is not None:
            replaced.retire()
            self._index(replaced, is_present=False)
        if change.type == "DELETED":
            change.entry.retire()
            del self.entries[key]
            if self._order is not None:
                del self._order[bisect_left(self._order, key)]
        else:
            if replaced is None and self._order is not None:
                insort(self._order, key)
            self.entries[key] = change.entry
            self._index(change.entry, is_present=True)
        self.changes.append(change)
        self.log_bytes += _size(change)
        if len(self.changes) > LOG_CHANGES_MAX:
            self.compact(len(self.changes) // 2)

    def _index(self, entry: Entry, *, is_present: bool) -> None:
        if self._packages is None or not entry.package:
            return
        keys = self._packages.setdefault(entry.package, set())
        keys.add(entry.key) if is_present else keys.discard(entry.key)
        if not keys:
            del self._packages[entry.package]

    def notify(self) -> None:
        """Wake all tasks that wait for `changed`, and then the watchers, some at a time."""
        self.changed.set()
        self.changed = asyncio.Event()
        self.watchers.notify()

    def compact(self, count: int) -> None:
        """Drop the first `count` changes of the log. Half of them at once is cheap per change."""
        gone = self.changes[:count]
        if gone:
            self.compacted = gone[-1].rv
            self.dropped += len(gone)
            self.log_bytes -= sum(map(_size, gone))
            del self.changes[:count]

    def expire(self, now: float) -> None:
        """Drop the changes that the log already had at a call `LOG_SECONDS` ago."""
        while self._marks and self._marks[0][0] <= now - LOG_SECONDS:
            _, position = self._marks.popleft()
            self.compact(max(0, position - self.dropped))
        if self.changes:
            self._marks.append((now, self.dropped + len(self.changes)))

    def position(self, rv: int) -> int:
        """Return the position in the log after `rv`, counted from the first change ever.

        Raises ExpiredError if changes after `rv` are already dropped.
        """
        if rv < self.compacted:
            raise ExpiredError(rv, self.compacted)
        low, high = 0, len(self.changes)
        while low < high:
            middle = (low + high) // 2
            if self.changes[middle].rv <= rv:
                low = middle + 1
            else:
                high = middle
        return self.dropped + low

    def since(self, position: int, limit: int) -> Sequence[Change]:
        """Return up to `limit` changes from a log position on. Raises ExpiredError if they are dropped."""
        if position < self.dropped:
            raise ExpiredError(self.compacted - 1, self.compacted)
        start = position - self.dropped
        return self.changes[start : start + limit]

    def snapshot(self, rv: int) -> "Table":
        """Return the table as it was at `rv`, by undoing later changes. Raises ExpiredError."""
        start = self.position(rv) - self.dropped
        if start == len(self.changes):
            return self
        past = Table(rv)
        past.entries = dict(self.entries)
        for change in reversed(self.changes[start:]):
            if change.old is None:
                past.entries.pop(change.entry.key, None)
            else:
                past.entries[change.entry.key] = change.old
        return past


def _size(change: Change) -> int:
    return len(change.entry.raw) + (len(change.old.raw) if change.old is not None else 0)


class _Batch:
    """Writes that share one transaction, and the futures that wait for it."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.waiters: list[asyncio.Future[None]] = []


class Store:
    """All objects of one server. Call its methods only in the event loop that called `start`.

    A write goes into `_pending`, which makes it part of head, and into `_batch`. One task takes the batch,
    writes it in one transaction, and applies it to the tables; meanwhile the next batch gathers. An entry of
    `_pending` ends with the commit of its own write, and not of an earlier one of the same object.

    rv: the resourceVersion of the last committed write
    write_problem: why nothing can be written, "" if the last write succeeded
    """

    def __init__(self, path: Path | None) -> None:
        """Open the file, or use only memory if there is no path."""
        self._path = path
        self._file = ObjectFile.open(path) if path else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="apiserver-store")
        self._tables: dict[Kind, Table] = {}
        self._pending: dict[tuple[Kind, ObjectKey], Entry | None] = {}
        self._batch = _Batch()
        self._running = _Batch()
        self._wake = asyncio.Event()
        self._observers: list[Callable[[Change], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.rv = self._head_rv = self._start_rv = 1
        self.write_problem = ""
        """Why nothing can be written, "" if the last write succeeded."""
        if self._file is not None:
            self.rv, objects = self._file.load()
            self._head_rv = self._start_rv = self.rv
            for kind, entry in objects:
                self.table(kind).entries[entry.key] = entry

    def start(self) -> None:
        self._task = asyncio.create_task(self._commit_forever(), name="apiserver-store")

    async def stop(self) -> None:
        """Commit queued writes and close the file."""
        self._stopping = True
        self._wake.set()
        try:
            if self._task is not None:
                await self._task
        finally:
            self._thread.shutdown(wait=True)
            if self._file is not None:
                self._file.close()

    def observe(self, observer: Callable[[Change], None]) -> None:
        """Call `observer` for each durable change, before any watch gets it."""
        self._observers.append(observer)

    def table(self, kind: Kind) -> Table:
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = Table(self._start_rv)
        return table

    def kinds(self) -> list[Kind]:
        return [kind for kind, table in self._tables.items() if table.entries]

    def get(self, kind: Kind, key: ObjectKey) -> Entry | None:
        """Return the committed object."""
        table = self._tables.get(kind)
        return table.entries.get(key) if table else None

    def head(self, kind: Kind, key: ObjectKey) -> Entry | None:
        """Return the object that is the base of its next write."""
        try:
            return self._pending[kind, key]
        except KeyError:
            return self.get(kind, key)

    def put(self, kind: Kind, obj: Object) -> Entry:
        """Create or replace an object; sets its resourceVersion in `obj`. It is durable after `durable()`."""
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        old = self.head(kind, key)
        self._head_rv += 1
        entry = Entry.encode(obj, self._head_rv)
        self._queue(kind, Change(kind, "MODIFIED" if old else "ADDED", entry, old), entry)
        return entry

    def remove(self, kind: Kind, key: ObjectKey) -> Entry | None:
        """Remove an object; return the entry for its DELETED event, None if there was none."""
        old = self.head(kind, key)
        if old is None:
            return None
        self._head_rv += 1
        entry = Entry.encode(old.opened(), self._head_rv)
        self._queue(kind, Change(kind, "DELETED", entry, old), None)
        return entry

    def _queue(self, kind: Kind, change: Change, entry: Entry | None) -> None:
        self._pending[kind, change.entry.key] = entry
        self._batch.changes.append(change)
        self._wake.set()

    async def commit(self, kind: Kind, obj: Object) -> Entry:
        """Create or replace an object durably. Nothing is awaited before the write is queued.

        Raises: StoreError; StaleError where others write the same objects.
        """
        entry = self.put(kind, obj)
        await self.durable()
        return entry

    async def discard(self, kind: Kind, key: ObjectKey) -> Entry | None:
        """Remove an object durably; return as `remove`. Raises: as `commit`."""
        removed = self.remove(kind, key)
        await self.durable()
        return removed

    async def refresh(self, kind: Kind, key: ObjectKey | None = None) -> None:
        """Make `get` and `head` of an object, or of all of its kind, as new as this call.

        Here they always are: nobody else writes. Raises: StoreError.
        """

    async def reach(self, kind: Kind, rv: int) -> None:
        """Wait a short time until `rv` of this store is at least that: others may know a higher one."""

    async def durable(self) -> None:
        """Wait until all writes queued so far are committed and visible. Raises StoreError."""
        batch = self._batch if self._batch.changes else self._running
        if not batch.changes:
            return
        if self._task is None or self._task.done():
            raise StoreError("the store has stopped")
        waiter = asyncio.get_running_loop().create_future()
        batch.waiters.append(waiter)
        await waiter

    async def _commit_forever(self) -> None:
        try:
            while self._batch.changes or not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                self._running, self._batch = self._batch, _Batch()
                await self._commit(self._running)
                self._running = _Batch()
        except BaseException:
            self._give_up(StoreError("the store has stopped"))
            raise

    async def _commit(self, batch: _Batch) -> None:
        if not batch.changes:  # they were given up: nothing shows that writes work again
            return
        loop = asyncio.get_running_loop()
        try:
            if self._file is not None:
                await loop.run_in_executor(self._thread, self._write, batch.changes)
        except (sqlite3.Error, OSError, MemoryError, RuntimeError) as exc:
            if isinstance(exc, RuntimeError) and not lacks_memory(exc):
                raise
            why, advice = (NO_MEMORY, "try") if lacks_memory(exc) else (exc, _ADVICE)
            self.write_problem = (
                f"the objects could not be stored in {self._path} ({why}): {advice} again; nothing of this "
                "request was stored"
            )
            self._give_up(StoreError(self.write_problem))
        else:
            self.write_problem = ""
            self._publish(batch)

    async def probe_forever(self) -> None:
        """Clear `write_problem` once writes work again, also if nobody writes."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            if self.write_problem and self._file is not None:
                with suppress(sqlite3.Error, OSError, MemoryError, RuntimeError):
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._file.probe)
                    self.write_problem = ""

    def _give_up(self, error: StoreError) -> None:
        """Fail the running commit and all queued writes, which are based on it."""
        for batch in (self._running, self._batch):
            for waiter in batch.waiters:
                if not waiter.done():
                    waiter.set_exception(error)
        self._batch = _Batch()
        self._pending.clear()

    def _write(self, changes: Sequence[Change]) -> None:
        """Write one transaction; runs in the worker thread."""
        assert self._file is not None
        self._file.write(changes)

    def _publish(self, batch: _Batch) -> None:
        for change in batch.changes:
            self.rv = change.rv
            key = change.entry.key
            current = None if change.type == "DELETED" else change.entry
            if self._pending.get((change.kind, key), self) is current:
                del self._pending[change.kind, key]
        self.show(batch.changes)
        for waiter in batch.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def show(self, changes: Sequence[Change]) -> None:
        """Make durable changes visible to observers, readers and watches."""
        for change in changes:
            self.table(change.kind).apply(change)
            for observer in self._observers:
                observer(change)
        self._bound_logs()
        for kind in {change.kind for change in changes}:
            self.table(kind).notify()

    def _bound_logs(self) -> None:
        while sum(table.log_bytes for table in self._tables.values()) > LOG_BYTES_MAX:
            largest = max(self._tables.values(), key=lambda table: table.log_bytes)
            largest.compact(max(1, len(largest.changes) // 2))

    def expire(self, now: float) -> None:
        """Drop old changes of all logs.

        now: the time of a monotonic clock, in seconds
        """
        for table in self._tables.values():
            table.expire(now)

    async def expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            self.expire(time.monotonic())
