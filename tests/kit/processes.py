"""Processes in virtual time, which tests freeze, thaw and kill.

A `Process` can be frozen as SIGSTOP freezes a process. Each callback of the loop carries the context in
which it was registered, and a task inherits the context of its creator; so a context variable tells
which process a callback belongs to. The loop holds the callbacks of a frozen process, whatever they wait
for (a timer, a queue, a response, the next turn), and runs them in order after the process thaws.
Callbacks of other processes and of no process (the world: servers, networks, users) run on.
"""

import asyncio
import contextlib
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pvbus.adapters.memory import virtual_time
from pvbus.adapters.memory.virtual_time import NumberedTask, SimulatedLoop

T = TypeVar("T")


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
            assert isinstance(loop, ProcessLoop)
            self.frozen = False
            self._frozen_seconds += loop.time() - self._frozen_at
            held, self._held = self._held, []
            loop.go_on(held)

    def kill(self) -> None:
        """Cancel every task of the process; from then on its actions have no effect on others."""
        self.dead = True
        for task in asyncio.all_tasks():
            if isinstance(task, _ProcessTask) and task.process is self:
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


class _ProcessTask(NumberedTask):
    """A task that knows its process."""

    def __init__(self, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.process = (options.get("context") or contextvars.copy_context()).get(_PROCESS)
        super().__init__(coro, **options)


class ProcessLoop(SimulatedLoop):
    """A loop with virtual time that holds the callbacks of frozen processes."""

    task_type = _ProcessTask

    def __init__(self) -> None:
        super().__init__()
        self._ready: deque[asyncio.Handle] = _ReadyQueue(self)

    def go_on(self, handles: Iterable[asyncio.Handle]) -> None:
        """Run callbacks that were held, in their order. Caller: `Process`."""
        self._ready.extend(handles)


def run_simulated(main: Coroutine[Any, Any, T], *, context: Mapping[str, Any] | None = None) -> T:
    """Run a coroutine to its end on a loop for processes; an error gets a note with the context."""
    try:
        return virtual_time.run_simulated(main, ProcessLoop)
    except Exception as exc:
        if context:
            exc.add_note(f"with {dict(context)}")
        raise
