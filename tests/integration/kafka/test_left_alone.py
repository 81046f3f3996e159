"""No lease is left with nobody, or with a worker that may not use it, in whatever moment things happen."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as kafka_errors
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest

from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.membership import KafkaMembership
from pvbus.adapters.kafka.settings import producer_options
from pvbus.core.errors import FencedError
from pvbus.ports.bus import Bus, Lease, Output
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit.bus_contract import GROUP, PARTITIONS, expect, holder, settled
from tests.kit.bus_contract_worker import Worker, all_owned
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

AGAIN_SECONDS = 20.0
"""Two rebalances, each as long as a heartbeat, on a busy machine."""


@pytest.fixture
async def harness(kafka_one: KafkaCluster) -> AsyncIterator[KafkaHarness]:
    harness = KafkaHarness(kafka_one.bootstrap)
    yield harness
    await harness.close()


def membership_of(bus: Bus) -> KafkaMembership:
    assert isinstance(bus, KafkaBus)
    (found,) = bus._memberships
    return found


def after(request_class: type, membership: KafkaMembership, change: Callable[[Any], Any]) -> None:
    """Let `change` see the answer to each such request of a member before the library does."""
    coordinator = membership._consumer._coordinator
    send = coordinator._send_req

    async def changed(request: Any) -> Any:
        answer = await send(request)
        return await change(answer) if isinstance(request, request_class) else answer

    coordinator._send_req = changed


async def fence(harness: KafkaHarness, number: int) -> None:
    """Do what a worker does that wakes up in the middle of taking a lease, long after its session."""
    options = producer_options(harness.settings, harness.settings.transactional_id(GROUP, number))
    stray = AIOKafkaProducer(**options)
    await stray.start()
    await stray.stop()


async def test_leases_let_go_while_the_group_forms_find_an_owner(harness: KafkaHarness) -> None:
    """What a member gave up between telling that it holds it and getting its share is given to another."""
    first, second, third = [await Worker.open(harness) for _ in range(3)]
    may_go, gone = asyncio.Event(), asyncio.Event()

    async def slowly(lease: Lease) -> None:
        await may_go.wait()

    async def release(answer: Any) -> Any:
        if not gone.is_set():
            may_go.set()
            await settled(
                lambda: len(membership._slots) == PARTITIONS // 2, harness.drain_seconds, "what goes is free"
            )
            gone.set()
        return answer

    first.on_revoked = slowly
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    membership = membership_of(first.bus)
    await second.join()
    await settled(
        lambda: sum(tp.vacating is not None for tp in membership._slots.values()) == PARTITIONS // 2,
        harness.handover_seconds,
        "half of the leases are on their way out",
    )
    after(JoinGroupRequest, membership, release)
    await third.join()  # with which the group forms anew
    await asyncio.wait_for(gone.wait(), harness.handover_seconds)
    await all_owned([first, second, third], AGAIN_SECONDS)


async def test_a_lease_that_was_fenced_while_it_was_restored_is_given_again(harness: KafkaHarness) -> None:
    """A holder that learns from reading its offsets that somebody fenced it gets the lease again."""
    async with holder(harness) as (bus, leases):
        await fence(harness, 1)
        await expect(FencedError, bus.committed(leases[1], ["table"]))
        membership = membership_of(bus)
        await settled(
            lambda: membership.leases().get(1, leases[1]).epoch > leases[1].epoch,
            AGAIN_SECONDS,
            "the lease is given again",
        )
        again = membership.leases()[1]
        await bus.step(again, [Output("out", 1, b"k", b"v")], {"table": 1})
        assert await bus.committed(again, ["table"]) == {"table": 1}


async def test_a_lease_is_given_again_when_its_holder_took_itself_for_no_member(
    harness: KafkaHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that crosses a rebalance is refused; a producer that is not replaced for that is no end."""
    async with holder(harness) as (bus, leases):
        membership = membership_of(bus)
        writer = membership.writer(leases[2])
        assert writer is not None
        asked: list[bool] = []

        async def refused() -> bool:
            asked.append(False)
            return False

        monkeypatch.setattr(writer, "_confirm", refused)
        cut = asyncio.ensure_future(bus.step(leases[2], [Output("out", 2, b"k", b"v")]))
        while not asked:
            await asyncio.sleep(0)
            cut.cancel()
        await settled(
            lambda: membership.leases().get(2, leases[2]).epoch > leases[2].epoch,
            AGAIN_SECONDS,
            "the lease is given again",
        )


async def test_heartbeats_go_on_after_one_was_refused(harness: KafkaHarness) -> None:
    """A right that was taken away for a moment leaves no member that says nothing for ever."""
    async with holder(harness) as (bus, _):
        membership = membership_of(bus)
        refused: list[object] = []

        async def refuse_one(answer: Any) -> Any:
            if refused:
                return answer
            refused.append(answer)
            return type("Refusal", (), {"error_code": kafka_errors.GroupAuthorizationFailedError.errno})()

        after(HeartbeatRequest, membership, refuse_one)
        loop = asyncio.get_running_loop()
        await settled(lambda: bool(refused), 10, "a heartbeat is refused")
        await asyncio.sleep(3)
        began = loop.time()
        await settled(lambda: membership.last_heartbeat() > began, AGAIN_SECONDS, "another one is answered")
        assert len(membership.leases()) == PARTITIONS
