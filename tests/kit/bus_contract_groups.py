"""The bus contract, continued: groups, leases, fencing and handover.

The checks run workers with slow callbacks, and watch two things: the order of the workers' callbacks,
and, in the log itself, that no epoch writes after a newer one.
"""

import asyncio

from pvbus.core.errors import FencedError, PermanentError
from pvbus.ports.bus import GroupOffsets, Lease, Output, PartitionState
from tests.kit.bus_contract import (
    GROUP,
    PARTITIONS,
    TOPICS,
    Check,
    Harness,
    expect,
    fold,
    holder,
    ignore,
    read_all,
    settled,
)
from tests.kit.bus_contract_worker import Worker, all_owned

# Joining and leaving


async def check_leases_are_shared_and_stay(harness: Harness) -> None:
    """A joining worker gets its share; leases that need not move keep their epochs and get no callbacks."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    before = first.leases()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    retained = first.leases()
    assert len(retained) == PARTITIONS // 2
    assert all(before[number] == lease for number, lease in retained.items())
    assert sorted(lease.partition for lease in first.taken) == sorted(second.leases())
    assert len(first.given) == PARTITIONS
    assert all(lease.epoch > before[number].epoch for number, lease in second.leases().items())
    third = await (await Worker.open(harness)).join()
    await all_owned([first, second, third], 2 * harness.handover_seconds)
    assert len(third.leases()) == 1
    assert len(first.leases() | second.leases()) == PARTITIONS - 1


async def check_leaving_hands_over_at_once(harness: Harness) -> None:
    """When a worker leaves, its callbacks run, and others get its leases without waiting for a session."""
    first = await (await Worker.open(harness)).join()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    left = first.leases()
    await first.leave()
    assert first.leases() == {}
    assert {lease.partition for lease in first.taken} >= set(left)
    await second.holds(PARTITIONS, harness.handover_seconds)
    for lease in left.values():
        await expect(FencedError, first.bus.step(lease, [Output("out", 0, b"k", b"old")]))


async def check_epochs_tell_who_was_between(harness: Harness) -> None:
    """A lease that comes back has the next epoch if no other worker held it meanwhile, else a later one."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    before = first.leases()
    await first.bus.step(before[0], [Output("out", 0, b"k", b"v")], {"table": 1})
    await first.leave()
    await (await first.join()).holds(PARTITIONS, harness.handover_seconds)
    back = first.leases()
    assert [back[n].epoch - before[n].epoch for n in range(PARTITIONS)] == [1] * PARTITIONS
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    theirs = second.leases()
    await second.leave()
    await first.holds(PARTITIONS, harness.handover_seconds)
    assert all(first.leases()[n].epoch > back[n].epoch + 1 for n in theirs)


async def check_killed_worker_is_replaced(harness: Harness) -> None:
    """The leases of a killed worker have new owners at the latest when its session is over."""
    first = await (await Worker.open(harness)).join()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    await harness.kill(first.bus)
    await second.holds(
        PARTITIONS, harness.session_seconds + harness.handover_seconds + harness.margin_seconds
    )
    for lease in second.leases().values():
        await second.bus.step(lease, [Output("out", lease.partition, b"k", b"v")], {"table": 1})


# Fencing


async def check_old_lease_cannot_step(harness: Harness) -> None:
    """Once a lease has moved to another worker, the old holder can neither step nor read offsets."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.leases()
    await first.bus.step(old[0], [Output("out", 0, b"k", b"first")], {"table": 1})
    harness.freeze(first.bus)
    second = await Worker.open(harness)
    refused: list[int] = []

    async def try_the_old_one(lease: Lease) -> None:
        number = lease.partition
        await expect(
            FencedError, first.bus.step(old[number], [Output("out", number, b"k", b"old")], {"table": 9})
        )
        await expect(FencedError, first.bus.committed(old[number], ["table"]))
        refused.append(number)

    second.on_assigned = try_the_old_one
    await second.join()
    await second.holds(
        PARTITIONS, harness.session_seconds + harness.handover_seconds + harness.margin_seconds
    )
    await settled(
        lambda: sorted(refused) == list(range(PARTITIONS)), harness.margin_seconds, "all were refused"
    )
    assert fold(await read_all(second.bus, "out")) == {b"k": b"first"}
    assert await second.bus.committed(second.leases()[0], ["table"]) == {"table": 1}
    await second.bus.step(second.leases()[0], [Output("out", 0, b"k", b"second")], {"table": 2})
    assert fold(await read_all(second.bus, "out")) == {b"k": b"second"}


async def check_frozen_worker_comes_back(harness: Harness) -> None:
    """A worker frozen past its session gets `revoked` for its lost leases, and then a share again."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.leases()
    harness.freeze(first.bus)
    second = await (await Worker.open(harness)).join()
    await second.holds(
        PARTITIONS, harness.session_seconds + harness.handover_seconds + harness.margin_seconds
    )
    assert first.taken == []
    harness.thaw(first.bus)
    await all_owned([first, second], 3 * harness.handover_seconds)
    assert {lease.partition: lease for lease in first.taken} == old
    assert not set(first.leases().values()) & set(old.values())
    for worker in (first, second):
        for lease in worker.leases().values():
            await worker.bus.step(lease, [], {"table": 1})


async def check_offsets_are_read_after_the_fence(harness: Harness) -> None:
    """The new holder starts from the last offsets that the old one committed."""
    first = await Worker.open(harness)

    async def last_words(lease: Lease) -> None:
        number = lease.partition
        await first.bus.step(lease, [Output("out", number, b"last-%d" % number, b"v")], {"table": 5})

    first.on_revoked = last_words
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    second = await Worker.open(harness)
    started: dict[int, int] = {}

    async def start(lease: Lease) -> None:
        started[lease.partition] = (await second.bus.committed(lease, ["table"]))["table"]

    second.on_assigned = start
    await second.join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    await settled(lambda: len(started) == PARTITIONS // 2, harness.margin_seconds, "the new owner started")
    assert set(started.values()) == {5}
    assert len(fold(await read_all(second.bus, "out"))) == PARTITIONS // 2


# The revoke barrier


async def check_revoke_barrier(harness: Harness) -> None:
    """A lease is assigned to the next worker only after the previous one's `revoked` has returned."""
    first, second = await Worker.open(harness), await Worker.open(harness)
    revoking: set[int] = set()
    violations: list[int] = []

    async def slowly(lease: Lease) -> None:
        revoking.add(lease.partition)
        await asyncio.sleep(harness.drain_seconds * 0.7)
        await first.bus.step(lease, [], {"table": 1})  # still the holder
        revoking.remove(lease.partition)

    async def note(lease: Lease) -> None:
        if lease.partition in revoking or lease.partition in first.leases():
            violations.append(lease.partition)

    first.on_revoked = slowly
    second.on_assigned = note
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    await second.join()
    await all_owned([first, second], 2 * harness.handover_seconds + harness.drain_seconds)
    assert violations == []
    assert len(first.taken) == PARTITIONS // 2


async def check_drain_has_a_deadline(harness: Harness) -> None:
    """A `revoked` that never returns delays the next holder only for the drain time, and is fenced."""
    first = await Worker.open(harness)
    ended: list[int] = []

    async def never(lease: Lease) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(lease.partition)

    first.on_revoked = never
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.leases()
    second = await (await Worker.open(harness)).join()
    await second.holds(PARTITIONS // 2, 2 * harness.handover_seconds + harness.drain_seconds)
    await all_owned([first, second], harness.margin_seconds)
    for number in second.leases():
        await expect(FencedError, first.bus.step(old[number], [], {"table": 1}))
    assert sorted(ended) == sorted(second.leases())


async def check_assigned_is_cut_short(harness: Harness) -> None:
    """If a lease is lost while `assigned` runs, `assigned` is cancelled and `revoked` follows."""
    first = await Worker.open(harness)
    cancelled: list[int] = []

    async def long_restore(lease: Lease) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(lease.partition)
            raise

    first.on_assigned = long_restore
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    assert sorted(cancelled) == sorted(lease.partition for lease in first.taken) == sorted(second.leases())


async def check_failing_callback_ends_the_membership(harness: Harness) -> None:
    """An error in a callback is not swallowed: the worker leaves with that error, others take over."""
    first = await Worker.open(harness)

    async def fail(lease: Lease) -> None:
        raise ValueError("restore failed")

    first.on_assigned = fail
    await first.join()
    assert first.membership
    await expect(ExceptionGroup, asyncio.wait_for(first.membership.wait_left(), harness.handover_seconds))
    assert first.leases() == {}
    second = await (await Worker.open(harness)).join()
    await second.holds(PARTITIONS, harness.handover_seconds)


async def check_two_groups_are_apart(harness: Harness) -> None:
    """Groups share topics, not leases, epochs or offsets."""
    async with holder(harness) as (bus, leases):
        other = await harness.open()
        membership = await other.join("other", ["table"], assigned=ignore, revoked=ignore)
        await settled(
            lambda: len(membership.leases()) == PARTITIONS, harness.handover_seconds, "its own leases"
        )
        await bus.step(leases[0], [], {"table": 4})
        assert await other.committed(membership.leases()[0], ["table"]) == {"table": 0}
        await other.step(membership.leases()[0], [], {"table": 1})
        assert await bus.committed(leases[0], ["table"]) == {"table": 4}


async def check_readers_of_topics_are_listed(harness: Harness) -> None:
    """Any bus lists the groups that have committed offsets of topics: those partitions, and no others."""
    async with holder(harness) as (bus, leases):
        observer = await harness.open()

        async def found(*topics: str) -> list[GroupOffsets]:
            listed = await observer.readers_of(topics)
            assert all(name.endswith(GROUP) for name in listed)
            return list(listed.values())

        assert await found("table") == []
        await bus.step(leases[1], [], {"table": 4})

        async def is_listed() -> bool:
            return await found("table", "out") == [GroupOffsets("Stable", {("table", 1): 4})]

        await settled(is_listed, harness.visible_within_seconds, "the committed offset is listed")
        assert await found("out") == []
        await expect(PermanentError, observer.readers_of(["absent"]))


async def check_groups_are_described(harness: Harness) -> None:
    """Any bus can describe a group: owners, labels and committed offsets; no owner is ""."""
    observer = await harness.open()
    await observer.create_topics(TOPICS)
    numbers = range(PARTITIONS)
    assert await observer.describe(GROUP, ["table"]) == (
        {},
        {number: PartitionState("", {"table": 0}) for number in numbers},
    )
    workers = [await Worker.open(harness) for _ in range(2)]
    for name, worker in zip(("http://first:1", "http://second:2"), workers, strict=True):
        worker.bus.label = name
        await worker.join()
    await all_owned(workers, 2 * harness.handover_seconds)

    async def is_reported() -> bool:
        group = await observer.describe(GROUP, ["table"])
        held = {number: worker for worker in workers for number in worker.leases()}
        staying = {w.membership.member_id: w.bus.label for w in workers if w.membership and w.leases()}
        owners = {number: group.members.get(each.owner, "") for number, each in group.partitions.items()}
        wanted = {number: held[number].bus.label if number in held else "" for number in numbers}
        return group.members == staying and owners == wanted

    await settled(is_reported, harness.handover_seconds, "labels and owners are reported")
    for worker in workers:
        for number, lease in worker.leases().items():
            await worker.bus.step(lease, [], {"table": number + 5})

    async def is_committed() -> bool:
        group = await observer.describe(GROUP, ["table", "out"])
        committed = {number: dict(each.committed) for number, each in group.partitions.items()}
        return committed == {number: {"table": number + 5, "out": 0} for number in numbers}

    await settled(is_committed, harness.visible_within_seconds, "offsets are reported")
    for worker in reversed(workers):
        await worker.leave()
        await settled(is_reported, 2 * harness.handover_seconds, "a worker that left is reported")
        assert await is_committed()
    assert (await observer.describe(GROUP, ["table"])).members == {}


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
"""All checks of this module, by name."""
