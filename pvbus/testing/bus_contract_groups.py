"""What every bus must do, continued: groups, claims, fencing and handing over.

The checks run workers whose callbacks take their time, and watch two things: when which callback of
which worker ran, and, in the log itself, that no epoch writes after a newer one did.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from pvbus.core.errors import FencedError
from pvbus.ports.bus import Bus, Claim, Membership, Output, PartitionState
from pvbus.testing.bus_contract import (
    GROUP,
    PARTITIONS,
    TOPICS,
    Check,
    Harness,
    everything,
    expect,
    fold,
    holder,
    ignore,
    read_all,
    settled,
)

CHURN_SEEDS = range(6)
CHURN_STEPS = 40


class Worker:
    """A member that notes which claims it was given, and lets a check take part in its callbacks."""

    def __init__(self, harness: Harness, bus: Bus) -> None:
        self.harness = harness
        self.bus = bus
        self.membership: Membership | None = None
        self.given: list[Claim] = []
        self.taken: list[Claim] = []
        self.on_assigned: Callable[[Claim], Awaitable[None]] = ignore
        self.on_revoked: Callable[[Claim], Awaitable[None]] = ignore

    @classmethod
    async def open(cls, harness: Harness) -> "Worker":
        bus = await harness.open()
        await bus.create_topics(TOPICS)
        return cls(harness, bus)

    async def join(self) -> "Worker":
        self.membership = await self.bus.join(
            GROUP, ["table"], assigned=self._assigned, revoked=self._revoked
        )
        return self

    async def _assigned(self, claim: Claim) -> None:
        self.given.append(claim)
        await self.on_assigned(claim)

    async def _revoked(self, claim: Claim) -> None:
        await self.on_revoked(claim)
        self.taken.append(claim)

    def claims(self) -> dict[int, Claim]:
        return dict(self.membership.claims()) if self.membership else {}

    async def leave(self) -> None:
        assert self.membership
        await self.membership.leave()

    async def holds(self, count: int, within_seconds: float) -> None:
        await settled(lambda: len(self.claims()) == count, within_seconds, f"a worker holds {count} claims")


async def all_owned(workers: Sequence[Worker], within_seconds: float) -> None:
    """Wait until every partition has one holder among these workers, and loads differ by one at most."""

    def is_so() -> bool:
        held = [number for worker in workers for number in worker.claims()]
        loads = [len(worker.claims()) for worker in workers]
        return sorted(held) == list(range(PARTITIONS)) and max(loads) - min(loads) <= 1

    await settled(is_so, within_seconds, "every partition has one owner, and all have their shares")


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


# Everything at once


class Churn:
    """Workers that come, go, die and freeze at random, while all step as fast as they can."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness = harness
        self.rng = random.Random(seed)
        self.workers: list[Worker] = []
        self.frozen: list[Worker] = []
        self.thawed: dict[Worker, float] = {}
        self.open: dict[int, set[Worker]] = {number: set() for number in range(PARTITIONS)}
        self.stepping: dict[Worker, asyncio.Task[None]] = {}
        self.epochs: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.violations: list[str] = []

    async def read_epochs(self, bus: Bus) -> None:
        """Collect, in order, the epochs that were written, as long as this task is let."""
        reader = bus.reader(everything("events"))
        while True:
            for record in await reader.poll(timeout_seconds=10):
                self.epochs[record.partition].append(int(record.value or b""))

    async def add(self) -> None:
        worker = await Worker.open(self.harness)

        async def assigned(claim: Claim) -> None:
            others = self.open[claim.partition] - {worker}
            if others and not any(self._was_frozen(one) for one in (worker, *others)):
                self.violations.append(f"{claim} was given while {len(others)} others held it")
            self.open[claim.partition].add(worker)
            await asyncio.sleep(self.rng.uniform(0, 0.5) * self.harness.drain_seconds)

        async def revoked(claim: Claim) -> None:
            await asyncio.sleep(self.rng.uniform(0, 0.8) * self.harness.drain_seconds)
            self.open[claim.partition].discard(worker)

        worker.on_assigned, worker.on_revoked = assigned, revoked
        await worker.join()
        self.workers.append(worker)
        self.stepping[worker] = asyncio.create_task(self._step(worker))

    async def _step(self, worker: Worker) -> None:
        """Write the epoch of each claim into the log, again and again."""
        while True:
            for number, claim in worker.claims().items():
                try:
                    await worker.bus.step(claim, [Output("events", number, b"epoch", b"%d" % claim.epoch)])
                except FencedError:
                    continue  # that is what it is for
            await asyncio.sleep(0.3)

    async def remove(self, worker: Worker, *, is_killed: bool) -> None:
        self.workers.remove(worker)
        self.stepping.pop(worker).cancel()
        if is_killed:
            self._excuse(worker)
            await self.harness.kill(worker.bus)
        else:
            await worker.leave()

    def freeze(self, worker: Worker) -> None:
        self._excuse(worker)
        self.harness.freeze(worker.bus)
        self.frozen.append(worker)

    def thaw(self) -> None:
        worker = self.frozen.pop(0)
        self.thawed[worker] = asyncio.get_running_loop().time()
        self.harness.thaw(worker.bus)

    def _was_frozen(self, worker: Worker) -> bool:
        """Whether it may still act on answers from before it was frozen: for a session it need not know that
        the group went on without it. Its epochs are what protects the others then."""
        since = self.thawed.get(worker)
        now = asyncio.get_running_loop().time()
        return worker in self.frozen or (since is not None and now - since < self.harness.session_seconds)

    def _excuse(self, worker: Worker) -> None:
        """One that cannot answer is not asked to let go: its epochs are what protects the others."""
        for holders in self.open.values():
            holders.discard(worker)

    def all_write(self) -> bool:
        """Whether the last epoch that was written to each partition is its holder's."""
        claims = (claim for worker in self.workers for claim in worker.claims().values())
        return all(self.epochs[claim.partition][-1:] == [claim.epoch] for claim in claims)

    async def run(self) -> None:
        await self.add()
        for _ in range(CHURN_STEPS):
            awake = [worker for worker in self.workers if worker not in self.frozen]
            action = self.rng.choice(["add", "leave", "kill", "freeze", "thaw", "nothing"])
            if action == "add" and len(self.workers) < PARTITIONS + 1:
                await self.add()
            elif action in ("leave", "kill") and len(awake) > 1:
                await self.remove(self.rng.choice(awake), is_killed=action == "kill")
            elif action == "freeze" and len(awake) > 1:
                self.freeze(self.rng.choice(awake))
            elif action == "thaw" and self.frozen:
                self.thaw()
            await asyncio.sleep(self.rng.uniform(0, self.harness.session_seconds / 2))
        while self.frozen:
            self.thaw()


def churn(seed: int) -> Check:
    async def check(harness: Harness) -> None:
        """At every moment a partition has one live holder at most, and in bounded time again one."""
        world = Churn(harness, seed)
        bus = await harness.open()
        await bus.create_topics(TOPICS)
        reading = asyncio.create_task(world.read_epochs(bus))
        try:
            await world.run()
            bound = harness.session_seconds + 3 * (harness.handover_seconds + harness.drain_seconds)
            await all_owned(world.workers, bound)
            await asyncio.sleep(1)  # all step, and what they write is read
            await settled(world.all_write, harness.handover_seconds, "each holder was the last to write")
            for task in (reading, *world.stepping.values()):
                assert not task.done(), task
        finally:
            for task in (reading, *world.stepping.values()):
                task.cancel()
        assert world.violations == []
        for number, written in world.epochs.items():
            assert len(written) > CHURN_STEPS, number
            assert written == sorted(written), f"an old epoch wrote after a newer one: partition {number}"

    return check


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
} | {f"churn_{seed}": churn(seed) for seed in CHURN_SEEDS}
"""All checks of this module, by name."""
