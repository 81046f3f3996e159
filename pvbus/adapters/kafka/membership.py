"""A worker's place in a consumer group, and the leases it is given there.

The group's consumer reads nothing; it is there for its heartbeats and rebalances. What happens is decided
in two synchronous moments, both of the library's coordination task: `_tell_held`, when it is about to join,
and `_take_share`, when it has joined. Everything else runs in tasks of this membership.

Invariants. A partition is told as held from the moment it is given until its lease's producer is closed, so
that the leader gives it to nobody else before that. A member that joins without a member id was out of the
group: whatever it held is lost. For each partition the next lease waits for the end of the last one.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as KafkaPartition
from aiokafka.abc import ConsumerRebalanceListener

from pvbus.adapters.kafka.assignor import CoPartitioningAssignor
from pvbus.adapters.kafka.changes import TopicWatch
from pvbus.adapters.kafka.failures import FOREIGN, translate
from pvbus.adapters.kafka.librarylog import leave_out_the_usual
from pvbus.adapters.kafka.settings import TRANSACTION_SECONDS, KafkaSettings, member_options
from pvbus.adapters.kafka.stopping import stop_consumer
from pvbus.adapters.kafka.writer import Writer
from pvbus.core.errors import FencedError, PvbusError, TransientError
from pvbus.ports.bus import Assigned, Lease, Revoked
from pvbus.ports.clock import Clock
from pvbus.telemetry.logs import get_logger

_log = get_logger("kafka")

WATCH_SECONDS = 1.0
RETRY_SECONDS = 0.5


class _Slot:
    """One partition that this member has, from being given it until it is free for others."""

    def __init__(self, number: int, writer: Writer, predecessor: "asyncio.Task[None] | None") -> None:
        self.number = number
        self.writer = writer
        self.predecessor = predecessor
        self.lease: Lease | None = None
        self.occupying: asyncio.Task[None] | None = None
        self.vacating: asyncio.Task[None] | None = None


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Nothing happens in the library's callbacks: it would swallow what they raise."""

    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None: ...


class KafkaMembership:
    """Implements `pvbus.ports.bus.Membership`."""

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
        changes: TopicWatch,
        label: str = "",
    ) -> None:
        """changes: what ends this membership when the topics are not what they were."""
        self._settings = settings
        self._clock = clock
        self._group = group
        self._topics = [settings.named(topic) for topic in topics]
        self._assigned = assigned
        self._revoked = revoked
        self._changes = changes
        leave_out_the_usual()
        assignor = CoPartitioningAssignor(
            self._topics, partitions, held=self._tell_held, given=self._take_share, label=label
        )
        self._consumer = AIOKafkaConsumer(**member_options(settings, group, assignor))
        self._slots: dict[int, _Slot] = {}
        self._reported: frozenset[int] = (
            frozenset()
        )  # what the leader shares out by: the places when we joined
        self._leftovers: dict[int, asyncio.Task[None]] = {}  # places that were lost and are being vacated
        self._leases: dict[int, Lease] = {}
        self._writers: set[Writer] = set()
        self._last_heartbeat = clock.monotonic()
        self._tasks = asyncio.TaskGroup()
        self._life: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._failure: Exception | None = None
        self._is_reported = False
        self._obstacle = ""

    async def start(self) -> None:
        """Enter the group; the first share comes later. Raises TransientError."""
        try:
            async with asyncio.timeout(TRANSACTION_SECONDS):
                await self._consumer.start()
        except BaseException as exc:
            await stop_consumer(self._consumer)
            if isinstance(exc, FOREIGN):
                raise translate(exc, f"joining {self._group}") from exc
            raise
        self._observe_heartbeats()
        self._consumer.subscribe(self._topics, listener=_Listener())
        self._last_heartbeat = self._clock.monotonic()
        self._life = asyncio.create_task(self._live(), name=f"membership of {self._group}")

    def _observe_heartbeats(self) -> None:
        coordinator = self._consumer._coordinator
        beat = coordinator._do_heartbeat

        async def observed() -> bool:
            began = self._clock.monotonic()
            is_ok = bool(await beat())
            if is_ok:
                self._last_heartbeat = began
            return is_ok

        coordinator._do_heartbeat = observed

    # What others see

    @property
    def member_id(self) -> str:
        return str(self._consumer._coordinator.member_id)

    def leases(self) -> Mapping[int, Lease]:
        return dict(self._leases)

    def last_heartbeat(self) -> float:
        return self._last_heartbeat

    def writer(self, lease: Lease) -> Writer | None:
        """Return what writes for a lease, None if it is not, or no more, ours."""
        slot = self._slots.get(lease.partition)
        return slot.writer if slot is not None and slot.lease == lease else None

    async def confirm(self) -> bool:
        """Ask the group now whether we are a member."""
        coordinator = self._consumer._coordinator
        try:
            if await coordinator._do_heartbeat():
                return True
        except FOREIGN as exc:
            raise translate(exc, f"heartbeat of {self._group}") from exc
        if coordinator.member_id:
            raise TransientError(f"the coordinator of {self._group} does not answer")
        return False

    async def wait_left(self) -> None:
        await self._wait_for_life()
        if self._failure is not None:
            self._is_reported = True
            raise self._failure

    async def leave(self) -> None:
        self._leaving.set()
        await self._wait_for_life()
        self._tell_failure()

    async def abandon(self) -> None:
        """Stop at once and tell nobody, as a killed process would; the others must find out."""
        self._consumer._coordinator.generation = -1  # then it does not say that it leaves
        if self._life is not None:
            self._life.cancel()
        await self._wait_for_life()
        self._tell_failure()

    async def _wait_for_life(self) -> None:
        if self._life is not None:
            await asyncio.wait({self._life})

    def _tell_failure(self) -> None:
        """See to it that a failure is known, even where nobody called `wait_left`."""
        if self._failure is not None and not self._is_reported:
            self._is_reported = True
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"membership of {self._group} failed", "exception": self._failure}
            )

    # The life of a member

    async def _live(self) -> None:
        """Be a member until told to leave. A callback that raises, and topics that are not what they were,
        end the membership with their error."""
        try:
            async with self._tasks:
                watching = [self._tasks.create_task(each) for each in (self._watch(), self._changes.watch())]
                await self._leaving.wait()
                for slot in tuple(self._slots.values()):
                    self._vacate(slot)
                ending = [
                    *self._leftovers.values(),
                    *(p.vacating for p in self._slots.values() if p.vacating),
                ]
                if ending:
                    await asyncio.wait(ending)
                for task in watching:
                    task.cancel()
        except Exception as exc:
            self._failure = exc
        finally:
            await self._give_up_place()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run something as a part of this life. Raises RuntimeError at the moment when that is failing."""
        try:
            return self._tasks.create_task(coroutine)
        except RuntimeError:
            coroutine.close()
            raise

    async def _give_up_place(self) -> None:
        self._leases = {}
        await asyncio.gather(stop_consumer(self._consumer), *(writer.close() for writer in self._writers))
        self._slots = {}

    async def _watch(self) -> None:
        """Take notice of what the coordination task met, and show it that we are alive."""
        coordination = self._consumer._coordinator._coordination_task
        while True:
            try:
                await self._consumer.getmany(timeout_ms=int(WATCH_SECONDS * 1000))
            except FOREIGN as exc:
                error = translate(exc, f"membership of {self._group}")
                if coordination.done():  # it does not come back
                    raise error from exc
                self._tell_obstacle(error)
                self._begin_heartbeats_again()
                await asyncio.sleep(RETRY_SECONDS)

    def _begin_heartbeats_again(self) -> None:
        """The library's heartbeats end with the first error that it does not know, and begin with a join."""
        coordinator = self._consumer._coordinator
        if coordinator._heartbeat_task is not None and coordinator._heartbeat_task.done():
            coordinator.request_rejoin()

    def _tell_obstacle(self, error: PvbusError) -> None:
        """Log what is tried again and again, such as without a right to the group, when it is another."""
        if str(error) != self._obstacle:
            self._obstacle = str(error)
            _log.warning("leases cannot be taken yet", error=str(error))

    # The two moments of a rebalance

    def _tell_held(self) -> Iterable[int]:
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
        if not self._reported <= self._slots.keys():  # the library forgets what is asked of it while it joins
            self._offer_what_is_free()

    def _offer_what_is_free(self) -> None:
        """Have the group share out anew, once everything that goes is free."""
        if not any(slot.vacating for slot in self._slots.values()) and not self._leaving.is_set():
            self._consumer._coordinator.request_rejoin()

    def _lose_everything(self) -> None:
        """Others may have our leases already."""
        self._leases = {}
        slots, self._slots = self._slots, {}
        for number, slot in slots.items():
            self._vacate(slot)
            assert slot.vacating is not None
            self._leftovers[number] = slot.vacating

    # One lease

    def _occupy(self, number: int) -> None:
        writer = Writer(
            self._settings, self._group, number, confirm=self.confirm, fenced=lambda: self._give_back(slot)
        )
        self._writers.add(writer)
        slot = self._slots[number] = _Slot(number, writer, self._leftovers.pop(number, None))
        slot.occupying = self._spawn(self._lease(slot))

    async def _lease(self, slot: _Slot) -> None:
        """Fence the old holder, and only then call back: what is read from now on stands."""
        if slot.predecessor is not None:
            await asyncio.wait({slot.predecessor})
        while True:
            try:
                epoch = await slot.writer.start()
                break
            except FencedError:  # somebody else tries to claim it, too
                await asyncio.sleep(RETRY_SECONDS)
            except TransientError as exc:
                self._tell_obstacle(exc)
                await asyncio.sleep(RETRY_SECONDS)
        slot.lease = Lease(group=self._group, partition=slot.number, epoch=epoch)
        self._leases[slot.number] = slot.lease
        await _call(self._assigned, slot.lease)

    def _vacate(self, slot: _Slot) -> None:
        if slot.vacating is None:
            slot.vacating = self._spawn(self._drain(slot))

    async def _drain(self, slot: _Slot) -> None:
        """Call back, close the producer when that is done or late, and let the group know."""
        number = slot.number
        ending = self._tasks.create_task(self._end_callbacks(slot))
        await asyncio.wait({ending}, timeout=self._settings.drain_seconds)
        ending.cancel()  # nothing, if it is done
        if self._leases.get(number) == slot.lease:
            self._leases.pop(number, None)
        await asyncio.wait({ending, slot.predecessor} if slot.predecessor else {ending})
        await slot.writer.close()
        self._writers.discard(slot.writer)
        if self._slots.get(number) is slot:  # else it was lost, and the group knows
            del self._slots[number]
            self._offer_what_is_free()

    async def _end_callbacks(self, slot: _Slot) -> None:
        assert slot.occupying is not None
        slot.occupying.cancel()  # a lease that goes need not be restored to the end
        await asyncio.wait({slot.occupying})
        if slot.lease is not None:
            await _call(self._revoked, slot.lease)

    def _give_back(self, slot: _Slot) -> None:
        """Somebody fenced a lease that we hold: given back, it is given again, to whomever the leader wants.

        If we are no member any more, it was lost, and this is the same as what the next join does with it.
        """
        if self._slots.get(slot.number) is slot:
            with contextlib.suppress(RuntimeError):  # this life is ending, and all places with it
                self._vacate(slot)


async def _call(callback: Callable[[Lease], Any], lease: Lease) -> None:
    """Run a callback. To be fenced is no failure of it: the lease is revoked then."""
    with contextlib.suppress(FencedError):
        await callback(lease)
