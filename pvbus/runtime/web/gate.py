"""Who may see the page: checks of each request, before anything else looks at it.

A browser opens the page with a token in the address, once; the answer moves it into a cookie and out of the
address. Any page of the internet can make a browser send requests to this machine: so the Host must be a
name that the server answers to (a foreign name that resolves to this machine is refused), a request must not
come from another origin, and the cookie is not sent with those that do.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
COOKIE_PREFIX = "pvbus-"

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
"""Of every answer. Scripts and styles come from this server's files only, and a script cannot make HTML of
text (trusted types), so a name from the cluster is never more than text."""


class Gate:
    """token: the secret in the address. port: the server's, as cookies are shared by all ports of a host.
    names: further host names that browsers use for this server."""

    def __init__(self, token: str, port: int, names: tuple[str, ...] = ()) -> None:
        self._token = token
        self._session = hmac.new(token.encode(), b"pvbus web session", hashlib.sha256).hexdigest()
        self._names = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *names))
        self.cookie = f"{COOKIE_PREFIX}{port}"

    @property
    def session(self) -> str:
        """The cookie's value: who knows it does not know the token."""
        return self._session

    def problem(self, headers: Mapping[str, str]) -> str:
        """Return why a request is refused whoever sends it, "" if it is not."""
        host = headers.get("Host", "")
        if _host_name(host) not in self._names:
            return (
                f'this server does not answer to the name "{_host_name(host)}": use localhost, or name it in '
                "PVBUS_WEB_NAMES"
            )
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "requests from other origins are refused"
        is_own = headers.get("Sec-Fetch-Site", "none") in ("same-origin", "none")
        if not is_own and headers.get("Sec-Fetch-Mode") != "navigate":
            return "requests from other sites are refused"  # another port of this host sends the cookie, too
        return ""

    def opens(self, token: str) -> bool:
        """Return whether this is the token."""
        return _equal(token, self._token)

    def knows(self, cookies: Mapping[str, str]) -> bool:
        """Return whether a request has the session's cookie."""
        return _equal(cookies.get(self.cookie, ""), self._session)


def is_loopback(host: str) -> bool:
    """Return whether a server at this host is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host_name(host: str) -> str:
    """Return the name in a Host header, in lower case and without the port, "" if there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())
