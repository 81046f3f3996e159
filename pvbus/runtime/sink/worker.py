"""The shell of the webhook sink: consume, post, step. It holds leases of the public topic like a service.

An event is sent until the receiver accepts it, or refuses it, or fails it often while it accepts others. The
consumed offset is committed behind that, so a kill repeats events and never loses one.
"""

import asyncio
from collections.abc import Mapping
from typing import Literal, NamedTuple

from pvbus.core.errors import PermanentError, TransientError
from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.records import CONDITIONS, DLQ, LATEST
from pvbus.core.kernel.topics import SINK, row_partition
from pvbus.core.variants.sink.answers import Accepted, Answer, Failed, Refused, Trials
from pvbus.core.variants.sink.message import Event, Filter, event_of
from pvbus.ports.bus import Bus, Output, Record, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.backoff import uniform
from pvbus.runtime.reconcile.holder import LeaseHolder
from pvbus.runtime.reconcile.reader import TableReader
from pvbus.runtime.reconcile.states import LeaseState
from pvbus.runtime.reconcile.tables import dead_letter
from pvbus.runtime.sink.bootstrap import read_beginning
from pvbus.runtime.sink.lease import Entry, SinkLease, Stage
from pvbus.runtime.sink.pace import Pace
from pvbus.runtime.sink.receiver import Receiver
from pvbus.telemetry import logs, metrics

Start = Literal["latest", "oldest"]

UNSENT_MAX = 10_000
"""Events in memory, of changes: about 20 MB. Beyond, reading pauses until half of them are sent."""

COMMIT_SECONDS = 0.5  # a kill repeats the events of so long; shorter, and steps take more than requests
OWNERSHIP_SECONDS = 0.5  # between checks whether the lease is ours, while that is uncertain
DRAIN_SECONDS = 1.5  # for requests in flight when a lease moves; the bus waits for two
REPORT_SECONDS = 30.0  # between two log lines about failures
_SENDING = "sending"


RETRY_SECONDS_MIN = 0.5
"""The shortest wait before a retry: a receiver that restarts is back after some of them."""


class Limits(NamedTuple):
    """The limits of requests and attempts.

    in_flight_max: the number of requests at a time
    attempts_max: the failures of one event, while others succeed, that make it a dead letter
    retry_seconds: the shortest and the longest wait before a retry
    """

    in_flight_max: int = 16
    attempts_max: int = 10
    retry_seconds: tuple[float, float] = (RETRY_SECONDS_MIN, 30.0)


class SinkWorker:
    """Posts the events of a bus. `run` returns after `stop`.

    Each key with unsent events has one task (`_send_key`), which sends them in their order; keys go side by
    side, as far as `pace` lets them. Another task per lease (`_committing`) commits the offset of the first
    event that is not done, with the dead letters before it. After a crash, what was sent and not committed is
    sent again.

    holder: its leases, and its membership in the group
    """

    name = SINK
    inputs: tuple[str, ...] = (CONDITIONS,)
    idle = True
    observed = True
    next_timer_seconds = None

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        receiver: Receiver,
        *,
        partitions: int,
        start: Start = "latest",
        wanted: Filter = Filter(),  # noqa: B008 - frozen
        limits: Limits = Limits(),  # noqa: B008 - frozen
        jitter: Jitter = uniform,
    ) -> None:
        """Build a worker that holds no lease yet.

        partitions: the partition count of the bus
        start: where a partition begins that was never committed
        wanted: the events to send
        limits: the limits of requests and of attempts
        jitter: the source of the randomness of all waits
        """
        self._bus = bus
        self._clock = clock
        self._receiver = receiver
        self._partitions = partitions
        self._start = start
        self._filter = wanted
        self._limits = limits
        self._jitter = jitter
        self._log = logs.get_logger(SINK)
        self._leases: dict[int, SinkLease] = {}
        self._reader = TableReader(bus, clock, pausable=self.inputs, is_table=False)
        self.holder = LeaseHolder(
            self, lambda lease: SinkLease(lease, clock), bus, clock, self._reader, self._leases
        )
        self._steps: dict[int, asyncio.Lock] = {}
        self._gaps: dict[TopicPartition, int] = {}
        self._reported_at = float("-inf")
        self._retries = 0
        self.pace = Pace(clock, limits.in_flight_max, limits.retry_seconds, jitter)

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        await self.holder.run(self.inputs)

    def stop(self) -> None:
        self.holder.stop()

    @property
    def ready(self) -> bool:
        return self.holder.ready

    @property
    def dirty_keys(self) -> int:
        """Events in memory that are not sent yet."""
        return sum(opened.dirty_count for opened in self._leases.values())

    def leases(self) -> Mapping[int, SinkLease]:
        """Return the leases held, by partition (for lag and health)."""
        return self._leases

    def positions(self) -> Mapping[TopicPartition, int]:
        return self._reader.positions

    @property
    def oldest_at(self) -> float | None:
        """When the oldest event in memory was written, in seconds of the epoch; None if all are sent."""
        return min((at for each in self._leases.values() if (at := each.oldest_at) is not None), default=None)

    # ------------------------------------------------------------ leases

    async def restore(self, opened: SinkLease) -> None:
        opened.clear()
        number = opened.lease.partition
        changes = (CONDITIONS, number)
        committed = await self._bus.committed(opened.lease, (CONDITIONS, LATEST))
        opened.committed = committed[CONDITIONS]
        opened.stage = Stage(min(committed[LATEST], Stage.CHANGES))  # more: a person has moved the group
        if opened.committed or opened.stage is not Stage.UNKNOWN:
            end = (await self._bus.end_offsets([changes]))[changes]
            if opened.committed > end:
                raise PermanentError(
                    f"the group pvbus-{SINK} has sent {CONDITIONS}-{number} up to {opened.committed}, but it "
                    f"ends at {end}: the topic was made anew. Delete the group's offsets, then start the "
                    "sink again: it begins as PVBUS_SINK_START says",
                    reason="OffsetBeyondEnd",
                )
            begin = (await self._bus.begin_offsets([changes]))[changes]
            self._report_deleted(number, opened.committed, begin)
            opened.position = max(begin, opened.committed)
        else:
            await self._begin(opened)
        if opened.stage is Stage.TABLE:
            await self._take_table(opened)
        self._reader.assign({changes: opened.position})
        self.holder.spawn(opened, self._committing(opened))

    async def _begin(self, opened: SinkLease) -> None:
        """Commit the beginning of a partition before the first event is sent.

        A restart that began anew would leave out changes behind those that the receiver has by then.
        """
        changes = (CONDITIONS, opened.lease.partition)
        match self._start:
            case "oldest":
                opened.position = (await self._bus.begin_offsets([changes]))[changes]
                opened.stage = Stage.CHANGES
            case "latest":
                opened.position = (await self._bus.end_offsets([changes]))[changes]
                opened.stage = Stage.TABLE
        await self._bus.step(opened.lease, [], {CONDITIONS: opened.position, LATEST: opened.stage})
        opened.committed = opened.position

    async def _take_table(self, opened: SinkLease) -> None:
        """Queue the latest events, all of them again if only some were sent."""
        number, offset = opened.lease.partition, opened.position
        for record in await read_beginning(self._bus, number, offset, opened.restoring):
            self._take(opened, record, resume=offset)

    async def drain(self, opened: SinkLease) -> None:
        """Give requests in flight a moment, and commit what is done."""
        tasks = [task for task in opened.tasks if task.get_name() == _SENDING]
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)
        with self.holder.interrupting(opened):
            await self._commit(opened)

    def close(self, opened: SinkLease) -> None:
        opened.clear()

    # ------------------------------------------------------------ reading

    async def read(self) -> None:
        unsent = self.dirty_keys
        if unsent >= UNSENT_MAX:
            self._reader.pause()
        elif unsent <= UNSENT_MAX // 2:
            self._reader.resume()
        expected = dict(self._reader.positions)
        counts: dict[TopicPartition, int] = {}

        def consume(record: Record) -> None:
            partition = record.topic, record.partition
            counts[partition] = counts.get(partition, 0) + 1
            if (opened := self._leases.get(record.partition)) is not None:
                self._take(opened, record, resume=record.offset)

        await self._reader.poll(consume)
        for partition, position in self._reader.positions.items():
            if (opened := self._leases.get(partition[1])) is not None:
                opened.position = position
            begin = expected.get(partition, position)
            if position - begin > counts.get(partition, 0):
                self._gaps.setdefault(partition, begin)
        await self._check_gaps()

    async def _check_gaps(self) -> None:
        """Report the gaps that were read over and are of deleted records; the others are of transactions."""
        if not self._gaps:
            return
        begins = await self._bus.begin_offsets(list(self._gaps))
        gaps, self._gaps = self._gaps, {}
        for partition, offset in gaps.items():
            self._report_deleted(partition[1], offset, begins[partition])

    def _report_deleted(self, number: int, offset: int, begin: int) -> None:
        """Report the events from `offset` to `begin`, if there are any."""
        if begin <= offset:
            return
        metrics.SINK_DELETED.inc(begin - offset)
        self._log.error(
            "events were deleted before they were sent, as they were older than the topic's retention",
            partition=number,
            first=offset,
            next=begin,
            remedy="let the receiver begin anew: see docs/events.md, webhook",
        )

    def _take(self, opened: SinkLease, record: Record, *, resume: int) -> None:
        """Queue the event of a record."""
        opened.note_progress()
        try:
            event = event_of(record.topic, record.key, record.value, record.headers)
        except ValueError as exc:
            self._give_up(opened, record, f"it is no event: {exc}")
            return
        if not self._filter.wants(event):
            metrics.SINK_EVENTS.labels("filtered").inc()
        elif opened.add(Entry(event, record, resume)):
            task = self.holder.spawn(opened, self._send_key(opened, event.key))
            task.set_name(_SENDING)

    # ------------------------------------------------------------ sending

    async def _send_key(self, opened: SinkLease, key: str) -> None:
        """Send the events of a key, one after the other, until none is left or the lease moves."""
        await opened.reaches(LeaseState.RUNNING, LeaseState.REVOKED)
        while key in opened.queues and await self._send(opened, opened.queues[key][0]):
            pass

    async def _send(self, opened: SinkLease, entry: Entry) -> bool:
        """Send an event until it is done; return False if the lease moves before."""
        trials = Trials(self.pace.accepted)
        backoff = Backoff(*self._limits.retry_seconds, self._jitter)
        while True:
            answer = await self._try(opened, entry.event)
            match answer:
                case None:
                    return False
                case Accepted():
                    metrics.SINK_EVENTS.labels("sent").inc()
                    opened.finish(entry)
                    return True
                case Refused():
                    self._give_up(opened, entry.record, answer.message)
                    opened.finish(entry)
                    return True
                case Failed():
                    strikes = trials.count_failure(self.pace.accepted)
                    if strikes >= self._limits.attempts_max:
                        text = (
                            f"it failed {strikes} times while others were accepted; at last {answer.message}"
                        )
                        self._give_up(opened, entry.record, text)
                        opened.finish(entry)
                        return True
                    self._report(entry, answer)
                    await self._clock.sleep(backoff.next_seconds(answer))

    async def _try(self, opened: SinkLease, event: Event) -> Answer | None:
        """Send an event once; None if the lease moves."""
        async with self.pace.turn():
            while not self._is_ours(opened):
                if opened.state is not LeaseState.RUNNING:
                    return None
                await self._clock.sleep(OWNERSHIP_SECONDS)
            answer = await self._receiver.send(event)
            self.pace.note(answer)
            return answer

    def _is_ours(self, opened: SinkLease) -> bool:
        """Return whether nobody else may hold the lease: two senders could change a key's order."""
        membership = self.holder.membership
        if membership is None or opened.state is not LeaseState.RUNNING:
            return False
        seconds = self._clock.monotonic() - membership.last_heartbeat()
        is_held = membership.leases().get(opened.lease.partition) == opened.lease
        return is_held and seconds < self._bus.session_seconds

    def _report(self, entry: Entry, answer: Failed) -> None:
        """Count a failure; log it, but not each of a receiver that is down."""
        metrics.SINK_EVENTS.labels("retried").inc()
        self._retries += 1
        now = self._clock.monotonic()
        if now - self._reported_at >= REPORT_SECONDS:
            self._log.warning(
                "the receiver takes an event not yet",
                problem=answer.message,
                key=entry.event.key,
                failures=self._retries,
                unsent=self.dirty_keys,
            )
            self._reported_at, self._retries = now, 0

    def _give_up(self, opened: SinkLease, record: Record, reason: str) -> None:
        """Make an event a dead letter: written with the step that commits the offset behind it, or before."""
        letter = dead_letter(record, ValueError(f"{SINK}: {reason}"))
        key = record.key.decode(errors="replace")
        number = row_partition(DLQ, key, self._partitions)
        opened.letters.append(Output(DLQ, number, record.key, encode_row(letter), record.headers))
        metrics.SINK_EVENTS.labels("dead_lettered").inc()
        self._log.error(
            "event given up",
            key=key,
            position=f"{record.topic}-{record.partition}@{record.offset}",
            reason=reason,
            remedy=f"pvbus topics {DLQ} shows it",
        )

    # ------------------------------------------------------------ steps

    async def _committing(self, opened: SinkLease) -> None:
        await opened.reaches(LeaseState.RUNNING, LeaseState.REVOKED)
        with self.holder.interrupting(opened):
            while True:
                await self._commit(opened)
                await self._clock.sleep(COMMIT_SECONDS)

    async def _commit(self, opened: SinkLease) -> None:
        """Write dead letters, and the offset behind the events that are done."""
        async with self._steps.setdefault(opened.lease.partition, asyncio.Lock()):
            letters, opened.letters = opened.letters, []
            offset, stage = opened.advance_offset(), opened.done_stage()
            offsets = {CONDITIONS: offset} if offset > opened.committed else {}
            if stage > opened.stage:
                offsets[LATEST] = stage
            if not letters and not offsets:
                return
            try:
                await self._bus.step(opened.lease, letters, offsets)
            except TransientError:
                metrics.STEPS.labels(SINK, "unknown").inc()
                raise
            metrics.STEPS.labels(SINK, "done").inc()
            opened.committed = max(offset, opened.committed)
            opened.stage = max(stage, opened.stage)
