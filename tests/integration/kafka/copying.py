"""A worker that copies one topic to another, exactly once. `python -m ... BOOTSTRAP PREFIX` is one process.

It has no state but its offsets, so that what is lost, doubled or out of order is the bus's doing.
"""

import asyncio
import logging
import sys

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.settings import KafkaSettings
from pvbus.core.errors import TransientError
from pvbus.ports.bus import Lease, Output, TopicSpec

PARTITIONS = 4
SESSION_SECONDS = 6.0
IN = TopicSpec(name="in", partitions=PARTITIONS, cleanup="delete", retention_seconds=86_400)
COPY = TopicSpec(name="copy", partitions=PARTITIONS, cleanup="delete", retention_seconds=86_400)
BATCH = 20


def settings(bootstrap: str, prefix: str) -> KafkaSettings:
    return KafkaSettings(
        bootstrap=tuple(bootstrap.split(",")), prefix=prefix, session_seconds=SESSION_SECONDS
    )


async def revoked(lease: Lease) -> None:
    """`assigned` was cancelled, and there is nothing to put away."""


async def copy_from(bus: KafkaBus, lease: Lease) -> None:
    """Copy from what is committed on, until a step's outcome is unknown."""
    number = lease.partition
    offset = (await bus.committed(lease, ["in"]))["in"]
    reader = bus.reader({("in", number): offset})
    try:
        while True:
            records = await reader.poll(timeout_seconds=1, max_records=100)
            if records:
                outputs = [Output("copy", number, r.key, r.value) for r in records]
                await bus.step(lease, outputs, {"in": records[-1].offset + 1})
    finally:
        await reader.close()


async def join(bus: KafkaBus) -> None:
    async def assigned(lease: Lease) -> None:
        while True:
            try:
                await copy_from(bus, lease)
            except TransientError:
                await asyncio.sleep(0.2)  # then the offsets tell what became of it

    membership = await bus.join("copy", ["in"], assigned=assigned, revoked=revoked)
    await membership.wait_left()


async def main(bootstrap: str, prefix: str) -> None:
    bus = await KafkaBus.open(settings(bootstrap, prefix))
    print("ready", flush=True)
    await join(bus)


if __name__ == "__main__":
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    asyncio.run(main(*sys.argv[1:]))
