"""The cluster port over HTTP, for a real API server or the embedded one alike.

What is sent and what comes back is checked here and in `answers`; `transport` moves it.
"""

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, MutableSequence
from contextlib import aclosing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from pvbus.adapters.kubernetes import answers, streaming
from pvbus.adapters.kubernetes.access import Refusals
from pvbus.adapters.kubernetes.answers import segment
from pvbus.adapters.kubernetes.connection import Connection
from pvbus.adapters.kubernetes.discovery import Discovery
from pvbus.adapters.kubernetes.reach import Reach
from pvbus.adapters.kubernetes.streaming import FIRST_PAGE_OBJECTS, Streaming
from pvbus.adapters.kubernetes.transport import Answer, Transport
from pvbus.core.errors import PermanentError, PvbusError, TransientError
from pvbus.ports.cluster import GoneError, Kind, Listing, Object, Resource, WatchEvent

PAGE_OBJECTS = 1_000
"""An API server's own clients use 500, and fewer round trips restart faster; but a page of so many variants
takes 10 MB as JSON values, however little is kept of them, and none of it is given back to the system."""
WATCH_SECONDS = 300  # the server then ends the stream, and the next one continues there

_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""As client-go: a server that cannot reduce objects sends them whole instead of answering 406."""


class HttpCluster:
    """Implements `pvbus.ports.cluster.Cluster`."""

    def __init__(self, connection: Connection, *, strict: bool = False) -> None:
        """Send nothing yet.

        strict: whether the server refuses unknown fields in a write, instead of pruning them
        """
        self._transport = Transport(connection)
        self._writing = {"fieldValidation": "Strict"} if strict else None
        self._is_dry_run = False
        self._before_write: Callable[[], None] | None = None
        self._streaming = Streaming()
        self._discovery = Discovery(lambda path: self._request("GET", path, missing=True))

    @classmethod
    async def connect(
        cls, kubeconfig: Path | None, context: str | None = None, *, strict: bool = False
    ) -> "HttpCluster":
        return cls(await Connection.load(kubeconfig, context), strict=strict)

    @classmethod
    async def connect_as(
        cls, token: str, kubeconfig: Path | None, context: str | None = None
    ) -> "HttpCluster":
        """Connect to a kubeconfig's API server as the user of a token. Raises UsageError."""
        own = await Connection.load(kubeconfig, context)
        await own.close()
        return cls(own.of_user(token))

    def named(
        self, agent: str, *, token: str = "", before_write: Callable[[], None] | None = None
    ) -> "HttpCluster":
        """Return a cluster that the API server knows by another name. Close only one of them.

        Both share connections, limits and discovery. Discovery stays that of the first one's user, as it is
        the same for everybody.

        agent: the name, for the User-Agent
        token: the bearer token of another user, "" for the same user
        before_write: called before each write, which it refuses by raising an error
        """
        other = copy.copy(self)
        other._transport = self._transport.named(agent, token)
        other._before_write = before_write
        return other

    def acting(self, *, as_user: str = "", is_dry_run: bool = False) -> "HttpCluster":
        other = copy.copy(self)
        other._transport = self._transport.impersonating(as_user) if as_user else self._transport
        other._is_dry_run = is_dry_run
        if is_dry_run:
            other._writing = {**(self._writing or {}), "dryRun": "All"}
        return other

    async def close(self) -> None:
        await self._discovery.close()
        await self._transport.close()

    @property
    def reach(self) -> Reach:
        """Whether the API server answers: shared with the other ones of this connection."""
        return self._transport.reach

    @property
    def refusals(self) -> Refusals:
        """What was answered with 403: shared with the other ones of this connection."""
        return self._transport.refusals

    async def probe(self) -> None:
        """Ask whether the API server answers; `reach` has the outcome."""
        await self._transport.probe()

    # ------------------------------------------------------------ discovery

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource | None:
        return await self._discovery.resource(kind, version)

    async def versions(self, kind: Kind) -> tuple[str, ...]:
        return await self._discovery.versions(kind)

    def forget_resources(self) -> None:
        self._discovery.forget()

    async def server_version(self) -> str:
        """Return the server's own version."""
        answer = await self._request("GET", "/version", missing=True)
        return str((answer or {}).get("gitVersion", ""))

    async def server_time(self) -> float | None:
        """Return the server's clock in whole seconds since the epoch; None if it does not say."""
        date = (await self._transport.send("GET", "/version")).date
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
        is_followed: bool = False,
        keep: Callable[[Object], Object] | None = None,
    ) -> Listing:
        path = self._path(resource, namespace)
        chosen = {"labelSelector": label_selector, "fieldSelector": field_selector}
        selection = {name: value for name, value in chosen.items() if value}

        def stream() -> AsyncGenerator[WatchEvent]:
            return self._events(path, streaming.PARAMETERS | selection, metadata_only=metadata_only)

        may_stream = is_followed and self._streaming.may(resource)
        items: list[Object] = []
        page_size, following = FIRST_PAGE_OBJECTS if may_stream else PAGE_OBJECTS, ""
        while True:
            parameters = (
                selection | {"limit": str(page_size)} | ({"continue": following} if following else {})
            )
            version, following = await self._page(
                path, parameters, items, metadata_only=metadata_only, keep=keep
            )
            if not following:
                return Listing(version, items)
            if may_stream and version:
                streamed = await self._streaming.read(resource, stream, keep)
                if streamed is not None:
                    return streamed
            may_stream, page_size = False, PAGE_OBJECTS

    async def _page(
        self,
        path: str,
        parameters: Mapping[str, str],
        items: MutableSequence[Object],
        *,
        metadata_only: bool,
        keep: Callable[[Object], Object] | None,
    ) -> tuple[str, str]:
        """Add the objects of a page to `items`; return its resourceVersion and the token of the next."""
        accept = _METADATA_LIST if metadata_only else "application/json"
        page = await self._request("GET", path, parameters=parameters, accept=accept)
        assert page is not None
        objects, version, following = answers.page_of(page, f"GET {path}")
        shown = map(answers.metadata_of, objects) if metadata_only else objects
        items.extend(map(keep, shown) if keep is not None else shown)
        return version, following

    async def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        namespace: str | None = None,
        metadata_only: bool = False,
    ) -> AsyncGenerator[WatchEvent, None]:
        parameters = {
            "watch": "true",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        path = self._path(resource, namespace)
        async with aclosing(self._events(path, parameters, metadata_only=metadata_only)) as events:
            async for event in events:
                yield event

    async def _events(
        self, path: str, parameters: Mapping[str, str], *, metadata_only: bool
    ) -> AsyncGenerator[WatchEvent]:
        accept = _METADATA if metadata_only else "application/json"
        lines = self._transport.lines(path, parameters=parameters, accept=accept)
        async with aclosing(lines):
            try:
                async for line in lines:
                    event = answers.event_of(line, f"GET {path} (watch)")
                    if metadata_only:
                        event = WatchEvent(event.type, answers.metadata_of(event.object), event.position)
                    yield event
            except PermanentError as exc:
                if exc.reason == "NotFound":  # a watch names no object
                    self._discovery.forget()
                raise

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        path = self._path(resource, namespace, name)
        answer = await self._transport.send("GET", path)
        if answer.code == 404 and answers.says_not_found(answer.body, resource, name):
            return None
        if answer.code >= 400:
            raise self._error(answer, "GET")
        return answers.object_of(answers.value_of(answer.body, answer.where), name, answer.where)

    # ------------------------------------------------------------ writing

    async def create(self, resource: Resource, obj: Object) -> Object:
        path = self._path(resource, obj["metadata"].get("namespace"))
        return await self._write("POST", path, obj)

    async def update(self, resource: Resource, obj: Object, *, subresource: str = "") -> Object:
        meta = obj["metadata"]
        path = self._path(resource, meta.get("namespace"), meta["name"], subresource)
        return await self._write("PUT", path, obj)

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
        return await self._write("PATCH", path, patch, content="application/merge-patch+json")

    async def apply(self, resource: Resource, obj: Object, *, manager: str) -> Object:
        """Apply an object on the server: create it, or set the fields that `obj` has.

        manager: who owns these fields from now on, also those that another one owned. Fields that it owned
            and that `obj` does not have any more are removed.
        Raises what an update raises.
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
    ) -> bool:
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if uid or resource_version:
            options["preconditions"] = {k: v for k, v in preconditions.items() if v}
        if self._is_dry_run:
            options["dryRun"] = ["All"]
        self._check_write()
        answer = await self._transport.send("DELETE", self._path(resource, namespace, name), body=options)
        if answer.code == 404 and answers.says_not_found(answer.body, resource, name):
            return False
        if answer.code >= 400:
            raise self._error(answer, "DELETE")
        answers.value_of(answer.body, answer.where)
        return True

    def _check_write(self) -> None:
        if self._before_write is not None:
            self._before_write()

    async def _write(
        self, method: str, path: str, body: Mapping[str, Any], *, content: str = "application/json"
    ) -> Object:
        self._check_write()
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
        """Send one request.

        missing: whether 404 is None instead of a PermanentError
        """
        answer = await self._transport.send(
            method, path, parameters=parameters, body=body, content=content, accept=accept
        )
        if answer.code == 404 and missing:
            return None
        if answer.code >= 400:
            raise self._error(answer, method)
        return answers.value_of(answer.body, answer.where)

    def _error(self, answer: Answer, method: str) -> PvbusError:
        """Return the error of an answer. A kind that is not served any more is discovered again."""
        if answer.code == 404 and answers.says_kind_not_found(answer.body):
            self._discovery.forget()
        error = answer.error(method)
        if isinstance(error, GoneError):  # of a list page: the list is read again
            return TransientError(str(error))
        return error
