"""Documents besides resources: health, version, discovery, OpenAPI."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pvbus
from pvbus.controlplane.apiserver import discovery
from pvbus.controlplane.apiserver.entries import encode
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.openapi import OpenApi
from pvbus.controlplane.apiserver.registry import Registry

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/livez"})
"""Served without a token: a prober has none."""

_PROTOBUF_OPENAPI = "application/com.github.proto-openapi"
_PROTOBUF_SWAGGER = f"{_PROTOBUF_OPENAPI}.spec.v2.v1.0+protobuf"


class Document(NamedTuple):
    """A document about the server.

    body: its content
    media: its media type
    code: the HTTP status
    """

    body: bytes
    media: str = "application/json"
    code: int = 200


class Documents:
    """Serves the documents about the server itself."""

    def __init__(self, registry: Registry, problem: Callable[[], str] = str) -> None:
        """Serve the documents of the kinds of a registry.

        problem: returns why the server cannot store anything now, "" if it can
        """
        self.address = ""
        """Host and port of the server, known once it listens."""
        self._registry = registry
        self._problem = problem
        self._openapi: OpenApi | None = None
        self._edition = -1

    def get(self, path: str, accept: str) -> Document | None:
        """Return the document at a path, None if there is none. Raises StatusError (406)."""
        path = path.rstrip("/") or "/"
        if path.startswith("/readyz") and (problem := self._problem()):
            return Document(f"not ready: {problem}\n".encode(), "text/plain", 503)
        if path in OPEN_PATHS or path.rpartition("/")[0] in OPEN_PATHS:
            return Document(b"ok", "text/plain")
        if path == "/version":
            return Document(encode(discovery.version_document(pvbus.__version__)))
        if path == "/":
            paths = [
                "/api",
                "/api/v1",
                "/apis",
                "/healthz",
                "/livez",
                "/openapi/v2",
                "/openapi/v3",
                "/readyz",
            ]
            return Document(encode({"paths": [*paths, "/version"]}))
        if path.startswith("/openapi"):
            return self._openapi_document(path, accept)
        value = self._discovery(path, accept)
        if value is None:
            return None
        aggregated = path in ("/api", "/apis") and discovery.wants_aggregated(accept)
        return Document(encode(value), discovery.AGGREGATED if aggregated else "application/json")

    def _discovery(self, path: str, accept: str) -> dict[str, Any] | None:
        kinds = self._registry.kinds()
        if path in ("/api", "/apis"):
            if discovery.wants_aggregated(accept):
                return discovery.aggregated(kinds, core=path == "/api")
            return discovery.core_document(self.address) if path == "/api" else discovery.group_list(kinds)
        match path.split("/")[1:]:
            case ["api", version]:
                return discovery.resource_list(kinds, "", version)
            case ["apis", group]:
                return discovery.group_document(kinds, group)
            case ["apis", group, version]:
                return discovery.resource_list(kinds, group, version)
        return None

    def _openapi_document(self, path: str, accept: str) -> Document | None:
        if self._openapi is None or self._edition != self._registry.edition:
            self._openapi, self._edition = OpenApi(self._registry.kinds()), self._registry.edition
        wants = [term.partition(";")[0].strip() for term in accept.split(",")]
        if accept and all(media.startswith(_PROTOBUF_OPENAPI) for media in wants):
            if path != "/openapi/v2":
                raise StatusError(406, "NotAcceptable", "OpenAPI v3 is served as application/json only")
            return Document(self._openapi.swagger_protobuf, _PROTOBUF_SWAGGER)
        if path == "/openapi/v2":
            return Document(self._openapi.swagger)
        if path == "/openapi/v3":
            return Document(self._openapi.index)
        document = self._openapi.document(path.removeprefix("/openapi/v3/"))
        return None if document is None else Document(document)
