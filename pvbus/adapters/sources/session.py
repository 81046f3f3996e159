"""The HTTP session under the OCI client: bounds of time and size, and the classes of failure.

The client (oras) knows the protocol. This session is the only one that sends its requests, its requests for
tokens included, so that no answer is read without a limit and no password goes where it must not.

A registry names further addresses: of its token service, and of its layers. Each connection's address is
judged (`pvbus.core.kernel.addresses`). At the deadline the connections are cut: a server that sends its
headers byte by byte, or endless interim answers, would hold the thread for ever.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from pvbus import __version__
from pvbus.adapters.sources.limits import SourceLimits
from pvbus.core.errors import FORBIDDEN, PermanentError, TransientError
from pvbus.core.kernel.addresses import address_problem
from pvbus.core.platform.packaging.references import Image

CHUNK_BYTES = 64 * 1024
REDIRECTS_MAX = 5
ANSWERS_MAX = 8
"""Manifests or pages of tags of the largest size in one operation, together: 32 MB stay in memory."""
_TOO_MANY, _SERVER_ERROR = 429, 500


class StoppedError(Exception):
    """The caller does not wait any more."""


class _Adapter(HTTPAdapter):
    """Trusts further authorities, never retries by itself, and reports each connection before it is used."""

    def __init__(
        self, context: SSLContext, judge: Callable[[str], None], take: Callable[[socket.socket], None]
    ) -> None:
        """Trust the authorities of a context.

        judge: called with each address that is no proxy's; raises PermanentError for one that none may have
        take: called with each socket before it is used
        """
        self._context = context
        self._judge = judge
        self._take = take
        super().__init__(max_retries=0, pool_maxsize=1)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, ssl_context=self._context, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _pools(self._judge, self._take)

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = _pools(lambda address: None, self._take)
        return manager


def _pools(judge: Callable[[str], None], take: Callable[[socket.socket], None]) -> dict[str, Any]:
    """Return the classes of connections by scheme."""

    class Judged(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            with suppress(socket.gaierror):  # which is explained when it is connected
                for info in socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM):
                    judge(str(info[4][0]))
            made = super()._new_conn()
            take(made)
            judge(made.getpeername()[0])  # the name may have another address now
            return made

    class Plain(Judged):
        pass

    class Secure(Judged, HTTPSConnection):
        pass

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    return {"http": PlainPool, "https": SecurePool}


@lru_cache(maxsize=4)
def _context(ca_file: str, stamp: int) -> SSLContext:
    """Return a context of the machine's authorities and a file's. It takes 25 ms: once for each stamp."""
    context = create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    return context


class LimitedSession(requests.Session):
    """A session for one attempt of one operation."""

    def __init__(
        self,
        limits: SourceLimits,
        *,
        ca_file: str = "",
        stop: threading.Event | None = None,
        loopback: bool = False,
    ) -> None:
        """Begin an attempt: its time runs from here.

        limits: the limits of the operation
        ca_file: PEM of authorities that are trusted beside the machine's, "" for none
        stop: set when the caller does not wait any more
        loopback: whether the source is on this machine, and so may name it
        Raises PermanentError.
        """
        super().__init__()
        self._limits = limits
        self._stop = stop or threading.Event()
        self._deadline = time.monotonic() + limits.seconds_max
        self._requests = 0
        self._answers_bytes = 0
        self._loopback = loopback
        self._connections: list[socket.socket] = []
        self._cutter = threading.Timer(limits.seconds_max, self._cut)
        self._cutter.daemon = True
        self.trust_env = False  # no passwords from ~/.netrc, which belong to a person
        self.max_redirects = REDIRECTS_MAX
        self.headers.update({"User-Agent": f"pvbus/{__version__}", "Accept-Encoding": "identity"})
        try:
            context = _context(ca_file, Path(ca_file).stat().st_mtime_ns if ca_file else 0)
        except OSError as exc:
            raise PermanentError(f"PVBUS_SOURCES_CA_FILE: {ca_file}: {exc}", reason="NotSet") from exc
        for scheme in ("https://", "http://"):
            self.mount(scheme, _Adapter(context, self._judge, self._take))

    def close(self) -> None:
        self._cutter.cancel()
        super().close()
        for connection in self._connections:
            connection.close()

    def _judge(self, address: str) -> None:
        """Raises PermanentError for the address of a connection that none may have."""
        if problem := address_problem(address, loopback=self._loopback):
            raise PermanentError(f"{problem}: no source is read there", reason=FORBIDDEN)

    def _take(self, made: socket.socket) -> None:
        """Note a connection for the deadline. Raises TransientError after it: a redirect may come late."""
        try:
            self._check_time(f"{made.getpeername()[0]}")
        except BaseException:
            made.close()
            raise
        if not self._connections:
            self._cutter.start()
        self._connections.append(made.dup())  # TLS takes the socket itself away

    def _cut(self) -> None:
        for connection in self._connections:
            with suppress(OSError):  # it has ended
                connection.shutdown(socket.SHUT_RDWR)

    def request(self, method: str, url: str, *args: Any, **kwargs: Any) -> requests.Response:  # type: ignore[override]
        """Send a request. Raises TransientError, PermanentError."""
        self._check_time(url)
        self._requests += 1
        if self._requests > self._limits.requests_max:
            raise PermanentError(
                f"{_shown(url)}: more than {self._limits.requests_max} requests: it has too many tags",
                reason="TooLarge",
            )
        self._check_secrecy(url, kwargs.get("headers") or {})
        is_streamed = kwargs.pop("stream", False)
        kwargs |= {
            "stream": True,
            "timeout": self._limits.idle_seconds,
            "proxies": {} if Image(urlsplit(url).netloc, "").is_local else get_environ_proxies(url),
        }
        try:
            response = super().request(method, url, *args, **kwargs)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as exc:
            self._check_time(url)
            raise TransientError(f"no answer from {_shown(url)}: {_cause(exc)}") from exc
        try:
            self._check_answer(response)
            if not is_streamed:
                body = b"".join(self.chunks(response, self._limits.manifest_bytes_max))
                self._answers_bytes += len(body)
                if self._answers_bytes > ANSWERS_MAX * self._limits.manifest_bytes_max:
                    raise PermanentError(
                        f"{_shown(url)}: its answers have more than {self._answers_bytes} bytes: it has too "
                        "many tags",
                        reason="TooLarge",
                    )
                response._content, response._content_consumed = body, True  # what json() reads
        except BaseException:
            response.close()
            raise
        return response

    def chunks(self, response: requests.Response, bytes_max: int) -> Iterator[bytes]:
        """Yield the body of an answer as it comes. Raises PermanentError (TooLarge), TransientError."""
        total = 0
        url = _shown(response.url)
        try:
            while chunk := response.raw.read1(CHUNK_BYTES, decode_content=False):
                total += len(chunk)
                if total > bytes_max:
                    raise PermanentError(f"{url}: it sent more than {bytes_max} bytes", reason="TooLarge")
                self._check_time(url)
                yield chunk
            self._check_time(url)  # a connection that was cut looks like an end
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            self._check_time(url)
            raise TransientError(f"{url}: the connection ended in the middle: {_cause(exc)}") from exc
        finally:
            response.close()

    def get_redirect_target(self, response: requests.Response) -> str | None:
        target: str | None = super().get_redirect_target(response)
        if target and response.url.startswith("https:") and target.startswith("http:"):
            raise PermanentError(
                f"{_shown(response.url)}: it redirects to plain HTTP, at {_shown(target)}", reason="Insecure"
            )
        return target

    def _check_time(self, url: str) -> None:
        if self._stop.is_set():
            raise StoppedError
        if time.monotonic() > self._deadline:
            raise TransientError(f"{_shown(url)}: not done within {self._limits.seconds_max:g} s")

    def _check_secrecy(self, url: str, headers: Any) -> None:
        """Refuse to send a password or token in the clear.

        A registry names the address of its token service, so it might ask for that.
        """
        parts = urlsplit(url)
        is_local = Image(parts.netloc, "").is_local
        if parts.scheme != "https" and "Authorization" in headers and not is_local:
            raise PermanentError(
                f"{_shown(url)}: a password or token is sent by https only", reason="Insecure"
            )

    def _check_answer(self, response: requests.Response) -> None:
        code = response.status_code
        if code == _TOO_MANY or code >= _SERVER_ERROR:
            raise TransientError(
                f"{_shown(response.url)}: it answered {code} {response.reason}",
                retry_after_seconds=_retry_after(response.headers.get("Retry-After", "")),
            )


def _retry_after(text: str) -> float | None:
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None


def _shown(url: str) -> str:
    """Return a URL without its query, which may be signed."""
    return url.partition("?")[0]


def _cause(exc: BaseException) -> str:
    """Return the innermost error in words: the outer ones have addresses of objects."""
    seen = exc
    while (inner := getattr(seen, "reason", None) or seen.__cause__ or seen.__context__) and isinstance(
        inner, BaseException
    ):
        seen = inner
    return str(seen) or type(seen).__name__
