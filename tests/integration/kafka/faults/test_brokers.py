"""Each broker killed with -9 and started again, in turn, while a client asks for offsets.

`PVBUS_TEST_FAULTS` is how many kills there are, at least one of each broker. What the services do without
brokers is a matter of `make chaos`.
"""

import asyncio
from collections import Counter

import pytest

from pvbus.core.errors import TransientError
from pvbus.ports.bus import Bus, Lease
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import holder
from tests.tools.kafka import FAULTS, KafkaCluster, restarted

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(7200)]

AWAY_SECONDS = 12.0
QUESTION_SECONDS = 0.05


async def ask(bus: Bus, lease: Lease, reported: Counter[str]) -> None:
    """Ask for a lease's offset, again and again, and count the answers."""
    while True:
        try:
            answer = str(await bus.committed(lease, ["table"]))
        except TransientError as exc:
            answer = type(exc).__name__
        reported[answer] += 1
        await asyncio.sleep(QUESTION_SECONDS)


async def test_offsets_are_told_while_brokers_go(three_proxied: KafkaCluster) -> None:
    """Whoever asks for a lease's offset hears the right one, or at worst that nobody can tell it now."""
    harness = KafkaHarness(three_proxied.bootstrap)
    reported: Counter[str] = Counter()
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [], {"table": 5})
        asking = asyncio.create_task(ask(bus, leases[0], reported))
        kills = max(FAULTS, len(three_proxied.brokers))
        for number in range(kills):
            broker = three_proxied.brokers[number % len(three_proxied.brokers)]
            await asyncio.to_thread(broker.kill)
            try:
                await asyncio.sleep(AWAY_SECONDS)
            finally:
                await restarted(broker)
        before = reported["{'table': 5}"]
        await asyncio.wait({asking}, timeout=AWAY_SECONDS)
        assert not asking.done(), asking.exception()
        asking.cancel()
    await harness.close()
    print(f"{kills} brokers killed; {dict(reported)}")
    assert reported["{'table': 5}"] > before
    assert reported.keys() <= {"{'table': 5}", "TransientError"}
