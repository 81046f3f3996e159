"""Several processes on one bus file: they see each other, and survive each other's deaths."""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pvbus.ports.bus import Output
from tests.integration.bus.worker import OUTPUTS, PARTITIONS, SESSION_SECONDS, ignore, leases_of, open_bus

KILLS = 8
REPOSITORY = Path(__file__).parents[3]


class Worker:
    """A child process that runs `worker.py`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self) -> str:
        assert self.process.stdout
        async with asyncio.timeout(20):
            return (await self.process.stdout.readline()).decode().strip()

    def tell(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"\n")


@asynccontextmanager
async def worker(mode: str, path: Path) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.integration.bus.worker", mode, str(path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
    )
    try:
        yield Worker(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_kill_9_in_the_middle_of_steps(tmp_path: Path) -> None:
    """Of a killed process, each step is there whole or not at all, and the next one takes over at once."""
    path = tmp_path / "bus.db"
    rng = random.Random(4)
    before = 0
    for _ in range(KILLS):
        async with worker("steps", path) as child:
            assert await child.hear() == "ready"
            await asyncio.sleep(rng.uniform(0.02, 0.2))
            child.process.kill()
            await child.process.wait()
        bus = await open_bus(str(path))
        began = time.monotonic()
        leases = await leases_of(bus, ignore)
        assert time.monotonic() - began < SESSION_SECONDS / 2
        committed = [(await bus.committed(lease, ["table"]))["table"] for lease in leases]
        reader = bus.reader({("out", number): 0 for number in range(PARTITIONS)})
        found: Counter[int] = Counter()
        while records := await reader.poll(timeout_seconds=0):
            found.update(record.partition for record in records)
        assert [found[number] for number in range(PARTITIONS)] == [OUTPUTS * offset for offset in committed]
        assert sum(committed) > before
        before = sum(committed)
        await bus.close()
    assert [file.name for file in tmp_path.iterdir()] == ["bus.db"]


async def test_a_stopped_process_is_fenced(tmp_path: Path) -> None:
    """A process that hangs past its session cannot step afterwards, and learns that it was revoked."""
    path = tmp_path / "bus.db"
    async with worker("session", path) as child:
        assert await child.hear() == "ready"
        bus = await open_bus(str(path))
        reader = bus.reader({("out", 0): 0})
        waiting = asyncio.create_task(reader.poll(timeout_seconds=20))
        await asyncio.sleep(0.1)
        child.tell()
        assert await child.hear() == "stepped"
        heard = time.monotonic()
        assert [record.value for record in await waiting] == [b"1"]
        assert time.monotonic() - heard < 0.5

        child.process.send_signal(signal.SIGSTOP)
        leases = await leases_of(bus, ignore)
        assert (await bus.committed(leases[0], ["table"])) == {"table": 1}
        await bus.step(leases[0], [Output("out", 0, b"line", b"ours")], {"table": 2})
        child.tell()
        child.process.send_signal(signal.SIGCONT)
        heard_words = Counter([await child.hear() for _ in range(PARTITIONS + 1)])
        assert heard_words == {"fenced": 1, "revoked": PARTITIONS}
        assert [record.value for record in await reader.poll(timeout_seconds=1)] == [b"ours"]
        await bus.close()


async def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A step that meets the end of the disk raises TransientError and leaves nothing; later ones work."""
    async with worker("full", tmp_path / "bus.db") as child:
        assert "make room on the disk" in await child.hear()
        word, done, committed, end = (await child.hear()).split()
        assert word == "before"
        assert int(done) == int(committed) == int(end) > 5
        assert await child.hear() == "stepped"
