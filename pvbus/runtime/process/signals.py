"""Ends a process in order at SIGTERM and SIGINT."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[Callable[[], None]]:
    """Set `stop` at SIGTERM and SIGINT; a second signal ends the process at once.

    Yields a function to call once the start is complete. Code that is still starting does not check `stop`,
    and may wait for longer than the grace period of a process: until then a signal cancels the block, which
    ends without an error.
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

    for number in signals:
        loop.add_signal_handler(number, first)
    try:
        yield begun
    except asyncio.CancelledError:
        if not (is_beginning and stop.is_set()):
            raise
        task.uncancel()
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
