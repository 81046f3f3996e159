"""Virtual time: an event loop in which waiting costs nothing, and the clock that shows its time.

Time stands still while anything can run. When all tasks wait, it jumps to the next timer. A day of
heartbeats passes in the time it takes to compute them, and the same program runs the same way twice
(sets of strings are iterated by their hashes: in another process, with the same PYTHONHASHSEED).
"""

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000.0
"""Where simulated wall clocks start: any fixed moment would do, and zero hides sign errors."""

TIMER_RESOLUTION_SECONDS = 1e-6
"""How early a timer may fire: above the rounding of sums of floats, below any timeout in use."""

POLL_TURNS = 64
"""The descriptors are polled once in so many turns while there is only the loop's own, which wakes it for
signals: each poll is a system call, which took a third of the time of a simulation without sockets."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose order in a set depends on its creation order, not on its memory address."""

    _numbers = itertools.count()

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


class _JumpingSelector(selectors.SelectSelector):
    """Polls the descriptors; instead of blocking, it passes the timeout to the loop."""

    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns += 1
        ready: list[tuple[selectors.SelectorKey, int]] = []
        if len(self.get_map()) > 1 or self._turns % POLL_TURNS == 0:
            ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            raise RuntimeError("simulation: every task waits, and no timer is set")
        self._jump(timeout)
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time. Work for threads runs at once, in the loop's own thread.

    task_type: the type of its tasks
    """

    task_type = NumberedTask

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_JumpingSelector(self._advance))
        self._clock_resolution = TIMER_RESOLUTION_SECONDS
        NumberedTask._numbers = itertools.count()
        self.set_task_factory(self._new_task)  # type: ignore[arg-type]  # it returns a subclass of Task

    def time(self) -> float:
        return self._seconds

    def _advance(self, seconds: float) -> None:
        self._seconds += seconds

    def _new_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> NumberedTask:
        return self.task_type(coro, loop=loop, **options)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run the function at once: a thread would take real time, and end at an unpredictable moment."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # raised where the future is awaited, as with an executor
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


def run_simulated(main: Coroutine[Any, Any, T], loop_type: type[SimulatedLoop] = SimulatedLoop) -> T:
    """Run a coroutine to its end in virtual time; an error gets a note with the virtual time."""
    results: list[T] = []

    async def run() -> None:  # a task without a result: at its end, `signal` prints it with all it holds
        results.append(await main)

    with asyncio.Runner(loop_factory=loop_type) as runner:
        try:
            runner.run(run())
        except Exception as exc:
            exc.add_note(f"at virtual second {runner.get_loop().time():.3f}")
            raise
    return results[0]
