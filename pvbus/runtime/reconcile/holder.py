"""Holds a worker's leases: joins its group, restores, revokes and retains leases, and reads for them.

`pvbus.runtime.reconcile.states` has the states of a lease. Each worker defines its own handling of records
and of running leases: see `LeaseWork`.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from pvbus.adapters.clock import Stopwatch
from pvbus.core.errors import FencedError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.ports.bus import Bus, Lease, Membership, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.backoff import uniform
from pvbus.runtime.reconcile.reader import StaleError, TableReader
from pvbus.runtime.reconcile.states import LeaseEvent, LeaseState, after
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

KEEP_SECONDS = 30.0  # how long a revoked lease is retained: a rebalance takes no longer
AGAIN_SECONDS = (0.2, 2.0)  # between two attempts while the bus does not answer


class HeldLease(ABC):
    """A lease of a worker: its state, its tasks and its progress.

    life: the task that restores the lease until it is lost or revoked
    tasks: the tasks that end with the lease
    positions: the offsets where reading resumes if the lease returns, None if its tables are to be read anew
    away: the time since the lease was retained
    progress_at: when it last made progress, in seconds of the monotonic clock: a record applied, a key done,
        a step, a part of the restore
    restore: (offsets read, offsets to read), equal once the lease is restored
    """

    life: asyncio.Task[None]

    def __init__(self, lease: Lease, clock: Clock) -> None:
        self.lease = lease
        self.state = LeaseState.RESTORING
        self.tasks: set[asyncio.Task[None]] = set()
        self.positions: Mapping[TopicPartition, int] | None = None
        self.away = Stopwatch(clock)
        self.progress_at = clock.monotonic()
        self.restore = (0, 0)
        self._clock = clock
        self._moved = asyncio.Event()

    @property
    @abstractmethod
    def dirty_count(self) -> int:
        """Number of keys (of ingest: rows) that wait or are in progress."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """Whether its tables equal the bus, and every decision is written."""

    @property
    def restored(self) -> bool:
        """Whether its tables equal the bus, apart from what is in flight."""
        return self.state in (LeaseState.RUNNING, LeaseState.REVOKED)

    def enter(self, event: LeaseEvent) -> None:
        """Change to the state that follows an event."""
        self.state = after(self.state, event)
        self._moved.set()

    async def reaches(self, *states: LeaseState) -> None:
        """Wait until it is in one of these states."""
        while self.state not in states:
            self._moved.clear()
            await self._moved.wait()

    def note_progress(self) -> None:
        self.progress_at = self._clock.monotonic()

    def restoring(self, read: int, total: int) -> None:
        """Note the progress of the restore."""
        if read > self.restore[0]:
            self.note_progress()
        self.restore = (read, total)


L = TypeVar("L", bound=HeldLease)
_L = TypeVar("_L", bound=HeldLease, contravariant=True)


class LeaseWork(Protocol[_L]):
    """The work of a worker for its leases.

    `restore` makes the tables of a lease equal to the bus, from `positions` on if the lease returned. `drain`
    waits a limited time for work in flight, and may be cancelled. `close` drops the tables, and may be called
    twice. `read` reads once for all leases. `restore` and `read` raise FencedError, TransientError and
    StaleError.

    name: the name of the service
    inputs: the topics that are read for a lease
    """

    name: str
    inputs: tuple[str, ...]

    async def restore(self, opened: _L) -> None: ...

    async def drain(self, opened: _L) -> None: ...

    def close(self, opened: _L) -> None: ...

    async def read(self) -> None: ...


class LeaseHolder(Generic[L]):
    """The membership of one worker, and its leases by partition.

    A lease is in one place at a time: in `leases` from `assigned` to `revoked`; then in `retained`, but only
    if nothing was in flight, so that its tables equal the bus. It returns to `leases` only with the very next
    epoch: another worker in between would have raised the epoch, and written what these tables lack. While a
    lease is in `leases`, its `life` repeats: restore, wait for an interruption, drop the tables, pause.

    leases: the leases held, by partition
    retained: the revoked leases whose tables stay for KEEP_SECONDS, by partition
    membership: the membership in the group, None before the join
    make: returns the state of a new lease
    """

    def __init__(
        self,
        work: LeaseWork[L],
        make: Callable[[Lease], L],
        bus: Bus,
        clock: Clock,
        table_reader: TableReader,
        leases: dict[int, L],
        on_empty: Callable[[], None] = lambda: None,
        jitter: Jitter = uniform,
    ) -> None:
        """Hold no lease until `run`.

        work: the work for the leases
        make: returns the state of a new lease
        table_reader: the reader of the inputs, which `run` closes
        leases: the leases held, which is filled here
        on_empty: called when everything must be read again
        jitter: the source of the randomness of all waits
        """
        self.leases = leases
        self.retained: dict[int, L] = {}
        self.membership: Membership | None = None
        self.make = make
        self._work = work
        self._bus = bus
        self._clock = clock
        self._table_reader = table_reader
        self._on_empty = on_empty
        self._jitter = jitter
        self._spare_from = math.inf
        self._stopping = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._log = get_logger(work.name)
        self._gauge = metrics.LEASES.labels(work.name)

    # ------------------------------------------------------------ life

    async def run(self, topics: Sequence[str], *loops: Coroutine[Any, Any, None]) -> None:
        """Join the group and hold leases until `stop`.

        topics: the topics that the group owns
        loops: what runs meanwhile
        """
        try:
            async with self._tasks:
                for loop in (*loops, self._reading()):
                    self.start(loop)
                self.membership = await self._bus.join(
                    f"pvbus-{self._work.name}", topics, assigned=self.assigned, revoked=self.revoked
                )
                self._spare_from = self._clock.monotonic() + self._bus.session_seconds
                self.start(self._watch_membership(self.membership))
                await self._stopping.wait()
                await self.membership.leave()
                raise _StoppedError  # the leases are drained: cancel the remaining tasks
        except* _StoppedError:
            pass
        finally:
            self.leases.clear()  # a worker that failed cannot drain them
            await self._table_reader.close()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def ready(self) -> bool:
        """Whether every lease held is restored. A worker without leases after one session is a spare."""
        if not self.leases:
            return self._clock.monotonic() >= self._spare_from
        return all(opened.restored for opened in self.leases.values())

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that ends with the worker."""
        return self._tasks.create_task(work)

    def spawn(self, opened: L, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task that ends with the lease."""
        task = self._tasks.create_task(work)
        opened.tasks.add(task)
        task.add_done_callback(opened.tasks.discard)
        return task

    @contextmanager
    def interrupting(self, opened: L) -> Iterator[None]:
        """Let errors of the bus interrupt the lease, not the worker."""
        about = {"partition": opened.lease.partition, "epoch": opened.lease.epoch}
        try:
            yield
        except FencedError:
            self._log.info("lease lost", **about)
            opened.enter(LeaseEvent.FENCED)
        except (TransientError, StaleError) as exc:
            self._log.warning("lease interrupted; restoring it again", error=str(exc), **about)
            opened.enter(LeaseEvent.INTERRUPTED)

    async def _watch_membership(self, membership: Membership) -> None:
        """Raise TransientError if the membership in the group ends before `stop`."""
        await membership.wait_left()
        if not self._stopping.is_set():
            raise TransientError("the membership in the group ended")

    # ------------------------------------------------------------ leases

    async def assigned(self, lease: Lease) -> None:
        """Take a lease, with the tables of a retained one unless another worker held it in between."""
        opened = self.leases[lease.partition] = self._take_retained(lease) or self.make(lease)
        opened.life = self.start(self._hold(opened))

    async def _hold(self, opened: L) -> None:
        """Restore the lease, and again after each interruption, until it is lost or revoked."""
        backoff = Backoff(*AGAIN_SECONDS, self._jitter)
        while True:
            self.spawn(opened, self._restore(opened, backoff))
            await opened.reaches(LeaseState.OUTCOME_UNKNOWN, LeaseState.LOST)
            self._count_restored()
            self._end(opened)
            await self._clock.sleep(backoff.next_seconds())
            if opened.state is LeaseState.LOST:
                return
            opened.enter(LeaseEvent.RESTARTED)

    async def _restore(self, opened: L, backoff: Backoff) -> None:
        with self.interrupting(opened):
            await self._work.restore(opened)
            opened.enter(LeaseEvent.RESTORED)
            self._count_restored()
            backoff.reset()

    async def revoked(self, lease: Lease) -> None:
        """Drain the lease for a limited time; then drop it, or retain it in case it returns."""
        opened = self.leases.get(lease.partition)
        if opened is None or opened.lease != lease:
            return
        opened.enter(LeaseEvent.REVOKED)
        try:
            await self._work.drain(opened)
        finally:  # a drain that is too slow is cancelled: nothing here may await
            if self.leases.get(lease.partition) is opened:
                del self.leases[lease.partition]
                self._spare_from = self._clock.monotonic() + self._bus.session_seconds
                self._release(opened)
                self._count_restored()
            opened.life.cancel()

    def _count_restored(self) -> None:
        self._gauge.set(sum(opened.restored for opened in self.leases.values()))

    def _release(self, opened: L) -> None:
        if opened.is_settled and not self._stopping.is_set():
            opened.positions = {tp: self._table_reader.positions[tp] for tp in self._partitions(opened)}
            opened.away = Stopwatch(self._clock)
            opened.enter(LeaseEvent.RETAINED)
            self._stop_reading(opened)
            self.retained[opened.lease.partition] = opened
            self.start(self._expire(opened, opened.lease))
        else:
            self._end(opened)
            opened.enter(LeaseEvent.CLOSED)

    def _end(self, opened: L) -> None:
        """Stop the tasks and the reading of a lease, and drop its tables."""
        self._stop_reading(opened)
        self._work.close(opened)
        opened.positions = None

    def _stop_reading(self, opened: L) -> None:
        for task in opened.tasks:
            task.cancel()
        self._table_reader.unassign(self._partitions(opened))

    def _partitions(self, opened: L) -> list[TopicPartition]:
        return [(topic, opened.lease.partition) for topic in self._work.inputs]

    # ------------------------------------------------------------ leases that may come back

    async def _expire(self, opened: L, lease: Lease) -> None:
        await self._clock.sleep(KEEP_SECONDS)
        if self.retained.get(lease.partition) is opened and opened.lease == lease:
            self._drop(opened)

    def _take_retained(self, lease: Lease) -> L | None:
        """Return the retained lease, unless it is too old or another worker held it in between."""
        opened = self.retained.get(lease.partition)
        if opened is None:
            return None
        if opened.lease.epoch + 1 != lease.epoch or opened.away.seconds > KEEP_SECONDS:
            self._drop(opened)
            return None
        del self.retained[lease.partition]
        opened.lease = lease
        opened.enter(LeaseEvent.RETURNED)
        return opened

    def _drop(self, opened: L) -> None:
        del self.retained[opened.lease.partition]
        opened.enter(LeaseEvent.CLOSED)
        self._work.close(opened)

    # ------------------------------------------------------------ reading

    async def _reading(self) -> None:
        backoff: Backoff | None = None
        while True:
            try:
                await self._work.read()
                backoff = None
            except TransientError as exc:
                self._log.warning("bus cannot be read", error=str(exc))
                backoff = backoff or Backoff(*AGAIN_SECONDS, self._jitter)
                await self._clock.sleep(backoff.next_seconds(exc))
            except StaleError:
                self.empty()
            await asyncio.sleep(0)

    def empty(self) -> None:
        """Drop all tables, to be read again: they may hold rows whose tombstones are gone already."""
        self._log.warning("the tables were behind for too long; reading them from the beginning")
        self._table_reader.unassign(list(self._table_reader.positions))
        for opened in list(self.retained.values()):
            self._drop(opened)
        for opened in self.leases.values():
            opened.enter(LeaseEvent.INTERRUPTED)
        self._on_empty()


class _StoppedError(Exception):
    """Ends the tasks of a worker that has left its group, including those that would wait for ever."""
