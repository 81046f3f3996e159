"""The SQLite bus as the contract suite wants it: in memory, and in a file that workers share."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

from pvbus.adapters.sqlite import store
from pvbus.adapters.sqlite.bus import EXPIRE_SECONDS, SqliteBus
from tests.kit.clocks import FreezableClock

HEARTBEAT_SECONDS = 1.0
POLL_SECONDS = 0.05


class MemoryHarness:
    """Workers are peers in one process; a killed one is noticed when its session ends."""

    record_bytes_max = 10_000
    session_seconds = 10.0
    drain_seconds = 2.0
    handover_seconds = 2 * HEARTBEAT_SECONDS + 0.5
    expiry_seconds = EXPIRE_SECONDS + 1
    wake_seconds = 0.0
    visible_within_seconds = 0.0
    margin_seconds = 0.5
    suspensions_min = 1

    def __init__(self, bus_class: type[SqliteBus] = SqliteBus) -> None:
        self._bus_class = bus_class
        self._clocks: dict[SqliteBus, FreezableClock] = {}
        self._first: SqliteBus | None = None

    async def open(self) -> SqliteBus:
        clock = FreezableClock()
        if self._first is None:
            self._first = await self._open(":memory:", FreezableClock())
        bus = self._first.peer(clock=clock)
        self._clocks[bus] = clock
        return bus

    async def _open(self, path: str, clock: FreezableClock) -> SqliteBus:
        return await self._bus_class.open(
            path,
            clock=clock,
            session_seconds=self.session_seconds,
            heartbeat_seconds=HEARTBEAT_SECONDS,
            drain_seconds=self.drain_seconds,
            record_bytes_max=self.record_bytes_max,
            poll_seconds=POLL_SECONDS,
        )

    async def kill(self, bus: SqliteBus) -> None:
        await bus.abandon()

    def freeze(self, bus: SqliteBus) -> None:
        self._clocks[bus].freeze()

    def thaw(self, bus: SqliteBus) -> None:
        self._clocks[bus].thaw()

    def contended(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def close(self) -> None:
        if self._first is not None:
            await self._first.close()


class FileHarness(MemoryHarness):
    """Workers open one file each for themselves, as processes do."""

    wake_seconds = POLL_SECONDS + 0.01
    suspensions_min = 4  # it waits for the other process a few times

    def __init__(self, path: Path, bus_class: type[SqliteBus] = SqliteBus) -> None:
        super().__init__(bus_class)
        self._path = path

    async def open(self) -> SqliteBus:
        clock = FreezableClock()
        bus = await self._open(str(self._path), clock)
        self._clocks[bus] = clock
        return bus

    @asynccontextmanager
    async def contended(self) -> AsyncIterator[None]:
        """Another process is in the middle of a transaction, for a while.

        The waits have no jitter: each try then has the same suspensions, one more of which is cut each time.
        """
        other = sqlite3.connect(self._path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        async def end() -> None:
            await asyncio.sleep(0.03)
            other.close()

        ending = asyncio.create_task(end())
        try:
            with patch.object(store, "BUSY_JITTER", lambda least, most: most / 2):
                yield
        finally:
            await ending

    async def close(self) -> None:
        for bus in self._clocks:
            await bus.close()
