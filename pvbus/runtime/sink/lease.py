"""The events of one partition that are not sent yet.

Invariants: a key has one event in flight; the events of a key are sent in their order; the offset that may be
committed is that of the first event that is not done. An event is done once the receiver has accepted it, or
once its dead letter goes into the same step as the offset behind it.
"""

from collections import deque
from enum import IntEnum

from pvbus.core.kernel.records import LATEST
from pvbus.core.variants.sink.message import Event
from pvbus.ports.bus import Lease, Output, Record
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.holder import HeldLease


class Stage(IntEnum):
    """How far a receiver that began without any event has come.

    The group commits the stage as the offset of the table. The offset of the changes cannot show it: the
    first changes may have the offset 0, which is also that of a partition that was never committed.
    """

    UNKNOWN = 0
    TABLE = 1  # the offset of the changes is committed; some latest event may not be sent
    CHANGES = 2


class Entry:
    """An event to send, and its record.

    event: the event
    record: its record, of the changes or of the table
    resume: the offset of the changes to read first if this event is not sent: the record's own, and for a
        record of the table where the changes begin
    is_done: whether it needs no more sending
    """

    __slots__ = ("event", "is_done", "record", "resume")

    def __init__(self, event: Event, record: Record, resume: int) -> None:
        self.event = event
        self.record = record
        self.resume = resume
        self.is_done = False


class SinkLease(HeldLease):
    """One lease: plain data that the worker changes.

    position: the next offset to be read
    committed: the offset on the bus
    stage: the stage on the bus
    letters: the dead letters that go into the next step
    queues: the events that are not sent, by key; the first of each is in flight
    """

    def __init__(self, lease: Lease, clock: Clock) -> None:
        super().__init__(lease, clock)
        self.clear()

    def clear(self) -> None:
        self.restore = (0, 0)
        self.position = 0
        self.committed = 0
        self.stage = Stage.UNKNOWN
        self.letters: list[Output] = []
        self.queues: dict[str, deque[Entry]] = {}
        self._undone: deque[Entry] = deque()
        self._unsent = 0

    def add(self, entry: Entry) -> bool:
        """Append an event; return whether its key was idle, and has to be started."""
        self._undone.append(entry)
        self._unsent += 1
        queue = self.queues.setdefault(entry.event.key, deque())
        queue.append(entry)
        return len(queue) == 1

    def finish(self, entry: Entry) -> None:
        """Note that the first event of its key needs no more sending."""
        entry.is_done = True
        self._unsent -= 1
        self.note_progress()
        queue = self.queues[entry.event.key]
        assert queue.popleft() is entry
        if not queue:
            del self.queues[entry.event.key]

    def advance_offset(self) -> int:
        """Return the offset that may be committed."""
        while self._undone and self._undone[0].is_done:
            self._undone.popleft()
        return self._undone[0].resume if self._undone else self.position

    def done_stage(self) -> Stage:
        """Return the stage that may be committed with `advance_offset`."""
        if self._undone and self._undone[0].record.topic == LATEST:
            return Stage.TABLE
        return Stage.CHANGES

    @property
    def oldest_at(self) -> float | None:
        """When the oldest event that is not sent was written (seconds of the epoch); None if all are sent."""
        return next((entry.record.timestamp_ms / 1000 for entry in self._undone if not entry.is_done), None)

    @property
    def dirty_count(self) -> int:
        return self._unsent

    @property
    def is_settled(self) -> bool:
        """A lease that returns is read again from its committed offset."""
        return False
