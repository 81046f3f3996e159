"""The shell of a service: consume, decide, apply effects, step. Hardly an `if` about the domain.

One worker holds any number of claims of one group and runs one `Controller` over them. Two loops:
*reading* applies records and marks keys; *dispatching* runs dirty keys and hands their outcomes to
one stepper per claim. Effects run as tasks of the worker's TaskGroup.
"""

import asyncio
import heapq
import random
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from pvbus.codec import encode_row
from pvbus.core.effects import WRITES, CatchUp, Controller, Effect, Outcome, Put, Reconciliation
from pvbus.core.ids import partition as partition_of
from pvbus.core.records import DLQ, DeadLetter, partition_key
from pvbus.errors import ConflictError, FencedError, InvariantError, PermanentError, TransientError
from pvbus.ports.bus import Bus, Claim, Membership, Output, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.runtime.claims import OpenClaim
from pvbus.runtime.effects import perform
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

EFFECTS_INFLIGHT_MAX = 64  # an API server on two cores gains nothing above; fewer starve it
DIRTY_KEYS_MAX = 50_000  # beyond, inputs pause: memory stays bounded when the cluster is slow
SLICE_SECONDS = 0.02  # one turn of dispatching; longer and heartbeats and reads would wait
STEP_RECORDS_MAX = 2_000
BACKOFF_SECONDS = (0.2, 60.0)
ECHO_SECONDS = 10.0  # how long a lost echo can hold a key back
PERMANENT_RETRY_SECONDS = 60.0
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
        self._timers: list[tuple[float, int, str]] = []
        self._effects_free = asyncio.Semaphore(EFFECTS_INFLIGHT_MAX)
        self._paused_until = 0.0
        self._positions: dict[TopicPartition, int] = {}
        self._catching_up: list[tuple[dict[TopicPartition, int], asyncio.Event]] = []
        self._broadcast_ready = asyncio.Event()
        self._membership: Membership | None = None
        self._last_step = 0.0
        self._tasks: asyncio.TaskGroup | None = None
        self._reader = bus.reader()
        self._inputs_paused = False

    # ---------------------------------------------------------------- life

    async def run(self) -> None:
        """Join the group and work until `stop`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                loops = [tasks.create_task(self._reading()), tasks.create_task(self._dispatching())]
                loops.append(tasks.create_task(self._keeping_time()))
                tasks.create_task(self._restore_broadcast())
                topics = (*self.controller.inputs, *self.controller.memory)
                self._membership = await self._bus.join(
                    f"pvbus-{self.controller.name}", topics, assigned=self._assigned, revoked=self._revoked
                )
                await self._stopping.wait()
                await self._membership.leave()
                for loop in loops:
                    loop.cancel()
        finally:
            await self._reader.close()

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
        return self._timers[0][0] - self._clock.monotonic() if self._timers else None

    @property
    def dirty_keys(self) -> int:
        return sum(len(c.dirty) + len(c.busy) for c in self._claims.values())

    def claims(self) -> dict[int, OpenClaim]:
        """Return the claims held, by partition (for lag and health; not to be changed)."""
        return self._claims

    def positions(self) -> dict[TopicPartition, int]:
        return self._positions

    # ---------------------------------------------------------------- claims

    async def _assigned(self, claim: Claim) -> None:
        opened = OpenClaim(claim, self.controller.inputs)
        self._claims[claim.partition] = opened
        self.controller.open(claim.partition)
        assert self._tasks is not None
        self._tasks.create_task(self._restore(opened))

    async def _restore(self, opened: OpenClaim) -> None:
        """Rebuild the claim's tables from 0 to the end that stood after the fence; then all is dirty."""
        claim, controller = opened.claim, self.controller
        try:
            committed = await self._bus.committed(claim, controller.inputs)
            owned = [(t, claim.partition) for t in (*controller.inputs, *controller.memory)]
            ends = await self._bus.end_offsets(owned)
            await self._replay(ends)
            await self._broadcast_ready.wait()
            await self._wait_for(
                await self._bus.end_offsets(
                    [(t, p) for t in controller.broadcast for p in range(self.partitions)]
                )
            )
        except FencedError:
            return
        if self._claims.get(claim.partition) is not opened or opened.revoked:
            return
        for topic in controller.inputs:
            position = ends[topic, claim.partition]
            opened.start_at(topic, position, committed.get(topic, 0))
            self._positions[topic, claim.partition] = position
        self._reader.assign({(t, claim.partition): ends[t, claim.partition] for t in controller.inputs})
        for key in controller.keys(claim.partition):
            opened.mark(key)
        opened.restored = True
        metrics.CLAIMS.labels(controller.name).inc()
        self._wake.set()

    async def _replay(self, ends: dict[TopicPartition, int] | Any) -> None:
        reader = self._bus.reader({tp: 0 for tp, end in ends.items() if end > 0})
        try:
            open_ends = {tp: end for tp, end in ends.items() if end > 0}
            while open_ends:
                for record in await reader.poll(timeout_seconds=1.0):
                    if record.offset < ends[record.topic, record.partition]:
                        self._load(record)
                open_ends = {tp: end for tp, end in open_ends.items() if reader.position(tp) < end}
        finally:
            await reader.close()

    async def _restore_broadcast(self) -> None:
        partitions = [(t, p) for t in self.controller.broadcast for p in range(self.partitions)]
        if partitions:
            ends = await self._bus.end_offsets(partitions)
            await self._replay(ends)
            self._positions.update(ends)
            self._reader.assign(ends)
        self._broadcast_ready.set()

    async def _revoked(self, claim: Claim) -> None:
        opened = self._claims.get(claim.partition)
        if opened is None:
            return
        opened.revoked = True
        if opened.restored:
            self._reader.unassign([(t, claim.partition) for t in self.controller.inputs])
            metrics.CLAIMS.labels(self.controller.name).dec()
        deadline = self._clock.monotonic() + self._drain_seconds
        while (opened.busy or opened.stepping or opened.puts) and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.01)
        if self._claims.get(claim.partition) is opened:
            del self._claims[claim.partition]
            self.controller.close(claim.partition)

    async def _reopen(self, opened: OpenClaim) -> None:
        """After an unknown outcome: forget the claim's tables and restore them."""
        await self._revoked(opened.claim)
        if self._membership and opened.claim.partition in self._membership.claims():
            await self._assigned(self._membership.claims()[opened.claim.partition])

    # ---------------------------------------------------------------- reading

    async def _reading(self) -> None:
        while True:
            records = await self._reader.poll(timeout_seconds=1.0)
            for record in records:
                self._consume(record)
            if records:
                self._release_catch_up()
                self._wake.set()
            if self.dirty_keys > DIRTY_KEYS_MAX and not self._inputs_paused:
                self._inputs_paused = True
                self._reader.pause(list(self._positions))
            await asyncio.sleep(0)

    def _load(self, record: Record) -> list[str]:
        try:
            key = record.key.decode()
            return list(self.controller.load(record.topic, record.partition, key, record.value))
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            self._dead_letter(record, exc)
            return []

    def _dead_letter(self, record: Record, error: Exception) -> None:
        metrics.DEAD_LETTERS.labels(record.topic).inc()
        topic, partition, offset = record.topic, record.partition, record.offset
        self._log.error(
            "record cannot be decoded", topic=topic, partition=partition, offset=offset, error=str(error)
        )
        opened = self._claims.get(partition)
        if opened is not None and topic not in self.controller.broadcast:
            letter = DeadLetter(
                topic=topic, partition=partition, offset=offset, error=str(error), value=record.value or b""
            )
            opened.puts.append(("", (Put(DLQ, record.key.decode(errors="replace"), letter),)))

    def _consume(self, record: Record) -> None:
        keys = self._load(record)
        self._positions[record.topic, record.partition] = record.offset + 1
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

    def _release_catch_up(self) -> None:
        waiting = []
        for ends, event in self._catching_up:
            if all(self._positions.get(tp, 0) >= end for tp, end in ends.items()):
                event.set()
            else:
                waiting.append((ends, event))
        self._catching_up = waiting

    async def _wait_for(self, ends: Any) -> None:
        if all(self._positions.get(tp, 0) >= end for tp, end in ends.items()):
            return
        event = asyncio.Event()
        self._catching_up.append((dict(ends), event))
        await event.wait()

    async def _catch_up(self, opened: OpenClaim, topics: tuple[str, ...]) -> None:
        partitions: list[TopicPartition] = []
        for topic in topics:
            whole = topic in self.controller.broadcast
            numbers = range(self.partitions) if whole else [opened.claim.partition]
            partitions += [(topic, number) for number in numbers]
        await self._wait_for(await self._bus.end_offsets(partitions))

    # ---------------------------------------------------------------- dispatching

    async def _dispatching(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            deadline = self._clock.monotonic() + SLICE_SECONDS
            for opened in list(self._claims.values()):
                if opened.restored and not opened.revoked:
                    self._run_dirty(opened, deadline)
            if self._inputs_paused and self.dirty_keys < DIRTY_KEYS_MAX // 2:
                self._inputs_paused = False
                self._reader.resume(list(self._positions))
            await asyncio.sleep(0)

    def _run_dirty(self, opened: OpenClaim, deadline: float) -> None:
        for key in list(opened.dirty):
            if key in opened.busy:
                continue
            if self._clock.monotonic() >= deadline:
                self._wake.set()
                break
            del opened.dirty[key]
            opened.busy.add(key)
            self._begin(opened, key)
        self._kick(opened)

    def _begin(self, opened: OpenClaim, key: str) -> None:
        steps = self.controller.reconcile(key, self._clock.now())
        try:
            effect = next(steps)
        except StopIteration as end:
            self._finish(opened, key, end.value)
            return
        except InvariantError:
            raise
        except Exception as exc:  # one key must not stop the others; see _defect
            self._defect(opened, key, exc)
            return
        assert self._tasks is not None
        self._tasks.create_task(self._with_effects(opened, key, steps, effect))

    async def _with_effects(self, opened: OpenClaim, key: str, steps: Reconciliation, effect: Effect) -> None:
        async with self._effects_free:
            try:
                outcome = await self._drive(opened, steps, effect)
            except TransientError as exc:
                self._retry(opened, key, "transient", self._backoff(opened, key, exc), exc)
            except ConflictError as exc:
                self._retry(opened, key, "conflict", ECHO_SECONDS, exc)
            except PermanentError as exc:
                self._retry(opened, key, "permanent", PERMANENT_RETRY_SECONDS, exc)
            except InvariantError:
                raise
            except Exception as exc:  # one key must not stop the others; see _defect
                self._defect(opened, key, exc)
            else:
                self._finish(opened, key, outcome)
            finally:
                steps.close()
        self._kick(opened)
        self._wake.set()

    async def _drive(self, opened: OpenClaim, steps: Reconciliation, effect: Effect) -> Outcome:
        send: Callable[[Any], Effect] = steps.send
        try:
            while True:
                answer: Any = None
                error: BaseException | None = None
                try:
                    answer = await self._perform(opened, effect)
                except (ConflictError, PermanentError, TransientError) as exc:
                    error = exc
                effect = steps.throw(error) if error is not None else send(answer)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    async def _perform(self, opened: OpenClaim, effect: Effect) -> Any:
        if isinstance(effect, CatchUp):
            return await self._catch_up(opened, effect.topics)
        pause = self._paused_until - self._clock.monotonic()
        if pause > 0:
            await self._clock.sleep(pause)
        if isinstance(effect, WRITES):
            self._check_alive(opened)
        assert self._cluster is not None
        try:
            return await perform(self._cluster, effect)
        except TransientError as exc:
            if exc.retry_after_seconds is not None:  # told to slow down: the whole bucket pauses
                self._paused_until = self._clock.monotonic() + exc.retry_after_seconds
            raise

    def _check_alive(self, opened: OpenClaim) -> None:
        """A claim that may have been given away writes nothing to the cluster."""
        assert self._membership is not None
        seen = max(self._membership.last_heartbeat(), self._last_step)
        if opened.revoked or self._clock.monotonic() - seen > self._session_seconds / 2:
            raise TransientError("the claim may have been lost")

    def _backoff(self, opened: OpenClaim, key: str, error: TransientError) -> float:
        attempt = opened.attempts[key] = opened.attempts.get(key, 0) + 1
        least, most = BACKOFF_SECONDS
        ceiling = min(most, least * 2.0 ** min(attempt, 20))
        return max(error.retry_after_seconds or 0.0, random.uniform(least, ceiling))

    def _retry(self, opened: OpenClaim, key: str, outcome: str, seconds: float, error: Exception) -> None:
        log = self._log.debug if outcome == "conflict" else self._log.warning
        log("will be tried again", key=key, outcome=outcome, seconds=round(seconds, 2), error=str(error))
        metrics.RECONCILES.labels(self.controller.name, outcome).inc()
        opened.busy.discard(key)
        self._later(key, seconds)

    def _defect(self, opened: OpenClaim, key: str, error: Exception) -> None:
        """Our own bug in one key's decision: say so loudly, leave the key for a minute, go on."""
        trace = "".join(traceback.format_exception(error))
        self._log.error("a decision failed; this is a bug in pvbus", key=key, trace=trace)
        metrics.RECONCILES.labels(self.controller.name, "defect").inc()
        opened.busy.discard(key)
        self._later(key, PERMANENT_RETRY_SECONDS)

    def _finish(self, opened: OpenClaim, key: str, outcome: Outcome) -> None:
        metrics.RECONCILES.labels(self.controller.name, outcome.result).inc()
        opened.attempts.pop(key, None)
        if outcome.again_after == 0:
            opened.mark(key)
            self._wake.set()
        elif outcome.again_after is not None:
            self._later(key, outcome.again_after)
        if outcome.puts:
            opened.puts.append((key, outcome.puts))
        else:
            opened.busy.discard(key)

    def _later(self, key: str, seconds: float) -> None:
        heapq.heappush(self._timers, (self._clock.monotonic() + seconds, len(self._timers), key))

    async def _keeping_time(self) -> None:
        while True:
            await self._clock.sleep(0.1 if self._timers else 0.25)
            now = self._clock.monotonic()
            while self._timers and self._timers[0][0] <= now:
                self._mark(heapq.heappop(self._timers)[2])
                self._wake.set()
            if now - self._last_step > OFFSET_COMMIT_SECONDS:
                for opened in self._claims.values():
                    if opened.restored and not opened.stepping and opened.done_offsets():
                        self._kick(opened, offsets_only=True)
            metrics.DIRTY.labels(self.controller.name).set(self.dirty_keys)

    # ---------------------------------------------------------------- stepping

    def _kick(self, opened: OpenClaim, *, offsets_only: bool = False) -> None:
        if (opened.puts or offsets_only) and not opened.stepping:
            opened.stepping = True
            assert self._tasks is not None
            self._tasks.create_task(self._stepping(opened))

    async def _stepping(self, opened: OpenClaim) -> None:
        """Step until nothing is left; while one step is under way the next batch gathers."""
        try:
            while True:
                await self._step(opened, self._batch(opened))
                if not opened.puts:
                    return
        except FencedError:
            self._log.info("claim lost", partition=opened.claim.partition, epoch=opened.claim.epoch)
            opened.revoked = True
        except TransientError as exc:
            self._log.warning("outcome of a step unknown", error=str(exc))
            metrics.STEPS.labels(self.controller.name, "unknown").inc()
            await self._clock.sleep(BACKOFF_SECONDS[0])
            assert self._tasks is not None
            self._tasks.create_task(self._reopen(opened))
        finally:
            opened.stepping = False

    @staticmethod
    def _batch(opened: OpenClaim) -> list[tuple[str, tuple[Put, ...]]]:
        """Take outcomes up to the limit; the rows of one outcome stay together."""
        count = size = 0
        for _, puts in opened.puts:
            if count and size + len(puts) > STEP_RECORDS_MAX:
                break
            count, size = count + 1, size + len(puts)
        batch, opened.puts = opened.puts[:count], opened.puts[count:]
        return batch

    async def _step(self, opened: OpenClaim, batch: list[tuple[str, tuple[Put, ...]]]) -> None:
        outputs = [self._output(put) for _, puts in batch for put in puts]
        offsets = opened.done_offsets()
        if not outputs and not offsets:
            return
        try:
            await self._bus.step(opened.claim, outputs, offsets)
        except PermanentError as exc:  # too large: leave out the outcome that is, and say so
            await self._step_each(opened, batch, exc)
            return
        self._last_step = self._clock.monotonic()
        opened.committed(offsets)
        metrics.STEPS.labels(self.controller.name, "done").inc()
        for key, puts in batch:
            for put in puts:
                metrics.RECORDS_WRITTEN.labels(put.topic).inc()
                self._stored(opened, put)
            opened.busy.discard(key)
        self._wake.set()

    async def _step_each(
        self, opened: OpenClaim, batch: list[tuple[str, tuple[Put, ...]]], error: Exception
    ) -> None:
        if len(batch) == 1:
            key, puts = batch[0]
            topics = sorted({put.topic for put in puts})
            self._log.error("outcome cannot be written", key=key, topics=topics, error=str(error))
            opened.busy.discard(key)
            return
        for item in batch:
            await self._step(opened, [item])

    def _stored(self, opened: OpenClaim, put: Put) -> None:
        if put.topic in self.controller.memory or put.topic in self.controller.inputs:
            for dirtied in self.controller.store(opened.claim.partition, put):
                opened.mark(dirtied)

    def _output(self, put: Put) -> Output:
        number = 0 if put.topic == DLQ else partition_of(partition_key(put.topic, put.key), self.partitions)
        return Output(put.topic, number, put.key.encode(), encode_row(put.row), put.headers)
