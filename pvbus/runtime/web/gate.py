"""Who may see the page: checks of each request, before anything else looks at it.

A browser opens the page with a token in the address, once; the answer moves it into a cookie and out of the
address. Any page of the internet can make a browser send requests to this machine: so the Host must be an
address or a name that the server answers to (see `is_own_host`), a request must not come from another
origin, and the cookie is not sent with those that do.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from pvbus.adapters.httpserver import LOCAL_NAMES, host_name, is_own_host

COOKIE_PREFIX = "pvbus-"
HOST_ONLY = "__Host-"
"""Browsers take a cookie of such a name over TLS only, and from this very host."""

STRICT_TRANSPORT: Mapping[str, str] = {"Strict-Transport-Security": "max-age=2592000"}
"""For 30 days a browser asks this name over TLS alone, for every port of it. If it is longer, a name whose
certificate is taken away stays out of reach; if it is shorter, a browser that comes once a month can be led
to plain HTTP. Names of loopback, which every program of the machine shares, and subdomains are left out."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
"""The headers of every answer. Scripts and styles come from this server's files only, and a script cannot
make HTML of text (trusted types), so a name from the cluster is never more than text."""


class Gate:
    """Checks who may see the page.

    token: the secret in the page's address
    port: the server's port, as the cookies of a host are shared by all its ports
    names: further host names that browsers use for this server
    is_tls: whether it serves TLS itself
    """

    def __init__(self, token: str, port: int, names: tuple[str, ...] = (), *, is_tls: bool = False) -> None:
        self._token = token
        self._session = hmac.new(token.encode(), b"pvbus web session", hashlib.sha256).hexdigest()
        self._names = frozenset(name.lower() for name in (*LOCAL_NAMES, *names))
        self.is_tls = is_tls
        self.cookie = f"{HOST_ONLY if is_tls else ''}{COOKIE_PREFIX}{port}"

    @property
    def session(self) -> str:
        """The cookie's value: who knows it does not know the token."""
        return self._session

    def headers(self, host: str) -> Mapping[str, str]:
        """Return the headers of every answer to a request for this Host."""
        name = host_name(host)
        is_strict = self.is_tls and name in self._names and not is_loopback(name)
        return {**HEADERS, **STRICT_TRANSPORT} if is_strict else HEADERS

    def problem(self, headers: Mapping[str, str]) -> str:
        """Return why a request is refused whoever sends it, "" if it is not."""
        host = headers.get("Host", "")
        if not is_own_host(host, self._names):
            return (
                f'this server does not answer to the name "{host_name(host)}": use localhost, or name it in '
                "PVBUS_WEB_NAMES"
            )
        origin = headers.get("Origin")
        if origin is not None and not self._is_own(origin, host):
            return "requests from other origins are refused"
        is_own = headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")
        if not is_own and headers.get("Sec-Fetch-Mode") != "navigate":
            return "requests from other sites are refused"  # another port of this host sends the cookie, too
        return ""

    def _is_own(self, origin: str, host: str) -> bool:
        """Return whether an origin is that of this page.

        It may be https for a server without TLS, as there may be a proxy with TLS.
        """
        try:
            scheme, netloc, *_ = urlsplit(origin)
        except ValueError:
            return False
        return netloc.lower() == host.lower() and (scheme == "https" or not self.is_tls)

    def opens(self, token: str) -> bool:
        """Return whether this is the token."""
        return _equal(token, self._token)

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Return whether a request has the session's cookie."""
        return _equal(cookies.get(self.cookie, ""), self._session)


def write_problem(headers: Mapping[str, str]) -> str:
    """Return why a request that changes something is refused, "" if it is not. `problem` comes first.

    A page of another site can send a form without its user; it can send JSON only after a question that this
    server refuses (CORS), and every browser names the origin of what is no GET.
    """
    origin = headers.get("Origin", "")
    if not origin:
        return "a request that changes something must name its origin"
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        return "a request that changes something must be JSON"
    scheme, netloc, *_ = urlsplit(origin)
    if scheme != "https" and not is_loopback(host_name(netloc)):
        return (
            "a token must not travel without TLS: give the page a certificate (PVBUS_WEB_CERTIFICATE_FILE), "
            "or open it on localhost (ssh -L, kubectl port-forward)"
        )
    return ""


def is_loopback(host: str) -> bool:
    """Return whether a server at this host is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
