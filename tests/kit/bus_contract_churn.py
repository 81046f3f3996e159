"""The bus contract while workers join, leave, crash and freeze at random."""

import asyncio
import random

from pvbus.core.errors import FencedError, TransientError
from pvbus.ports.bus import Bus, Lease, Output
from tests.kit.bus_contract import PARTITIONS, TOPICS, Check, Harness, everything, settled
from tests.kit.bus_contract_worker import Worker, all_owned

CHURN_SEEDS = range(6)
CHURN_STEPS = 40


class Churn:
    """Workers that join, leave, crash and freeze at random, while all of them step."""

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
        """Collect the written epochs in order, until this task is cancelled."""
        reader = bus.reader(everything("events"))
        while True:
            for record in await reader.poll(timeout_seconds=10):
                self.epochs[record.partition].append(int(record.value or b""))

    async def add(self) -> None:
        worker = await Worker.open(self.harness)

        async def assigned(lease: Lease) -> None:
            others = self.open[lease.partition] - {worker}
            if others and not any(self._was_frozen(one) for one in (worker, *others)):
                self.violations.append(f"{lease} was assigned while {len(others)} other workers held it")
            self.open[lease.partition].add(worker)
            await asyncio.sleep(self.rng.uniform(0, 0.5) * self.harness.drain_seconds)

        async def revoked(lease: Lease) -> None:
            await asyncio.sleep(self.rng.uniform(0, 0.8) * self.harness.drain_seconds)
            self.open[lease.partition].discard(worker)

        worker.on_assigned, worker.on_revoked = assigned, revoked
        await worker.join()
        self.workers.append(worker)
        self.stepping[worker] = asyncio.create_task(self._step(worker))

    async def _step(self, worker: Worker) -> None:
        """Write the epoch of each lease to the log repeatedly."""
        while True:
            for number, lease in worker.leases().items():
                try:
                    await worker.bus.step(lease, [Output("events", number, b"epoch", b"%d" % lease.epoch)])
                except FencedError:
                    continue  # the fence works as intended
                except TransientError:
                    continue  # the outcome is unknown, as a step may say: the holder writes again
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
        """Return whether the worker is frozen, or was thawed less than a session ago: so long it may act on
        responses from before the freeze, and only the fence protects the others."""
        since = self.thawed.get(worker)
        now = asyncio.get_running_loop().time()
        return worker in self.frozen or (since is not None and now - since < self.harness.session_seconds)

    def _excuse(self, worker: Worker) -> None:
        """Stop counting the worker as a holder: it cannot answer a revocation, so only the fence protects
        the others."""
        for holders in self.open.values():
            holders.discard(worker)

    def silent(self) -> list[Lease]:
        """Return the leases whose holders were not the last to write to their partitions."""
        leases = (lease for worker in self.workers for lease in worker.leases().values())
        return [lease for lease in leases if self.epochs[lease.partition][-1:] != [lease.epoch]]

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
        """A partition always has at most one live holder, and gets a new one in bounded time."""
        world = Churn(harness, seed)
        bus = await harness.open()
        await bus.create_topics(TOPICS)
        reading = asyncio.create_task(world.read_epochs(bus))
        try:
            await world.run()
            bound = harness.session_seconds + 3 * (harness.handover_seconds + harness.drain_seconds)
            await all_owned(world.workers, bound)
            await asyncio.sleep(1)  # all workers step, and their records are read
            await settled(
                lambda: not world.silent(), harness.handover_seconds, "each holder was the last to write"
            )
            for task in (reading, *world.stepping.values()):
                assert not task.done(), task
        except AssertionError as exc:
            exc.add_note(f"leases whose holders do not write: {world.silent()}")
            raise
        finally:
            for task in (reading, *world.stepping.values()):
                task.cancel()
        assert world.violations == []
        for number, written in world.epochs.items():
            assert len(written) > CHURN_STEPS, number
            assert written == sorted(written), f"an old epoch wrote after a newer one: partition {number}"

    return check


CHECKS: dict[str, Check] = {f"churn_{seed}": churn(seed) for seed in CHURN_SEEDS}
"""All checks of this module, by name."""
