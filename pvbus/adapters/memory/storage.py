"""Stores the objects of a cluster in memory: with indexes of packages and owners, and events of changes."""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, MutableMapping, Sequence
from operator import itemgetter
from typing import Literal

from pvbus.adapters.memory.objects import REVISION, copy_of, package_of
from pvbus.adapters.memory.spill import LazyList, Spill, SpilledTable
from pvbus.ports.cluster import GoneError, Kind, Object, WatchEvent

HISTORY_EVENTS = 10_000

Table = MutableMapping[tuple[str, str], Object]


class Storage:
    """Objects as they are stored; callers must not change what they get.

    version: the resourceVersion of the newest change
    """

    def __init__(self, spill: Spill | None = None) -> None:
        """spill: where the objects are, None for in memory"""
        self.version = 0
        self._spill = spill
        self._tables: dict[Kind, Table] = {}
        self._packages: dict[tuple[str, str, str], set[str]] = {}
        self._owned: dict[str, set[tuple[Kind, str, str]]] = {}
        self._history: list[tuple[int, Kind, WatchEvent]] = []
        self._forgotten = 0  # version of the newest event that the history has lost
        self._changed = asyncio.Event()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._tables.get(kind, {}).get((namespace, name))

    def all(self) -> Sequence[Object]:
        """Return all objects, ordered by kind, namespace and name; each is read when it is needed."""
        names = [(kind, key) for kind in sorted(self._tables) for key in sorted(self._tables[kind])]
        if self._spill is None:
            return [self._tables[kind][key] for kind, key in names]
        return LazyList(names, lambda name: self._tables[name[0]][name[1]])

    def of_kind(self, kind: Kind) -> Iterable[Object]:
        return self._tables.get(kind, {}).values()

    def ordered(self, kind: Kind) -> Iterator[Object]:
        """Yield the objects of a kind by namespace and name."""
        table = self._tables.get(kind, {})
        return (table[key] for key in sorted(table))

    def package(self, namespace: str, repository: str, package: str) -> list[Object]:
        """Return the PackageRevisions of a package, by name."""
        names = self._packages.get((namespace, repository, package), ())
        return [self._tables[REVISION][namespace, name] for name in sorted(names)]

    def dependents(self, uid: str) -> list[tuple[Kind, str, str]]:
        """Return kind, namespace and name of the objects that name an owner."""
        return sorted(self._owned.get(uid, ()))

    # ------------------------------------------------------------ changes

    def put(self, kind: Kind, obj: Object) -> None:
        """Add or replace an object; it becomes the storage's own, with a new resourceVersion."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = SpilledTable(self._spill) if self._spill is not None else {}
        event: Literal["ADDED", "MODIFIED"] = "MODIFIED" if key in table else "ADDED"
        if key in table:
            self._unindex(kind, table[key])
        self.version += 1
        meta["resourceVersion"] = str(self.version)
        table[key] = obj
        if kind == REVISION:
            self._packages.setdefault(package_of(obj), set()).add(meta["name"])
        for owner in meta.get("ownerReferences") or ():
            self._owned.setdefault(owner.get("uid", ""), set()).add((kind, *key))
        self._tell(kind, WatchEvent(event, copy_of(obj)))

    def remove(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Remove an object and return it, None if there is none."""
        obj = self._tables.get(kind, {}).pop((namespace, name), None)
        if obj is not None:
            self._unindex(kind, obj)
            self.version += 1
            last = copy_of(obj)
            last["metadata"]["resourceVersion"] = str(self.version)
            self._tell(kind, WatchEvent("DELETED", last))
        return obj

    def _unindex(self, kind: Kind, obj: Object) -> None:
        meta = obj["metadata"]
        if kind == REVISION:
            self._packages.get(package_of(obj), set()).discard(meta["name"])
        for owner in meta.get("ownerReferences") or ():
            key = (kind, meta.get("namespace", ""), meta["name"])
            self._owned.get(owner.get("uid", ""), set()).discard(key)

    # ------------------------------------------------------------ events

    def _tell(self, kind: Kind, event: WatchEvent) -> None:
        self._history.append((self.version, kind, event))
        if len(self._history) > HISTORY_EVENTS + HISTORY_EVENTS // 10:
            # A tenth at once is cheap on average.
            self._forgotten = self._history[-HISTORY_EVENTS - 1][0]
            del self._history[:-HISTORY_EVENTS]
        self.wake_watches()

    def wake_watches(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def watch(
        self, kind: Kind, position: int, namespace: str | None, is_served: Callable[[], bool]
    ) -> AsyncIterator[WatchEvent]:
        """Yield the events of a kind after a version, until it is not served. Raises GoneError."""
        while True:
            if position < self._forgotten:  # at the start, or as the reader takes long for each event
                raise GoneError(f"too old resource version: {position}")
            changed = self._changed
            first = bisect_right(self._history, position, key=itemgetter(0))
            for version, other, event in self._history[first:]:
                position = version
                if other == kind and namespace in (None, event.object["metadata"].get("namespace", "")):
                    yield event
            if not is_served():
                return
            if changed is self._changed:
                await changed.wait()
