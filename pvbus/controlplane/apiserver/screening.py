"""Looks at the head of a request before anything of it is used.

A page of a foreign site can make a browser send requests here, also under a name that it lets resolve
to loopback (DNS rebinding). It has no token, but nothing is lost by refusing it earlier and for a reason
that can be read: requests name this server, or an address, and come from no other origin.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

from pvbus.controlplane.apiserver import status
from pvbus.controlplane.apiserver.hooks import StatusError

_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")


HOST_MAX = 300
"""A DNS name has at most 253 characters; a port follows."""


def check_head(raw_path: str, headers: Mapping[str, str], names: frozenset[str], scheme: str) -> None:
    """Raise StatusError (400, 403) for a request that was not meant for this server.

    names: lower-case DNS names of this server; addresses are always its own.
    """
    if not raw_path.isascii():
        raise status.bad_request("the path and the query of the request must be percent-encoded")
    host = headers.get("Host", "")
    if not host:
        raise status.bad_request("the request has no Host header")
    if len(host) > HOST_MAX or not _is_own(host, names):
        listed = ", ".join(sorted(names))
        raise _foreign(f"Host {host[:253]!r} is not a name of this server: use {listed} or its address")
    origin = headers.get("Origin")
    if origin is not None and origin != f"{scheme}://{host}":
        raise _foreign(f"Origin {origin[:253]!r}: pages of other sites are not served")


def _foreign(text: str) -> StatusError:
    return StatusError(403, "Forbidden", f"forbidden: {text}")


@lru_cache(256)
def _is_own(host: str, names: frozenset[str]) -> bool:
    """Return whether a Host header names this server. DNS rebinding needs a name, so addresses are fine."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") in names:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def media_type(headers: Mapping[str, str]) -> str:
    """Return the Content-Type of a body without its parameters. Raises StatusError (415).

    A compressed body is refused, not unpacked: clients of a Kubernetes API send none, and a small one may
    unpack to anything.
    """
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise status.unsupported_media_type(
            f"Content-Encoding {encoding[:80]!r} is not supported: send the body as it is"
        )
    media, *parameters = headers.get("Content-Type", "").split(";")
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        charset = value.strip().strip('"').lower()
        if name.strip().lower() == "charset" and charset not in _CHARSETS:
            raise status.unsupported_media_type(f"charset {charset[:80]!r} is not supported: send UTF-8")
    return media.strip().lower()
