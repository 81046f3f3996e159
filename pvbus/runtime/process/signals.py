"""Ends a process in order at SIGTERM and SIGINT, and by force if that takes too long.

A process may be unable to end in order: its event loop computes, a disk or a server does not answer, a child
is stopped. Nothing is lost by force: what was answered or committed is on disk, and everything else is done
again.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

END_SECONDS = 4.5
"""The time from a signal to the end by force. Services drain for 2 s; who waits for longer than 5 s kills the
process, and sees no reason."""

FORCED_CODE = 1


def end_within(seconds: float, last: Callable[[], None], why: str) -> None:
    """End this process by force if it still runs after a time, whatever its event loop does.

    last: what to do before, such as killing children; it runs in a thread
    why: the reason, for the sentence that is printed
    """

    def end() -> None:
        with suppress(Exception):
            last()
        words = f"error: {why}, and this process had not ended {seconds:.1f} s later: it ends by force; "
        with suppress(OSError):
            os.write(2, f"{words}nothing that was answered is lost\n".encode())
        os._exit(FORCED_CODE)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no memory is left for a thread: then the kernel does it, without a sentence
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def do_nothing() -> None:
    """Do nothing before the end."""


@contextmanager
def stop_on_signals(
    stop: asyncio.Event, *, seconds: float = END_SECONDS, last: Callable[[], None] = do_nothing
) -> Iterator[Callable[[], None]]:
    """Set `stop` at SIGTERM and SIGINT; a second signal ends the process at once.

    Yields a function to call once the start is complete. Code that is still starting does not check `stop`,
    and may wait for longer than the grace period of a process: until the call, a signal cancels the block,
    which ends without an error.

    seconds: how long after a signal the process is ended by force
    last: what to do before that, as in `end_within`
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    signals = (signal.SIGTERM, signal.SIGINT)
    is_beginning = True

    def begun() -> None:
        nonlocal is_beginning
        is_beginning = False

    def first() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)
        if is_beginning:
            task.cancel()

    def arm(number: int, frame: FrameType | None) -> None:
        end_within(seconds, last, f"{signal.Signals(number).name} arrived")

    for number in signals:
        loop.add_signal_handler(number, first)
        # Python's handler runs although the loop is busy; the loop still gets its byte, and calls `first`.
        signal.signal(number, arm)
    try:
        yield begun
    except asyncio.CancelledError:
        if not (is_beginning and stop.is_set()):
            raise
        task.uncancel()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
