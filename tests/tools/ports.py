"""Ports for the programs that tests start."""

import itertools
import random
import socket

_PORTS = range(12_000, 32_768)
"""Linux gives outgoing connections 32,768 and more (ip_local_port_range), other systems 49,152 and more."""
_taken: list[socket.socket] = []
"""On the UDP port of each TCP port that this process has taken: two processes cannot have the same one."""


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on now, and that are given out once: each another one.

    They lie below those that the kernel gives to outgoing connections: one of these could take a port between
    this choice and the moment its user listens, which is minutes for a proxy in front of a broker. What else
    could are the other test processes of this machine, which choose here, too.
    """
    ports = random.SystemRandom().sample(_PORTS, len(_PORTS))
    return list(itertools.islice(filter(_take, ports), count))


def _take(port: int) -> bool:
    """Take a port for this process, until that ends; return whether nobody had it."""
    taken = socket.socket(type=socket.SOCK_DGRAM)
    try:
        taken.bind(("127.0.0.1", port))
        with socket.socket() as each:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended are no users
            each.bind(("127.0.0.1", port))
    except OSError:
        taken.close()
        return False
    _taken.append(taken)
    return True
