"""Virtual time: an event loop in which waiting costs nothing, and the clock that shows its time.

Time stands still while anything can run. When everybody waits, it jumps to the next timer. A day of
heartbeats passes in the time it takes to compute them, and the same program runs the same way twice
(sets of strings are iterated by their hashes: in another process, with the same PYTHONHASHSEED).

A `Process` can be frozen as SIGSTOP freezes a process. Each callback of the loop carries the context in
which it was registered, and a task inherits the context of its creator; so a context variable says to
which process a callback belongs. The loop holds the callbacks of a frozen process, whatever they wait
for (a timer, a queue, an answer, the next turn), and runs them in their order after the process thaws.
Callbacks of other processes and of no process (the world: servers, networks, users) run on.
"""

import asyncio
import contextlib
import contextvars
import itertools
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

EPOCH = 1_700_000_000.0
"""Where simulated wall clocks start: any fixed moment would do, and zero hides sign errors."""

TIMER_RESOLUTION_SECONDS = 1e-6
"""How early a timer may fire: above the rounding of sums of floats, below any timeout in use."""

POLL_TURNS = 64
"""How often the descriptors are polled while there are none but the loop's own, which wakes it for signals:
each poll is a system call, a third of all the time of a simulation without sockets."""


class Process:
    """What is frozen, thawed or killed as one. name: for messages.

    frozen: none of its callbacks runs. frozen_seconds: how long it was frozen so far, in virtual time.
    dead: it was killed. What its tasks do to end themselves must have no effect: doubles of servers and buses
    look at this.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.freezes = 0
        self._held: list[asyncio.Handle] = []
        self._frozen_at = 0.0
        self._frozen_seconds = 0.0

    def __repr__(self) -> str:
        state = "dead" if self.dead else "frozen" if self.frozen else "running"
        return f"Process({self.name!r}, {state})"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Let what is started inside belong to this process."""
        token = _PROCESS.set(self)
        try:
            yield
        finally:
            _PROCESS.reset(token)

    def freeze(self) -> None:
        """Stop every callback of the process, from the next one on. A dead process cannot be frozen."""
        if not self.frozen and not self.dead:
            self.frozen, self._frozen_at = True, asyncio.get_running_loop().time()
            self.freezes += 1

    def thaw(self) -> None:
        """Let the process go on where it stood; timers that fell due meanwhile fire at once."""
        if self.frozen:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            self.frozen = False
            self._frozen_seconds += loop.time() - self._frozen_at
            held, self._held = self._held, []
            loop.go_on(held)

    def kill(self) -> None:
        """End every task of the process where it stands; nothing it does from now on reaches others."""
        self.dead = True
        for task in asyncio.all_tasks():
            if isinstance(task, _NumberedTask) and task.process is self:
                task.cancel()
        self.thaw()

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)

    @property
    def frozen_seconds(self) -> float:
        now = asyncio.get_running_loop().time()
        return self._frozen_seconds + (now - self._frozen_at if self.frozen else 0.0)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current_process() -> Process | None:
    """Return the process that runs now; None outside of all processes."""
    return _PROCESS.get()


def outside(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run a coroutine outside of all processes, as a server or the network does.

    It runs on while its caller's process is frozen, and after that was killed.
    """
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


class _Skipped(asyncio.Handle):
    """A callback that does nothing: stands where the callback of a frozen process stood."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda: None, (), loop, contextvars.Context())


class _ReadyQueue(deque[asyncio.Handle]):
    """The loop's queue of callbacks to run. It hands out none of a frozen process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._skipped = _Skipped(loop)

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]  # each handle has one
        if process is None or not process.frozen:
            return handle
        process.hold(handle)
        return self._skipped


class _NumberedTask(asyncio.Task[Any]):
    """A task whose order in a set depends on when it was made, and not on its address in memory."""

    _numbers = itertools.count()

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self._number = next(self._numbers)
        self.process = (options.get("context") or contextvars.copy_context()).get(_PROCESS)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._number

    __eq__ = object.__eq__


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> _NumberedTask:
    return _NumberedTask(coro, loop=loop, **options)


class _JumpingSelector(selectors.SelectSelector):
    """Polls the descriptors, and instead of blocking tells the loop how long it would have."""

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
    """An event loop with virtual time. Work for threads runs at once, in the loop's own thread."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_JumpingSelector(self._advance))
        self._clock_resolution = TIMER_RESOLUTION_SECONDS
        self._ready: deque[asyncio.Handle] = _ReadyQueue(self)
        _NumberedTask._numbers = itertools.count()
        self.set_task_factory(_new_task)  # type: ignore[arg-type]  # a subclass of what is asked for

    def time(self) -> float:
        return self._seconds

    def _advance(self, seconds: float) -> None:
        self._seconds += seconds

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run callbacks that were held, in their order. Caller: `Process`."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: object, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run it here and now: a thread would take real time, and finish when it likes."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:  # raised where it is awaited, as with an executor
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
    """A clock whose sleepers can be held, for tests of one component; a whole process is a `Process`."""

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


def run_simulated(main: Coroutine[Any, Any, T], *, context: Mapping[str, Any] | None = None) -> T:
    """Run a coroutine to its end in virtual time, and say in which virtual second it failed."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        try:
            return runner.run(main)
        except Exception as exc:
            exc.add_note(f"at virtual second {runner.get_loop().time():.3f}, {dict(context or {})}")
            raise
