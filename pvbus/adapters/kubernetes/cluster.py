"""The cluster port over HTTP, for a real API server or the embedded one alike.

Bodies are bytes to and from msgspec. The session does not read proxy variables (that alone costs
four fifths of the throughput).
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec

from pvbus import __version__
from pvbus.adapters.kubernetes import answers
from pvbus.adapters.kubernetes.answers import segment
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.errors import error_of, lost
from pvbus.core.errors import PvbusError, TransientError
from pvbus.ports.cluster import GoneError, Kind, Listing, Object, Resource, SilentError, WatchEvent

PAGE_OBJECTS = 5_000  # an API server's own clients use 500; fewer round trips restart faster
REQUEST_SECONDS = 30.0
WATCH_SECONDS = 300  # the server then ends the stream, and the next one continues there
WATCH_START_SECONDS = 20.0  # until a watch's headers arrive: below the time after which a watch is missed
WATCH_SILENCE_SECONDS = 90.0  # bookmarks come each minute: longer silence may be a dead connection
WATCH_LINE_BYTES_MAX = 64_000_000  # far above any object: a longer line is not from a watch
CONNECTIONS_MAX = 100

_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_encode = msgspec.json.Encoder().encode


class _Answer(NamedTuple):
    """The response to a request. where: method and path, for messages."""

    code: int
    body: bytes
    retry_after: str | None
    where: str
    date: str | None = None

    def error(self, method: str) -> PvbusError:
        error = error_of(self.code, self.body, method=method, where=self.where, retry_after=self.retry_after)
        if isinstance(error, GoneError):  # of a list page: the list is read again
            return TransientError(str(error))
        return error


class HttpCluster:
    """Implements `pvbus.ports.cluster.Cluster`."""

    def __init__(self, connection: Connection, *, strict: bool = False) -> None:
        """strict: the server refuses unknown fields in a write instead of pruning them."""
        self._connection = connection
        self._writing = {"fieldValidation": "Strict"} if strict else None
        self._session = self._open_session(CONNECTIONS_MAX)
        self._watching = self._open_session(0)  # watches are long-lived: they must not use up the connections
        self._discovered: dict[str, dict[tuple[str, str], Resource]] = {}
        self._groups: dict[str, tuple[str, ...]] = {}

    def _open_session(self, connections_max: int) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max, ssl=self._connection.ssl),
            trust_env=False,
            auto_decompress=True,
            headers={"User-Agent": f"pvbus/{__version__}"},
        )

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None, context: str | None = None, *, strict: bool = False
    ) -> "HttpCluster":
        return cls(await Connection.load(kubeconfig, context), strict=strict)

    async def close(self) -> None:
        await self._session.close()
        await self._watching.close()

    # ------------------------------------------------------------ discovery

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        for candidate in [version] if version else await self.versions(kind):
            found = (await self._group_version(kind.group, candidate)).get((kind.group, kind.kind))
            if found is not None:
                return found
        return None

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        served = {
            v: await self._group_version(kind.group, v) for v in await self._versions_of_group(kind.group)
        }
        return tuple(version for version, kinds in served.items() if tuple(kind) in kinds)

    def forget_resources(self) -> None:
        self._discovered.clear()
        self._groups.clear()

    async def _versions_of_group(self, group: str) -> tuple[str, ...]:
        if not group:
            return ("v1",)
        if group not in self._groups:
            path = f"/apis/{segment(group)}"
            answer = await self._request("GET", path, missing=True)
            if answer is None:
                return ()
            answers.discovery_of(answer, "APIGroup", f"GET {path}")
            preferred = (answer.get("preferredVersion") or {}).get("version")
            names = [v["version"] for v in answer.get("versions", ())]
            names.sort(key=lambda name: name != preferred)
            self._groups[group] = tuple(names)
        return self._groups[group]

    async def _group_version(self, group: str, version: str) -> dict[tuple[str, str], Resource]:
        path = f"/apis/{segment(group)}/{segment(version)}" if group else f"/api/{segment(version)}"
        if path not in self._discovered:
            answer = await self._request("GET", path, missing=True)
            if answer is None:
                return {}
            answers.discovery_of(answer, "APIResourceList", f"GET {path}")
            self._discovered[path] = {
                (group, entry["kind"]): Resource(
                    group, version, entry["kind"], entry["name"], bool(entry.get("namespaced"))
                )
                for entry in answer.get("resources", ())
                if "/" not in entry["name"]
            }
        return self._discovered[path]

    async def server_version(self) -> str:
        """Return the server's own version."""
        answer = await self._request("GET", "/version", missing=True)
        return str((answer or {}).get("gitVersion", ""))

    async def server_time(self) -> float | None:
        """Return the server's clock in whole seconds since the epoch; None if it does not say."""
        date = (await self._send("GET", "/version")).date
        return parsedate_to_datetime(date).timestamp() if date else None

    # ------------------------------------------------------------ reading

    @staticmethod
    def _path(resource: Resource, namespace: str | None, name: str = "", subresource: str = "") -> str:
        root = f"/apis/{resource.group}" if resource.group else "/api"
        parts = [root, resource.version]
        if resource.namespaced and namespace:
            parts += ["namespaces", segment(namespace)]
        return "/".join([*parts, resource.plural, *filter(None, (segment(name), subresource))])

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        metadata_only: bool = False,
    ) -> Listing:
        items: list[Object] = []
        parameters = {"limit": str(PAGE_OBJECTS)}
        if label_selector:
            parameters["labelSelector"] = label_selector
        if field_selector:
            parameters["fieldSelector"] = field_selector
        accept = _METADATA_LIST if metadata_only else "application/json"
        path = self._path(resource, namespace)
        while True:
            page = await self._request("GET", path, parameters=parameters, accept=accept)
            assert page is not None
            more, version, following = answers.page_of(page, f"GET {path}")
            items += more
            if not following:
                return Listing(version, items)
            parameters["continue"] = following

    async def watch(
        self, resource: Resource, resource_version: str, *, metadata_only: bool = False
    ) -> AsyncIterator[WatchEvent]:
        parameters = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        accept = _METADATA if metadata_only else "application/json"
        timeout = aiohttp.ClientTimeout(total=None, sock_read=WATCH_SILENCE_SECONDS)
        path = self._path(resource, None)
        where = f"GET {path} (watch)"
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(WATCH_START_SECONDS):
                        response = await stack.enter_async_context(
                            self._watching.get(
                                self._connection.url + path,
                                params=parameters,
                                headers={"Accept": accept, **await self._connection.headers()},
                                timeout=timeout,
                            )
                        )
                        if response.status >= 400:
                            after = response.headers.get("Retry-After")
                            body = await response.read()
                            raise error_of(
                                response.status, body, method="GET", where=where, retry_after=after
                            )
                except TimeoutError as exc:
                    raise TransientError(f"{where}: no answer within {WATCH_START_SECONDS:g} s") from exc
                async for event in self._events(response, where):
                    yield event
        except TimeoutError as exc:
            raise SilentError(f"{where}: nothing came for {WATCH_SILENCE_SECONDS:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise lost(where, exc, WATCH_SILENCE_SECONDS) from exc

    @staticmethod
    async def _events(response: aiohttp.ClientResponse, where: str) -> AsyncIterator[WatchEvent]:
        rest = b""
        async for chunk in response.content.iter_any():
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line:
                    yield answers.event_of(line, where)
            if len(rest) > WATCH_LINE_BYTES_MAX:
                raise TransientError(f"{where}: a line has more than {WATCH_LINE_BYTES_MAX} bytes")
        if rest.strip():  # cut off in the middle of an event, or not a watch
            yield answers.event_of(rest, where)

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        path = self._path(resource, namespace, name)
        answer = await self._send("GET", path)
        if answer.code == 404 and answers.says_not_found(answer.body, resource, name):
            return None
        if answer.code >= 400:
            raise answer.error("GET")
        return answers.object_of(answers.value_of(answer.body, answer.where), name, answer.where)

    # ------------------------------------------------------------ writing

    async def create(self, resource: Resource, obj: Object) -> Object:
        path = self._path(resource, obj["metadata"].get("namespace"))
        return await self._written("POST", path, obj)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        meta = obj["metadata"]
        path = self._path(resource, meta.get("namespace"), meta["name"], subresource)
        return await self._written("PUT", path, obj)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        subresource: str = "",
    ) -> Object:
        path = self._path(resource, namespace, name, subresource)
        return await self._written("PATCH", path, patch, content="application/merge-patch+json")

    async def apply(self, resource: Resource, obj: Object, *, manager: str) -> Object:
        """Apply an object on the server: create it, or make the fields of `obj` as they are there.

        manager: who owns these fields from now on, also those that another one owned. Fields that it owned
        and that `obj` does not have any more are removed. Raises what an update raises.
        """
        meta = obj["metadata"]
        answer = await self._request(
            "PATCH",
            self._path(resource, meta.get("namespace"), meta["name"]),
            parameters={**(self._writing or {}), "fieldManager": manager, "force": "true"},
            body=obj,
            content="application/apply-patch+yaml",
        )
        assert answer is not None
        return answer

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        propagation: str = "Background",
    ) -> bool:
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": propagation,
        }
        if uid or resource_version:
            options["preconditions"] = {k: v for k, v in preconditions.items() if v}
        answer = await self._send("DELETE", self._path(resource, namespace, name), body=options)
        if answer.code == 404 and answers.says_not_found(answer.body, resource, name):
            return False
        if answer.code >= 400:
            raise answer.error("DELETE")
        answers.value_of(answer.body, answer.where)
        return True

    async def _written(
        self, method: str, path: str, body: Mapping[str, Any], *, content: str = "application/json"
    ) -> Object:
        answer = await self._request(method, path, parameters=self._writing, body=body, content=content)
        assert answer is not None
        return answer

    # ------------------------------------------------------------ requests

    async def _request(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "application/json",
        missing: bool = False,
    ) -> Object | None:
        """Send one request. missing: return None for 404 instead of raising PermanentError."""
        answer = await self._send(
            method, path, parameters=parameters, body=body, content=content, accept=accept
        )
        if answer.code == 404 and missing:
            return None
        if answer.code >= 400:
            raise answer.error(method)
        return answers.value_of(answer.body, answer.where)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        parameters: Mapping[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> _Answer:
        headers = {"Accept": accept, **await self._connection.headers()}
        where = f"{method} {path}"
        data = None
        if body is not None:
            data, headers["Content-Type"] = _encode(body), content
        try:
            async with self._session.request(
                method,
                self._connection.url + path,
                params=parameters,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            ) as response:
                answer = await response.read()
                headers_back = response.headers
                return _Answer(
                    response.status, answer, headers_back.get("Retry-After"), where, headers_back.get("Date")
                )
        except (aiohttp.ClientError, TimeoutError, OSError, asyncio.IncompleteReadError) as exc:
            raise lost(where, exc, REQUEST_SECONDS) from exc
