"""The conditions of every package variant, rebuilt from the public topics alone (Python, aiokafka).

    python fleet_view.py --bootstrap kafka:9092 --prefix blue            the view as it is now
    python fleet_view.py --bootstrap kafka:9092 --prefix blue --follow   as it is at SIGTERM or Ctrl-C

A line is NAMESPACE/NAME, condition type, status and reason, between tabs; lines are sorted by their bytes.
What was dropped as a repetition is counted on stderr. Nothing is stored: a restart begins anew.
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

LATEST, CHANGES = "pvbus.conditions.latest", "pvbus.conditions"
POLL_MS = 500

Event = dict[str, Any]


class View:
    """The last event of each condition, by `<Kind>|<namespace>/<name>|<condition type>`.

    A condition that its object no longer has stays as an event with `last`, so that an older event that is
    delivered again does not bring it back.
    """

    def __init__(self) -> None:
        self._events: dict[str, Event] = {}
        self.applied = self.repeated = self.stale = 0

    def restore(self, key: str, event: Event | None) -> None:
        """Apply a record of the topic of the latest events; None is a tombstone."""
        if event is None:
            self._events.pop(key, None)
        else:
            self._events[key] = event

    def apply(self, event: Event) -> None:
        """Apply a record of the topic of changes, unless it or a later one is known."""
        key = f"{event['kind']}|{event['namespace']}/{event['name']}|{event['condition']['type']}"
        known = self._events.get(key)
        if known is not None and known["id"] == event["id"]:
            self.repeated += 1
        elif known is not None and known["time"] > event["time"]:
            self.stale += 1
        else:
            self.applied += 1
            self._events[key] = event

    def lines(self) -> Iterable[str]:
        """Return the conditions of the package variants."""
        found = []
        for event in self._events.values():
            if event["kind"] == "PackageVariant" and not event.get("last"):
                condition = event["condition"]
                fields = (condition["type"], condition["status"], condition.get("reason", ""))
                found.append("\t".join((f"{event['namespace']}/{event['name']}", *fields)))
        return sorted(found, key=str.encode)


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
            view.restore(record.key.decode(), json.loads(record.value) if record.value else None)


async def run(bootstrap: str, prefix: str, *, follow: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    view = View()
    changes, latest = await partitions_of(bootstrap, f"{prefix}{CHANGES}", f"{prefix}{LATEST}")
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",  # else events of steps that were never made are read, too
        enable_auto_commit=False,
        auto_offset_reset="none",  # a reader that was away for longer than the retention begins anew
    )
    await consumer.start()
    try:
        begin = await consumer.end_offsets(changes)  # before the table: what changes meanwhile comes twice
        await read_latest(consumer, latest, view)
        consumer.assign(changes)
        for partition, offset in begin.items():
            consumer.seek(partition, offset)
        while follow and not stop.is_set():
            for record in await poll(consumer):
                view.apply(json.loads(record.value))
        ends = await consumer.end_offsets(changes)
        while await is_behind(consumer, ends):
            for record in await poll(consumer):
                view.apply(json.loads(record.value))
    finally:
        await consumer.stop()
    for line in view.lines():
        print(line)
    print(f"applied {view.applied}, repeated {view.repeated}, stale {view.stale}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT[,HOST:PORT...]")
    parser.add_argument("--prefix", default="", help="of the topics, as in kafka://HOST:PORT/PREFIX")
    parser.add_argument("--follow", action="store_true", help="follow changes until SIGTERM or Ctrl-C")
    given = parser.parse_args()
    prefix = f"{given.prefix}." if given.prefix else ""
    asyncio.run(run(given.bootstrap, prefix, follow=given.follow))


if __name__ == "__main__":
    main()
