"""A service's process that ends, or stops, itself in the middle of a step.

    python -m tests.integration.kafka.faults.victim SERVICE STEP POINT kill|stop

runs the service as `python -m services.SERVICE` does, with its settings. In the STEP-th step that writes
records (from 1), it sends itself SIGKILL or SIGSTOP at POINT: 2n when the step has been suspended for the
n-th time (from 0), 2n+1 when it is about to go on from there. A step of fewer points is struck at its end,
before its caller hears of it. Stopped and continued, it is the service it was.
"""

import importlib
import os
import signal
import sys
from collections.abc import Coroutine, Generator, Mapping, Sequence
from typing import Any

from pvbus.adapters.kafka.writer import Writer
from pvbus.ports.bus import Output

STRIKING = "striking at point"
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Struck:
    """Awaits a coroutine, and counts how often it is suspended and goes on."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], point: int, sent: signal.Signals) -> None:
        self._coroutine = coroutine
        self._point = point
        self._signal: signal.Signals | None = sent
        self._reached = 0

    def __await__(self) -> Generator[Any, Any, None]:
        inner = self._coroutine.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting = inner.send(answer) if error is None else inner.throw(error)
            except StopIteration:
                self._strike()
                return
            except BaseException:
                self._strike()
                raise
            self._reach()
            answer = error = None
            try:
                answer = yield waiting
            except BaseException as exc:
                error = exc
            self._reach()

    def _reach(self) -> None:
        if self._reached == self._point:
            self._strike()
        self._reached += 1

    def _strike(self) -> None:
        if self._signal is not None:
            sent, self._signal = self._signal, None
            print(f"{STRIKING} {self._reached}", flush=True)
            os.kill(os.getpid(), sent)


def arm(service: str, step: int, point: int, sent: signal.Signals) -> None:
    """Put the trap into the writer."""
    write = Writer.write
    steps = 0

    async def trapped(writer: Writer, outputs: Sequence[Output], offsets: Mapping[str, int]) -> None:
        nonlocal steps
        if outputs and f"pvbus-{service}-" in writer.transactional_id:
            steps += 1
            if steps == step:
                await Struck(write(writer, outputs, offsets), point, sent)
                return
        await write(writer, outputs, offsets)

    Writer.write = trapped  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    name, number, tp, how = sys.argv[1:]
    arm(name, int(number), int(tp), SIGNALS[how])
    sys.exit(importlib.import_module(f"services.{name}.__main__").main([]))
