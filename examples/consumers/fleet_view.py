"""The conditions of every package variant, rebuilt from the public topics alone (Python, aiokafka).

    python fleet_view.py --bootstrap kafka:9092 --prefix blue            the view as it is now
    python fleet_view.py --bootstrap kafka:9092 --prefix blue --follow   as it is at SIGTERM or Ctrl-C
    python fleet_view.py --bootstrap kafka:9092 --prefix blue --wait default/web UID 4 TargetsApplied

A line is NAMESPACE/NAME, condition type, status and reason, between tabs; lines are sorted by their bytes.
What was dropped as a repetition is counted on stderr. Nothing is stored: a restart begins anew. With --replay
the changes begin at the oldest one that is retained. With --group the position is committed for
`pvbus lag --subscribers`; it is never read.

With --wait it prints no view: it follows the latest events until the condition of a PackageVariantSet, the
one with this uid, is True for generation 4 or a later one. TargetsApplied says that each PackageVariant has
the new spec, Ready that each has made its draft of it.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import OffsetOutOfRangeError

LATEST, CHANGES = "pvbus.conditions.latest", "pvbus.conditions"
EVENT_TYPE = b"dev.pvbus.condition.changed.v1"
POLL_MS = 500

Event = dict[str, Any]


class View:
    """The last event of each condition, by `<Kind>|<namespace>/<name>|<condition type>`.

    A condition that its object no longer has stays as an event with `last`, so that an older event that is
    delivered again does not bring it back.
    """

    def __init__(self) -> None:
        self._events: dict[str, Event] = {}
        self.applied = self.repeated = self.stale = self.unknown = 0

    def clear(self) -> None:
        self._events.clear()

    def restore(self, record: ConsumerRecord) -> None:
        """Apply a record of the topic of the latest events; one without a value is a tombstone."""
        key = record.key.decode()
        if record.value is None:
            self._events.pop(key, None)
        elif is_known(record):
            self._events[key] = json.loads(record.value)
        else:
            self.unknown += 1

    def apply(self, record: ConsumerRecord) -> None:
        """Apply a record of the topic of changes, unless it or a later one is known."""
        if not is_known(record):
            self.unknown += 1
            return
        event = json.loads(record.value)
        key = f"{event['kind']}|{event['namespace']}/{event['name']}|{event['condition']['type']}"
        known = self._events.get(key)
        if known is not None and known["id"] == event["id"]:
            self.repeated += 1
        elif known is not None and known["time"] > event["time"]:
            self.stale += 1
        else:
            self.applied += 1
            self._events[key] = event

    def is_true(self, name: str, uid: str, generation: int, condition: str) -> bool:
        """Return whether the last event of a set's condition says True of this generation or a later one."""
        event = self._events.get(f"PackageVariantSet|{name}|{condition}")
        if event is None or event["uid"] != uid or event["condition"]["status"] != "True":
            return False
        return int(event["condition"].get("observedGeneration", 0)) >= generation

    def lines(self) -> Iterable[str]:
        """Return the conditions of the package variants."""
        found = []
        for event in self._events.values():
            if event["kind"] == "PackageVariant" and not event.get("last"):
                condition = event["condition"]
                fields = (condition["type"], condition["status"], condition.get("reason", ""))
                found.append("\t".join((f"{event['namespace']}/{event['name']}", *fields)))
        return sorted(found, key=str.encode)


def is_known(record: ConsumerRecord) -> bool:
    """Return whether we know the type of this event; the data of another one may have any fields."""
    return dict(record.headers).get("ce_type") == EVENT_TYPE


async def partitions_of(bootstrap: str, *topics: str) -> list[list[TopicPartition]]:
    """Return the partitions of each topic. All topics are listed: a broker may make one that is asked for."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        present = {each["topic"]: each["partitions"] for each in await admin.describe_topics()}
    finally:
        await admin.close()
    for topic in topics:
        if topic not in present:
            sys.exit(f"no topic {topic}: check --prefix, and that pvbus has been started")
    return [[TopicPartition(topic, each["partition"]) for each in present[topic]] for topic in topics]


async def is_behind(consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
    """Return whether something before these offsets is unread. Markers of transactions count as offsets, so
    the position decides, not the last record."""
    return any([await consumer.position(partition) < end for partition, end in ends.items()])


async def poll(consumer: AIOKafkaConsumer) -> list[ConsumerRecord]:
    found = await consumer.getmany(timeout_ms=POLL_MS)
    return [record for records in found.values() for record in records]


async def read_latest(consumer: AIOKafkaConsumer, partitions: list[TopicPartition], view: View) -> None:
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    ends = await consumer.end_offsets(partitions)
    while await is_behind(consumer, ends):
        for record in await poll(consumer):
            view.restore(record)


class Reader:
    """Reads the latest events, then the changes."""

    def __init__(self, given: argparse.Namespace, view: View, stop: asyncio.Event) -> None:
        self._given, self._view, self._stop = given, view, stop
        self._committed: dict[TopicPartition, int] = {}
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=given.bootstrap,
            group_id=given.group,
            isolation_level="read_committed",  # else events of steps that were never made are read, too
            enable_auto_commit=False,
            auto_offset_reset="none",  # else a reader that was away for too long skips what it missed
        )

    async def run(self) -> None:
        prefix = f"{self._given.prefix}." if self._given.prefix else ""
        topics = (f"{prefix}{CHANGES}", f"{prefix}{LATEST}")
        changes, latest = await partitions_of(self._given.bootstrap, *topics)
        await self._consumer.start()
        try:
            if self._given.wait:
                await self._wait(latest)
                return
            while not await self._is_read(changes, latest):
                print("changes were deleted before they were read: beginning anew", file=sys.stderr)
        finally:
            await self._consumer.stop()

    async def _wait(self, latest: list[TopicPartition]) -> None:
        """Follow the latest events until the condition is as wanted. Only the last one of a key counts, so
        nothing is judged before the end is reached."""
        name, uid, generation, condition = self._given.wait
        await read_latest(self._consumer, latest, self._view)
        print(f"waiting for {condition} of {name} at generation {generation}", file=sys.stderr, flush=True)
        while not self._view.is_true(name, uid, int(generation), condition):
            if self._stop.is_set():
                sys.exit(1)
            for record in await poll(self._consumer):
                self._view.restore(record)
        print(f"{name}: {condition} is True for generation {generation}", flush=True)

    async def _is_read(self, changes: list[TopicPartition], latest: list[TopicPartition]) -> bool:
        """Read everything; return False if changes were deleted before they were read."""
        consumer = self._consumer
        self._view.clear()
        begin = await consumer.end_offsets(changes)  # before the table: what changes meanwhile comes twice
        await read_latest(consumer, latest, self._view)
        if self._given.replay:
            begin = await consumer.beginning_offsets(changes)
        consumer.assign(changes)
        for partition, offset in begin.items():
            consumer.seek(partition, offset)
        try:
            while self._given.follow and not self._stop.is_set():
                await self._apply()
            ends = await consumer.end_offsets(changes)
            while await is_behind(consumer, ends):
                await self._apply()
        except OffsetOutOfRangeError:
            return False
        return True

    async def _apply(self) -> None:
        for record in await poll(self._consumer):
            self._view.apply(record)
        if self._given.group:
            assigned = self._consumer.assignment()
            positions = {partition: await self._consumer.position(partition) for partition in assigned}
            if positions != self._committed:
                await self._consumer.commit(positions)
                self._committed = positions


async def run(given: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    view = View()
    await Reader(given, view, stop).run()
    if given.wait:
        return
    for line in view.lines():
        print(line)
    counts = f"applied {view.applied}, repeated {view.repeated}, stale {view.stale}, unknown {view.unknown}"
    print(counts, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,HOST:PORT...]")
    parser.add_argument("--prefix", default="", help="of the topics, as in kafka://HOST:PORT/PREFIX")
    parser.add_argument("--follow", action="store_true", help="follow changes until SIGTERM or Ctrl-C")
    parser.add_argument("--replay", action="store_true", help="begin at the oldest change that is retained")
    parser.add_argument("--group", metavar="NAME", help="where positions are committed, to show the lag")
    waited = ("NAMESPACE/SET", "UID", "GENERATION", "CONDITION")
    parser.add_argument("--wait", nargs=4, metavar=waited, help="until the condition is True for it")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
