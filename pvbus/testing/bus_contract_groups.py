"""What every bus must do, continued: groups, claims, fencing and handing over.

The checks run workers whose callbacks take their time, and watch two things: when which callback of
which worker ran, and, in the log itself, that no epoch writes after a newer one did.
"""

import asyncio

from pvbus.core.errors import FencedError
from pvbus.ports.bus import Claim, Output, PartitionState
from pvbus.testing.bus_contract import (
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
from pvbus.testing.bus_contract_worker import Worker, all_owned

# Joining and leaving


async def check_claims_are_shared_and_stay(harness: Harness) -> None:
    """A worker that joins gets its share; claims that need not move keep their epochs and are not called."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    before = first.claims()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    kept = first.claims()
    assert len(kept) == PARTITIONS // 2
    assert all(before[number] == claim for number, claim in kept.items())
    assert sorted(claim.partition for claim in first.taken) == sorted(second.claims())
    assert len(first.given) == PARTITIONS
    assert all(claim.epoch > before[number].epoch for number, claim in second.claims().items())
    third = await (await Worker.open(harness)).join()
    await all_owned([first, second, third], 2 * harness.handover_seconds)
    assert len(third.claims()) == 1
    assert len(first.claims() | second.claims()) == PARTITIONS - 1


async def check_leaving_hands_over_at_once(harness: Harness) -> None:
    """When a worker leaves, its callbacks run, and others have its claims without waiting for a session."""
    first = await (await Worker.open(harness)).join()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    left = first.claims()
    await first.leave()
    assert first.claims() == {}
    assert {claim.partition for claim in first.taken} >= set(left)
    await second.holds(PARTITIONS, harness.handover_seconds)
    for claim in left.values():
        await expect(FencedError, first.bus.step(claim, [Output("out", 0, b"k", b"old")]))


async def check_epochs_tell_who_was_between(harness: Harness) -> None:
    """A claim that comes back has the next epoch if nobody else had it meanwhile, else a later one."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    before = first.claims()
    await first.bus.step(before[0], [Output("out", 0, b"k", b"v")], {"table": 1})
    await first.leave()
    await (await first.join()).holds(PARTITIONS, harness.handover_seconds)
    back = first.claims()
    assert [back[n].epoch - before[n].epoch for n in range(PARTITIONS)] == [1] * PARTITIONS
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    theirs = second.claims()
    await second.leave()
    await first.holds(PARTITIONS, harness.handover_seconds)
    assert all(first.claims()[n].epoch > back[n].epoch + 1 for n in theirs)


async def check_killed_worker_is_replaced(harness: Harness) -> None:
    """The claims of a killed worker find new owners when its session is over, at the latest."""
    first = await (await Worker.open(harness)).join()
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    await harness.kill(first.bus)
    await second.holds(
        PARTITIONS, harness.session_seconds + harness.handover_seconds + harness.margin_seconds
    )
    for claim in second.claims().values():
        await second.bus.step(claim, [Output("out", claim.partition, b"k", b"v")], {"table": 1})


# Fencing


async def check_old_claim_cannot_step(harness: Harness) -> None:
    """Once a claim is given to another worker, the old one cannot step or read offsets, at any time."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.claims()
    await first.bus.step(old[0], [Output("out", 0, b"k", b"first")], {"table": 1})
    harness.freeze(first.bus)
    second = await Worker.open(harness)
    refused: list[int] = []

    async def try_the_old_one(claim: Claim) -> None:
        number = claim.partition
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
    assert await second.bus.committed(second.claims()[0], ["table"]) == {"table": 1}
    await second.bus.step(second.claims()[0], [Output("out", 0, b"k", b"second")], {"table": 2})
    assert fold(await read_all(second.bus, "out")) == {b"k": b"second"}


async def check_frozen_worker_comes_back(harness: Harness) -> None:
    """A worker that was frozen past its session is told that it lost its claims, and gets its share again."""
    first = await (await Worker.open(harness)).join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.claims()
    harness.freeze(first.bus)
    second = await (await Worker.open(harness)).join()
    await second.holds(
        PARTITIONS, harness.session_seconds + harness.handover_seconds + harness.margin_seconds
    )
    assert first.taken == []
    harness.thaw(first.bus)
    await all_owned([first, second], 3 * harness.handover_seconds)
    assert {claim.partition: claim for claim in first.taken} == old
    assert not set(first.claims().values()) & set(old.values())
    for worker in (first, second):
        for claim in worker.claims().values():
            await worker.bus.step(claim, [], {"table": 1})


async def check_offsets_are_read_after_the_fence(harness: Harness) -> None:
    """What the old holder commits to the very end, the new one starts from."""
    first = await Worker.open(harness)

    async def last_words(claim: Claim) -> None:
        number = claim.partition
        await first.bus.step(claim, [Output("out", number, b"last-%d" % number, b"v")], {"table": 5})

    first.on_revoked = last_words
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    second = await Worker.open(harness)
    started: dict[int, int] = {}

    async def start(claim: Claim) -> None:
        started[claim.partition] = (await second.bus.committed(claim, ["table"]))["table"]

    second.on_assigned = start
    await second.join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    await settled(lambda: len(started) == PARTITIONS // 2, harness.margin_seconds, "the new owner started")
    assert set(started.values()) == {5}
    assert len(fold(await read_all(second.bus, "out"))) == PARTITIONS // 2


# The revoke barrier


async def check_revoke_barrier(harness: Harness) -> None:
    """A claim is given to the next worker only when the last one's `revoked` has returned."""
    first, second = await Worker.open(harness), await Worker.open(harness)
    revoking: set[int] = set()
    violations: list[int] = []

    async def slowly(claim: Claim) -> None:
        revoking.add(claim.partition)
        await asyncio.sleep(harness.drain_seconds * 0.7)
        await first.bus.step(claim, [], {"table": 1})  # still the holder
        revoking.remove(claim.partition)

    async def note(claim: Claim) -> None:
        if claim.partition in revoking or claim.partition in first.claims():
            violations.append(claim.partition)

    first.on_revoked = slowly
    second.on_assigned = note
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    await second.join()
    await all_owned([first, second], 2 * harness.handover_seconds + harness.drain_seconds)
    assert violations == []
    assert len(first.taken) == PARTITIONS // 2


async def check_drain_has_a_deadline(harness: Harness) -> None:
    """A `revoked` that never returns delays the next holder for the drain time only, and is fenced."""
    first = await Worker.open(harness)
    ended: list[int] = []

    async def never(claim: Claim) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(claim.partition)

    first.on_revoked = never
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    old = first.claims()
    second = await (await Worker.open(harness)).join()
    await second.holds(PARTITIONS // 2, 2 * harness.handover_seconds + harness.drain_seconds)
    await all_owned([first, second], harness.margin_seconds)
    for number in second.claims():
        await expect(FencedError, first.bus.step(old[number], [], {"table": 1}))
    assert sorted(ended) == sorted(second.claims())


async def check_assigned_is_cut_short(harness: Harness) -> None:
    """A claim that goes while `assigned` still runs: that is cancelled, and `revoked` follows."""
    first = await Worker.open(harness)
    cancelled: list[int] = []

    async def long_restore(claim: Claim) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(claim.partition)
            raise

    first.on_assigned = long_restore
    await first.join()
    await first.holds(PARTITIONS, harness.handover_seconds)
    second = await (await Worker.open(harness)).join()
    await all_owned([first, second], 2 * harness.handover_seconds)
    assert sorted(cancelled) == sorted(claim.partition for claim in first.taken) == sorted(second.claims())


async def check_failing_callback_ends_the_membership(harness: Harness) -> None:
    """An error in a callback is not swallowed: the worker is out and says why, others take over."""
    first = await Worker.open(harness)

    async def fail(claim: Claim) -> None:
        raise ValueError("restore failed")

    first.on_assigned = fail
    await first.join()
    assert first.membership
    await expect(ExceptionGroup, asyncio.wait_for(first.membership.wait_left(), harness.handover_seconds))
    assert first.claims() == {}
    second = await (await Worker.open(harness)).join()
    await second.holds(PARTITIONS, harness.handover_seconds)


async def check_two_groups_are_apart(harness: Harness) -> None:
    """Groups share topics, not claims, epochs or offsets."""
    async with holder(harness) as (bus, claims):
        other = await harness.open()
        membership = await other.join("other", ["table"], assigned=ignore, revoked=ignore)
        await settled(
            lambda: len(membership.claims()) == PARTITIONS, harness.handover_seconds, "its own claims"
        )
        await bus.step(claims[0], [], {"table": 4})
        assert await other.committed(membership.claims()[0], ["table"]) == {"table": 0}
        await other.step(membership.claims()[0], [], {"table": 1})
        assert await bus.committed(claims[0], ["table"]) == {"table": 4}


async def check_groups_are_described(harness: Harness) -> None:
    """Anybody sees who holds what, what they tell of themselves, and how far they are; nobody is ""."""
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

    async def is_told() -> bool:
        group = await observer.describe(GROUP, ["table"])
        held = {number: worker for worker in workers for number in worker.claims()}
        staying = {w.membership.member_id: w.bus.label for w in workers if w.membership and w.claims()}
        owners = {number: group.members.get(each.owner, "") for number, each in group.partitions.items()}
        wanted = {number: held[number].bus.label if number in held else "" for number in numbers}
        return group.members == staying and owners == wanted

    await settled(is_told, harness.handover_seconds, "labels and owners are told")
    for worker in workers:
        for number, claim in worker.claims().items():
            await worker.bus.step(claim, [], {"table": number + 5})

    async def is_committed() -> bool:
        group = await observer.describe(GROUP, ["table", "out"])
        committed = {number: dict(each.committed) for number, each in group.partitions.items()}
        return committed == {number: {"table": number + 5, "out": 0} for number in numbers}

    await settled(is_committed, harness.visible_within_seconds, "offsets are told")
    for worker in reversed(workers):
        await worker.leave()
        await settled(is_told, 2 * harness.handover_seconds, "who left is told")
        assert await is_committed()
    assert (await observer.describe(GROUP, ["table"])).members == {}


CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}
"""All checks of this module, by name."""
