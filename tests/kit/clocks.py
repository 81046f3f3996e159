"""Clocks of simulated components: one whose sleepers can be held, and one that can jump."""

import asyncio

from pvbus.adapters.memory.virtual_time import EPOCH, SimulatedClock


class FreezableClock(SimulatedClock):
    """A clock whose sleepers can be held, for tests of one component. For a whole process use `Process`."""

    def __init__(self, epoch: float = EPOCH) -> None:
        super().__init__(epoch)
        self._running = asyncio.Event()
        self._running.set()

    def freeze(self) -> None:
        self._running.clear()

    def thaw(self) -> None:
        self._running.set()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        await self._running.wait()


class ProcessClock(SimulatedClock):
    """The clocks of one process. Its wall clock can jump (`skew`), its monotonic clock cannot."""

    def __init__(self, epoch: float = EPOCH) -> None:
        super().__init__(epoch)
        self.skew = 0.0

    def now(self) -> float:
        return super().now() + self.skew
