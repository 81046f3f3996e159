"""Connections to a server under test, byte by byte, and users to make requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from pvbus.controlplane.apiserver.rbac.users import Account, Grant, UserFile, digest_of
from pvbus.controlplane.apiserver.server import ApiServer
from tests.integration.apiserver.attacks import HOST


def user(server: ApiServer, name: str, role: str = "viewer") -> str:
    """Add a user with a role in all namespaces, and return his token."""
    token = f"token-of-{name}"
    account = Account(name=name, digest=digest_of(token), grants=(Grant(role=role),))
    folder = server.kubeconfig_path.parent / "apiserver"
    UserFile(folder).change(lambda users: users.update({name: account}))
    return token


class Wire:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self._reader = reader
        self._writer = writer
        self._token = token

    def head(self, method: str, path: str, **more: Any) -> None:
        headers = {"Host": HOST, "Authorization": f"Bearer {self._token}", **more}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        self.write("\r\n".join([*lines, "", ""]).encode())

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def code(self, seconds: float = 20.0) -> int:
        """Return the code of the answer, 0 when the connection was closed without one."""
        async with asyncio.timeout(seconds):
            try:
                return int((await self._reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1])
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0

    async def whole(self, seconds: float = 20.0) -> int:
        """Read an answer with its body, and return its code."""
        async with asyncio.timeout(seconds):
            head = await self._reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await self._reader.readexactly(int(size.partition(b":")[2]))
            return int(head.split(b" ", 2)[1])

    async def rest(self, seconds: float = 20.0) -> bytes:
        """Return what comes until the server closes."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read(-1)
        return b""

    async def is_closed(self, seconds: float = 20.0) -> bool:
        """Wait until the server closes."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(65536):
                    pass
        return True

    def close(self) -> None:
        self._writer.close()


class Address(NamedTuple):
    """Of a server in another process."""

    url: str
    token: str


@contextlib.asynccontextmanager
async def wires(server: ApiServer | Address, count: int, token: str = "") -> AsyncIterator[list[Wire]]:
    """Open connections. token: sent with each head; "" for the server's."""
    host, port = server.url.removeprefix("http://").split(":")
    token = token or server.token
    opened = [Wire(*await asyncio.open_connection(host, int(port)), token) for _ in range(count)]
    try:
        yield opened
    finally:
        for wire in opened:
            wire.close()
