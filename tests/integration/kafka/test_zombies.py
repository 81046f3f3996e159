"""Processes that stop in a transaction, and wake up after their lease went to another one."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.core.errors import FencedError, TransientError
from tests.integration.kafka.zombie import (
    AFTER,
    BEFORE,
    DONE,
    IN,
    LATE,
    LATE_RECORDS,
    OUT,
    POINTS,
    TRIES,
    Point,
    output,
    settings,
    take_lease,
)
from tests.tools.kafka import KafkaCluster
from tests.tools.topicreader import TopicReader

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[3]
SECONDS_MAX = 180.0
ATTEMPTS = 3
"""A machine that stands still for a session costs a process its lease before it stops: all begin again."""
STALL_SECONDS_MAX = 8.0
"""How long readers may wait behind a transaction that the next holder ends: some milliseconds, but the
machine may be busy. If only its timeout ended it, they would wait for 20 s."""


class EndedError(Exception):
    """A process has ended before it stopped."""


class Awakening(NamedTuple):
    """What was found for each point, in their order.

    values: the values in its partition
    outcomes: what the steps of its process came to
    offset: the one that the next holder found
    stall: how long a reader waited for what the next holder wrote, in seconds
    """

    values: list[bytes | None]
    outcomes: list[str]
    offset: int
    stall: float


class Zombies:
    """The processes of `zombie`, by their groups."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._lines: list[list[str]] = []

    async def read(self) -> None:
        """Collect what they print until they have ended."""
        stdout = self._process.stdout
        assert stdout is not None
        while line := await asyncio.to_thread(stdout.readline):
            self._lines.append(line.split())

    def pids(self) -> Mapping[str, int]:
        return {line[0]: int(line[1]) for line in self._lines if len(line) == 2}

    def outcomes(self) -> Mapping[str, list[str]]:
        """Return what their steps came to, of those that have ended."""
        return {line[0]: line[2:] for line in self._lines if line[1:2] == [DONE]}

    def are_stopped(self) -> bool:
        pids = self.pids()
        return len(pids) == len(POINTS) and all(map(is_stopped, pids.values()))

    def have_ended(self) -> bool:
        return len(self.outcomes()) == len(POINTS)

    def wake(self) -> None:
        for pid in self.pids().values():
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        raise EndedError(pid) from None
    state = status.rpartition(")")[2].split()[0]
    if state == "Z":
        raise EndedError(pid)
    return state == "T"


async def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.1)


@contextmanager
def zombies(kafka: KafkaCluster, prefix: str) -> Iterator[Zombies]:
    command = [sys.executable, "-m", "tests.integration.kafka.zombie", kafka.bootstrap, prefix]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield Zombies(process)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(process.pid, signal.SIGKILL)


async def take_over(bus: KafkaBus, point: Point) -> tuple[int, float]:
    """Take the lease, and write; return the offset found, and how long a reader waits for what we wrote."""
    lease = await take_lease(bus, point.group)
    offset = (await bus.committed(lease, [IN.name]))[IN.name]
    await bus.step(lease, [output(point, AFTER)], {IN.name: 3})
    written, reader = time.monotonic(), bus.reader({(OUT.name, POINTS.index(point)): 0})
    try:
        while AFTER not in [record.value for record in await reader.poll(timeout_seconds=1.0)]:
            assert time.monotonic() < written + SECONDS_MAX, point
        return offset, time.monotonic() - written
    finally:
        await reader.close()


async def woken(kafka: KafkaCluster) -> list[Awakening]:
    """Wake processes after their leases went.

    Raises EndedError, FencedError or TransientError if the machine stood still before each of them had
    stopped and its lease was taken.
    """
    prefix = f"zombies-{secrets.token_hex(4)}"
    bus = await KafkaBus.open(settings(kafka.bootstrap, prefix))
    try:
        await bus.create_topics([IN, OUT])
        with zombies(kafka, prefix) as stopped:
            reading = asyncio.create_task(stopped.read())
            await until(stopped.are_stopped, "each has stopped in its step")
            async with asyncio.timeout(SECONDS_MAX):
                taken = await asyncio.gather(*(take_over(bus, point) for point in POINTS))
            stopped.wake()
            await until(stopped.have_ended, "all woke up, and tried")
            await reading
        with TopicReader(kafka.bootstrap, prefix) as reader:
            records = (await asyncio.to_thread(reader.all, (OUT.name,))).records
    finally:
        await bus.close()
    values: list[list[bytes | None]] = [[] for _ in POINTS]
    for record in records:
        values[record.partition].append(record.value)
    outcomes = stopped.outcomes()
    return [
        Awakening(written, outcomes[point.group], offset, stall)
        for point, written, (offset, stall) in zip(POINTS, values, taken, strict=True)
    ]


async def test_what_wakes_after_its_lease_went_writes_nothing(kafka: KafkaCluster) -> None:
    """At whichever request of a step a process stopped: once another one has its lease, nothing that it sends
    becomes visible. The step is there as a whole, with its offset, or not at all, and readers do not wait."""
    for left in reversed(range(ATTEMPTS)):
        try:
            found = await woken(kafka)
            break
        except (EndedError, FencedError, TransientError):
            if not left:
                raise
    for point, (values, outcomes, offset, stall) in zip(POINTS, found, strict=True):
        is_whole = values[1:-1] == [LATE] * LATE_RECORDS
        assert values in ([BEFORE, AFTER], [BEFORE, *[LATE] * LATE_RECORDS, AFTER]), (point, values)
        assert offset == (2 if is_whole and point.has_offsets else 1), (point, offset)
        assert "ok" not in outcomes[-TRIES:], (point, outcomes)
        assert stall < STALL_SECONDS_MAX, (point, stall)
    print(f"{len(POINTS)} woke up, {len(POINTS) * TRIES} tries: 0 records after the fence; ", end="")
    print(f"readers waited {max(each.stall for each in found):.2f} s at most")
