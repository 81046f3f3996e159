"""Stored objects in memory, for the hooks and background tasks of the embedded server.

Behaves like the server's own store wherever the package store notices: opaque resource versions that
only real changes raise, writes that are visible at once, watches that begin with the existing objects.
`create`, `update` and `delete` replace the server's handlers and call the hooks in the same way.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from typing import Any

from pvbus.controlplane.apiserver.hooks import KindHooks, StatusError
from pvbus.ports.cluster import Kind, Object, WatchEvent

_Key = tuple[Kind, str, str]


class MemoryObjects:
    """An implementation of `hooks.Objects`."""

    def __init__(self) -> None:
        self._objects: dict[_Key, Object] = {}
        self._watchers: list[tuple[Kind, asyncio.Queue[WatchEvent]]] = []
        self._version = 0
        self.writes = 0

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self._objects.get((kind, namespace, name))

    def list(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        return [
            obj
            for (stored_kind, stored_namespace, _), obj in sorted(self._objects.items())
            if stored_kind == kind and namespace in (None, stored_namespace)
        ]

    async def watch(self, kind: Kind) -> AsyncIterator[WatchEvent]:
        queue: asyncio.Queue[WatchEvent] = asyncio.Queue()
        entry = (kind, queue)
        self._watchers.append(entry)
        try:
            for obj in self.list(kind):
                yield WatchEvent("ADDED", obj)
            yield WatchEvent("BOOKMARK", {})
            while True:
                yield await queue.get()
        finally:
            self._watchers.remove(entry)

    async def put(self, kind: Kind, obj: Object) -> Object:
        metadata = obj["metadata"]
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        present = self._objects.get(key)
        stored = copy.deepcopy(obj)
        if present is not None:
            for field in ("uid", "creationTimestamp", "resourceVersion"):
                if field in present["metadata"]:
                    stored["metadata"][field] = present["metadata"][field]
            if stored == present:
                return present
        self._version += 1
        self.writes += 1
        stored["metadata"]["resourceVersion"] = str(self._version)
        stored["metadata"].setdefault("uid", f"uid-{self._version}")
        self._objects[key] = stored
        self._tell(kind, WatchEvent("MODIFIED" if present is not None else "ADDED", stored))
        return stored

    async def change(
        self, kind: Kind, namespace: str, name: str, change: Callable[[Object], Object]
    ) -> Object | None:
        present = self.get(kind, namespace, name)
        return await self.put(kind, change(present)) if present is not None else None

    async def refresh(self, kind: Kind, namespace: str, name: str) -> None:
        """Nobody else writes."""

    async def remove(self, kind: Kind, namespace: str, name: str) -> None:
        gone = self._objects.pop((kind, namespace, name), None)
        if gone is not None:
            self._tell(kind, WatchEvent("DELETED", gone))

    def _tell(self, kind: Kind, event: WatchEvent) -> None:
        for wanted, queue in self._watchers:
            if wanted == kind:
                queue.put_nowait(event)

    # The server's handlers, as far as hooks see them.

    async def create(self, kind: Kind, hooks: KindHooks, obj: Object, *, user: str = "") -> Object:
        made = await hooks.on_create(copy.deepcopy(obj), user=user)
        metadata = made["metadata"]
        if self.get(kind, metadata.get("namespace", ""), metadata["name"]) is not None:
            raise StatusError(409, "AlreadyExists", f'"{metadata["name"]}" already exists')
        return await self.put(kind, made)

    async def update(
        self, kind: Kind, hooks: KindHooks, obj: Object, *, subresource: str = "", user: str = ""
    ) -> Object:
        metadata = obj["metadata"]
        old = self.get(kind, metadata.get("namespace", ""), metadata["name"])
        if old is None:
            raise StatusError(404, "NotFound", f'"{metadata["name"]}" not found')
        if metadata.get("resourceVersion") != old["metadata"]["resourceVersion"]:
            raise StatusError(409, "Conflict", "the object has been modified")
        new = await hooks.on_update(
            copy.deepcopy(old), copy.deepcopy(obj), subresource=subresource, user=user
        )
        return await self.put(kind, new)

    async def delete(self, kind: Kind, hooks: KindHooks, obj: dict[str, Any], *, user: str = "") -> None:
        metadata = obj["metadata"]
        present = self.get(kind, metadata.get("namespace", ""), metadata["name"])
        if present is None:
            raise StatusError(404, "NotFound", f'"{metadata["name"]}" not found')
        await hooks.on_delete(copy.deepcopy(present), user=user)
        await hooks.on_removed(copy.deepcopy(present))
        await self.remove(kind, metadata.get("namespace", ""), metadata["name"])
