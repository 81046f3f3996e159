"""The certificate that an aggregated API server shows to kube-apiserver, and the authorities it asks for.

The certificate comes from files, as a Secret is mounted, or is made at the start. Both the files and the
authorities change while the process runs: then new connections get a new TLS context.
"""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from pvbus.adapters import servingtls
from pvbus.controlplane.apiserver import certificates
from pvbus.core.errors import PermanentError, UsageError


class Serving(NamedTuple):
    """A certificate chain and its key.

    certificate: the PEM file of the chain
    key: the PEM file of the key
    content: the contents of both files
    authority: PEM of the authority for the APIService, empty if the operator provides it
    not_after: when the certificate expires
    """

    certificate: Path
    key: Path
    content: tuple[bytes, bytes]
    authority: bytes
    not_after: datetime


def from_files(certificate: Path, key: Path) -> Serving:
    """Read a certificate and its key. Raises PermanentError: missing, expired, not of one pair."""
    try:
        read = servingtls.read_serving(servingtls.ServingFiles(certificate, key))
    except UsageError as exc:
        raise PermanentError(f"the serving certificate cannot be used: {exc}", reason="Certificate") from exc
    return Serving(certificate, key, read.content, b"", read.not_after)


def self_signed(folder: Path, names: Sequence[str]) -> Serving:
    """Return the certificate in a folder for these names; make it if there is none that is good for them."""
    made = certificates.ensure(folder, *names)
    found = from_files(folder / "server.crt", folder / "server.key")
    return found._replace(authority=made.authority)


def context_of(serving: Serving, authorities: str) -> ssl.SSLContext:
    """Return a TLS context.

    A client without a certificate is served, too: it may have a token, or ask for the health.

    authorities: PEM of the authorities whose client certificates are accepted, "" for none
    """
    context = servingtls.serving_context(servingtls.ServingFiles(serving.certificate, serving.key))
    if authorities:
        context.load_verify_locations(cadata=authorities)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def joined(bundle: bytes, authority: bytes, now: datetime | None = None) -> bytes:
    """Add an authority to the caBundle of an APIService, and leave out what has expired.

    Each replica has an authority of its own, and kube-apiserver reaches any of them. The newest
    AUTHORITIES_MAX stay, as each replica that is replaced leaves one behind.
    """
    now = now or datetime.now(UTC)
    try:
        present = x509.load_pem_x509_certificates(bundle) if bundle.strip() else []
    except ValueError:
        present = []
    own = x509.load_pem_x509_certificate(authority)
    others = [each for each in present if each != own and each.not_valid_after_utc > now]
    others.sort(key=lambda each: each.not_valid_before_utc)
    chosen = [*others[1 - AUTHORITIES_MAX :], own]
    chosen.sort(key=lambda each: (each.not_valid_before_utc, each.public_bytes(Encoding.DER)))
    return b"".join(each.public_bytes(Encoding.PEM) for each in chosen)


AUTHORITIES_MAX = 16
"""Two replicas that are replaced seven times at once fit; the object grows by 1 kB each."""
