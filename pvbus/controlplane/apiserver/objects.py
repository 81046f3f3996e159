"""The stored objects for hooks and background tasks inside the server's process."""

from collections.abc import AsyncIterator, Callable

from pvbus.controlplane.apiserver.entries import Change
from pvbus.controlplane.apiserver.revisions import begin
from pvbus.controlplane.apiserver.store import ExpiredError, HeldError, StaleError, Store, UnavailableError
from pvbus.core.errors import InvariantError
from pvbus.ports.cluster import Kind, Object, WatchEvent

_PRESERVED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
_CHANGES_MAX = 500
STALE_MAX = 8
"""Tries of one change: another replica makes one or two at a time, people fewer."""


class StoredObjects:
    """Implements `hooks.Objects` on the store, from the start of the server on."""

    def __init__(self) -> None:
        self._bound: Store | None = None

    def bind(self, store: Store) -> None:
        self._bound = store

    @property
    def _store(self) -> Store:
        if self._bound is None:
            raise InvariantError("the objects of an API server were used before it started")
        return self._bound

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        entry = self._store.get(kind, (namespace, name))
        return entry.share() if entry else None

    def list(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        return [entry.share() for entry in self._store.table(kind).in_order(namespace)]

    async def watch(self, kind: Kind) -> AsyncIterator[WatchEvent]:
        """Yield every existing object as ADDED, then a BOOKMARK, then changes, forever.

        A consumer that falls behind the log gets a new list: missing objects as DELETED, existing ones as
        ADDED or MODIFIED, and another BOOKMARK.
        """
        table = self._store.table(kind)
        known: dict[tuple[str, str], Object] = {}
        while True:
            position = table.position(max(self._store.rv, table.compacted))
            present = {entry.key: entry.share() for entry in table.in_order()}
            events = [WatchEvent("DELETED", known[key]) for key in known if key not in present]
            events += [
                WatchEvent("MODIFIED" if key in known else "ADDED", obj) for key, obj in present.items()
            ]
            known = present
            bookmark = {"metadata": {"resourceVersion": str(self._store.rv)}}
            for event in (*events, WatchEvent("BOOKMARK", bookmark)):
                yield event
            try:
                while True:
                    changed = table.changed
                    changes = table.since(position, _CHANGES_MAX)
                    position += len(changes)
                    for change in changes:
                        _remember(known, change)
                        yield WatchEvent(change.type, change.entry.share())
                    if not changes:
                        await changed.wait()
            except ExpiredError:
                continue

    async def put(self, kind: Kind, obj: Object) -> Object:
        metadata = dict(obj["metadata"])
        new = {**obj, "metadata": metadata}
        current = self._store.head(kind, (metadata.get("namespace", ""), metadata["name"]))
        if current is None:
            given = {field: metadata[field] for field in ("uid", "creationTimestamp") if metadata.get(field)}
            begin(metadata, counts="generation" in metadata)
            metadata.update(given)
        else:
            old = current.decode()
            for field in _PRESERVED:
                if field in old["metadata"]:
                    metadata[field] = old["metadata"][field]
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
            if new == old:
                await self._store.durable()
                return old
        return (await self._store.commit(kind, new)).decode()

    async def change(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], Object]
    ) -> Object | None:
        for _ in range(STALE_MAX):
            newest = self._store.head(kind, (namespace, name))
            if newest is None:
                return None
            try:
                return await self.put(kind, change(newest.share()))
            except HeldError:
                raise
            except StaleError:
                await self._store.refresh(kind, (namespace, name))
        raise UnavailableError(f"other clients keep changing {kind.kind} {namespace}/{name}: try again")

    async def remove(self, kind: Kind, namespace: str, name: str) -> None:
        await self._store.discard(kind, (namespace, name))

    async def refresh(self, kind: Kind, namespace: str, name: str) -> None:
        await self._store.refresh(kind, (namespace, name))


def _remember(known: dict[tuple[str, str], Object], change: Change) -> None:
    if change.type == "DELETED":
        known.pop(change.entry.key, None)
    else:
        known[change.entry.key] = change.entry.share()
