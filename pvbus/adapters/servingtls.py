"""The certificate and key that a server of ours shows: read from files, checked, read again when they change.

A certificate that cannot be used is refused in words before anybody connects. Once a server runs, files that
are being replaced leave the last certificate in use.
"""

import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from pvbus.adapters.files import open_plain, reason_of
from pvbus.adapters.kubernetes.credentials import stamp_of
from pvbus.core.errors import UsageError
from pvbus.telemetry.logs import get_logger

LOOK_SECONDS = 1.0
"""How long a replaced file may stay unseen: two stats a second cost nothing beside a handshake."""

BYTES_MAX = 1_000_000
"""The size of a file: a chain of ten certificates has 20 kB, and a wrong path can name a file of any size."""

_log = get_logger("tls")


class ServingFiles(NamedTuple):
    """PEM files of a server.

    certificate: the certificate with its chain, the server's own first
    key: the key of the server's certificate
    """

    certificate: Path
    key: Path

    def stamps(self) -> tuple[object, ...]:
        return stamp_of(str(self.certificate)), stamp_of(str(self.key))


class Serving(NamedTuple):
    """The content of the files, certificate and key, and when the certificate expires."""

    content: tuple[bytes, bytes]
    not_after: datetime


def read_serving(files: ServingFiles, now: datetime | None = None) -> Serving:
    """Read a certificate and its key. Raises UsageError with the file, what is wrong and what to do."""
    chain, key = _read(files.certificate), _read(files.key)
    try:
        own = x509.load_pem_x509_certificates(chain)[0]
    except ValueError as exc:
        raise UsageError(f"{files.certificate}: has no certificate in PEM ({exc})") from exc
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError as exc:
        raise UsageError(f"{files.key}: is encrypted: give a key without a password") from exc
    except (ValueError, UnsupportedAlgorithm) as exc:
        raise UsageError(
            f"{files.key}: has no private key in PEM ({str(exc).split('(')[0].strip()})"
        ) from exc
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    if own.public_key().public_bytes(*form) != private.public_key().public_bytes(*form):
        raise UsageError(f"{files.key}: is not the key of the certificate in {files.certificate}")
    now = now or datetime.now(UTC)
    if own.not_valid_after_utc <= now:
        raise UsageError(
            f"{files.certificate}: expired at {own.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: renew it"
        )
    if own.not_valid_before_utc > now:
        raise UsageError(
            f"{files.certificate}: is valid from {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on: check the "
            "clock of this machine"
        )
    serving_context(files)
    return Serving((chain, key), own.not_valid_after_utc)


def _read(file: Path) -> bytes:
    with open_plain(file) as stream:
        try:
            content = stream.read(BYTES_MAX + 1)
        except OSError as exc:
            raise UsageError(f"{file}: cannot be read ({reason_of(exc)})") from exc
    if len(content) > BYTES_MAX:
        raise UsageError(f"{file}: has more than {BYTES_MAX} bytes, which no certificate or key has")
    return content


def serving_context(files: ServingFiles) -> ssl.SSLContext:
    """Return a server's TLS context: TLS 1.2 or newer, HTTP/1.1. Raises UsageError if TLS refuses them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password="")  # without one OpenSSL would ask
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"{files.certificate} with {files.key}: TLS refuses them ({reason_of(exc)})"
        ) from exc
    return context


class ServingTls:
    """`context` for a listener; each new connection gets the newest certificate that can be used."""

    def __init__(self, files: ServingFiles, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError if the files cannot be used."""
        read_serving(files)
        self._files = files
        self._monotonic = monotonic
        self._looked = monotonic()
        self._stamps = files.stamps()
        self.context = self._current = serving_context(files)
        self.context.sni_callback = self._choose

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, also of a client that names no host."""
        if self._monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = self._monotonic()
            self._look()
        connection.context = self._current

    def _look(self) -> None:
        stamps = self._files.stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            read_serving(self._files)
            self._current = serving_context(self._files)
            _log.info("the serving certificate was replaced", file=str(self._files.certificate))
        except UsageError as exc:
            _log.warning("the new serving certificate cannot be used; the last one stays", error=str(exc))
