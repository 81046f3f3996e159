"""100,000 variants of one set, without an API server: unroll, render and the bus alone.

Each service is a process of its own. This process plays ingest: it writes what was observed. Creates are
answered by a cluster that is not there, whose echo render's process writes (`tests.bench.echo`).
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.keys import sync_key
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import REPOSITORY, REVISION, SET, VARIANT, rows_of, topics_of
from pvbus.core.kernel.records import OBJECTS, SETS, VARIANTS, SyncMarker
from pvbus.ports.bus import Output
from pvbus.runtime.process.assembly import partition_count
from pvbus.runtime.process.installation import ensure_installation
from tests.bench.children import Child, eventually
from tests.bench.echo import BusWriter
from tests.bench.fleet import FIVE_EXPRESSIONS, package_revision, repository, variant_set
from tests.bench.report import Row
from tests.bench.scenarios import fleet_target

NAME = "large"
CONFIG_MAP = Kind("", "ConfigMap")
BATCH = 5_000
OBJECT_BYTES_MAX = 100_000
SECONDS_MAX = 900.0


def observed(kind: Kind, obj: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an object as an API server has it."""
    meta = {
        **obj["metadata"],
        "uid": f"00000000-0000-4000-9000-{number:012}",
        "resourceVersion": str(number + 1),
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {**obj, "metadata": meta}


async def write_world(writer: BusWriter, count: int) -> None:
    """Write everything but the set: markers, upstream, Repository, targets."""

    def rows(kind: Kind, obj: dict[str, Any], number: int) -> list[Output]:
        stored = observed(kind, obj, number)
        return [
            writer.output(row.topic, row.key, row.value)
            for row in rows_of(kind, stored, topics_of(kind, requested=False))
        ]

    marker = SyncMarker(state="ok", epoch=1, versions=("v1", "v1alpha1", "v1alpha2"))
    value = encode_row(marker)
    assert value is not None
    outputs = []
    for kind in (REPOSITORY, REVISION, VARIANT, SET, CONFIG_MAP):
        for topic in {OBJECTS, *topics_of(kind, requested=False)}:
            outputs += writer.to_everywhere(topic, sync_key(*kind), value)
    outputs += rows(REVISION, package_revision("blueprints.app.v1", "app"), count + 1)
    outputs += rows(REPOSITORY, repository("deploy"), count + 2)
    await writer.write(outputs)
    for first in range(0, count, BATCH):
        batch: list[Output] = []
        for number in range(first, min(first + BATCH, count)):
            batch += rows(CONFIG_MAP, fleet_target(number), number)
        await writer.write(batch)


async def largest_records(bus: SqliteBus) -> dict[str, int]:
    """Return the size of the largest record of each topic, key and value."""
    topic_partitions = [(n, p) for n, spec in (await bus.topics()).items() for p in range(spec.partitions)]
    ends = await bus.end_offsets(topic_partitions)
    reader = bus.reader(dict.fromkeys(topic_partitions, 0))
    found: dict[str, int] = {}
    try:
        while any(reader.position(tp) < end for tp, end in ends.items()):
            for record in await reader.poll(timeout_seconds=1.0, max_records=10_000):
                size = len(record.key) + len(record.value or b"")
                found[record.topic] = max(found.get(record.topic, 0), size)
    finally:
        await reader.close()
    return found


async def large(*, small: bool) -> list[Row]:
    """Seconds, CPU and memory per service for one large set."""
    count = 1_000 if small else 100_000
    with tempfile.TemporaryDirectory(prefix="pvbus-bench-") as name:
        path = Path(name) / "bus.db"
        bus = await SqliteBus.open(path)
        try:
            await ensure_installation(bus, partitions=partition_count())
            async with BusWriter(bus.peer(), "bench-ingest") as writer:
                await write_world(writer, count)
                async with (
                    Child("tests.bench.services", "-", f"sqlite:{path}", "unroll") as unroll,
                    Child("tests.bench.services", "-", f"sqlite:{path}", "render") as render,
                ):
                    rows = await _one_set(bus, writer, {"unroll": unroll, "render": render}, count)
            sizes = await largest_records(bus)
        finally:
            await bus.close()
        disk = sum(file.stat().st_size for file in Path(name).iterdir())
    topic, size = max(sizes.items(), key=lambda item: item[1])
    return [
        *rows,
        Row(NAME, f"largest record (of {topic})", size, "bytes", OBJECT_BYTES_MAX, "less"),
        Row(NAME, "largest PackageVariant", sizes[VARIANTS], "bytes", OBJECT_BYTES_MAX, "less"),
        Row(
            NAME, "largest record about the set", sizes["pvbus.setresults"], "bytes", OBJECT_BYTES_MAX, "less"
        ),
        Row(NAME, "bus file per variant", disk / count / 1000, "kB"),
    ]


async def _one_set(bus: SqliteBus, writer: BusWriter, services: dict[str, Child], count: int) -> list[Row]:
    """Hand the set over; wait until every variant is made and told of, and nothing is left to do."""
    for child in services.values():
        await child.ask("settled")
    before = {name: await child.ask("usage") for name, child in services.items()}
    stored = observed(SET, variant_set("fleet", {"env": "prod"}, FIVE_EXPRESSIONS), count + 3)
    rows = rows_of(SET, stored, (SETS,))
    topic_partitions = [(VARIANTS, number) for number in range(partition_count())]
    written = sum((await bus.end_offsets(topic_partitions)).values())
    began = time.perf_counter()
    await writer.write([writer.output(row.topic, row.key, row.value) for row in rows])

    async def all_made() -> bool:
        return sum((await bus.end_offsets(topic_partitions)).values()) - written >= count

    made = await eventually(all_made, f"{count} variants", seconds=SECONDS_MAX)
    settled = False
    while not settled:  # each may have given the other something to do
        waits = [await child.ask("settled") for child in services.values()]
        settled = max(waits) < 0.5
    seconds = time.perf_counter() - began
    after = {name: await child.ask("usage") for name, child in services.items()}
    found = [
        Row(NAME, f"{count:,} variants of one set: until all are made", made, "s"),
        Row(NAME, "variants/s, without an API server", count / made, "1/s"),
        Row(NAME, "until all is told and nothing is left to do", seconds, "s"),
    ]
    for name in services:
        cpu = after[name]["cpuSeconds"] - before[name]["cpuSeconds"]
        # Targets are in unroll's tables before there is a set, so what counts is all but an empty process.
        memory = after[name]["residentBytes"] - services[name].hello["emptyBytes"]
        found += [
            Row(NAME, f"{name}: CPU per variant", 1000 * cpu / count, "ms"),
            Row(NAME, f"{name}: memory", after[name]["residentBytes"] / 1e6, "MB"),
            Row(NAME, f"{name}: highest memory", after[name]["residentBytesMax"] / 1e6, "MB"),
            Row(NAME, f"{name}: memory per variant", memory / count / 1000, "kB", 10, "less"),
        ]
    return found
