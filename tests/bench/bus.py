"""The SQLite bus: steps, reads, waking up, and what idle readers cost.

    python -m tests.bench.bus [--records N] [--path FILE]

Prints one JSON document. Without a path the bus is in memory, and then in a temporary file.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.ports.bus import Lease, Output, TopicSpec

PARTITIONS = 12
READERS = 60
IDLE_SECONDS = 5.0
VALUE = b"x" * 1000


async def ignore(lease: Lease) -> None:
    """A callback."""


async def timed_steps(bus: SqliteBus, lease: Lease, steps: int, records: int, first: int) -> dict[str, float]:
    """Steps of `records` records each, over all partitions; new keys from `first` on."""
    took = []
    for step in range(steps):
        outputs = [
            Output("t", n % PARTITIONS, b"key-%d" % (first + step * records + n), VALUE)
            for n in range(records)
        ]
        began = time.perf_counter()
        await bus.step(lease, outputs)
        took.append(time.perf_counter() - began)
    return {
        "steps_per_second": round(steps / sum(took)),
        "records_per_second": round(steps * records / sum(took)),
        "step_ms_median": round(statistics.median(took) * 1e3, 3),
        "step_ms_max": round(max(took) * 1e3, 3),
    }


async def timed_reading(bus: SqliteBus) -> dict[str, float]:
    """Read everything from 0, as a restore does; then poll with nothing to read."""
    partitions = [("t", number) for number in range(PARTITIONS)]
    ends = await bus.end_offsets(partitions)
    reader = bus.reader(dict.fromkeys(partitions, 0))
    began, count = time.perf_counter(), 0
    while any(reader.position(partition) < end for partition, end in ends.items()):
        count += len(await reader.poll(timeout_seconds=1))
    seconds = time.perf_counter() - began
    began, polls = time.perf_counter(), 2000
    for _ in range(polls):
        await reader.poll(timeout_seconds=0)
    empty = (time.perf_counter() - began) / polls
    await reader.close()
    return {
        "records": count,
        "records_per_second": round(count / seconds),
        "empty_poll_us": round(empty * 1e6, 1),
    }


async def timed_wake(bus: SqliteBus, lease: Lease) -> float:
    """Microseconds from the start of a step to its record in a waiting reader."""
    took = []
    reader = bus.reader({("t", 0): (await bus.end_offsets([("t", 0)]))[("t", 0)]})
    for number in range(300):
        poll = asyncio.create_task(reader.poll(timeout_seconds=10))
        await asyncio.sleep(0.001)
        began = time.perf_counter()
        await bus.step(lease, [Output("t", 0, b"wake", b"%d" % number)])
        await poll
        took.append(time.perf_counter() - began)
    await reader.close()
    return round(statistics.median(took) * 1e6)


async def idle_cpu(bus: SqliteBus) -> float:
    """Percent of one core, with readers that wait and one membership that beats."""
    ends = await bus.end_offsets([("t", number) for number in range(PARTITIONS)])
    readers = [bus.reader(ends) for _ in range(READERS)]

    async def read(number: int) -> None:
        while True:
            await readers[number].poll(timeout_seconds=1)

    tasks = [asyncio.create_task(read(number)) for number in range(READERS)]
    await asyncio.sleep(0.2)
    began = time.process_time()
    await asyncio.sleep(IDLE_SECONDS)
    used = time.process_time() - began
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return round(100 * used / IDLE_SECONDS, 2)


async def measure(path: str, records: int) -> dict[str, Any]:
    bus = await SqliteBus.open(path)
    await bus.create_topics([TopicSpec(name="t", partitions=PARTITIONS, cleanup="compact")])
    given: asyncio.Queue[Lease] = asyncio.Queue()
    await bus.join("bench", ["t"], assigned=given.put, revoked=ignore)
    lease = await given.get()
    result = {
        "steps_of_1": await timed_steps(bus, lease, 3000, 1, 0),
        "steps_of_200_new_keys": await timed_steps(bus, lease, records // 200, 200, 3000),
        "steps_of_200_known_keys": await timed_steps(bus, lease, records // 400, 200, 3000),
        "reading": await timed_reading(bus),
        "wake_up_us": await timed_wake(bus, lease),
        f"idle_cpu_percent_{READERS}_readers": await idle_cpu(bus),
    }
    await bus.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = {"file": str(options.path or Path(folder) / "bus.db")}
        if options.path is None:
            paths = {"memory": ":memory:", **paths}
        result = {name: asyncio.run(measure(path, options.records)) for name, path in paths.items()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
