"""A bus's file with the rows that a test wants on it."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import partition
from pvbus.core.kernel.markers import is_marker
from pvbus.core.kernel.records import META, UNROLL
from pvbus.core.kernel.topics import partition_key, topic_specs
from pvbus.ports.bus import Lease, Output

PARTITIONS = 12
STEP_RECORDS = 5_000
Row = tuple[str, str, msgspec.Struct | bytes | None]
"""Topic, key, and a row, its bytes, or None for a tombstone. A marker is written to every partition."""


def write_tables(path: Path, rows: Iterable[Row], *, uncompacted: bool = False) -> None:
    """Create a bus's file, or add to one. uncompacted: superseded records stay, as for a while on Kafka."""
    asyncio.run(_write(path, list(rows), uncompacted))


async def _write(path: Path, rows: list[Row], uncompacted: bool) -> None:
    bus = await SqliteBus.open(path, clock=SystemClock())
    specs = topic_specs(PARTITIONS)
    if uncompacted:
        specs = [msgspec.structs.replace(spec, cleanup="delete") for spec in specs]
    await bus.create_topics(specs)
    leases: asyncio.Queue[Lease] = asyncio.Queue()

    async def revoked(lease: Lease) -> None:
        return

    membership = await bus.join("test", (UNROLL,), assigned=leases.put, revoked=revoked)
    lease = await leases.get()
    outputs = [output for row in rows for output in _outputs(*row)]
    for begin in range(0, len(outputs), STEP_RECORDS):
        await bus.step(lease, outputs[begin : begin + STEP_RECORDS])
    await membership.leave()
    await bus.close()


def _outputs(topic: str, key: str, row: msgspec.Struct | bytes | None) -> list[Output]:
    value = row if isinstance(row, bytes) else encode_row(row)
    if is_marker(key):
        return [Output(topic, number, key.encode(), value) for number in range(PARTITIONS)]
    number = 0 if topic == META else partition(partition_key(topic, key), PARTITIONS)
    return [Output(topic, number, key.encode(), value)]
