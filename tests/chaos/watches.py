"""How the checker sees the objects of a world: etcd's own watch, or a watch of the API server.

etcd goes on while the API server is away, so nothing is missed there. A watch of the embedded API server
begins with a list after each loss; what came and went meanwhile is not seen. Neither uses a reader of pvbus.
"""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from pvbus.adapters.kubernetes.connection import Connection
from pvbus.ports.cluster import Kind, Object

ObjectSink = Callable[[float, Kind, str, Object | None], None]
"""Takes time, kind, key `<namespace>/<name>`, and the object; None when it is gone."""

RETRY_SECONDS = 0.2
LINE_BYTES_MAX = 1 << 24
_LOST = (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError)


class EtcdWatch:
    """Follows kinds in etcd by its JSON gateway. prefixes: of keys, as `/registry/<group>/<plural>/`."""

    def __init__(self, url: str, prefixes: Mapping[Kind, str], sink: ObjectSink) -> None:
        self._url = url
        self._prefixes = prefixes
        self._sink = sink

    async def run(self) -> None:
        async with (
            aiohttp.ClientSession(read_bufsize=LINE_BYTES_MAX) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for kind, prefix in self._prefixes.items():
                tasks.create_task(self._follow(session, kind, prefix))

    async def _follow(self, session: aiohttp.ClientSession, kind: Kind, prefix: str) -> None:
        interval = {"key": _base64(prefix), "range_end": _base64(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        async with session.post(f"{self._url}/v3/kv/range", json=interval) as answer:
            listed = await answer.json(content_type=None)
        for pair in listed.get("kvs", ()):
            self._put(kind, prefix, pair)
        create = {
            "create_request": {**interval, "start_revision": str(int(listed["header"]["revision"]) + 1)}
        }
        timeout = aiohttp.ClientTimeout(total=None)
        async with session.post(f"{self._url}/v3/watch", json=create, timeout=timeout) as answer:
            async for line in answer.content:
                for event in json.loads(line)["result"].get("events", ()):
                    if event.get("type") == "DELETE":
                        self._sink(time.time(), kind, _key(prefix, event["kv"]), None)
                    else:
                        self._put(kind, prefix, event["kv"])
        raise ConnectionError(f"etcd ended the watch of {prefix}")  # it is never disturbed here

    def _put(self, kind: Kind, prefix: str, pair: Mapping[str, Any]) -> None:
        obj = json.loads(base64.b64decode(pair["value"]))
        obj["metadata"]["resourceVersion"] = pair["mod_revision"]
        self._sink(time.time(), kind, _key(prefix, pair), obj)


class ApiWatch:
    """Follows kinds of an API server that may be killed and frozen.

    paths: as `/apis/<group>/<version>/<plural>`.
    """

    def __init__(self, connection: Connection, paths: Mapping[Kind, str], sink: ObjectSink) -> None:
        self._connection = connection
        self._paths = paths
        self._sink = sink
        self.lists = 0

    async def run(self) -> None:
        async with (
            aiohttp.ClientSession(read_bufsize=LINE_BYTES_MAX) as session,
            asyncio.TaskGroup() as tasks,
        ):
            for kind, path in self._paths.items():
                tasks.create_task(self._follow(session, kind, path))

    async def _follow(self, session: aiohttp.ClientSession, kind: Kind, path: str) -> None:
        known: dict[str, Object] = {}
        while True:
            with contextlib.suppress(*_LOST):
                version = await self._list(session, kind, path, known)
                await self._watch(session, kind, path, version, known)
            await asyncio.sleep(RETRY_SECONDS)

    async def _list(
        self, session: aiohttp.ClientSession, kind: Kind, path: str, known: dict[str, Object]
    ) -> str:
        async with self._get(session, path, timeout=aiohttp.ClientTimeout(total=60)) as answer:
            answer.raise_for_status()
            listing = await answer.json()
        self.lists += 1
        present = {_named(obj): obj for obj in listing["items"]}
        for key in known.keys() - present.keys():
            del known[key]
            self._sink(time.time(), kind, key, None)
        for key, obj in present.items():
            if known.get(key) != obj:
                known[key] = obj
                self._sink(time.time(), kind, key, obj)
        return str(listing["metadata"].get("resourceVersion", ""))

    async def _watch(
        self, session: aiohttp.ClientSession, kind: Kind, path: str, version: str, known: dict[str, Object]
    ) -> None:
        query = f"{path}?watch=true&allowWatchBookmarks=true&resourceVersion={version}"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=90)
        async with self._get(session, query, timeout=timeout) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                event = json.loads(line)
                obj, key = event["object"], ""
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    key = _named(obj)
                match event["type"]:
                    case "ADDED" | "MODIFIED":
                        known[key] = obj
                        self._sink(time.time(), kind, key, obj)
                    case "DELETED":
                        known.pop(key, None)
                        self._sink(time.time(), kind, key, None)
                    case "ERROR":
                        return

    def _get(self, session: aiohttp.ClientSession, path: str, timeout: aiohttp.ClientTimeout) -> Any:
        @contextlib.asynccontextmanager
        async def get() -> Any:
            access = await self._connection.access()
            async with session.get(
                self._connection.url + path, headers=access.headers, timeout=timeout, **access.options
            ) as answer:
                yield answer

        return get()


async def compact(url: str) -> bool:
    """Make etcd forget all but the last version of each key. Return False if nothing was written since the
    last time."""
    async with aiohttp.ClientSession() as session:
        body = {"key": _base64("/"), "count_only": True, "range_end": _base64("0")}
        async with session.post(f"{url}/v3/kv/range", json=body) as answer:
            revision = (await answer.json(content_type=None))["header"]["revision"]
        async with session.post(f"{url}/v3/kv/compaction", json={"revision": revision}) as answer:
            text = await answer.text()
            if answer.status != 200 and "has been compacted" not in text:
                raise ConnectionError(f"etcd does not compact: {text}")
            return answer.status == 200


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _key(prefix: str, pair: Mapping[str, Any]) -> str:
    return base64.b64decode(pair["key"]).decode().removeprefix(prefix)


def _named(obj: Object) -> str:
    return f"{obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
