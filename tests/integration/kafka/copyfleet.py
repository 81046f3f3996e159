"""Copying workers as processes, what they are fed with, and the judgement of what they made.

The judge reads with librdkafka: it has no code in common with what it judges.
"""

import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Lease, Output
from tests.integration.kafka.copying import BATCH, COPY, IN, PARTITIONS, revoked, settings
from tests.tools.kafka import KafkaCluster
from tests.tools.pace import patience
from tests.tools.topicreader import TopicReader

CATCH_UP_SECONDS = 90.0
GOING_ON_SECONDS_MAX = patience(120.0)
MARKERS_SECONDS = 1.0
"""How long the parts of one step may become visible apart from each other, on a busy machine."""

ROOT = Path(__file__).resolve().parents[3]


class CopyFleet:
    """Worker processes of one group."""

    def __init__(self, bootstrap: str, prefix: str, judge: "Judge") -> None:
        self._command = [sys.executable, "-m", "tests.integration.kafka.copying", bootstrap, prefix]
        self.prefix = prefix
        self.judge = judge
        self.workers: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        self.workers.append(subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        worker.kill()
        worker.wait()
        self.workers.remove(worker)

    def close(self) -> None:
        for worker in tuple(self.workers):
            self.kill(worker)


class Feeder:
    """Writes numbered records into `in`, each batch once: its own offset counts the batches."""

    def __init__(self, bus: KafkaBus) -> None:
        self._bus = bus
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        membership = await self._bus.join("feed", ["in"], assigned=self._assigned, revoked=revoked)
        await self._stopping.wait()
        await membership.leave()

    def stop(self) -> None:
        self._stopping.set()

    async def _assigned(self, lease: Lease) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TransientError):
                await self._feed(lease)
            await asyncio.sleep(0.2)

    async def _feed(self, lease: Lease) -> None:
        number = lease.partition
        while not self._stopping.is_set():
            batches = (await self._bus.committed(lease, ["in"]))["in"]
            values = range(batches * BATCH, (batches + 1) * BATCH)
            outputs = [Output("in", number, b"key-%d" % (value % 7), b"%d" % value) for value in values]
            await self._bus.step(lease, outputs, {"in": batches + 1})
            await asyncio.sleep(0.1)


class Judge:
    """Says what is lost, doubled or out of order, and what offsets and copies say about each other."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self._bootstrap = bootstrap
        self._prefix = prefix

    async def visible_together(self) -> None:
        """A copy is visible if and only if the offset behind its original is committed."""
        await asyncio.to_thread(self._visible_together)

    def _visible_together(self) -> None:
        with TopicReader(self._bootstrap, self._prefix) as reader:
            before = reader.committed("copy")
            time.sleep(MARKERS_SECONDS)
            copied = reader.all(("copy",))
            fed = reader.all(("in",))  # after the copies: it has the original of each
            after = reader.committed("copy")
        for number in range(PARTITIONS):
            originals = [record.offset for record in fed.records if record.partition == number]
            copies = [int(r.value or b"") for r in copied.records if r.partition == number]
            assert copies == list(range(len(copies))), describe(copies, len(originals))
            least, most = (
                sum(offset < committed.get(("in", number), 0) for offset in originals)
                for committed in (before, after)
            )
            assert least <= len(copies) <= most, (number, least, len(copies), most)

    async def going_on(self) -> float:
        """Wait until each partition is fed and copied further than now; returns the seconds it took."""
        return await asyncio.to_thread(self._going_on)

    def _going_on(self) -> float:
        with TopicReader(self._bootstrap, self._prefix) as reader:
            return reader.wait_for_more(("in", "copy"), seconds_max=GOING_ON_SECONDS_MAX)

    async def complete(self) -> int:
        """Wait until everything fed is copied, and nothing more comes; returns how many records."""
        return await asyncio.to_thread(self._complete)

    def _complete(self) -> int:
        deadline = time.monotonic() + CATCH_UP_SECONDS
        with TopicReader(self._bootstrap, self._prefix) as reader:
            fed = reader.committed("feed")
            expected = {number: fed.get(("in", number), 0) * BATCH for number in range(PARTITIONS)}
            assert min(expected.values()) > 0, "nothing was fed"
            while True:
                found = reader.all(("copy",))
                is_late = time.monotonic() > deadline
                if len(found.records) >= sum(expected.values()) or is_late:
                    break
                time.sleep(0.5)
            time.sleep(2.0)  # what is doubled may still come
            found = reader.all(("in", "copy"))
            committed = reader.committed("copy")
        for number, count in expected.items():
            for topic in ("in", "copy"):
                values = [int(r.value or b"") for r in found.of(topic) if r.partition == number]
                assert values == list(range(count)), f"{topic}: {describe(values, count)}"
            last = max(r.offset for r in found.of("in") if r.partition == number)
            assert committed["in", number] == last + 1, (number, committed, last)
        return sum(expected.values())


def describe(values: list[int], expected: int) -> str:
    lost = sorted(set(range(expected)) - set(values))
    return f"{len(lost)} lost {lost[:5]}, {len(values) - len(set(values))} doubled, of {expected}"


@asynccontextmanager
async def copying(kafka: KafkaCluster, workers: int, *, bootstrap: str = "") -> AsyncIterator[CopyFleet]:
    """Feed and copy while the body does its worst; then everything must be there, once and in order.

    bootstrap: the way the workers take, if not the one that the feeder and the judge take.
    """
    prefix = f"copy-{secrets.token_hex(4)}"
    judge = Judge(kafka.bootstrap, prefix)
    fleet = CopyFleet(bootstrap or kafka.bootstrap, prefix, judge)
    bus = await KafkaBus.open(settings(kafka.bootstrap, prefix))
    try:
        await bus.create_topics([IN, COPY])
        for _ in range(workers):
            fleet.add()
        feeder = Feeder(bus)
        feeding = asyncio.create_task(feeder.run())
        yield fleet
        feeder.stop()
        await feeding
        await asyncio.sleep(2)  # until the offsets of the last step are visible
        count = await judge.complete()
        print(f"copied {count} records: none lost, doubled or out of order")
    finally:
        fleet.close()
        await bus.close()
