"""Accepts connections: handshakes of limited number and time, and a process that runs out of descriptors.

asyncio's own servers count no handshakes, and log a trace for each connection that finds no descriptor.
"""

import asyncio
import errno
import resource
import socket
import ssl
import time
from contextlib import suppress

from pvbus.controlplane.apiserver.connections import Connections
from pvbus.telemetry.structured import structlog

BACKLOG = 1024
"""Connections that may wait to be accepted, without a descriptor. Further ones try again after a second."""

HANDSHAKE_SECONDS = 10.0
"""How long a TLS handshake may take; one over a slow tunnel takes 2 seconds."""

HANDSHAKES_MAX = 500
"""Handshakes in progress. Beyond it the oldest of the peer with the most is cut off."""

TLS_CLOSE_SECONDS = 5.0
"""How long the end of TLS may take."""

PROBE_SECONDS = (30, 10)
"""When TCP asks a silent peer whether it is there, and how often then."""

PROBES_MAX = 3
"""The probes without an answer after which a connection is closed: a minute after the peer's machine went."""

SILENT_SECONDS = PROBE_SECONDS[0] + PROBE_SECONDS[1] * PROBES_MAX

DESCRIPTORS_MAX = 65_536
"""As many as the process asks for: more are of no use, and some programs close every possible one."""

WAIT_SECONDS = 0.1
"""Until the next try if there is no descriptor for a connection."""

REPORT_SECONDS = 60.0
"""How often a lack of descriptors is logged."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_log = structlog.get_logger(__name__)


def raise_descriptors() -> None:
    """Let this process open as many descriptors as it may; connections_max depends on it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):  # a system with a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def probe_silent_peers(listening: socket.socket) -> None:
    """Make TCP notice peers that are gone without a word. Accepted connections inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle, interval = PROBE_SECONDS
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", PROBES_MAX)):
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # data that is not acknowledged
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * SILENT_SECONDS)


class Acceptor:
    """Accepts the connections of one listening socket, until `stop`.

    context: the TLS context of new connections, None for plain HTTP
    """

    def __init__(
        self, listening: socket.socket, connections: Connections, context: ssl.SSLContext | None
    ) -> None:
        listening.setblocking(False)
        self.context = context
        self._socket = listening
        self._connections = connections
        self._opening: dict[asyncio.Task[None], str] = {}
        self._reported = -REPORT_SECONDS
        self._task = asyncio.create_task(self._accept_forever(), name="apiserver-accept")

    async def stop(self) -> None:
        """Accept no more, and drop connections that are not open yet."""
        tasks = [self._task, *self._opening]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as exc:
                if exc.errno in _EXHAUSTED:
                    self._report(exc)
                    self._connections.make_room()
                    await asyncio.sleep(WAIT_SECONDS)
                continue  # else a peer that went before it was accepted
            peer = address[0] if isinstance(address, tuple) else ""
            self._limit_opening()
            task = asyncio.create_task(self._open(connection), name="apiserver-handshake")
            self._opening[task] = peer
            task.add_done_callback(self._opening.pop)
            await asyncio.sleep(0)  # a wave of connections does not keep those before it from being answered

    def _report(self, error: OSError) -> None:
        now = time.monotonic()
        if now - self._reported >= REPORT_SECONDS:
            self._reported = now
            text = f"{error.strerror}; idle connections are closed: raise the limit of open files (ulimit -n)"
            _log.warning("no descriptor for a new connection", error=text)

    def _limit_opening(self) -> None:
        if len(self._opening) < HANDSHAKES_MAX:
            return
        peers = list(self._opening.values())
        busiest = max(set(peers), key=peers.count)
        oldest = next(task for task, peer in self._opening.items() if peer == busiest)
        oldest.cancel()

    async def _open(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        times: dict[str, float] = {}
        if self.context is not None:
            times = {"ssl_handshake_timeout": HANDSHAKE_SECONDS, "ssl_shutdown_timeout": TLS_CLOSE_SECONDS}
        with suppress(OSError):  # of TLS, or of a peer that went
            await loop.connect_accepted_socket(self._connections, connection, ssl=self.context, **times)
