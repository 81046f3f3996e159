"""Virtual time: an event loop in which waiting costs nothing, and the clock that shows its time.

Time stands still while anything can run. When everybody waits, it jumps to the next timer. A day of
heartbeats passes in the time it takes to compute them, and the same program runs the same way twice.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000.0
"""Where simulated wall clocks start: any fixed moment would do, and zero hides sign errors."""

TIMER_RESOLUTION_SECONDS = 1e-6
"""How early a timer may fire: above the rounding of sums of floats, below any timeout in use."""


class _JumpingSelector(selectors.SelectSelector):
    """Polls the descriptors, and instead of blocking tells the loop how long it would have."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError("simulation: every task waits, and no timer is set")
        self._jump(timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. Work for threads runs at once, in the loop's own thread."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_JumpingSelector(self._advance))
        self._clock_resolution = TIMER_RESOLUTION_SECONDS

    def time(self) -> float:
        return self._seconds

    def _advance(self, seconds: float) -> None:
        self._seconds += seconds

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run it here and now: a thread would take real time, and finish when it likes."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future


class SimulatedClock:
    """The time of the running loop, which should be a `SimulatedLoop`: implements `Clock`."""

    def __init__(self, epoch: float = EPOCH) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return self._epoch + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FreezableClock(SimulatedClock):
    """A clock whose sleepers can be held, as SIGSTOP holds a process: time goes on without them."""

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


def run_simulated(main: Coroutine[Any, Any, T], *, context: Mapping[str, Any] | None = None) -> T:
    """Run a coroutine to its end in virtual time, and say in which virtual second it failed."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        try:
            return runner.run(main)
        except Exception as exc:
            exc.add_note(f"at virtual second {runner.get_loop().time():.3f}, {dict(context or {})}")
            raise
