"""A controller and a cluster with as little in them as a worker's tests need."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from pvbus.adapters.sqlite.bus import SqliteBus
from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.effects import (
    CatchUp,
    Content,
    Create,
    KindRef,
    Observation,
    Observe,
    Outcome,
    Pull,
    Put,
    Query,
    Range,
    Reconciliation,
)
from pvbus.core.kernel.keys import partition
from pvbus.ports.bus import Output, TopicSpec
from pvbus.ports.cluster import Kind, Object, Resource
from pvbus.ports.monitoring import Monitoring
from pvbus.ports.sources import Sources
from pvbus.runtime.reconcile.worker import Worker
from tests.kit.busbeside import committed_of, records_of
from tests.kit.clocks import FreezableClock
from tests.kit.processes import run_simulated

PARTITIONS = 2
TOMBSTONE_SECONDS = 2400  # not a day: virtual time costs something, too
IN, OUT, SEEN, DLQ = "toy.in", "toy.out", "toy.seen", "pvbus.dlq"
THING = KindRef("", "ConfigMap", "v1")


class Row(msgspec.Struct, frozen=True):
    text: str


class Fake:
    """Copies `toy.in` to `toy.out`; what it should do first is in the text, as JSON.

    {"write": true} creates an object, with {"report": true} an error becomes the row; {"again": n} asks for
    another look; {"catch": true} catches up; {"query": text} asks Prometheus, whose answer or refusal becomes
    the row; {"pull": source} reads a package; {"size": n} makes a row of so many bytes.
    """

    name = "toy"
    inputs = pausable = (IN,)
    memory = (OUT,)
    broadcast = (SEEN,)
    evaluations = 0

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, str]] = {}
        self.written: dict[str, str] = {}
        self.seen: dict[str, str] = {}
        self.looks: list[str] = []
        self.refusals: list[tuple[str, str]] = []
        self.opened: list[int] = []

    def open(self, number: int) -> None:
        self.rows[number] = {}
        self.opened.append(number)

    def close(self, number: int) -> None:
        for key in self.rows.pop(number, {}):
            self.written.pop(key, None)

    def load(self, topic: str, number: int, key: str, value: bytes | None) -> Iterable[str]:
        text = msgspec.json.decode(value, type=Row).text if value is not None else ""
        if topic == SEEN:
            self.seen[key] = text
            return ()
        if number not in self.rows:
            return ()
        if topic == OUT:
            self.written[key] = text
        else:
            self.rows[number][key] = text
        return (key,)

    def keys(self, number: int) -> Iterable[str]:
        return list(self.rows.get(number, ()))

    def reconcile(self, number: int, key: str, now: float) -> Reconciliation:
        self.looks.append(key)
        text = self.rows[number].get(key, "")
        order = json.loads(text) if text.startswith("{") else {}
        if order.get("catch"):
            yield CatchUp((SEEN, IN))
            text = self.seen.get(key, "nothing seen")
        if order.get("write"):
            try:
                yield Create(THING, {"metadata": {"name": key, "namespace": "default"}})
            except TransientError as error:
                if not order.get("report"):
                    raise
                text = str(error)
        if order.get("query"):
            try:
                found: Range = yield Query(order["query"], 0, 60, 1)
                text = str(found.series[0][0].value)
            except PermanentError as error:
                text = str(error)
        if order.get("pull"):
            try:
                seen: Observation = yield Observe(order["pull"], ("v1",), ("demo/pull",))
                content: Content = yield Pull(order["pull"], seen.digests["v1"], ("demo/pull",))
                text = content.files["package.yaml"].decode()
            except PermanentError as error:
                text = str(error)
        if order.get("size"):
            text = "x" * order["size"]
        if self.written.get(key) == text:
            return Outcome(again_after=order.get("again"))
        return Outcome((Put(OUT, key, Row(text)),), "changed", again_after=order.get("again"))

    def store(self, number: int, put: Put) -> Iterable[str]:
        assert isinstance(put.row, Row)
        self.written[put.key] = put.row.text
        return ()

    def note_refusal(self, number: int, puts: tuple[Put, ...], error: PermanentError) -> Iterable[str]:
        self.refusals += [(put.key, str(error)) for put in puts]
        return ()

    def failure_rows(self, number: int, key: str, message: str, now: float) -> tuple[Put, ...]:
        return () if self.written.get(key) == message else (Put(OUT, key, Row(message)),)


async def answer_at_once(name: str) -> None:
    """Let a create succeed: what `FakeCluster.answer` is at first."""


class FakeCluster:
    """Answers creates with what `answer` says; notes when they came."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []
        self.busy: set[str] = set()
        self.answer: Callable[[str], Awaitable[None]] = answer_at_once

    async def resource(self, kind: Kind, *, version: str | None = None) -> Resource:
        return Resource("", "v1", "ConfigMap", "configmaps", True)

    async def create(self, resource: Resource, obj: Object) -> Object:
        name = obj["metadata"]["name"]
        assert name not in self.busy, "two calls for one key at once"
        self.busy.add(name)
        try:
            self.calls.append((asyncio.get_running_loop().time(), name))
            await self.answer(name)
        finally:
            self.busy.discard(name)
        return obj


def simulated(scenario: "Callable[[FakeWorld], Awaitable[None]]") -> None:
    """Run a scenario in a world of its own, in virtual time."""

    async def main() -> None:
        world = await FakeWorld().open()
        await scenario(world)
        await world.close()

    run_simulated(main())


class FakeBus(SqliteBus):
    """A bus whose next steps fail as told: `before` nothing was written, `after` everything was."""

    failures: list[tuple[str, Exception]]

    async def step(self, lease: Any, outputs: Any, offsets: Any = None) -> None:
        failure = self.failures.pop(0) if outputs and self.failures else None
        if failure is not None and failure[0] == "before":
            raise failure[1]
        await super().step(lease, outputs, offsets)
        if failure is not None:
            raise failure[1]


class FakeWorld:
    """One bus, one cluster, workers as needed."""

    async def open(self) -> "FakeWorld":
        self.bus = await FakeBus.open(":memory:", clock=FreezableClock(), record_bytes_max=2000)
        self.bus.failures = []
        specs = [
            TopicSpec(name=n, partitions=PARTITIONS, cleanup="compact", tombstone_seconds=TOMBSTONE_SECONDS)
            for n in (IN, OUT, SEEN)
        ]
        dlq = TopicSpec(name=DLQ, partitions=PARTITIONS, cleanup="delete", retention_seconds=3600)
        await self.bus.create_topics([*specs, dlq])
        self.cluster = FakeCluster()
        self.tasks: list[asyncio.Task[None]] = []
        self.workers: list[Worker] = []
        joined: list[Any] = []

        async def assigned(lease: Any) -> None:
            joined.append(lease)

        async def revoked(lease: Any) -> None:
            return

        self._writer = await self.bus.join("writer", (SEEN,), assigned=assigned, revoked=revoked)
        await asyncio.sleep(1.5)
        self._lease = joined[0]
        return self

    def worker(
        self, monitoring: Monitoring | None = None, sources: Sources | None = None
    ) -> tuple[Worker, Fake, FreezableClock, FakeBus]:
        clock = FreezableClock()
        peer = self.bus.peer(clock=clock)
        peer.failures = []
        cluster: Any = self.cluster
        worker = Worker(
            Fake, peer, cluster, clock, partitions=PARTITIONS, monitoring=monitoring, sources=sources
        )
        fake = worker.controller
        assert isinstance(fake, Fake)
        self.tasks.append(asyncio.create_task(worker.run()))
        self.workers.append(worker)
        return worker, fake, clock, peer

    async def send(self, key: str, text: str | dict[str, Any], topic: str = IN) -> None:
        text = json.dumps(text) if isinstance(text, dict) else text
        await self.send_bytes(key, msgspec.json.encode(Row(text)), topic)

    async def send_bytes(self, key: str, value: bytes, topic: str = IN) -> None:
        number = partition(key, PARTITIONS)
        await self.bus.step(self._lease, [Output(topic, number, key.encode(), value)])

    def records(self, topic: str) -> list[Any]:
        return records_of(self.bus, topic, PARTITIONS)

    def out(self) -> dict[str, str]:
        rows = {r.key.decode(): msgspec.json.decode(r.value, type=Row).text for r in self.records(OUT)}
        return dict(sorted(rows.items()))

    def committed(self, key: str) -> int:
        return committed_of(self.bus, "pvbus-toy", partition(key, PARTITIONS), IN)

    async def close(self) -> None:
        for worker in self.workers:
            worker.stop()
        await asyncio.gather(*self.tasks)
        await self.bus.close()
