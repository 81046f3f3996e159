"""Reads which kinds an API server serves, and caches the answers.

Requests for one document share one GET, also while it is under way. Only answers are cached: what is not
served, or could not be read, is read again by the next request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from pvbus.adapters.kubernetes import answers
from pvbus.adapters.kubernetes.answers import segment
from pvbus.ports.cluster import Kind, Object, Resource

Get = Callable[[str], Awaitable[Object | None]]
"""Returns the document at a path, None for 404."""

Kinds = dict[tuple[str, str], Resource]
"""The resources of one group and version, by group and kind."""

T = TypeVar("T")


class Discovery:
    """The served kinds of one API server."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._groups = _Shared[tuple[str, ...]]()
        self._kinds = _Shared[Kinds]()

    async def resource(self, kind: Kind, version: str | None) -> Resource | None:
        for candidate in [version] if version else await self.versions(kind):
            found = (await self._kinds_of(kind.group, candidate)).get((kind.group, kind.kind))
            if found is not None:
                return found
        return None

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        served = {v: await self._kinds_of(kind.group, v) for v in await self._versions_of(kind.group)}
        return tuple(version for version, kinds in served.items() if tuple(kind) in kinds)

    def forget(self) -> None:
        """Drop all answers, and those under way: they may be older than the change."""
        self._groups.forget()
        self._kinds.forget()

    async def close(self) -> None:
        await self._groups.close()
        await self._kinds.close()

    async def _versions_of(self, group: str) -> tuple[str, ...]:
        if not group:
            return ("v1",)
        path = f"/apis/{segment(group)}"
        return await self._groups.get(path, lambda: self._read_group(path)) or ()

    async def _read_group(self, path: str) -> tuple[str, ...] | None:
        answer = await self._get(path)
        if answer is None:
            return None
        answers.discovery_of(answer, "APIGroup", f"GET {path}")
        preferred = (answer.get("preferredVersion") or {}).get("version")
        names = [v["version"] for v in answer.get("versions", ())]
        names.sort(key=lambda name: name != preferred)
        return tuple(names)

    async def _kinds_of(self, group: str, version: str) -> Kinds:
        path = f"/apis/{segment(group)}/{segment(version)}" if group else f"/api/{segment(version)}"
        return await self._kinds.get(path, lambda: self._read_kinds(path, group, version)) or {}

    async def _read_kinds(self, path: str, group: str, version: str) -> Kinds | None:
        answer = await self._get(path)
        if answer is None:
            return None
        answers.discovery_of(answer, "APIResourceList", f"GET {path}")
        return {
            (group, entry["kind"]): Resource(
                group, version, entry["kind"], entry["name"], bool(entry.get("namespaced"))
            )
            for entry in answer.get("resources", ())
            if "/" not in entry["name"]
        }


class _Shared(Generic[T]):
    """Values by path. Requests for a value that is being read wait for that reading."""

    def __init__(self) -> None:
        self._readings: dict[str, asyncio.Task[T | None]] = {}
        self._running: set[asyncio.Task[T | None]] = set()

    async def get(self, path: str, read: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        reading = self._readings.get(path)
        if reading is None:
            reading = self._readings[path] = asyncio.create_task(read())
            self._running.add(reading)
            reading.add_done_callback(lambda done: self._end(path, done))
        return await asyncio.shield(reading)  # one cancelled request leaves it to the others

    def _end(self, path: str, reading: "asyncio.Task[T | None]") -> None:
        self._running.discard(reading)
        is_answer = not reading.cancelled() and reading.exception() is None and reading.result() is not None
        if not is_answer and self._readings.get(path) is reading:
            del self._readings[path]

    def forget(self) -> None:
        self._readings.clear()

    async def close(self) -> None:
        for reading in self._running:
            reading.cancel()
        if self._running:
            await asyncio.wait(self._running)
