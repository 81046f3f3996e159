"""The library's defects and our rules against them. Each rule is a check that holds; and with the rule taken
out, that check fails."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from pvbus.adapters.assignment import assign
from pvbus.adapters.kafka import groups, membership
from pvbus.adapters.kafka.bus import KafkaBus
from pvbus.adapters.kafka.library import retrieve_error
from pvbus.adapters.kafka.membership import KafkaMembership
from pvbus.adapters.kafka.settings import KafkaSettings, client_options
from pvbus.adapters.kafka.topics import topic_config
from pvbus.adapters.kafka.writer import Writer
from pvbus.core.errors import PvbusError, TooLargeError
from pvbus.ports.bus import Lease, Output
from tests.contract.bus.kafka_harness import KafkaHarness
from tests.kit import bus_contract, bus_contract_groups
from tests.kit.bus_contract import OUT, PARTITIONS, expect, holder, read_all
from tests.tools.kafka import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(300)]

Check = Callable[[KafkaHarness], Coroutine[Any, Any, None]]

BROKER_LIMIT_BYTES = 2_000
GROUPS = bus_contract_groups.CHECKS


async def narrow_topic(settings: KafkaSettings) -> None:
    """Make `out` so that the broker refuses a batch that we would let pass."""
    admin = AIOKafkaAdminClient(**client_options(settings))
    await admin.start()
    config = topic_config(OUT, 1, settings.record_bytes_max) | {"max.message.bytes": str(BROKER_LIMIT_BYTES)}
    await admin.create_topics([NewTopic(settings.named("out"), PARTITIONS, 1, topic_configs=config)])
    await admin.close()


REFUSED = (
    Output("table", 0, b"with", b"it"),
    Output("out", 0, b"refused", os.urandom(2 * BROKER_LIMIT_BYTES)),
)


async def check_failed_batch_is_not_committed(harness: KafkaHarness) -> None:
    """When the broker refuses one batch of a step, nothing of the step is committed."""
    await narrow_topic(harness.settings)
    async with holder(harness) as (bus, leases):
        await expect(TooLargeError, bus.step(leases[0], REFUSED, {"table": 7}))
        assert await bus.committed(leases[0], ["table"]) == {"table": 0}
        assert await read_all(bus, "table") == []


async def check_works_after_a_failed_batch(harness: KafkaHarness) -> None:
    """After a refused batch the same lease writes to the same partition again."""
    await narrow_topic(harness.settings)
    async with holder(harness) as (bus, leases):
        await bus.step(leases[0], [Output("out", 0, b"before", b"")])
        await expect(TooLargeError, bus.step(leases[0], REFUSED))
        for number in range(3):
            await bus.step(leases[0], [Output("out", 0, b"%d" % number, b"")], {"table": number})
        assert [record.key for record in await read_all(bus, "out")] == [b"before", b"0", b"1", b"2"]


async def check_sizes_are_checked_first(harness: KafkaHarness) -> None:
    """A record that is too large costs no producer: the epoch stays, and there is no second start."""
    async with holder(harness) as (bus, leases):
        found = bus._memberships[0].writer(leases[0])  # type: ignore[attr-defined]
        epoch = found.epoch
        too_large = Output("out", 0, b"k", b"x" * (harness.record_bytes_max + 1))
        await expect(TooLargeError, bus.step(leases[0], [too_large]))
        await bus.step(leases[0], [Output("out", 0, b"k", b"v")])
        assert found.epoch == epoch


class CommitsAnyway(Writer):
    """Does not look at what became of the records before it commits."""

    async def _transact(self, producer: Any, outputs: Sequence[Output], offsets: Mapping[str, int]) -> None:
        async def send_batch(*args: Any, **options: Any) -> Any:
            future = await type(producer).send_batch(producer, *args, **options)
            future.add_done_callback(retrieve_error)
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        producer.send_batch = send_batch
        await super()._transact(producer, outputs, offsets)


class KeepsProducer(Writer):
    """Aborts after an error, and goes on with the same producer."""

    def _drop(self) -> None:
        self._replacing = asyncio.create_task(self._abort())

    async def _abort(self) -> None:
        assert self._producer
        await self._producer.abort_transaction()
        self._replacing = None


class NoSizes(KafkaBus):
    """Leaves sizes to the library and the broker."""

    async def _check_outputs(self, outputs: Sequence[Output]) -> None:
        return


class OffsetsBeforeFence(KafkaBus):
    """Reads a lease's offsets when it joins, before older epochs have been fenced."""

    async def join(self, group: str, topics: Sequence[str], **callbacks: Any) -> KafkaMembership:
        numbers = range(PARTITIONS)
        self.early = {
            n: await self._fetch_offsets(Lease(group=group, partition=n, epoch=0), topics) for n in numbers
        }
        return await super().join(group, topics, **callbacks)

    async def committed(self, lease: Lease, topics: Sequence[str]) -> Mapping[str, int]:
        await super().committed(lease, topics)
        return {topic: self.early[lease.partition][topic] for topic in topics}


class IdOfItsOwn(KafkaSettings, frozen=True, kw_only=True):
    """Gives every worker transactional ids of its own, as one does who fences by membership alone."""

    def transactional_id(self, group: str, partition: int) -> str:
        return f"{super().transactional_id(group, partition)}-{id(self)}"


def given_at_once(partitions: int, holders: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Give a lease to its next holder although the last one has not let go."""
    owners = {number: member for member, held in holders.items() for number in held}
    shares: dict[str, list[int]] = {member: [] for member in holders}
    for number, member in assign(partitions, sorted(holders), owners).items():
        shares[member].append(number)
    return shares


async def call_and_swallow(callback: Callable[[Lease], Any], lease: Lease) -> None:
    """Do what the library does with an error of a rebalance listener."""
    try:
        await callback(lease)
    except Exception:
        return


CHECKS: Mapping[str, Check] = {
    "failed_batch_is_not_committed": check_failed_batch_is_not_committed,
    "works_after_a_failed_batch": check_works_after_a_failed_batch,
    "sizes_are_checked_first": check_sizes_are_checked_first,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_rule(check: Check, kafka_one: KafkaCluster) -> None:
    """The rule's check holds (its docstring is the claim)."""
    run(check, KafkaHarness(kafka_one.bootstrap))


def run(check: Check, harness: KafkaHarness) -> None:
    async def main() -> None:
        try:
            await check(harness)
        finally:
            await harness.close()

    asyncio.run(main())


Patch = tuple[object, str, object]

WITHOUT: tuple[tuple[str, str, Check, Patch], ...] = (
    (
        "await every send before the commit",
        "failed_batch_is_not_committed",
        check_failed_batch_is_not_committed,
        (membership, "Writer", CommitsAnyway),
    ),
    (
        "a new producer after an error",
        "works_after_a_failed_batch",
        check_works_after_a_failed_batch,
        (membership, "Writer", KeepsProducer),
    ),
    ("sizes first", "sizes_are_checked_first", check_sizes_are_checked_first, (KafkaHarness, "bus", NoSizes)),
    (
        "one transactional id per lease",
        "old_lease_cannot_step",
        bus_contract_groups.check_old_lease_cannot_step,
        (KafkaHarness, "settings", IdOfItsOwn),
    ),
    (
        "offsets after the fence",
        "offsets_are_read_after_the_fence",
        bus_contract_groups.check_offsets_are_read_after_the_fence,
        (KafkaHarness, "bus", OffsetsBeforeFence),
    ),
    (
        "the old holder lets go first",
        "revoke_barrier",
        bus_contract_groups.check_revoke_barrier,
        (groups, "share_out", given_at_once),
    ),
    (
        "errors of callbacks are not swallowed",
        "failing_callback_ends_the_membership",
        bus_contract_groups.check_failing_callback_ends_the_membership,
        (membership, "call_back", call_and_swallow),
    ),
)


@pytest.mark.parametrize(("rule", "name", "check", "patch"), WITHOUT, ids=[each[0] for each in WITHOUT])
def test_without_the_rule(
    rule: str,
    name: str,
    check: Check,
    patch: Patch,
    kafka_one: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the rule taken out, its check fails, so the check is there for something."""
    assert name in CHECKS or name in bus_contract.CHECKS | GROUPS
    where, attribute, replacement = patch
    if attribute == "bus":
        harness = KafkaHarness(kafka_one.bootstrap, replacement)  # type: ignore[arg-type]
    elif attribute == "settings":
        harness = OwnIds(kafka_one.bootstrap)
    else:
        monkeypatch.setattr(where, attribute, replacement)
        harness = KafkaHarness(kafka_one.bootstrap)
    with pytest.raises((AssertionError, ExceptionGroup, PvbusError, TimeoutError)):
        run(check, harness)


class OwnIds(KafkaHarness):
    """Each worker with settings, and so with transactional ids, of its own."""

    async def open(self) -> KafkaBus:
        fields = {name: getattr(self.settings, name) for name in KafkaSettings.__struct_fields__}
        bus = await KafkaBus.open(IdOfItsOwn(**fields))
        self._buses.append(bus)
        return bus
