"""Workers that each stop themselves at another request of a step, and go on when they are continued.

    python -m tests.integration.kafka.zombie BOOTSTRAP PREFIX

forks one process for each of `POINTS`. It takes the only lease of a group of its own, steps once, and sends
itself SIGSTOP in the second step, or in the start of a producer after that step was cancelled. Continued, it
ends that step, and tries to write as if nothing had been.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import PvbusError
from pvbus.ports.bus import Lease, Output, TopicSpec
from tests.tools.kafkarequests import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END_TRANSACTION,
    INIT_PRODUCER,
    PRODUCE,
)

SESSION_SECONDS = 6.0
BEFORE, LATE, AGAIN, AFTER = b"before", b"late", b"again", b"after"
"""Values: of the first step and of that in which it stops, of later tries, and of the next holder."""

LATE_RECORDS = 3
TRIES = 5
DONE = "done"


class Point(NamedTuple):
    """Where a worker stops: at a request of this API key; `is_after` its response; in a step with offsets."""

    request: int
    is_after: bool
    has_offsets: bool

    @property
    def group(self) -> str:
        when, what = "after" if self.is_after else "at", "offsets" if self.has_offsets else "outputs"
        return f"zombie-{when}-{self.request}-{what}"


POINTS = [
    Point(request, is_after, has_offsets)
    for has_offsets in (False, True)
    for request in (ADD_PARTITIONS, PRODUCE, ADD_OFFSETS, COMMIT_OFFSETS, END_TRANSACTION, INIT_PRODUCER)
    for is_after in (False, True)
    if has_offsets or request not in (ADD_OFFSETS, COMMIT_OFFSETS)
]
IN = TopicSpec(name="in", partitions=1, cleanup="compact")
OUT = TopicSpec(name="out", partitions=len(POINTS), cleanup="delete", retention_seconds=86_400)
"""A partition for each, so that none waits behind the open transaction of another one."""


def settings(bootstrap: str, prefix: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=tuple(bootstrap.split(",")), prefix=prefix, session_seconds=SESSION_SECONDS
    )


def output(point: Point, value: bytes) -> Output:
    return Output(OUT.name, POINTS.index(point), b"k", value)


async def take_lease(bus: KafkaBus, group: str) -> Lease:
    """Join a group, and return its only lease once that is ours."""
    taken: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()

    async def assigned(lease: Lease) -> None:
        if not taken.done():
            taken.set_result(lease)

    async def revoked(lease: Lease) -> None: ...

    await bus.join(group, [IN.name], assigned=assigned, revoked=revoked)
    return await taken


def arm(point: Point) -> None:
    """Stop this process at the next request of the point's kind."""
    send: Any = AIOKafkaConnection.send

    def stop() -> None:
        AIOKafkaConnection.send = send
        os.kill(os.getpid(), signal.SIGSTOP)

    async def stop_after(answer: Awaitable[Any]) -> Any:
        response = await answer
        stop()
        return response

    def trapped(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        key: int = request.API_KEY
        if key != point.request:
            return send(self, request, *arguments, **options)
        if point.is_after:
            return stop_after(send(self, request, *arguments, **options))
        stop()
        return send(self, request, *arguments, **options)

    AIOKafkaConnection.send = trapped


async def run(bootstrap: str, prefix: str, point: Point) -> None:
    bus = await KafkaBus.open(settings(bootstrap, prefix))
    lease = await take_lease(bus, point.group)
    await bus.step(lease, [output(point, BEFORE)], {IN.name: 1})
    arm(point)
    late = outcome(bus, lease, [output(point, LATE)] * LATE_RECORDS, point)
    outcomes = [await (cancelled(late) if point.request == INIT_PRODUCER else late)]
    for _ in range(TRIES):
        await asyncio.sleep(0.5)
        outcomes.append(await outcome(bus, lease, [output(point, AGAIN)], point))
    tell(point.group, DONE, *outcomes)
    await bus.abandon()


def tell(*words: str) -> None:
    """Print a line with one write: all processes have the same output."""
    os.write(sys.stdout.fileno(), f"{' '.join(words)}\n".encode())


async def outcome(bus: KafkaBus, lease: Lease, outputs: list[Output], point: Point) -> str:
    """Step; return the name of the error, or `ok`."""
    try:
        await bus.step(lease, outputs, {IN.name: 2} if point.has_offsets else None)
    except PvbusError as error:
        return type(error).__name__
    return "ok"


async def cancelled(step: Coroutine[Any, Any, str]) -> str:
    """Begin a step, and cancel it: its producer is replaced."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0):
            await step
    return "cancelled"


def main(bootstrap: str, prefix: str) -> None:
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    children = []
    for point in POINTS:
        child = os.fork()
        if not child:
            asyncio.run(run(bootstrap, prefix, point))
            return
        children.append(child)
        tell(point.group, str(child))
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
