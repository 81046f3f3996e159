"""What happens to one lease of a process, or to its connections, is no matter of its other leases.

The leases of a process share the metadata of the cluster, and each has connections of its own. They step at
once here, and the judge is a reader: each step is there as a whole and once, in its order.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.membership import KafkaMembership
from pvbus.adapters.kafka.settings import producer_options
from pvbus.adapters.kafka.writer import Writer
from pvbus.core.errors import FencedError, PvbusError, TooLargeError, TransientError
from pvbus.ports.bus import Lease, Output, Record, TopicSpec
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import expect, ignore, settled, turns
from tests.tools.kafka import KafkaCluster, restarted, running
from tests.tools.kafkarequests import COMMIT_OFFSETS, END_TRANSACTION, PRODUCE

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

GROUP = "sharing"
LEASES = 12
STEPS = 20
IN = TopicSpec(name="in", partitions=LEASES, cleanup="compact")
OUT = TopicSpec(name="out", partitions=LEASES, cleanup="delete", retention_seconds=86_400)
RECORDS = 3
"""Of each step: one that is there in part is seen."""

IDLE_SECONDS = 3
AWAY_SECONDS = 8.0
RECOVERY_SECONDS = 60.0
LARGE_BYTES = 1_500_000
"""More than the topics take here, which a bus with another setting made."""


class Sharing:
    """One process that holds all leases, and what its steps came to."""

    def __init__(self, harness: KafkaHarness, bus: KafkaBus, membership: KafkaMembership) -> None:
        self.harness = harness
        self.bus = bus
        self.membership = membership
        self.leases: Mapping[int, Lease] = membership.leases()

    def writer(self, number: int) -> Writer:
        writer = self.membership.writer(self.membership.leases()[number])
        assert writer is not None
        return writer

    def connections(self, number: int) -> list[AIOKafkaConnection]:
        """Return those of a lease's producer. Nothing public tells of them."""
        producer = self.writer(number)._producer
        assert producer is not None
        return list(producer.client._conns.values())

    def epochs(self) -> dict[int, int | None]:
        return {number: self.writer(number).epoch for number in range(LEASES)}

    async def step(self, number: int, count: int) -> None:
        """Make the step of this count: its records, and the offset that says that it was made."""
        outputs = [Output(OUT.name, number, b"%d" % count, b"%d" % part) for part in range(RECORDS)]
        await self.bus.step(self.membership.leases()[number], outputs, {IN.name: count + 1})

    async def all_steps(self, numbers: list[int], first: int, steps: int) -> None:
        """Let these leases make their steps, each one after the other and all leases at once."""

        async def one_lease(number: int) -> None:
            for count in range(first, first + steps):
                await self.step(number, count)

        await asyncio.gather(*map(one_lease, numbers))

    async def keep_stepping(self, number: int, stop: asyncio.Event) -> None:
        """Step from what is committed on, whatever happens, as a worker does that restores its lease."""
        while not stop.is_set():
            try:
                lease = self.membership.leases()[number]
                count = (await self.bus.committed(lease, [IN.name]))[IN.name]
                while not stop.is_set():
                    await self.step(number, count)
                    count += 1
            except (PvbusError, KeyError):
                await asyncio.sleep(0.05)

    async def judge(self) -> dict[int, int]:
        """Return the steps of each partition; all are whole, there once, in order, with their offsets."""
        found: dict[int, list[Record]] = {number: [] for number in range(LEASES)}
        positions = {(OUT.name, number): 0 for number in range(LEASES)}
        ends = await self.bus.end_offsets(list(positions))
        reader = self.bus.reader(positions)
        while any(reader.position(tp) < end for tp, end in ends.items()):
            for record in await reader.poll(timeout_seconds=1.0):
                found[record.partition].append(record)
        await reader.close()
        for number, records in found.items():
            count = (await self.bus.committed(self.membership.leases()[number], [IN.name]))[IN.name]
            expected = [(b"%d" % step, b"%d" % part) for step in range(count) for part in range(RECORDS)]
            assert [(record.key, record.value) for record in records] == expected, number
        return {number: len(records) // RECORDS for number, records in found.items()}


@asynccontextmanager
async def sharing(kafka: KafkaCluster, **settings: Any) -> AsyncIterator[Sharing]:
    harness = KafkaHarness(kafka.bootstrap)
    try:
        making = await harness.open()
        await making.create_topics([IN, OUT])
        harness.settings = msgspec.structs.replace(harness.settings, **settings)
        bus = await harness.open()
        membership = await bus.join(GROUP, [IN.name], assigned=ignore, revoked=ignore)
        await settled(
            lambda: len(membership.leases()) == LEASES, 2 * harness.handover_seconds, "it holds all leases"
        )
        yield Sharing(harness, bus, membership)
    finally:
        await harness.close()


async def test_trouble_of_some_leases_is_none_of_the_others(kafka: KafkaCluster) -> None:
    """One is fenced, one's record is refused by the broker, one's caller is cancelled: the other nine make
    each of their steps once, with the producers that they had, and none is told of an error."""
    async with sharing(kafka, record_bytes_max=2 * LARGE_BYTES) as shared:
        await shared.all_steps(list(range(LEASES)), 0, 1)
        before = shared.epochs()
        others = asyncio.create_task(shared.all_steps(list(range(3, LEASES)), 1, STEPS))

        await fence(shared, 0)
        await expect(FencedError, shared.step(0, 1))
        large = Output(OUT.name, 1, b"large", os.urandom(LARGE_BYTES))
        await expect(TooLargeError, shared.bus.step(shared.leases[1], [large], {IN.name: 2}))
        cut = asyncio.create_task(shared.step(2, 1))
        await asyncio.sleep(0.002)
        cut.cancel()
        await asyncio.wait({cut})

        await others
        await settled(
            lambda: shared.membership.leases().get(0, shared.leases[0]) != shared.leases[0],
            RECOVERY_SECONDS,
            "the fenced lease is given again",
        )
        after = shared.epochs()
        assert [after[number] for number in range(3, LEASES)] == [
            before[number] for number in range(3, LEASES)
        ]
        assert all(shared.membership.leases()[n] == shared.leases[n] for n in range(1, LEASES))
        steps = await shared.judge()
    assert {steps[number] for number in range(3, LEASES)} == {1 + STEPS}
    assert steps[0] == steps[1] == 1
    assert steps[2] in (1, 2)


async def fence(shared: Sharing, number: int) -> None:
    settings = shared.harness.settings
    stray = AIOKafkaProducer(**producer_options(settings, settings.transactional_id(GROUP, number)))
    await stray.start()
    await stray.stop()


@contextmanager
def without_idle_connections(count: int) -> Iterator[KafkaCluster]:
    if os.environ.get("PVBUS_TEST_KAFKA"):  # a broker reads this setting when it starts
        pytest.skip("the test needs brokers that close idle connections soon, and did not start these")
    with running(count, settings={"connections.max.idle.ms": str(1000 * IDLE_SECONDS)}) as cluster:
        yield cluster


@pytest.mark.parametrize("brokers", [1, 3])
async def test_connections_that_the_broker_closes_are_made_again(brokers: int) -> None:
    """After a rest that is longer than brokers keep connections, all leases step at once, with their
    producers: nothing is fenced, replaced or told, and it takes no deadline."""
    with without_idle_connections(brokers) as kafka:
        async with sharing(kafka) as shared:
            await shared.all_steps(list(range(LEASES)), 0, 1)
            before, took = shared.epochs(), []
            for count in range(1, 4):
                await asyncio.sleep(2 * IDLE_SECONDS)
                connections = [
                    connection for number in range(LEASES) for connection in shared.connections(number)
                ]
                assert not any(connection.connected() for connection in connections)
                began = asyncio.get_running_loop().time()
                await shared.all_steps(list(range(LEASES)), count, 1)
                took.append(asyncio.get_running_loop().time() - began)
            assert shared.epochs() == before
            assert set((await shared.judge()).values()) == {4}
    print(f"steps after a rest took {max(took):.2f} s at most")
    assert max(took) < RECOVERY_SECONDS / 6


@asynccontextmanager
async def stepping(shared: Sharing) -> AsyncIterator[None]:
    """Let all leases step; then each steps again, and the judge is content."""
    stop = asyncio.Event()
    tasks = [asyncio.create_task(shared.keep_stepping(number, stop)) for number in range(LEASES)]
    try:
        await asyncio.sleep(1.0)
        yield
        reached = await committed(shared)

        async def all_go_on() -> bool:
            now = await committed(shared)
            return len(now) == LEASES and all(now[number] > reached.get(number, 0) + 1 for number in now)

        await settled(all_go_on, RECOVERY_SECONDS, "every lease steps again")
    finally:
        stop.set()
        await asyncio.gather(*tasks)
    steps = await shared.judge()
    print(f"{sum(steps.values())} steps, each once")


async def committed(shared: Sharing) -> dict[int, int]:
    """Return the offsets of the leases that can be asked for."""
    found = {}
    for number, lease in shared.membership.leases().items():
        try:
            found[number] = (await shared.bus.committed(lease, [IN.name]))[IN.name]
        except PvbusError:
            continue
    return found


@pytest.mark.parametrize("brokers", [1, 3])
async def test_brokers_restart_in_the_middle_of_transactions(brokers: int) -> None:
    """Each broker in turn is killed while all leases step, and comes back: coordinators and leaders move,
    outcomes become unknown, and each step is still made once."""
    with running(brokers) as kafka:
        async with sharing(kafka) as shared, stepping(shared):
            for broker in kafka.brokers:
                await asyncio.to_thread(broker.kill)
                await asyncio.sleep(AWAY_SECONDS)
                await restarted(broker)
                await asyncio.sleep(AWAY_SECONDS)


@contextmanager
def changed_requests(
    change: Callable[[AIOKafkaConnection, Any, Callable[[], Awaitable[Any]]], Awaitable[Any]],
) -> Iterator[None]:
    """Let `change` send each request of this process, or not."""
    send: Any = AIOKafkaConnection.send

    def changed(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        return asyncio.ensure_future(
            change(self, request, lambda: send(self, request, *arguments, **options))
        )

    AIOKafkaConnection.send = changed
    try:
        yield
    finally:
        AIOKafkaConnection.send = send


async def test_connections_break_at_every_request_of_a_step(kafka: KafkaCluster) -> None:
    """A connection that breaks before a request of a transaction or before its response, of any lease and
    at any time: the steps of that lease are made once, and so are all others."""
    dice, broken = random.Random(11), Counter[int]()

    async def break_some(connection: Any, request: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        is_chosen = request.API_KEY in range(22, 29) or request.API_KEY == PRODUCE
        if not is_chosen or dice.random() > 0.02:
            return await send()
        broken[request.API_KEY] += 1
        if dice.random() < 0.5:  # the broker has it, and its response is lost
            await send()
        connection.close()
        raise KafkaConnectionError("broken by the test")

    async with sharing(kafka) as shared, stepping(shared):
        with changed_requests(break_some):
            await asyncio.sleep(15.0)
    print(f"connections broken, by request: {dict(broken)}")
    assert broken[PRODUCE]
    assert broken[END_TRANSACTION]


async def test_a_kafka_that_names_no_broker_yet_is_asked_again(kafka: KafkaCluster) -> None:
    """After a pause of all brokers, Kafka takes them for dead: what it answers to a client that starts just
    then names none. Each of them waits, and all goes on."""
    answered = set[AIOKafkaConnection]()

    async def name_none(connection: Any, request: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        answer = await send()
        is_starting = isinstance(request, MetadataRequest) and connection._on_close_cb is None
        if is_starting and connection not in answered:
            answered.add(connection)
            answer.brokers = []
        return answer

    with changed_requests(name_none):
        async with sharing(kafka) as shared:
            await shared.all_steps(list(range(LEASES)), 0, STEPS)
            assert await shared.judge() == dict.fromkeys(range(LEASES), STEPS)
    assert len(answered) >= 6  # two to make the topics, then two, the member and the producers


async def test_a_rebalance_in_the_middle_of_a_step(kafka: KafkaCluster) -> None:
    """A worker joins while steps wait between their records and their offsets: what moves is drained first,
    nothing is made twice, and what stays goes on."""
    may_go, waiting = asyncio.Event(), Counter[int]()

    async def hold_offsets(connection: Any, request: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        if request.API_KEY == COMMIT_OFFSETS and not may_go.is_set():
            waiting[request.API_KEY] += 1
            await may_go.wait()
        return await send()

    async with sharing(kafka) as shared:
        await shared.all_steps(list(range(LEASES)), 0, 1)
        with changed_requests(hold_offsets):
            steps = [asyncio.create_task(shared.step(number, 1)) for number in range(LEASES)]
            await settled(lambda: waiting.total() == LEASES, RECOVERY_SECONDS, "all steps wait")
            other = await shared.harness.open()
            joined = await other.join(GROUP, [IN.name], assigned=ignore, revoked=ignore)
            await asyncio.sleep(2.0)
            may_go.set()
            outcomes = await asyncio.gather(*steps, return_exceptions=True)
            assert all(outcome is None or isinstance(outcome, PvbusError) for outcome in outcomes)
            await settled(
                lambda: len(joined.leases()) == len(shared.membership.leases()) == LEASES // 2,
                RECOVERY_SECONDS,
                "each has half of the leases",
            )
        counts = {}
        for bus, leases in ((shared.bus, shared.membership.leases()), (other, joined.leases())):
            for number, lease in leases.items():
                counts[number] = (await bus.committed(lease, [IN.name]))[IN.name]
        await other.close()
        await settled(
            lambda: len(shared.membership.leases()) == LEASES, RECOVERY_SECONDS, "the first has all again"
        )
        found = await shared.judge()
    assert found == counts
    assert all(found[n] == 2 for n in range(LEASES) if outcomes[n] is None)


async def test_steps_that_wait_for_kafka_end_with_their_leases(kafka: KafkaCluster) -> None:
    """A worker leaves its group while a step waits for its records, one for its offsets, and one for its
    end: all of them end with it, not at their deadlines, as the worker's other leases may wait for them."""
    awaited, waiting = (PRODUCE, COMMIT_OFFSETS, END_TRANSACTION), asyncio.Semaphore(0)
    held: dict[AIOKafkaConnection, int] = {}

    async def hold(connection: Any, request: Any, send: Callable[[], Awaitable[Any]]) -> Any:
        if held.get(connection) == request.API_KEY:
            waiting.release()
            await asyncio.Event().wait()
        return await send()

    async with sharing(kafka) as shared:
        await shared.all_steps(list(range(LEASES)), 0, 1)
        for number, key in enumerate(awaited):
            held |= dict.fromkeys(shared.connections(number), key)
        with changed_requests(hold):
            steps = [asyncio.create_task(shared.step(number, 1)) for number in range(len(awaited))]
            for _ in awaited:
                await waiting.acquire()
            await shared.membership.leave()
            await turns(100)
            assert [each.done() and type(each.exception()) for each in steps] == [TransientError] * len(steps)


async def test_who_was_frozen_before_its_producer_started_writes_nothing(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that stops between a heartbeat and the start of a producer fences the next holder when it
    wakes up. It does not write in its place, and the next holder gets the lease again."""
    async with sharing(kafka) as shared:
        await shared.all_steps(list(range(LEASES)), 0, 1)
        writer, lease = shared.writer(0), shared.leases[0]
        start, is_awake = writer._start, asyncio.Event()

        async def start_late() -> Any:
            await is_awake.wait()
            return await start()

        monkeypatch.setattr(writer, "_start", start_late)
        cut = asyncio.create_task(shared.step(0, 1))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.wait({cut})
        await asyncio.sleep(0.5)  # it was told that it is a member
        shared.harness.freeze(shared.bus)

        other = await shared.harness.open()
        joined = await other.join(GROUP, [IN.name], assigned=ignore, revoked=ignore)
        await settled(lambda: len(joined.leases()) == LEASES, RECOVERY_SECONDS, "another one has all leases")
        taken = joined.leases()[0]
        await other.step(taken, [Output(OUT.name, 0, b"theirs", b"")], {IN.name: 2})
        is_awake.set()
        late = asyncio.create_task(
            shared.bus.step(lease, [Output(OUT.name, 0, b"late", b"")]), name="the step of the frozen one"
        )
        await asyncio.wait({late}, timeout=3.0)
        shared.harness.thaw(shared.bus)
        await expect(FencedError, late)

        async def is_given_again() -> bool:  # who was fenced learns so when it asks or steps
            for bus, membership in ((other, joined), (shared.bus, shared.membership)):
                with suppress(PvbusError, KeyError):
                    found = membership.leases()[0]
                    await bus.committed(found, [IN.name])
                    return found not in (taken, lease)
            return False

        await settled(is_given_again, RECOVERY_SECONDS, "the lease is given again")
        ends = await other.end_offsets([(OUT.name, 0)])
        reader, keys = other.reader({(OUT.name, 0): 0}), []
        while reader.position((OUT.name, 0)) < ends[OUT.name, 0]:
            keys += [record.key for record in await reader.poll(timeout_seconds=1.0)]
        await reader.close()
    assert b"late" not in keys
    assert keys[-1] == b"theirs"
