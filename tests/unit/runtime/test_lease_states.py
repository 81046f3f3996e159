"""The states of a lease: the table against every pair, and a holder that takes a lease through all of it."""

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pvbus.adapters.clock import SystemClock
from pvbus.adapters.memory.virtual_time import SimulatedClock
from pvbus.core.errors import FencedError, InvariantError, TransientError
from pvbus.ports.bus import Lease, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.holder import KEEP_SECONDS, HeldLease, LeaseHolder
from pvbus.runtime.reconcile.reader import StaleError, TableReader
from pvbus.runtime.reconcile.states import TRANSITIONS, LeaseEvent, LeaseState, after
from tests.kit.processes import run_simulated

EXPECTED = """
              | Restored       | Interrupted    | Restarted | Fenced | Revoked | Retained | Returned  | Closed
Restoring     | Running        | OutcomeUnknown |           | Lost   | Lost    |          |           |
Running       |                | OutcomeUnknown |           | Lost   | Revoked |          |           |
OutcomeUnknown| OutcomeUnknown | OutcomeUnknown | Restoring | Lost   | Lost    |          |           |
Revoked       |                | Lost           |           | Lost   |         | Retained |           | Closed
Lost          | Lost           | Lost           |           | Lost   | Lost    |          |           | Closed
Retained      |                |                |           |        |         |          | Restoring | Closed
Closed        |                | Closed         |           | Closed |         |          |           |
"""


def expected() -> dict[tuple[LeaseState, LeaseEvent], LeaseState | None]:
    """Return the table above: the next state of each pair, None where the event cannot come."""
    head, *lines = [[cell.strip() for cell in line.split("|")] for line in EXPECTED.strip("\n").splitlines()]
    return {
        (LeaseState(state), LeaseEvent(event)): LeaseState(then) if then else None
        for state, *cells in lines
        for event, then in zip(head[1:], cells, strict=True)
    }


@pytest.mark.parametrize(
    ("state", "event"),
    list(itertools.product(LeaseState, LeaseEvent)),
    ids=lambda each: each.value,
)
def test_every_pair_has_its_state_or_raises(state: LeaseState, event: LeaseEvent) -> None:
    lease = Held(Lease(group="g", partition=0, epoch=1), SystemClock())
    lease.state = state
    then = expected()[state, event]
    if then is None:
        with pytest.raises(InvariantError):
            lease.enter(event)
        assert lease.state is state
    else:
        lease.enter(event)
        assert lease.state is then is after(state, event)


class Held(HeldLease):
    """A lease that notes what happens to it. settled: nothing is in flight."""

    dirty_count = 0
    settled = True

    def __init__(self, lease: Lease, clock: Clock) -> None:
        super().__init__(lease, clock)
        self.seen: list[tuple[LeaseState, LeaseEvent]] = []

    @property
    def is_settled(self) -> bool:
        return self.restored and self.settled

    def enter(self, event: LeaseEvent) -> None:
        self.seen.append((self.state, event))
        super().enter(event)


class Bus:
    """A bus whose members get leases from a test only."""

    session_seconds = 10.0

    async def join(self, group: str, topics: Sequence[str], *, assigned: Any, revoked: Any) -> "Bus":
        return self

    async def wait_left(self) -> None:
        await asyncio.Event().wait()

    async def leave(self) -> None:
        return

    def reader(self, positions: Mapping[TopicPartition, int] | None = None) -> "Bus":
        return self

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        return

    def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        return

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        return

    async def close(self) -> None:
        return


class Work:
    """A worker whose restores and drains end when a test says so."""

    name = "toy"
    inputs: tuple[str, ...] = ("toy.in",)

    def __init__(self) -> None:
        bus: Any = Bus()
        self.reader = TableReader(bus, SimulatedClock())
        self.leases: dict[int, Held] = {}
        self.holder = LeaseHolder(self, self.make, bus, SimulatedClock(), self.reader, self.leases)
        self.restoring = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.draining.set()
        self.made: list[Held] = []
        self.closed: list[Held] = []
        self.restores: list[Mapping[TopicPartition, int] | None] = []

    def make(self, lease: Lease) -> Held:
        self.made.append(Held(lease, SimulatedClock()))
        return self.made[-1]

    async def restore(self, opened: Held) -> None:
        self.restores.append(opened.positions)
        self.restoring = asyncio.get_running_loop().create_future()
        await self.restoring
        self.reader.assign({("toy.in", opened.lease.partition): 7})

    async def drain(self, opened: Held) -> None:
        await self.draining.wait()

    def close(self, opened: Held) -> None:
        self.closed.append(opened)

    async def read(self) -> None:
        await asyncio.Event().wait()

    # what a test lets happen

    async def assign(self, epoch: int = 1) -> None:
        await self.holder.assigned(Lease(group="g", partition=3, epoch=epoch))
        await asyncio.sleep(0.01)

    async def restored(self) -> None:
        self.restoring.set_result(None)
        await asyncio.sleep(0.01)

    def step(self, error: Exception) -> None:
        """Let a step of the lease end with an error, now."""
        with self.holder.interrupting(self.made[-1]):
            raise error

    def revoke(self) -> "asyncio.Task[None]":
        return asyncio.ensure_future(self.holder.revoked(self.made[-1].lease))

    def stubborn_step(self, error: Exception) -> None:
        """Begin a step that answers a cancellation with an error."""

        async def step() -> None:
            with self.holder.interrupting(self.made[-1]):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise error from None

        self.holder.spawn(self.made[-1], step())


FENCED, UNKNOWN = FencedError("a newer epoch"), TransientError("no answer")


async def comes_back(work: Work) -> None:
    await work.assign(1)
    await work.restored()
    await work.revoke()
    await work.assign(2)
    assert (work.restores, len(work.made), work.closed) == ([None, {("toy.in", 3): 7}], 1, [])
    await work.restored()


async def does_not_come_back(work: Work) -> None:
    await work.assign()
    await work.restored()
    await work.revoke()
    await asyncio.sleep(KEEP_SECONDS + 1)
    assert work.closed == work.made


async def begins_again(work: Work) -> None:
    await work.assign()
    work.restoring.set_exception(StaleError())
    await asyncio.sleep(3)
    await work.restored()
    work.step(UNKNOWN)
    assert not work.holder.ready
    await asyncio.sleep(3)
    await work.restored()
    assert work.holder.ready
    assert work.restores == [None] * 3
    assert len(work.closed) == 2, "tables that may be wrong are dropped"


async def is_emptied_while_it_restores(work: Work) -> None:
    await work.assign()
    work.restoring.set_result(None)
    work.holder.empty()
    work.step(UNKNOWN)
    await asyncio.sleep(3)
    assert work.made[-1].state is LeaseState.RESTORING
    work.step(UNKNOWN)
    await work.revoke()


async def is_fenced(work: Work) -> None:
    for early in (True, False):
        await work.assign()
        if early:
            work.restoring.set_exception(FENCED)
            await asyncio.sleep(0.01)
        else:
            await work.restored()
            work.step(FENCED)
        assert work.made[-1].state is LeaseState.LOST
        work.step(FENCED)
        work.step(UNKNOWN)
        await work.revoke()
        assert not work.leases


async def is_fenced_while_it_restores(work: Work) -> None:
    await work.assign()
    work.restoring.set_result(None)
    work.step(UNKNOWN)
    work.step(FENCED)
    await asyncio.sleep(3)
    assert len(work.restores) == 1, "nobody restores a lease that is lost"
    await work.revoke()


async def goes_before_it_is_restored(work: Work) -> None:
    await work.assign()
    await work.revoke()
    assert work.closed == work.made


async def goes_with_a_step_under_way(work: Work) -> None:
    for error in (None, FENCED, UNKNOWN):
        await work.assign()
        await work.restored()
        work.made[-1].settled = False
        work.draining.clear()
        revoking = work.revoke()
        await asyncio.sleep(0.01)
        assert work.made[-1].restored, "what is in flight may be written"
        if error is not None:
            work.step(error)
        work.draining.set()
        await revoking
        assert work.closed[-1] is work.made[-1], "its tables are ahead of the bus"


async def goes_with_a_step_that_answers_late(work: Work) -> None:
    for error in (FENCED, UNKNOWN):
        await work.assign()
        await work.restored()
        work.made[-1].settled = False
        work.stubborn_step(error)
        await asyncio.sleep(0.01)
        await work.revoke()
        await asyncio.sleep(0.01)


SCENARIOS = [
    comes_back,
    does_not_come_back,
    begins_again,
    is_emptied_while_it_restores,
    is_fenced,
    is_fenced_while_it_restores,
    goes_before_it_is_restored,
    goes_with_a_step_under_way,
    goes_with_a_step_that_answers_late,
]


def play(scenario: Any) -> set[tuple[LeaseState, LeaseEvent]]:
    """Run a scenario with a holder; return what happened to its leases."""

    async def main() -> set[tuple[LeaseState, LeaseEvent]]:
        work = Work()
        running = asyncio.ensure_future(work.holder.run(work.inputs))
        await asyncio.sleep(0.01)
        await scenario(work)
        work.holder.stop()
        await running
        return {pair for opened in work.made for pair in opened.seen}

    return run_simulated(main())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
def test_a_lease(scenario: Any) -> None:
    play(scenario)


def test_every_pair_of_the_table_happens() -> None:
    happened = set().union(*map(play, SCENARIOS))
    assert happened == {(state, event) for state, events in TRANSITIONS.items() for event in events}


@pytest.mark.parametrize(
    ("seconds", "epoch", "is_retained"),
    [(KEEP_SECONDS - 1, 2, True), (KEEP_SECONDS + 1, 2, False), (1.0, 3, False)],
    ids=["in time", "too late", "after somebody else"],
)
def test_tables_of_long_ago_or_of_another_epoch_are_not_taken_up(
    seconds: float, epoch: int, is_retained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing dropped them in time, as in a process that stood still."""

    async def scenario(work: Work) -> None:
        async def never(opened: Held, lease: Lease) -> None:
            return

        monkeypatch.setattr(work.holder, "_expire", never)
        await work.assign(1)
        await work.restored()
        await work.revoke()
        await asyncio.sleep(seconds)
        await work.assign(epoch)
        assert (len(work.made) == 1) is is_retained
        assert (work.restores[-1] is not None) is is_retained
        assert (work.closed == work.made[:1]) is not is_retained

    play(scenario)
