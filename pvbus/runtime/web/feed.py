"""Follows the bus for the page: keeps the model up to date, and wakes those who wait for its changes."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from pvbus.core.errors import PvbusError, TransientError
from pvbus.core.web.model import TOPICS, Model
from pvbus.ports.bus import Bus, Reader, Record, TopicPartition
from pvbus.telemetry import logs

POLL_SECONDS = 1.0
RECORDS_MAX = 2_000  # of one poll: 20 ms of work, during which the process does nothing else
RETRY_SECONDS = 1.0
GATHER_SECONDS = 0.1
"""Changes of so long are published together: in a storm, each page gets ten messages a second at most."""


class Health(NamedTuple):
    """What a page may rely on.

    problem: why the bus is not read, "" while it is
    since: when that began, in seconds of the epoch
    restored: the part of the bus's tables that was read, 0 to 1; 1.0 once all were
    """

    problem: str
    since: float
    restored: float


class Feed:
    """Reads the topics of the model from their beginning on. `run` does it, once `start` was called."""

    def __init__(self, bus: Bus, partitions: int) -> None:
        """Read nothing until `run`.

        partitions: the partition count of each topic
        """
        self.epoch = secrets.token_hex(8)
        """Versions of the model compare within one epoch only."""
        self.model = Model(partitions)
        self.health = Health("", time.time(), 0.0)
        self._bus = bus
        self._partitions = partitions
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._log = logs.get_logger("web")

    @property
    def restored(self) -> bool:
        return self.health.restored >= 1.0

    def start(self) -> None:
        """Begin to read the topics. Without a page that is open, nothing needs them."""
        self._wanted.set()

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until model or health changes, or until this time is over."""
        event = self._changed
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Follow the bus until cancelled. Its errors are shown and retried; a bug of ours is shown, too."""
        await self._wanted.wait()
        try:
            await self._run()
        except Exception as exc:  # the page shows it as stale; services beside it go on
            self._log.exception("the web page has stopped reading")
            self.note_health(f"a bug of pvbus, see the log: {exc!r}", self.health.restored)

    async def _run(self) -> None:
        while True:
            try:
                ends = await self._ends()
                break
            except PvbusError as exc:
                await self._fail(exc)
        reader = self._bus.reader(dict.fromkeys(ends, 0))
        try:
            await self._follow(reader, ends)
        finally:
            await reader.close()

    async def _ends(self) -> dict[TopicPartition, int]:
        present = await self._bus.topics()
        if missing := [topic for topic in TOPICS if topic not in present]:
            raise TransientError(f"the bus has no topic {missing[0]} yet: are the services running?")
        wanted = [(topic, number) for topic in TOPICS for number in range(self._partitions)]
        return dict(await self._bus.end_offsets(wanted))

    async def _follow(self, reader: Reader, ends: dict[TopicPartition, int]) -> None:
        while True:
            try:
                records = await reader.poll(timeout_seconds=POLL_SECONDS, max_records=RECORDS_MAX)
            except PvbusError as exc:
                await self._fail(exc)
                continue
            self._load(records)
            if self.restored and not self.health.problem:
                if records:
                    self._publish()
                    await asyncio.sleep(GATHER_SECONDS)
                continue
            self.note_health("", 1.0 if self.restored else _share(reader, ends))
            if self.restored:
                self._publish()
            await asyncio.sleep(0)

    def _load(self, records: Sequence[Record]) -> None:
        for record in records:
            key = record.key.decode(errors="replace")
            try:
                self.model.load(record.topic, record.partition, key, record.value)
            except (ValueError, msgspec.MsgspecError) as exc:
                where = f"{record.topic}-{record.partition}@{record.offset}"
                self._log.warning("a record cannot be read; the page leaves it out", at=where, error=str(exc))

    def _publish(self) -> None:
        if self.model.publish():
            self._wake()

    async def _fail(self, error: PvbusError) -> None:
        self.note_health(str(error), self.health.restored)
        await asyncio.sleep(RETRY_SECONDS)

    def note_health(self, problem: str, restored: float) -> None:
        """Take over how the bus is read; pages hear of a change. See `Health`."""
        if (problem, restored) == (self.health.problem, self.health.restored):
            return
        has_turned = bool(problem) != bool(self.health.problem)
        since = time.time() if has_turned else self.health.since
        self.health = Health(problem, since, restored)
        self._wake()

    def _wake(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()


def _share(reader: Reader, ends: dict[TopicPartition, int]) -> float:
    """Return the part of the tables that was read. Only when all is read it is 1."""
    total = sum(ends.values())
    if all(reader.position(each) >= end for each, end in ends.items()):
        return 1.0
    return min(sum(min(reader.position(each), end) for each, end in ends.items()) / total, 0.99)
