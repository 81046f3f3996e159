"""Finds out who sends a request to an aggregated API server, in the order of Kubernetes' own ones.

kube-apiserver with its proxy certificate names the user in headers; else a client certificate of the
cluster's authority is the user; else kube-apiserver reviews a bearer token. There is no anonymous user.

Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/authentication/authenticatorfactory/delegating.go.
"""

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from pvbus.adapters.kubernetes.access import Creates
from pvbus.controlplane.aggregated.caching import Recent
from pvbus.controlplane.aggregated.trust import Peer, Trust, peer_of, user_of_certificate, user_of_headers
from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.hooks import StatusError
from pvbus.controlplane.apiserver.identity import AUTHENTICATED_GROUP, User
from pvbus.core.errors import PvbusError
from pvbus.ports.cluster import Resource
from pvbus.telemetry.structured import structlog

REMEMBERED_SECONDS = 10.0
"""How long the review of a token holds, as in Kubernetes: a token that is revoked works for so long."""

REVIEW_SECONDS = 10.0
"""How long a review may take, as in Kubernetes."""

_REVIEW = Resource("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", False)
_log = structlog.get_logger(__name__)


class DelegatedAuthenticator:
    """Implements `identity.Authenticator`.

    trust: returns what the ConfigMap says now, None before it was read
    """

    def __init__(self, cluster: Creates, trust: Callable[[], Trust | None]) -> None:
        self._trust = trust
        self._tokens = Tokens(cluster)
        self._peers: WeakKeyDictionary[Any, Peer] = WeakKeyDictionary()

    async def authenticate(self, request: web.BaseRequest) -> User:
        """Return the sender. Raises StatusError: 401, 503."""
        if any(name.lower().startswith("impersonate-") for name in request.headers):
            raise StatusError(403, "Forbidden", "impersonation is possible through kube-apiserver only")
        trust = self._trust()
        if trust is None:
            raise unavailable("the authorities of this cluster are not known yet")
        peer = self._peer(request)
        if peer is not None:
            user = user_of_headers(trust, peer, request.headers) or user_of_certificate(trust, peer)
            if user is not None:
                return user
        scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
        token = token.strip()
        if scheme.lower() == "bearer" and token:
            return await self._tokens.user(token)
        raise status.unauthorized()

    def _peer(self, request: web.BaseRequest) -> Peer | None:
        connection = None if request.transport is None else request.transport.get_extra_info("ssl_object")
        if connection is None:
            return None
        found = self._peers.get(connection)
        if found is None and (chain := verified_chain(connection)):
            try:
                found = self._peers[connection] = peer_of(chain)
            except ValueError as exc:
                _log.info("a client certificate cannot be read", error=str(exc))
        return found


def verified_chain(connection: ssl.SSLObject) -> tuple[bytes, ...]:
    """Return the peer's certificate and those above it, in DER form, as the TLS handshake checked them."""
    if connection.getpeercert(binary_form=True) is None:
        return ()
    if hasattr(connection, "get_verified_chain"):  # from Python 3.13 on
        return tuple(connection.get_verified_chain())
    chain = connection._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # not public before
    return tuple(ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain)


class Tokens:
    """Asks kube-apiserver whose a bearer token is."""

    def __init__(self, cluster: Creates) -> None:
        self._cluster = cluster
        self._salt = secrets.token_bytes(32)
        self._users: Recent[User | StatusError] = Recent(REMEMBERED_SECONDS)

    async def user(self, token: str) -> User:
        """Return the holder of a token. Raises StatusError: 401, 503."""
        key = hashlib.blake2b(token.encode(errors="surrogateescape"), key=self._salt).digest()
        found = self._users.get(key)
        if found is None:
            found = await self._review(token)
            self._users.put(key, found)
        if isinstance(found, StatusError):
            raise found
        return found

    async def _review(self, token: str) -> User | StatusError:
        review = {
            "apiVersion": _REVIEW.api_version,
            "kind": _REVIEW.kind,
            "metadata": {},
            "spec": {"token": token},
        }
        try:
            async with asyncio.timeout(REVIEW_SECONDS):
                answer = await self._cluster.create(_REVIEW, review)
        except (PvbusError, TimeoutError) as exc:
            _log.warning("a token cannot be reviewed", error=str(exc))
            raise unavailable("kube-apiserver does not review the token of this request") from exc
        found = answer.get("status") or {}
        if found.get("authenticated") is not True:
            return status.unauthorized()
        user = found.get("user") or {}
        groups = dict.fromkeys((*(user.get("groups") or ()), AUTHENTICATED_GROUP))
        return User(
            str(user.get("username") or ""),
            tuple(groups),
            str(user.get("uid") or ""),
            {str(key).lower(): tuple(values) for key, values in (user.get("extra") or {}).items()},
        )


def unavailable(text: str) -> StatusError:
    """Return the error for a request that cannot be judged now."""
    return StatusError(503, "ServiceUnavailable", text, retry_after_seconds=1)
