"""An aggregated API server: the group porch.kpt.dev, behind a kube-apiserver.

kube-apiserver has the users, their rights and every other kind. This server asks it who sends a request and
what he may do; the state, which git and the cluster hold, answers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

from pvbus.adapters.kubernetes.cluster import HttpCluster
from pvbus.controlplane.aggregated.authentication import DelegatedAuthenticator
from pvbus.controlplane.aggregated.authorization import DelegatedAuthorizer
from pvbus.controlplane.aggregated.serving import Serving, context_of
from pvbus.controlplane.aggregated.trust import NAME, NAMESPACE, Trust, trust_of
from pvbus.controlplane.apiserver.documents import OPEN_PATHS, Document, Documents
from pvbus.controlplane.apiserver.frontend import Access, Api, Frontend
from pvbus.controlplane.apiserver.identity import User
from pvbus.controlplane.apiserver.registry import Registry
from pvbus.controlplane.apiserver.resources import Resources
from pvbus.controlplane.apiserver.store import Store
from pvbus.core.errors import PermanentError, PvbusError
from pvbus.ports.cluster import Resource
from pvbus.telemetry.structured import structlog

LOOK_SECONDS = 10.0
"""How often the ConfigMap and the files of the certificate are read again. Kubernetes' own servers take up to
a minute; what was replaced stays valid for much longer."""

_CONFIG_MAP = Resource("", "v1", "ConfigMap", "configmaps", True)
_log = structlog.get_logger(__name__)


class AggregatedDocuments(Documents):
    """Health and discovery of one group; kube-apiserver has the rest."""

    def __init__(self, registry: Registry, problem: Callable[[], str]) -> None:
        """Serve the documents of the kinds of a registry.

        problem: returns why this process is not ready, "" if it is
        """
        super().__init__(registry)
        self._problem = problem

    def get(self, path: str, accept: str) -> Document | None:
        path = path.rstrip("/") or "/"
        if path == "/readyz" and (problem := self._problem()):
            return Document(f"{problem}\n".encode(), "text/plain", 503)
        if path == "/":
            return Document(b'{"paths":["/apis","/healthz","/livez","/openapi/v2","/openapi/v3","/readyz"]}')
        if path == "/api" or path.startswith("/api/"):
            return None
        if path.rpartition("/")[0] in OPEN_PATHS:
            return None
        return super().get(path, accept)

    def review(self, path: str, body: bytes, media: str, user: User) -> Document | None:
        return None


class State(Protocol):
    """What is served: `pvbus.controlplane.aggregated.state.AggregatedState`."""

    @property
    def store(self) -> Store: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def resources(self) -> Resources: ...


class AggregatedServer:
    """Serves the package kinds, from `listen` to `stop`."""

    def __init__(
        self,
        cluster: HttpCluster,
        state: State,
        *,
        problem: Callable[[], str],
        on_answer: Callable[[str, int], None],
    ) -> None:
        """Serve nothing until `listen`.

        problem: returns why this process is not ready, "" if it is
        on_answer: called with verb and code after each request about a resource
        """
        self._cluster = cluster
        self._trust: Trust | None = None
        self._following: asyncio.Task[None] | None = None
        self._frontend = Frontend(
            Api(state.store, state.registry, state.resources, AggregatedDocuments(state.registry, problem)),
            Access(DelegatedAuthenticator(cluster, lambda: self._trust), DelegatedAuthorizer(cluster)),
            None,
            on_answer=on_answer,
        )
        self.serving: Serving | None = None
        """The certificate that new connections get."""

    async def listen(self, host: str, port: int, read: Callable[[], Serving]) -> int:
        """Serve once kube-apiserver has said which authorities to believe; return the port.

        host: the address to listen at, "" for every interface
        port: the port to listen at; 0 takes any free one
        read: reads the certificate, at each look
        Raises PermanentError: no certificate, port in use.
        """
        self.serving = read()
        self._trust = trust = await self._first_trust()
        try:
            bound = await self._frontend.listen(host, port, context_of(self.serving, trust.pem))
        except OSError as exc:
            where = host or "every interface"
            text = (
                f"cannot bind port {port} on {where}: {exc.strerror}; choose another one with "
                "PVBUS_SERVING_PORT"
            )
            raise PermanentError(text, reason="PortInUse") from exc
        self._following = asyncio.create_task(self._follow(read), name="aggregated-trust")
        return bound

    async def stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._frontend.stop()

    async def _first_trust(self) -> Trust:
        while True:
            try:
                return await self._read_trust()
            except PvbusError as exc:
                _log.warning("the trusted certificate authorities cannot be read yet", error=str(exc))
            await asyncio.sleep(1.0)

    async def _read_trust(self) -> Trust:
        found: dict[str, Any] | None = await self._cluster.get(_CONFIG_MAP, NAMESPACE, NAME)
        if found is None:
            raise PermanentError(
                f"{NAMESPACE}/{NAME}: no such ConfigMap: is this a kube-apiserver?", reason="NotFound"
            )
        try:
            return trust_of(found.get("data") or {})
        except PermanentError as exc:
            raise PermanentError(f"ConfigMap {NAMESPACE}/{NAME}: {exc}") from exc

    async def _follow(self, read: Callable[[], Serving]) -> None:
        """Serve with new certificates, and believe new authorities, as they appear."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            before = self._trust, self.serving
            with contextlib.suppress(PvbusError):  # the API server is away, which readiness reports
                self._trust = await self._read_trust()
            try:
                self.serving = read()
            except PermanentError as exc:
                _log.error("the new serving certificate is not used", error=str(exc))
            if (self._trust, self.serving) != before:
                assert self._trust is not None
                assert self.serving is not None
                self._frontend.use(context_of(self.serving, self._trust.pem))
                _log.info("certificates changed", expires=self.serving.not_after.isoformat())
