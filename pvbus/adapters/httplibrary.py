"""Imports aiohttp without reading the authorities that this machine trusts.

At its import aiohttp makes two TLS contexts and reads the authorities for both: 35 ms of CPU, a tenth of the
start of a service, whose sessions have contexts of their own. So they are left out there. The context that
checks certificates reads them when a connection first uses it; the other one checks nothing. Processes import
this module before any that imports aiohttp; after it, nothing changes.
"""

import ssl
import sys
from typing import Any


class _Unread(ssl.SSLContext):
    """A context that trusts nobody until its first connection."""

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]  # it has the same fields
        self.load_default_certs()
        return self.wrap_bio(*arguments, **options)


_READS = "set_default_verify_paths"
"""The method that reads the authorities' files."""


def _read_nothing(context: ssl.SSLContext) -> None:
    """Take the place of the method that reads."""


if "aiohttp" not in sys.modules:
    setattr(ssl.SSLContext, _READS, _read_nothing)
    try:
        from aiohttp import connector
    finally:
        delattr(ssl.SSLContext, _READS)  # it is the base class's again
    connector._SSL_CONTEXT_VERIFIED.__class__ = _Unread
