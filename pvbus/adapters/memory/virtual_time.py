"""Virtual time: an event loop in which waiting costs nothing, and the clock that shows its time.

Time stands still while anything can run. When all tasks wait, it jumps to the next timer. A day of
heartbeats passes in the time it takes to compute them, and the same program runs the same way twice
(sets of strings are iterated by their hashes: in another process, with the same PYTHONHASHSEED).

A `Process` can be frozen as SIGSTOP freezes a process. Each callback of the loop carries the context in
which it was registered, and a task inherits the context of its creator; so a context variable tells
which process a callback belongs to. The loop holds the callbacks of a frozen process, whatever they wait
for (a timer, a queue, a response, the next turn), and runs them in order after the process thaws.
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
"""The descriptors are polled once in so many turns while there is only the loop's own, which wakes it for
signals: each poll is a system call, which took a third of the time of a simulation without sockets."""


class Process:
    """A simulated process, frozen, thawed or killed as a unit.

    name: the name, for messages
    frozen: whether none of its callbacks runs
    dead: whether it was killed. The cleanup of its tasks must have no effect: doubles of servers and buses
        check this flag.
    freezes: how often it was frozen
    turns: how many of its callbacks have begun; the code between two awaits is one
    before_turn: called before each callback; it may freeze the process, which then does not run this one
    frozen_seconds: the total time it was frozen, in virtual time
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.freezes = 0
        self.turns = 0
        self.before_turn: Callable[[], None] | None = None
        self._held: list[asyncio.Handle] = []
        self._frozen_at = 0.0
        self._frozen_seconds = 0.0

    def __repr__(self) -> str:
        state = "dead" if self.dead else "frozen" if self.frozen else "running"
        return f"Process({self.name!r}, {state})"

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Make tasks and callbacks that are started in the block belong to this process."""
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
        """Resume the process where it stopped; timers that are overdue fire at once."""
        if self.frozen:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimulatedLoop)
            self.frozen = False
            self._frozen_seconds += loop.time() - self._frozen_at
            held, self._held = self._held, []
            loop.go_on(held)

    def kill(self) -> None:
        """Cancel every task of the process; from then on its actions have no effect on others."""
        self.dead = True
        for task in asyncio.all_tasks():
            if isinstance(task, _NumberedTask) and task.process is self:
                task.cancel()
        self.thaw()

    def takes_turn(self) -> bool:
        """Begin the next callback, unless the process is frozen. Caller: the loop."""
        if not self.frozen and self.before_turn is not None:
            self.before_turn()
        self.turns += not self.frozen
        return not self.frozen

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)

    @property
    def frozen_seconds(self) -> float:
        now = asyncio.get_running_loop().time()
        return self._frozen_seconds + (now - self._frozen_at if self.frozen else 0.0)


_PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def outside(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Run a coroutine outside of all processes, as a server or the network does.

    It keeps running while its caller's process is frozen, and after that process is killed.
    """
    return asyncio.get_running_loop().create_task(work, context=contextvars.Context())


class _Skipped(asyncio.Handle):
    """A callback that does nothing: replaces the callback of a frozen process in the queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(lambda: None, (), loop, contextvars.Context())


class _ReadyQueue(deque[asyncio.Handle]):
    """The loop's queue of callbacks to run. It holds back those of a frozen process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._skipped = _Skipped(loop)

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]  # each handle has one
        if process is None or process.takes_turn():
            return handle
        process.hold(handle)
        return self._skipped


class _NumberedTask(asyncio.Task[Any]):
    """A task whose order in a set depends on its creation order, not on its memory address."""

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
    """An event loop with virtual time. Work for threads runs at once, in the loop's own thread."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__(_JumpingSelector(self._advance))
        self._clock_resolution = TIMER_RESOLUTION_SECONDS
        self._ready: deque[asyncio.Handle] = _ReadyQueue(self)
        _NumberedTask._numbers = itertools.count()
        self.set_task_factory(_new_task)  # type: ignore[arg-type]  # it returns a subclass of Task

    def time(self) -> float:
        return self._seconds

    def _advance(self, seconds: float) -> None:
        self._seconds += seconds

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run callbacks that were held, in their order. Caller: `Process`."""
        self._ready.extend(handles)

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


def run_simulated(main: Coroutine[Any, Any, T], *, context: Mapping[str, Any] | None = None) -> T:
    """Run a coroutine to its end in virtual time; an error gets a note with the virtual time."""
    results: list[T] = []

    async def run() -> None:  # a task without a result: at its end, `signal` prints it with all it holds
        results.append(await main)

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        try:
            runner.run(run())
        except Exception as exc:
            exc.add_note(f"at virtual second {runner.get_loop().time():.3f}, {dict(context or {})}")
            raise
    return results[0]
