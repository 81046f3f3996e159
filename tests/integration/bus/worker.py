"""A worker in a process of its own: `python -m tests.integration.bus.worker MODE PATH`.

Modes: "steps" steps its leases as fast as it can, for the parent to kill; "session" steps once at each
line of input and says how it went; "full" meets the end of the disk.
"""

import asyncio
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import FencedError, TransientError
from pvbus.ports.bus import Lease, Output, TopicSpec

PARTITIONS = 3
OUTPUTS = 20
SESSION_SECONDS = 2.0
TOPICS = (
    TopicSpec(name="table", partitions=PARTITIONS, cleanup="compact"),
    TopicSpec(name="out", partitions=PARTITIONS, cleanup="compact"),
)


def say(word: str) -> None:
    print(word, flush=True)


async def ignore(lease: Lease) -> None:
    """A callback."""


async def open_bus(path: str) -> SqliteBus:
    bus = await SqliteBus.open(
        path, session_seconds=SESSION_SECONDS, heartbeat_seconds=0.1, drain_seconds=0.2, poll_seconds=0.02
    )
    await bus.create_topics(TOPICS)
    return bus


async def leases_of(bus: SqliteBus, revoked: Callable[[Lease], Coroutine[Any, Any, None]]) -> list[Lease]:
    """Join, and return the leases by partition when all are here."""
    given: asyncio.Queue[Lease] = asyncio.Queue()
    await bus.join("group", ["table"], assigned=given.put, revoked=revoked)
    return sorted([await given.get() for _ in range(PARTITIONS)], key=lambda lease: lease.partition)


async def steps(path: str) -> None:
    bus = await open_bus(path)
    leases = await leases_of(bus, ignore)
    say("ready")

    async def run(lease: Lease) -> None:
        committed = await bus.committed(lease, ["table"])
        for offset in count(committed["table"]):
            outputs = [
                Output("out", lease.partition, b"%d-%d" % (offset, number), b"x" * 500)
                for number in range(OUTPUTS)
            ]
            await bus.step(lease, outputs, {"table": offset + 1})

    async with asyncio.TaskGroup() as group:
        for lease in leases:
            group.create_task(run(lease))


async def session(path: str) -> None:
    bus = await open_bus(path)

    async def revoked(lease: Lease) -> None:
        say("revoked")

    leases = await leases_of(bus, revoked)
    say("ready")
    for number in count(1):
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await bus.step(leases[0], [Output("out", 0, b"line", b"%d" % number)], {"table": number})
            say("stepped")
        except FencedError:
            say("fenced")


async def full(path: str) -> None:
    bus = await open_bus(path)
    (lease, *_) = await leases_of(bus, ignore)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails instead
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    done = 0
    try:
        for number in count(1):
            outputs = [Output("out", 0, b"%d" % number, b"x" * 50_000)]
            await bus.step(lease, outputs, {"table": number})
            done = number
    except TransientError as exc:
        say(f"full: {exc}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    committed = await bus.committed(lease, ["table"])
    ends = await bus.end_offsets([("out", 0)])
    say(f"before {done} {committed['table']} {ends['out', 0]}")
    await bus.step(lease, [Output("out", 0, b"after", b"")], {"table": done + 1})
    say("stepped")
    await bus.close()


if __name__ == "__main__":
    asyncio.run({"steps": steps, "session": session, "full": full}[sys.argv[1]](sys.argv[2]))
