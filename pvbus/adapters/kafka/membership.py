"""A worker's membership in a consumer group, and the leases that it gets there.

The group's consumer reads nothing; it sends heartbeats and takes part in rebalances. Two synchronous calls of
the library's coordination task decide what happens: `_report_held`, when it is about to join, and
`_take_share`, when it has joined. Everything else runs in tasks of this membership.

Invariants. A partition is reported as held from its assignment until its lease's producer is closed, so that
the leader assigns it to no other member before that. A member that joins without a member id was out of the
group, and has lost all its leases. For each partition the next lease waits for the end of the previous one.
"""

import asyncio
import contextlib
import random
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.abc import ConsumerRebalanceListener

from pvbus.adapters.kafka.errors import translated, with_deadline
from pvbus.adapters.kafka.groups import CoPartitioningAssignor
from pvbus.adapters.kafka.library import filter_logs, stop_consumer, wait_for_brokers
from pvbus.adapters.kafka.producers import Producers
from pvbus.adapters.kafka.settings import KafkaSettings, member_options
from pvbus.adapters.kafka.topics import TopicWatch
from pvbus.adapters.kafka.writer import Writer
from pvbus.adapters.membership import MembershipLife, call_back
from pvbus.core.errors import FencedError, PvbusError, TransientError
from pvbus.core.kernel.backoff import spread
from pvbus.ports.bus import Assigned, Lease, Revoked
from pvbus.ports.clock import Clock
from pvbus.telemetry.logs import get_logger

_log = get_logger("kafka")

WATCH_SECONDS = 1.0
RETRY_SECONDS = 0.5


class _Slot:
    """A partition of this member, from its assignment until it is free for other members.

    number: the partition
    writer: the producer of its lease
    predecessor: the task that ends a lost lease of the same partition, None if there was none
    lease: the lease, None until its producer has fenced the previous holder
    occupying: the task that starts the producer and restores the lease
    vacating: the task that frees the partition, None while it stays
    """

    def __init__(self, number: int, writer: Writer, predecessor: "asyncio.Task[None] | None") -> None:
        self.number = number
        self.writer = writer
        self.predecessor = predecessor
        self.lease: Lease | None = None
        self.occupying: asyncio.Task[None] | None = None
        self.vacating: asyncio.Task[None] | None = None


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Ignores the library's callbacks: it would swallow the errors that they raise."""

    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None: ...


class KafkaMembership(MembershipLife):
    """Implements `pvbus.ports.bus.Membership`.

    Life of a slot: `_occupy` makes it for a new partition of the share; `_lease` starts its producer and gets
    the lease; `_vacate` begins its end, if it is not in a share, is fenced, or the membership ends; `_drain`
    removes it once the producer is closed, and asks for a rebalance, in which the leader gives the partition
    to another member.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        clock: Clock,
        group: str,
        topics: Sequence[str],
        partitions: int,
        assigned: Assigned,
        revoked: Revoked,
        *,
        topic_watch: TopicWatch,
        producers: Producers,
        label: str = "",
    ) -> None:
        """Join nothing until `start`.

        assigned: called with each lease that this worker gets
        revoked: called with each lease that it loses
        topic_watch: ends this membership when the topics change
        producers: makes the producers of its leases
        label: the description of this member
        """
        super().__init__(group, clock, assigned, revoked)
        self._settings = settings
        self._topics = [settings.named(topic) for topic in topics]
        self._topic_watch = topic_watch
        self._producers = producers
        filter_logs()
        assignor = CoPartitioningAssignor(
            self._topics, partitions, held=self._report_held, on_share=self._take_share, label=label
        )
        self._consumer = AIOKafkaConsumer(**member_options(settings, group, assignor))
        self._slots: dict[int, _Slot] = {}
        self._reported: frozenset[int] = frozenset()  # the partitions that the leader knows we hold
        self._leftovers: dict[int, asyncio.Task[None]] = {}  # the `vacating` tasks of lost slots
        self._writers: set[Writer] = set()
        self._leaving = asyncio.Event()
        self._obstacle = ""

    async def start(self) -> None:
        """Join the group; the first assignment comes later. Raises TransientError."""
        try:
            async with with_deadline(f"joining {self._group}"):
                await self._consumer.start()
                await wait_for_brokers(self._consumer._client)
        except BaseException:
            await stop_consumer(self._consumer)
            raise
        self._observe_heartbeats()
        self._consumer.subscribe(self._topics, listener=_Listener())
        self._last_heartbeat = self._clock.monotonic()
        self._life = asyncio.create_task(self._live(), name=f"membership of {self._group}")

    def _observe_heartbeats(self) -> None:
        coordinator = self._consumer._coordinator
        beat = coordinator._do_heartbeat

        async def beat_and_note() -> bool:
            began = self._clock.monotonic()
            is_ok = bool(await beat())
            if is_ok:
                self._last_heartbeat = began
            return is_ok

        coordinator._do_heartbeat = beat_and_note

    # What others see

    @property
    def member_id(self) -> str:
        return str(self._consumer._coordinator.member_id)

    def writer(self, lease: Lease) -> Writer | None:
        """Return the writer of a lease, None if the lease is not ours."""
        slot = self._slots.get(lease.partition)
        return slot.writer if slot is not None and slot.lease == lease else None

    async def confirm(self) -> bool:
        """Return whether we are still a member: send a heartbeat. Raises TransientError without an answer."""
        coordinator = self._consumer._coordinator
        with translated(f"heartbeat of {self._group}"):
            if await coordinator._do_heartbeat():
                return True
        if coordinator.member_id:
            raise TransientError(f"the coordinator of {self._group} does not answer")
        return False

    async def verify(self) -> bool:
        """Return whether we were a member just now: by the last heartbeat, or by one more if that is old.

        Raises TransientError without an answer.
        """
        if self._clock.monotonic() - self._last_heartbeat < self._settings.session_seconds:
            return True
        return await self.confirm()

    async def leave(self) -> None:
        self._leaving.set()
        await self._wait_ended()

    async def abandon(self) -> None:
        self._consumer._coordinator.generation = -1  # so that the library sends no LeaveGroup
        await super().abandon()

    # The life of a member

    async def _live(self) -> None:
        """Stay a member until `leave`. An error of a callback, or a changed topic, ends the membership."""
        try:
            async with self._tasks:
                watches = (self._watch(), self._topic_watch.watch())
                watching = [self._tasks.create_task(each) for each in watches]
                await self._leaving.wait()
                for slot in tuple(self._slots.values()):
                    self._vacate(slot)
                ending = [
                    *self._leftovers.values(),
                    *(s.vacating for s in self._slots.values() if s.vacating),
                ]
                if ending:
                    await asyncio.wait(ending)
                for task in watching:
                    task.cancel()
        except Exception as exc:
            self._failure = exc
        finally:
            await self._disconnect()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a task of this membership. Raises RuntimeError if the membership is ending by a failure."""
        try:
            return self._tasks.create_task(coroutine)
        except RuntimeError:
            coroutine.close()
            raise

    async def _disconnect(self) -> None:
        self._leases = {}
        await asyncio.gather(stop_consumer(self._consumer), *(writer.close() for writer in self._writers))
        self._slots = {}

    async def _watch(self) -> None:
        """Poll: this raises the errors of the coordination task, and shows it that we are alive."""
        coordination = self._consumer._coordinator._coordination_task
        while True:
            try:
                with translated(f"membership of {self._group}"):
                    await self._consumer.getmany(timeout_ms=int(WATCH_SECONDS * 1000))
            except PvbusError as error:
                if coordination.done():  # it does not restart
                    raise
                self._log_obstacle(error)
                self._restart_heartbeats()
                await asyncio.sleep(spread(RETRY_SECONDS, random.uniform))

    def _restart_heartbeats(self) -> None:
        """Rejoin if the heartbeats ended: the library ends them at an unknown error, a join starts them."""
        coordinator = self._consumer._coordinator
        if coordinator._heartbeat_task is not None and coordinator._heartbeat_task.done():
            coordinator.request_rejoin()

    def _log_obstacle(self, error: PvbusError) -> None:
        """Log an error that is retried, such as a missing group ACL, unless it repeats the last one."""
        if str(error) != self._obstacle:
            self._obstacle = str(error)
            _log.warning("leases cannot be taken yet", error=str(error))

    # The two calls of a rebalance

    def _report_held(self) -> Iterable[int]:
        if not self._consumer._coordinator.member_id:
            self._lose_everything()
        self._reported = frozenset(self._slots)
        return self._reported

    def _take_share(self, numbers: list[int]) -> None:
        for topic in self._topics:  # nothing is read here
            for number in numbers:
                self._consumer.pause(KafkaPartition(topic, number))
                self._consumer.seek(KafkaPartition(topic, number), 0)
        if self._leaving.is_set():
            return
        for number, slot in tuple(self._slots.items()):
            if number not in numbers:
                self._vacate(slot)
        for number in numbers:
            if number not in self._slots:
                self._occupy(number)
        if not self._reported <= self._slots.keys():  # the library forgets a request to join while it joins
            self._offer_free_partitions()

    def _offer_free_partitions(self) -> None:
        """Request a rebalance once all partitions that this member gives up are free."""
        if not any(slot.vacating for slot in self._slots.values()) and not self._leaving.is_set():
            self._consumer._coordinator.request_rejoin()

    def _lose_everything(self) -> None:
        """Drop all leases: other members may have them already."""
        self._leases = {}
        slots, self._slots = self._slots, {}
        for number, slot in slots.items():
            self._vacate(slot)
            assert slot.vacating is not None
            self._leftovers[number] = slot.vacating

    # One lease

    def _occupy(self, number: int) -> None:
        writer = Writer(
            self._settings,
            self._producers,
            self._group,
            number,
            confirm=self.confirm,
            verify=self.verify,
            on_fence=lambda: self._give_back(slot),
        )
        self._writers.add(writer)
        slot = self._slots[number] = _Slot(number, writer, self._leftovers.pop(number, None))
        slot.occupying = self._spawn(self._lease(slot))

    async def _lease(self, slot: _Slot) -> None:
        """Fence the previous holder before the callback, so that what the callback reads is final."""
        if slot.predecessor is not None:
            await asyncio.wait({slot.predecessor})
        while True:
            try:
                epoch = await slot.writer.start()
                break
            except FencedError:  # another worker starts a producer, too
                pass
            except TransientError as exc:
                self._log_obstacle(exc)
            await asyncio.sleep(spread(RETRY_SECONDS, random.uniform))
        slot.lease = Lease(group=self._group, partition=slot.number, epoch=epoch)
        self._leases[slot.number] = slot.lease
        await call_back(self._assigned, slot.lease)

    def _vacate(self, slot: _Slot) -> None:
        if slot.vacating is None:
            slot.vacating = self._spawn(self._drain(slot))

    async def _drain(self, slot: _Slot) -> None:
        """Call back, close the producer after the callback or its deadline, and free the partition."""
        number = slot.number
        ending = self._tasks.create_task(self._end_callbacks(slot))
        await asyncio.wait({ending}, timeout=self._settings.drain_seconds)
        ending.cancel()  # no effect if it is done
        if self._leases.get(number) == slot.lease:
            self._leases.pop(number, None)
        await asyncio.wait({ending, slot.predecessor} if slot.predecessor else {ending})
        await slot.writer.close()
        self._writers.discard(slot.writer)
        if self._slots.get(number) is slot:  # else it was lost, and the group knows that
            del self._slots[number]
            self._offer_free_partitions()

    async def _end_callbacks(self, slot: _Slot) -> None:
        assert slot.occupying is not None
        slot.occupying.cancel()  # a revoked lease need not be restored completely
        await asyncio.wait({slot.occupying})
        if slot.lease is not None:
            await call_back(self._revoked, slot.lease)

    def _give_back(self, slot: _Slot) -> None:
        """Give back a lease that another worker fenced; the leader then assigns it again.

        If we are no longer a member, the lease is lost, and the next join would drop it as well.
        """
        if self._slots.get(slot.number) is slot:
            with contextlib.suppress(RuntimeError):  # the membership is ending, with all its slots
                self._vacate(slot)
