"""Whom an aggregated API server believes: the ConfigMap that kube-apiserver publishes for this purpose.

It names two authorities. Certificates of the first belong to kube-apiserver itself, which sends who asks in
headers. Certificates of the second belong to users, who may come here directly. Both, the names and the
headers are the operator's choice, so nothing is assumed.

Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/server/options/authentication.go and
pkg/authentication/request/{headerrequest,x509}.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from multidict import CIMultiDictProxy

from pvbus.controlplane.apiserver.identity import AUTHENTICATED_GROUP, User
from pvbus.core.errors import PermanentError

NAMESPACE = "kube-system"
NAME = "extension-apiserver-authentication"
CREDENTIAL = "authentication.kubernetes.io/credential-id"


class Authorities(NamedTuple):
    """Certificates of authorities.

    pem: all of them as PEM
    encoded: each of them in DER form
    """

    pem: str = ""
    encoded: frozenset[bytes] = frozenset()


class Proxies(NamedTuple):
    """How kube-apiserver says who asks.

    authorities: the authorities of its certificates
    names: the common names of its certificates, empty for any
    user_headers: the headers that may have the user's name, the first one that is there counts
    uid_headers: the headers that may have the user's uid
    group_headers: the headers that have the user's groups
    extra_prefixes: the beginnings of the headers with further attributes of the user
    """

    authorities: Authorities
    names: frozenset[str]
    user_headers: tuple[str, ...]
    uid_headers: tuple[str, ...]
    group_headers: tuple[str, ...]
    extra_prefixes: tuple[str, ...]


class Trust(NamedTuple):
    """What the ConfigMap says. proxies None: kube-apiserver has no aggregation set up."""

    proxies: Proxies | None
    clients: Authorities

    @property
    def pem(self) -> str:
        """Every authority, for the TLS handshake."""
        proxies = self.proxies.authorities.pem if self.proxies else ""
        return f"{proxies}\n{self.clients.pem}".strip()


class Peer(NamedTuple):
    """The certificate of a connection, whose signatures the TLS handshake has checked.

    ancestors: the DER form of the certificates above it, up to one that the handshake trusts.
    """

    name: str
    groups: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    fingerprint: str
    ancestors: frozenset[bytes]

    def is_valid(self, now: datetime) -> bool:
        return self.not_before <= now <= self.not_after

    def is_of(self, authorities: Authorities) -> bool:
        return not self.ancestors.isdisjoint(authorities.encoded)


def trust_of(data: Mapping[str, str]) -> Trust:
    """Read the ConfigMap's data. Raises PermanentError that names the key."""
    clients = _authorities(data, "client-ca-file")
    authorities = _authorities(data, "requestheader-client-ca-file")
    if not authorities.encoded:
        return Trust(None, clients)
    proxies = Proxies(
        authorities,
        frozenset(_texts(data, "requestheader-allowed-names")),
        _texts(data, "requestheader-username-headers"),
        _texts(data, "requestheader-uid-headers"),
        _texts(data, "requestheader-group-headers"),
        _texts(data, "requestheader-extra-headers-prefix"),
    )
    return Trust(proxies, clients)


def _authorities(data: Mapping[str, str], key: str) -> Authorities:
    pem = data.get(key, "").strip()
    if not pem:
        return Authorities()
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError as exc:
        raise PermanentError(f"{key} has no certificates in PEM form: {exc}") from exc
    return Authorities(pem, frozenset(each.public_bytes(Encoding.DER) for each in found))


def _texts(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key) or "[]")
    except ValueError as exc:
        raise PermanentError(f"{key} is no list in JSON: {exc}") from exc
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise PermanentError(f"{key} is no list of texts")
    return tuple(each.strip() for each in found if each.strip())


def peer_of(chain: tuple[bytes, ...]) -> Peer:
    """Read a verified chain of certificates in DER form, the peer's own first. Raises ValueError."""
    own = x509.load_der_x509_certificate(chain[0])
    return Peer(
        name=_first(own.subject, NameOID.COMMON_NAME),
        groups=tuple(
            str(each.value) for each in own.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
        ),
        not_before=own.not_valid_before_utc,
        not_after=own.not_valid_after_utc,
        fingerprint=own.fingerprint(hashes.SHA256()).hex(),
        ancestors=frozenset(chain[1:]),
    )


def _first(subject: x509.Name, oid: x509.ObjectIdentifier) -> str:
    found = subject.get_attributes_for_oid(oid)
    return str(found[0].value) if found else ""


def user_of_headers(trust: Trust, peer: Peer, headers: CIMultiDictProxy[str]) -> User | None:
    """Return the user that kube-apiserver names; None if the peer is not kube-apiserver, or names none."""
    proxies = trust.proxies
    if proxies is None or not peer.is_of(proxies.authorities) or not peer.is_valid(datetime.now(UTC)):
        return None
    if proxies.names and peer.name not in proxies.names:
        return None
    name = next((found for each in proxies.user_headers if (found := headers.get(each, ""))), "")
    if not name:
        return None
    groups = [value for each in proxies.group_headers for value in headers.getall(each, ())]
    uid = next((found for each in proxies.uid_headers if (found := headers.get(each, ""))), "")
    return User(name, _authenticated(groups), uid, _extra(proxies.extra_prefixes, headers))


def _extra(prefixes: tuple[str, ...], headers: CIMultiDictProxy[str]) -> Mapping[str, tuple[str, ...]]:
    extra: dict[str, tuple[str, ...]] = {}
    for header, value in headers.items():
        for prefix in prefixes:
            if header.lower().startswith(prefix.lower()):
                key = unquote(header[len(prefix) :].lower())
                extra[key] = (*extra.get(key, ()), value)
    return extra


def user_of_certificate(trust: Trust, peer: Peer) -> User | None:
    """Return the user that a certificate of the cluster's authority names, None if it is no such one."""
    if not peer.name or not peer.is_of(trust.clients) or not peer.is_valid(datetime.now(UTC)):
        return None
    extra = {CREDENTIAL: (f"X509SHA256={peer.fingerprint}",)}
    return User(peer.name, _authenticated(peer.groups), "", extra)


def _authenticated(groups: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*groups, AUTHENTICATED_GROUP)))
