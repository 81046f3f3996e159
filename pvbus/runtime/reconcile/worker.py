"""The shell of a service: consume, decide, apply effects, step. It has almost no domain logic.

One worker holds any number of leases of one group (see `holder`) and runs one `Controller` over them. Records
mark keys (see `tables`); *dispatching* runs dirty keys and hands their outcomes to `steps`. Effects run as
tasks of their lease, which end with it.
"""

import asyncio
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pvbus.core.errors import (
    NO_MEMORY,
    ConflictError,
    InvariantError,
    PermanentError,
    TransientError,
    lacks_memory,
)
from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.effects import (
    DEFECT,
    WRITES,
    CatchUp,
    Controller,
    Delete,
    Effect,
    Execute,
    Notice,
    Observe,
    Outcome,
    Pull,
    Put,
    Query,
    Reconciliation,
)
from pvbus.ports.bus import Bus, Lease, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.ports.monitoring import Monitoring
from pvbus.ports.sources import Sources
from pvbus.runtime.backoff import uniform
from pvbus.runtime.reconcile.effects import perform
from pvbus.runtime.reconcile.holder import LeaseHolder
from pvbus.runtime.reconcile.leases import GATHER_SECONDS, OpenLease, StepLimits, finished
from pvbus.runtime.reconcile.narration import write_line
from pvbus.runtime.reconcile.retries import Timers, cause_of, retry_of
from pvbus.runtime.reconcile.steps import Stepper
from pvbus.runtime.reconcile.tables import Tables
from pvbus.telemetry import logs, metrics

EFFECTS_INFLIGHT_MAX = 64  # an API server on two cores gains nothing above; fewer starve it
DIRTY_KEYS_MAX = 50_000  # beyond, inputs pause: memory stays bounded when the cluster is slow
SLICE_SECONDS = 0.02  # one turn of dispatching; longer and heartbeats and reads would wait
TICK_SECONDS = 0.1  # resolution of timers, and of rows that gather
LOOK_SECONDS = 1.0  # between two looks for offsets to commit, at paused inputs and at gauges
LEASE_RETRY_SECONDS = 0.5  # a lease is certain again with the next heartbeat
AGAIN_SECONDS_MAX = 600.0
"""The longest timer of a key. Windows and deadlines are times of the wall clock, which may be set, and timers
stand still while the machine sleeps: who waits for longer looks again meanwhile."""

_BESIDE = (Query, Observe, Pull, Execute)
"""Effects that do not ask the API server, so its pauses are not theirs."""


class UncertainLeaseError(Exception):
    """The lease may be another worker's by now. Controllers never see it: no object has failed."""


class Worker:
    """Runs one controller. `run` returns after `stop`; an InvariantError ends it.

    A key is decided in turns. `_begin` runs the controller to its first effect or to its outcome, without an
    await; so decisions of one turn see the same tables. An effect runs as a task of the lease, and its result
    is sent to the controller, until the outcome is there. `_close` gives the rows to the stepper. The key
    stays busy, so that it is not decided twice at once, until the step has returned. A failure leads to
    `_close`, too, with a timer for the next attempt.

    holder: its leases, and its membership in the group
    """

    observed = True  # it lists no kind

    def __init__(
        self,
        make: Callable[[], Controller],
        bus: Bus,
        cluster: Cluster | None,
        clock: Clock,
        *,
        partitions: int,
        drain_seconds: float = 2.0,
        monitoring: Monitoring | None = None,
        sources: Sources | None = None,
        tell: Callable[[Notice], None] | None = None,
        jitter: Jitter = uniform,
    ) -> None:
        """Build a worker that holds no lease yet.

        make: returns a controller with empty tables; called at the start and whenever they are emptied
        cluster: what effects act on, None for a controller that has no effects
        partitions: the partition count of the topics
        drain_seconds: how long a revoked lease waits for its work in flight
        monitoring: what answers queries, None if no Prometheus is set
        sources: where packages are read from, None if the service reads none
        tell: takes the notices of rows that were written, None to drop them
        jitter: the source of the randomness of all waits
        """
        self.partitions = partitions
        self._cluster = cluster
        self._monitoring = monitoring
        self._sources = sources
        self._clock = clock
        self._drain_seconds = drain_seconds
        self._jitter = jitter
        self._session_seconds = bus.session_seconds
        self._leases: dict[int, OpenLease] = {}
        self._wake = asyncio.Event()
        self._timers = Timers[tuple[int, str]]()
        self._tick_at = 0.0
        self._sooner = asyncio.Event()
        self._effects = 0
        self._turn = 0
        self._paused_until = 0.0
        self._tables = Tables(
            make, bus, clock, partitions=partitions, leases=self._leases, stale=lambda: self.holder.empty()
        )
        self.name, self.inputs = name, inputs = self.controller.name, self.controller.inputs
        self._log = logs.get_logger(name)
        self._durations = metrics.RECONCILE_SECONDS.labels(name)
        limits, reader = StepLimits.of(bus), self._tables.table_reader

        def new_lease(lease: Lease) -> OpenLease:
            return OpenLease(lease, inputs, clock, limits, self._durations.observe)

        self.holder = LeaseHolder(
            self, new_lease, bus, clock, reader, self._leases, self._tables.empty, jitter
        )
        self._stepper = Stepper(
            name, self._tables, bus, clock, spawn=self.holder.spawn, on_step=self._wake.set, tell=tell
        )
        self._outcomes = {word: metrics.RECONCILES.labels(name, word) for word in metrics.OUTCOMES}
        self._dirty_gauge = metrics.DIRTY.labels(name)
        self._inflight_gauge = metrics.INFLIGHT.labels(name)
        self._evaluations = metrics.EVALUATIONS.labels(name)
        self._evaluations_seen = 0

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        """Join the group and work until `stop`."""
        topics = (*self.controller.inputs, *self.controller.memory)
        loops = (self._tables.keep_broadcast, self._dispatching, self._keeping_time)
        await self.holder.run(topics, *(loop() for loop in loops))

    def stop(self) -> None:
        self.holder.stop()

    @property
    def controller(self) -> Controller:
        return self._tables.controller

    @property
    def ready(self) -> bool:
        return self.holder.ready

    @property
    def idle(self) -> bool:
        """Whether nothing is dirty, in flight or waiting for a step."""
        return self.ready and all(c.idle for c in self._leases.values())

    @property
    def next_timer_seconds(self) -> float | None:
        """Seconds until the next timer of a key is due; None if there is none."""
        time = self._timers.next()
        return time - self._clock.monotonic() if time is not None else None

    @property
    def dirty_keys(self) -> int:
        count = 0
        for opened in self._leases.values():
            count += len(opened.dirty) + len(opened.busy)
        return count

    @property
    def defects(self) -> Mapping[str, str]:
        """Return the keys whose decision fails because of a bug, with the error."""
        return {key: error for opened in self._leases.values() for key, error in opened.defects.items()}

    def leases(self) -> Mapping[int, OpenLease]:
        """Return the leases held, by partition (for lag and health; not to be changed)."""
        return self._leases

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._tables.table_reader.positions

    # ---------------------------------------------------------------- leases

    async def restore(self, opened: OpenLease) -> None:
        await self._tables.restore(opened)
        self._wake.set()

    async def read(self) -> None:
        if await self._tables.table_reader.poll(self._tables.consume):
            self._wake.set()
            self._balance()

    async def drain(self, opened: OpenLease) -> None:
        deadline = self._clock.monotonic() + self._drain_seconds
        while opened.in_flight and self._clock.monotonic() < deadline:
            self._stepper.flush(opened)
            await self._clock.sleep(0.01)

    def close(self, opened: OpenLease) -> None:
        self.controller.close(opened.lease.partition)

    def _balance(self) -> None:
        """Pause the inputs while too many keys are dirty; resume them at half the limit."""
        reader, dirty = self._tables.table_reader, self.dirty_keys
        self._dirty_gauge.set(dirty)
        if dirty > DIRTY_KEYS_MAX:
            reader.pause()
        elif reader.is_paused and dirty <= DIRTY_KEYS_MAX // 2:
            reader.resume()

    # ---------------------------------------------------------------- dispatching

    async def _dispatching(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            deadline = self._clock.monotonic() + SLICE_SECONDS
            leases = list(self._leases.values())
            self._turn += 1
            for i in range(len(leases)):  # another lease first each time: slots for effects are scarce
                opened = leases[(self._turn + i) % len(leases)]
                if (opened.queue or opened.puts) and opened.acts:
                    self._run_dirty(opened, deadline)
            await asyncio.sleep(0)

    def _run_dirty(self, opened: OpenLease, deadline: float) -> None:
        """Decide dirty keys, while there is time and room for their effects."""
        while opened.queue and self._effects < EFFECTS_INFLIGHT_MAX and not opened.is_backed_up:
            if self._clock.monotonic() >= deadline:
                self._wake.set()
                break
            key = opened.take()
            if key is None:
                break
            self._timers.cancel((opened.lease.partition, key))
            self._begin(opened, key)
        self._stepper.flush(opened)

    def _begin(self, opened: OpenLease, key: str) -> None:
        steps = self._tables.controller.reconcile(opened.lease.partition, key, self._clock.now())
        try:
            effect = next(steps)
        except StopIteration as end:
            self._finish(opened, key, end.value)
        except Exception as exc:
            self._schedule_retry(opened, key, exc)
        else:
            self._effects += 1
            task = self.holder.spawn(opened, self._with_effects(opened, key, steps, effect))
            task.add_done_callback(self._effect_ended)

    def _effect_ended(self, _: object) -> None:
        self._effects -= 1
        self._wake.set()

    async def _with_effects(self, opened: OpenLease, key: str, steps: Reconciliation, effect: Effect) -> None:
        """Apply effects until the decision ends. Caller: in a separate task, as it binds log fields."""
        with logs.bound(opened.log_fields(self.name, key)):
            try:
                outcome = await self._drive(opened, steps, effect)
            except UncertainLeaseError:
                self._look_again(opened, key)
            except Exception as exc:
                self._schedule_retry(opened, key, exc)
            else:
                self._finish(opened, key, outcome)
            finally:
                steps.close()
        self._stepper.flush(opened)  # its task inherits the bound log fields

    def _count_evaluations(self) -> None:
        seen, now = self._evaluations_seen, self._tables.controller.evaluations
        if now != seen:  # fewer: the tables were emptied, and the controller is a new one
            self._evaluations.inc(now - seen if now > seen else now)
            self._evaluations_seen = now

    async def _drive(self, opened: OpenLease, steps: Reconciliation, effect: Effect) -> Outcome:
        try:
            while True:
                try:
                    answer = await self._perform(opened, effect)
                except (ConflictError, PermanentError, TransientError) as exc:
                    effect = steps.throw(exc)
                else:
                    effect = steps.send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _perform(self, opened: OpenLease, effect: Effect) -> Any:
        if isinstance(effect, CatchUp):
            return await self._tables.catch_up(opened, effect.topics)
        while not isinstance(effect, _BESIDE) and (pause := self._paused_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(pause)
        if isinstance(effect, WRITES) and not opened.may_write(
            self.holder.membership, self._clock.monotonic(), self._session_seconds / 2
        ):
            raise UncertainLeaseError
        if isinstance(effect, Delete) and self._clock.now() > effect.not_after:
            raise ConflictError("the order to delete has expired")
        assert self._cluster is not None
        try:
            result = await perform(self._cluster, effect, self._monitoring, self._sources)
        except TransientError as exc:
            if exc.retry_after_seconds is not None and not isinstance(
                effect, _BESIDE
            ):  # the server limits the rate: all effects pause
                until = self._clock.monotonic() + exc.retry_after_seconds
                self._paused_until = max(self._paused_until, until)
            raise
        if (line := write_line(effect, result)) is not None:
            (self._log.debug if line.is_detail else self._log.info)(line.event, **line.fields)
        return result

    def _look_again(self, opened: OpenLease, key: str) -> None:
        """Decide the key again once the lease is certain: nothing failed, so there is no backoff."""
        self._log.debug("the lease may have been lost")
        self._outcomes["transient"].inc()
        self._set_timer(opened, key, LEASE_RETRY_SECONDS)
        self._close(opened, key, ())

    def _schedule_retry(self, opened: OpenLease, key: str, error: Exception) -> None:
        """Schedule another attempt for a failed key; the other keys continue. Raises InvariantError."""
        if isinstance(error, InvariantError):
            raise error
        if lacks_memory(error):
            error = TransientError(NO_MEMORY)
        attempt = opened.attempts[key] = opened.attempts.get(key, 0) + 1
        outcome, seconds = retry_of(error, attempt, self._jitter)
        puts: tuple[Put, ...] = ()
        about = {"outcome": outcome, "seconds": round(seconds, 2), "error": str(error)}
        with logs.bound(opened.log_fields(self.name, key)):
            match outcome:
                case "defect":
                    trace = "".join(traceback.format_exception(error))
                    self._log.error("a decision failed; this is a bug in pvbus", trace=trace, **about)
                    opened.defects[key] = f"{type(error).__name__}: {error}"
                    puts = self._report(opened, key)
                case _ if outcome == "conflict" or (isinstance(error, TransientError) and error.is_expected):
                    self._log.debug("will be tried again", **about)
                case "transient" if not logs.is_detailed():
                    self._log.warning("will be tried again", cause=cause_of(error), **about)
                case _:
                    self._log.warning("will be tried again", **about)
        self._outcomes[outcome].inc()
        self._set_timer(opened, key, seconds)
        self._close(opened, key, puts)

    def _report(self, opened: OpenLease, key: str) -> tuple[Put, ...]:
        """Return the rows that report a defect on the key's object."""
        message = (
            f"{DEFECT}: {opened.defects[key]}; the log of the service {self.controller.name} has the trace: "
            "please report both"
        )
        try:
            return self.controller.failure_rows(opened.lease.partition, key, message, self._clock.now())
        except Exception as exc:  # the same bug, most likely: the log and /readyz have it
            self._log.error("a defect cannot be reported on its object", error=str(exc))
            return ()

    def _finish(self, opened: OpenLease, key: str, outcome: Outcome) -> None:
        self._outcomes[outcome.result].inc()
        opened.attempts.pop(key, None)
        opened.defects.pop(key, None)
        if outcome.again_after == 0:
            opened.mark(key)
            self._wake.set()
        elif outcome.again_after is not None:
            self._set_timer(opened, key, min(outcome.again_after, AGAIN_SECONDS_MAX))
        if logs.is_detailed():
            about = {"waiting": "; ".join(outcome.waiting)} if outcome.waiting else {}
            with logs.bound(opened.log_fields(self.name, key)):
                self._log.debug("reconciled", outcome=outcome.result, rows=len(outcome.puts), **about)
        if outcome.cause:
            metrics.CONVERGENCE_SECONDS.observe(max(self._clock.now() - outcome.cause, 0.0))
        self._close(opened, key, outcome.puts)

    def _close(self, opened: OpenLease, key: str, puts: tuple[Put, ...]) -> None:
        """Queue rows for a step; the key is done when they are committed, or at once if there are none."""
        if puts:
            opened.add(finished(key, puts, self.partitions))
            self._expect_tick(self._clock.monotonic() + GATHER_SECONDS)
        else:
            opened.finish(key)

    # ---------------------------------------------------------------- time

    def _set_timer(self, opened: OpenLease, key: str, seconds: float) -> None:
        time = self._clock.monotonic() + seconds
        self._timers.set((opened.lease.partition, key), time)
        self._expect_tick(time)

    def _expect_tick(self, time: float) -> None:
        """End the wait for the next tick if that would be after this time."""
        if time < self._tick_at:
            self._sooner.set()

    async def _wait_for_tick(self) -> None:
        """Wait until a timer is due, rows may have gathered, or it is time to look: an idle worker rests."""
        began = self._clock.monotonic()
        while True:
            self._tick_at = self._next_tick(began)
            self._sooner.clear()
            if (seconds := self._tick_at - self._clock.monotonic()) <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._sooner.wait()

    def _next_tick(self, last: float) -> float:
        """Return when the next tick is due; both times are seconds of the monotonic clock."""
        due = last + LOOK_SECONDS
        if (timer := self._timers.next()) is not None:
            due = min(due, timer)
        if any(opened.puts for opened in self._leases.values()):
            due = last
        return max(due, last + TICK_SECONDS)

    async def _keeping_time(self) -> None:
        look_at = 0.0
        while True:
            await self._wait_for_tick()
            now = self._clock.monotonic()
            for number, key in self._timers.due(now):
                self._tables.mark(number, key)
                self._wake.set()
            for opened in self._leases.values():
                if opened.puts:  # they may have gathered for long enough
                    self._stepper.flush(opened)
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                self._look(now)

    def _look(self, now: float) -> None:
        """Commit offsets that are due, resume inputs, and set the gauges."""
        for opened in self._leases.values():
            if opened.must_commit(now):
                self._stepper.flush(opened, offsets_only=True)
        self._balance()
        self._count_evaluations()
        inflight = 0
        for opened in self._leases.values():
            inflight += len(opened.busy)
        self._inflight_gauge.set(inflight)
