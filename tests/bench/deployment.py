"""Services as processes of their own, or several in one: asked and measured together."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from pvbus.runtime.process.buses import open_bus
from pvbus.runtime.process.settings import ServiceConfig
from tests.bench.children import Child, process_cpu_seconds
from tests.tools.kafka import KafkaCluster

BUSY_SECONDS = 0.3
"""Who waited longer than this until it was settled had something to do, and may have handed something on."""


class Work(NamedTuple):
    """What processes have done since their start. steps, records: as /metrics counts them."""

    cpu_seconds: float
    resident_bytes: float
    private_bytes: float
    steps: float
    records: float
    read: float

    def since(self, before: "Work") -> "Work":
        """Return what was done since then; memory as it is now."""
        return Work(
            self.cpu_seconds - before.cpu_seconds,
            self.resident_bytes,
            self.private_bytes,
            self.steps - before.steps,
            self.records - before.records,
            self.read - before.read,
        )


class Deployment:
    """Processes over one bus. An async context manager that is entered when all are ready."""

    def __init__(
        self,
        kubeconfig: Path | str,
        bus: str,
        processes: Sequence[Sequence[str]],
        *,
        snapshots: Path | None = None,
    ) -> None:
        """processes: the services of each. kubeconfig: or what stands for one, see `services`.
        snapshots: the folder of their snapshots, None for none."""
        more = () if snapshots is None else ("--snapshots", str(snapshots))
        self.children = [
            Child("tests.bench.services", str(kubeconfig), bus, *names, *more) for names in processes
        ]
        self.names = ["+".join(names) for names in processes]
        self.ready_seconds = 0.0
        """From the start of the first process until the last one answered that it is ready."""
        self.observed_seconds = 0.0
        """The same until all objects of the API server were compared with the bus, too."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        began, since = time.perf_counter(), time.time()
        try:
            async with asyncio.TaskGroup() as tasks:
                for child in self.children:
                    tasks.create_task(self._stack.enter_async_context(child))
        except BaseException:
            await self._stack.aclose()
            raise
        self.observed_seconds = time.perf_counter() - began
        self.ready_seconds = max(child.hello["readyAt"] for child in self.children) - since
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all at once: one after the other, each would take over what the one before it had."""
        for child in self.children:
            child.end()
        await self._stack.aclose()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self.children]

    async def ask(self, command: str) -> list[Any]:
        return await asyncio.gather(*(child.ask(command) for child in self.children))

    async def settled(self) -> None:
        """Wait until nothing is left to do: each may give another something to do."""
        while max(await self.ask("settled")) > BUSY_SECONDS:
            pass

    async def work(self) -> Work:
        return total(await self.works())

    async def works(self) -> list[Work]:
        """Return what each process has done."""
        usages, counts = await self.ask("usage"), await self.ask("metrics")
        return [
            Work(
                *(usage["cpuSeconds"], usage["residentBytes"], usage["privateBytes"], reported["steps"]),
                *(sum(reported["recordsByTopic"].values()), reported["read"]),
            )
            for usage, reported in zip(usages, counts, strict=True)
        ]


def total(works: Sequence[Work]) -> Work:
    return Work(*map(sum, zip(*works, strict=True)))


def broker_cpu_seconds(kafka: KafkaCluster | None) -> float:
    """Return the CPU time of brokers that were started here; 0 for others."""
    brokers = [] if kafka is None else [broker.process for broker in kafka.brokers]
    return sum(process_cpu_seconds(process.pid) for process in brokers if process is not None)


def fresh_bus(kafka: KafkaCluster) -> str:
    """Return the address of a bus in this Kafka that nobody has used yet."""
    return f"kafka://{kafka.bootstrap}/bench-{secrets.token_hex(4)}"


async def ends_of(bus_url: str) -> Mapping[tuple[str, int], int]:
    """Return where each partition of a bus ends: a step moves some of them, whoever made it."""
    bus = await open_bus(ServiceConfig(bus=bus_url), create=False)
    try:
        topics = await bus.topics()
        topic_partitions = [
            (name, number) for name, spec in topics.items() for number in range(spec.partitions)
        ]
        return await bus.end_offsets(topic_partitions)
    finally:
        await bus.close()


def moved(before: Mapping[tuple[str, int], int], after: Mapping[tuple[str, int], int]) -> Counter[str]:
    """Return by how many offsets each topic grew, topics that did not left out."""
    found: Counter[str] = Counter()
    for (topic, number), end in after.items():
        found[topic] += end - before.get((topic, number), 0)
    return +found
