"""Says in words why an HTTP request has no response: aiohttp's texts show Python's objects."""

import os
import re
import ssl

import aiohttp

_TLS_OBJECT = re.compile(r" ssl:(<[^>]*>|\w+)")

_CONNECT_CALL = "Connect call failed"
"""How asyncio's own text begins; all other texts say more than the system's."""


def failure_of(error: Exception) -> str:
    """Return the reason of a failed request, for example `Connection refused`; the class if there is none."""
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = getattr(error, "os_error", None)  # a certificate error has none
        if isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.strerror:
            is_asyncios = cause.strerror.startswith(_CONNECT_CALL)
            return os.strerror(cause.errno) if is_asyncios and cause.errno else cause.strerror
    return _TLS_OBJECT.sub("", str(error)) or type(error).__name__
