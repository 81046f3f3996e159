"""The TLS context of connections to an API server, built again when one of its files changes."""

import ssl
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from pvbus.adapters.files import reason_of
from pvbus.adapters.kubernetes.credentials import stamp_of
from pvbus.core.errors import TransientError
from pvbus.telemetry.logs import get_logger

LOOK_SECONDS = 1.0
"""How long a replaced file may stay unseen. A look before each request took 3 % of the services' CPU."""

_log = get_logger("kubernetes")


class TlsFiles(NamedTuple):
    """Paths of PEM files.

    ca: the trusted authorities, None for the system's
    certificate: the client certificate, None for none
    key: its key, None if it is in the file of the certificate
    is_verified: whether the server's certificate is verified
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    is_verified: bool = True

    def stamps(self) -> tuple[object, ...]:
        return stamp_of(self.ca), stamp_of(self.certificate), stamp_of(self.key)


class TlsContext:
    """Returns the context for new connections. Connections that are open keep the one they began with."""

    def __init__(self, files: TlsFiles, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises OSError or ValueError if the files cannot be used."""
        self._files = files
        self._monotonic = monotonic
        self._looked = monotonic()
        self._stamps = files.stamps()
        self._pem = ""
        self._context = _context(files, "")

    def current(self, pem: str = "") -> ssl.SSLContext:
        """Return the context.

        While the files are being replaced (certificate and key do not match), the last context stays in use.

        pem: a client certificate with its key, in place of the files'; "" for the files'
        Raises TransientError if a given certificate cannot be used.
        """
        if pem != self._pem:
            self._context = self._given(pem)
            self._pem = pem
        if self._monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = self._monotonic()
            self._look(pem)
        return self._context

    def _look(self, pem: str) -> None:
        stamps = self._files.stamps()
        if stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self._context = _context(self._files, pem)
            _log.info("certificates were replaced", files=self._names())
        except (OSError, ValueError) as exc:
            _log.warning(
                "certificates cannot be read; the last ones stay in use",
                error=f"{self._names()}: {reason_of(exc)}",
            )

    def _given(self, pem: str) -> ssl.SSLContext:
        try:
            return _context(self._files, pem)
        except (OSError, ValueError) as exc:
            raise TransientError(
                f"the client certificate of the credential plugin cannot be used: {reason_of(exc)}"
            ) from exc

    def _names(self) -> str:
        return ", ".join(filter(None, (self._files.ca, self._files.certificate, self._files.key)))


def _context(files: TlsFiles, pem: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # from Python 3.13 on: many clusters' CAs would not pass
    if not files.is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if pem:
        with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # the library reads paths only
            file.write(pem)
            file.flush()
            context.load_cert_chain(file.name)
    elif files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context
