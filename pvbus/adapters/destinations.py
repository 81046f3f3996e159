"""Sockets to permitted addresses only, for aiohttp.

The address is judged where the connection is made, after names are resolved: neither a name that changes nor
another way to write an address (decimal, octal, IPv6 that holds IPv4) leads around it.
"""

import errno
import socket
from typing import Any

from pvbus.core.kernel.addresses import address_problem


def checked_socket(info: tuple[Any, ...]) -> socket.socket:
    """Return a socket for an address of `getaddrinfo`.

    Raises: OSError for an address that no server may have.
    """
    family, kind, protocol, _, address = info
    if problem := address_problem(address[0]):
        raise OSError(errno.EACCES, f"{problem}: no request goes there")
    return socket.socket(family=family, type=kind, proto=protocol)
