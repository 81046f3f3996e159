"""The shell of a service: consume, decide, apply effects, step. Hardly an `if` about the domain.

One worker holds any number of claims of one group and runs one `Controller` over them. Two loops:
*reading* applies records and marks keys; *dispatching* runs dirty keys and hands their outcomes to
one stepper per claim. Effects run as tasks of their claim, which end with it.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from pvbus.codec import encode_row
from pvbus.core.effects import WRITES, CatchUp, Controller, Effect, Outcome, Put, Reconciliation
from pvbus.core.ids import partition as partition_of
from pvbus.core.records import DLQ, DeadLetter, partition_key
from pvbus.errors import (
    ConflictError,
    FencedError,
    InvariantError,
    PermanentError,
    PvbusError,
    TransientError,
)
from pvbus.ports.bus import Bus, Claim, Membership, Output, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.runtime.claims import Finished, OpenClaim
from pvbus.runtime.effects import perform
from pvbus.runtime.failures import StoppedError
from pvbus.runtime.intake import Intake
from pvbus.runtime.retries import BACKOFF_SECONDS, retry_of
from pvbus.runtime.timers import Timers
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

EFFECTS_INFLIGHT_MAX = 64  # an API server on two cores gains nothing above; fewer starve it
DIRTY_KEYS_MAX = 50_000  # beyond, inputs pause: memory stays bounded when the cluster is slow
SLICE_SECONDS = 0.02  # one turn of dispatching; longer and heartbeats and reads would wait
STEP_RECORDS_MAX = 2_000
TICK_SECONDS = (0.1, 0.25)  # how exactly times are kept: while one is near, and otherwise
OFFSET_COMMIT_SECONDS = 1.0  # offsets alone are for lag and scaling: not worth a step each


class Worker:
    """Runs one controller. `run` returns when `stop` was called; errors of our own making end it."""

    def __init__(
        self,
        controller: Controller,
        bus: Bus,
        cluster: Cluster | None,
        clock: Clock,
        *,
        partitions: int,
        drain_seconds: float = 2.0,
        session_seconds: float = 10.0,
    ) -> None:
        self.controller = controller
        self.partitions = partitions
        self._bus = bus
        self._cluster = cluster
        self._clock = clock
        self._drain_seconds = drain_seconds
        self._session_seconds = session_seconds
        self._log = get_logger(controller.name)
        self._claims: dict[int, OpenClaim] = {}
        self._wake = asyncio.Event()
        self._stopping = asyncio.Event()
        self._timers = Timers()
        self._effects = 0
        self._turn = 0
        self._paused_until = 0.0
        self._intake = Intake(bus)
        self._broadcast_ready = asyncio.Event()
        self._broadcast_restore = (0, 0)
        self._membership: Membership | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._kept_topics = frozenset((*controller.inputs, *controller.memory))
        name = controller.name
        self._outcomes = {word: metrics.RECONCILES.labels(name, word) for word in metrics.OUTCOMES}
        self._dirty_gauge = metrics.DIRTY.labels(name)
        self._steps_done = metrics.STEPS.labels(name, "done")

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        """Join the group and work until `stop`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for loop in (self._restoring, self._reading, self._dispatching, self._keeping_time):
                    tasks.create_task(loop())
                topics = (*self.controller.inputs, *self.controller.memory)
                self._membership = await self._bus.join(
                    f"pvbus-{self.controller.name}", topics, assigned=self._assigned, revoked=self._revoked
                )
                tasks.create_task(self._membership.wait_left())  # its failure is ours
                await self._stopping.wait()
                await self._membership.leave()
                raise StoppedError  # what is still under way had its time: it may wait for ever
        except* StoppedError:
            pass
        finally:
            await self._intake.close()

    def stop(self) -> None:
        self._stopping.set()

    @property
    def ready(self) -> bool:
        """Whether every claim held is restored (and there is at least one)."""
        return bool(self._claims) and all(c.restored for c in self._claims.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is dirty, in flight or waiting for a step."""
        return self.ready and all(c.idle for c in self._claims.values())

    @property
    def next_timer_seconds(self) -> float | None:
        """Seconds until the next key is looked at by itself; None when no key waits for a time."""
        time = self._timers.next()
        return time - self._clock.monotonic() if time is not None else None

    @property
    def dirty_keys(self) -> int:
        return sum(c.dirty_count for c in self._claims.values())

    def claims(self) -> Mapping[int, OpenClaim]:
        """Return the claims held, by partition (for lag and health; not to be changed)."""
        return self._claims

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._intake.positions

    # ---------------------------------------------------------------- claims

    async def _assigned(self, claim: Claim) -> None:
        assert self._tasks is not None
        opened = OpenClaim(claim, self.controller.inputs, self._clock)
        self._claims[claim.partition] = opened
        self.controller.open(claim.partition)
        opened.life = self._tasks.create_task(self._hold(opened))

    async def _hold(self, opened: OpenClaim) -> None:
        """Restore the claim's tables, and again after each step of unknown outcome, until cancelled."""
        number, attempt = opened.claim.partition, 0
        while True:
            try:
                await self._restore(opened)
            except FencedError:
                return  # the group takes it back
            except TransientError as exc:
                attempt += 1
                self._log.warning("claim cannot be restored yet", partition=number, error=str(exc))
            else:
                attempt = 0
                await opened.doubt.wait()
            for task in opened.tasks:
                task.cancel()
            self._stop_reading(opened)
            await self._clock.sleep(min(BACKOFF_SECONDS[0] * 2.0**attempt, self._session_seconds))
            self.controller.close(number)
            self.controller.open(number)
            opened.clear()

    async def _restore(self, opened: OpenClaim) -> None:
        """Rebuild the claim's tables from 0 to the end that stood after the fence; then all is dirty."""
        number, controller = opened.claim.partition, self.controller
        committed = await self._bus.committed(opened.claim, controller.inputs)
        ends = await self._bus.end_offsets([(t, number) for t in (*controller.inputs, *controller.memory)])
        await self._intake.replay(
            ends,
            lambda record: self._load(record, committed),
            lambda read, total: self._note_restore(opened, (read, total)),
        )
        await self._broadcast_ready.wait()
        broadcast = [(t, p) for t in controller.broadcast for p in range(self.partitions)]
        await self._intake.wait_for(await self._bus.end_offsets(broadcast))
        for topic in controller.inputs:
            opened.start_at(topic, ends[topic, number], committed.get(topic, 0))
        self._intake.assign({(t, number): ends[t, number] for t in controller.inputs})
        for key in controller.keys(number):
            opened.mark(key)
        opened.restored = True
        metrics.CLAIMS.labels(controller.name).inc()
        self._wake.set()

    async def _restoring(self) -> None:
        partitions = [(t, p) for t in self.controller.broadcast for p in range(self.partitions)]
        while True:
            try:
                ends = await self._bus.end_offsets(partitions)
                await self._intake.replay(ends, self._load, self._note_broadcast)
                break
            except TransientError as exc:
                self._log.warning("tables cannot be read yet", error=str(exc))
                await self._clock.sleep(1.0)
        self._intake.assign(ends)
        self._broadcast_ready.set()

    def _note_broadcast(self, read: int, total: int) -> None:
        self._broadcast_restore = (read, total)
        for opened in self._claims.values():
            self._note_restore(opened, opened.replayed)

    def _note_restore(self, opened: OpenClaim, own: tuple[int, int]) -> None:
        """Count the broadcast tables to each claim, which cannot do without."""
        opened.replayed = own
        if not opened.restored:
            read, total = self._broadcast_restore
            opened.restoring(own[0] + read, own[1] + total)

    async def _revoked(self, claim: Claim) -> None:
        """Let what is in flight end, for a while; then drop the claim with all that belongs to it."""
        opened = self._claims.get(claim.partition)
        if opened is None or opened.claim != claim:
            return
        opened.revoked = True
        deadline = self._clock.monotonic() + self._drain_seconds
        try:
            while opened.in_flight and self._clock.monotonic() < deadline:
                self._kick(opened)
                await self._clock.sleep(0.01)
        finally:  # whoever is late is cut off here, and may not even wait any more
            for task in (*opened.tasks, opened.life):
                if task is not None:
                    task.cancel()
            self._stop_reading(opened)
            if self._claims.get(claim.partition) is opened:
                del self._claims[claim.partition]
                self.controller.close(claim.partition)

    def _stop_reading(self, opened: OpenClaim) -> None:
        if opened.restored:
            opened.restored = False
            self._intake.unassign([(t, opened.claim.partition) for t in self.controller.inputs])
            metrics.CLAIMS.labels(self.controller.name).dec()

    def _spawn(self, opened: OpenClaim, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run something that ends with the claim."""
        assert self._tasks is not None
        task = self._tasks.create_task(work)
        opened.tasks.add(task)
        task.add_done_callback(opened.tasks.discard)
        return task

    # ---------------------------------------------------------------- reading

    async def _reading(self) -> None:
        while True:
            try:
                if await self._intake.poll(self._consume):
                    self._wake.set()
            except TransientError as exc:
                self._log.warning("bus cannot be read", error=str(exc))
                await self._clock.sleep(1.0)
            if self.dirty_keys > DIRTY_KEYS_MAX:
                self._intake.pause()
            await asyncio.sleep(0)

    def _load(self, record: Record, committed: Mapping[str, int] | None = None) -> list[str]:
        """Apply a record to the tables. committed: while restoring, where reading goes on."""
        try:
            key = record.key.decode()
            return list(self.controller.load(record.topic, record.partition, key, record.value))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            if committed is None or record.offset >= committed.get(record.topic, record.offset + 1):
                self._dead_letter(record, exc)
            return []

    def _dead_letter(self, record: Record, error: Exception) -> None:
        """Keep bytes that mean nothing to us where a person can look at them.

        Many workers read the same record of a broadcast topic: the one that holds the claim of its
        partition writes the letter.
        """
        opened = self._claims.get(record.partition)
        if opened is not None:
            metrics.DEAD_LETTERS.labels(record.topic).inc()
            key = record.key.decode(errors="replace")
            place = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
            self._log.error("record cannot be decoded", key=key, error=str(error), **place)
            letter = msgspec.convert({"error": str(error), "value": record.value or b"", **place}, DeadLetter)
            opened.puts.append(("", (Put(DLQ, key, letter),)))

    def _consume(self, record: Record) -> None:
        keys = self._load(record)
        for key in keys:
            self._mark(key)
        if record.topic in self.controller.inputs:
            opened = self._claims.get(record.partition)
            if opened is not None:
                opened.consumed(record.topic, record.offset, keys)

    def _mark(self, key: str) -> None:
        opened = self._claims.get(partition_of(key.rpartition("|")[2], self.partitions))
        if opened is not None:
            opened.mark(key)

    async def _catch_up(self, opened: OpenClaim, topics: tuple[str, ...]) -> None:
        partitions: list[TopicPartition] = []
        for topic in topics:
            whole = topic in self.controller.broadcast
            numbers = range(self.partitions) if whole else [opened.claim.partition]
            partitions += [(topic, number) for number in numbers]
        await self._intake.wait_for(await self._bus.end_offsets(partitions))

    # ---------------------------------------------------------------- dispatching

    async def _dispatching(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            deadline = self._clock.monotonic() + SLICE_SECONDS
            claims = list(self._claims.values())
            self._turn += 1
            for i in range(len(claims)):  # another one first each time: slots for effects are scarce
                opened = claims[(self._turn + i) % len(claims)]
                if opened.acts:
                    self._run_dirty(opened, deadline)
            if self.dirty_keys < DIRTY_KEYS_MAX // 2:
                self._intake.resume()
            await asyncio.sleep(0)

    def _run_dirty(self, opened: OpenClaim, deadline: float) -> None:
        """Decide dirty keys, while there is time and room for their effects."""
        while self._effects < EFFECTS_INFLIGHT_MAX:
            if self._clock.monotonic() >= deadline:
                self._wake.set()
                break
            key = opened.take()
            if key is None:
                break
            self._timers.cancel(key)
            self._begin(opened, key)
        self._kick(opened)

    def _begin(self, opened: OpenClaim, key: str) -> None:
        steps = self.controller.reconcile(key, self._clock.now())
        try:
            effect = next(steps)
        except StopIteration as end:
            self._finish(opened, key, end.value)
        except Exception as exc:
            self._failed(opened, key, exc)
        else:
            self._effects += 1
            task = self._spawn(opened, self._with_effects(opened, key, steps, effect))
            task.add_done_callback(self._effect_ended)

    def _effect_ended(self, _: object) -> None:
        self._effects -= 1
        self._wake.set()

    async def _with_effects(self, opened: OpenClaim, key: str, steps: Reconciliation, effect: Effect) -> None:
        try:
            outcome = await self._drive(opened, steps, effect)
        except Exception as exc:
            self._failed(opened, key, exc)
        else:
            self._finish(opened, key, outcome)
        finally:
            steps.close()
        self._kick(opened)

    async def _drive(self, opened: OpenClaim, steps: Reconciliation, effect: Effect) -> Outcome:
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

    async def _perform(self, opened: OpenClaim, effect: Effect) -> Any:
        if isinstance(effect, CatchUp):
            return await self._catch_up(opened, effect.topics)
        while (pause := self._paused_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(pause)
        if isinstance(effect, WRITES) and not opened.may_write(
            self._membership, self._clock.monotonic(), self._session_seconds / 2
        ):
            raise TransientError("the claim may have been lost")
        assert self._cluster is not None
        try:
            return await perform(self._cluster, effect)
        except TransientError as exc:
            if exc.retry_after_seconds is not None:  # told to slow down: the whole bucket pauses
                until = self._clock.monotonic() + exc.retry_after_seconds
                self._paused_until = max(self._paused_until, until)
            raise

    def _failed(self, opened: OpenClaim, key: str, error: Exception) -> None:
        """Look at the key again in time; one that fails leaves the others alone."""
        if isinstance(error, InvariantError):
            raise error
        attempt = opened.attempts[key] = opened.attempts.get(key, 0) + 1
        outcome, seconds = retry_of(error, attempt)
        about = {"key": key, "outcome": outcome, "seconds": round(seconds, 2), "error": str(error)}
        match outcome:
            case "defect":
                trace = "".join(traceback.format_exception(error))
                self._log.error("a decision failed; this is a bug in pvbus", trace=trace, **about)
            case "conflict":
                self._log.debug("will be tried again", **about)
            case _:
                self._log.warning("will be tried again", **about)
        self._outcomes[outcome].inc()
        self._timers.set(key, self._clock.monotonic() + seconds)
        opened.done(key)

    def _finish(self, opened: OpenClaim, key: str, outcome: Outcome) -> None:
        self._outcomes[outcome.result].inc()
        opened.attempts.pop(key, None)
        if outcome.again_after == 0:
            opened.mark(key)
            self._wake.set()
        elif outcome.again_after is not None:
            self._timers.set(key, self._clock.monotonic() + outcome.again_after)
        if outcome.puts:
            opened.puts.append((key, outcome.puts))
        else:
            opened.done(key)

    async def _keeping_time(self) -> None:
        committed_at = 0.0
        while True:
            soon = self.next_timer_seconds
            await self._clock.sleep(TICK_SECONDS[0] if soon is not None and soon < 1 else TICK_SECONDS[1])
            now = self._clock.monotonic()
            for key in self._timers.due(now):
                self._mark(key)
                self._wake.set()
            if now - committed_at > OFFSET_COMMIT_SECONDS:
                committed_at = now
                for opened in self._claims.values():
                    if opened.acts and opened.done_offsets():
                        self._kick(opened, offsets_only=True)
            self._dirty_gauge.set(self.dirty_keys)

    # ---------------------------------------------------------------- stepping

    def _kick(self, opened: OpenClaim, *, offsets_only: bool = False) -> None:
        if (opened.puts or offsets_only) and not opened.stepping and not opened.doubt.is_set():
            opened.stepping = True
            self._spawn(opened, self._stepping(opened))

    async def _stepping(self, opened: OpenClaim) -> None:
        """Step until nothing is left; while one step is under way the next batch gathers."""
        try:
            while True:
                await self._step(opened, opened.take_puts(STEP_RECORDS_MAX))
                if not opened.puts:
                    return
        except FencedError:
            self._log.info("claim lost", partition=opened.claim.partition, epoch=opened.claim.epoch)
            opened.revoked = True
        except TransientError as exc:
            self._log.warning("outcome of a step unknown", error=str(exc))
            metrics.STEPS.labels(self.controller.name, "unknown").inc()
            opened.doubt.set()
        finally:
            opened.stepping = False

    async def _step(self, opened: OpenClaim, batch: list[Finished]) -> None:
        outputs = [self._output(put) for _, puts in batch for put in puts]
        offsets = opened.done_offsets({key for key, _ in batch})
        if not outputs and not offsets:
            return
        try:
            await self._bus.step(opened.claim, outputs, offsets)
        except PermanentError as exc:  # too large: leave out the outcome that is, and say so
            await self._step_each(opened, batch, exc)
            return
        opened.last_step = self._clock.monotonic()
        opened.committed(offsets)
        opened.progressed()
        self._steps_done.inc()
        for topic, count in Counter(output.topic for output in outputs).items():
            metrics.RECORDS_WRITTEN.labels(topic).inc(count)
        for key, puts in batch:
            for put in puts:
                if put.topic in self._kept_topics:
                    for dirtied in self.controller.store(opened.claim.partition, put):
                        opened.mark(dirtied)
            opened.done(key)
        self._wake.set()

    async def _step_each(self, opened: OpenClaim, batch: list[Finished], error: PvbusError) -> None:
        if len(batch) == 1:
            key, puts = batch[0]
            topics = sorted({put.topic for put in puts})
            self._log.error("outcome cannot be written", key=key, topics=topics, error=str(error))
            self._outcomes["failed"].inc()
            opened.done(key)
            return
        for item in batch:
            await self._step(opened, [item])

    def _output(self, put: Put) -> Output:
        number = 0 if put.topic == DLQ else partition_of(partition_key(put.topic, put.key), self.partitions)
        return Output(put.topic, number, put.key.encode(), encode_row(put.row), put.headers)
