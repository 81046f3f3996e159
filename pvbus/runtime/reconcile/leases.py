"""One lease of a controller: its dirty keys, its work in flight and its finished offsets.

Invariants: a key is never reconciled twice at once; a key that is marked dirty while it is busy runs
again; the offset that may be committed is the lowest whose keys are still dirty or busy.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from pvbus.core.kernel.codec import encode_row
from pvbus.core.kernel.effects import Put
from pvbus.core.kernel.topics import row_partition
from pvbus.ports.bus import Bus, Lease, Membership, Output
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.states import LeaseState

GATHER_SECONDS = 0.5
"""How long outcomes wait for those of keys in flight. Shorter: many leases make many small steps, and each
costs six requests on Kafka. Longer: whoever waits for these rows waits with them."""

GATHER_RECORDS = 64
"""Enough rows for a step, with which none waits."""

COMMIT_SECONDS = (1.0, 5.0)
"""When offsets alone are committed: so long after a lease's last work, or, while there is work, after its
last step. They are for lag and scaling, and not worth a step each."""

STEPS_WAITING_MAX = 4  # steps whose rows may wait: enough to fill the next ones within bounded memory


class Finished(NamedTuple):
    """A finished reconciliation.

    key: its key, "" for rows that belong to none
    puts: its rows
    outputs: the encoded rows
    size: their size, in bytes
    """

    key: str
    puts: tuple[Put, ...]
    outputs: list[Output]
    size: int


def finished(key: str, puts: tuple[Put, ...], partitions: int) -> Finished:
    """Encode an outcome for a later step."""
    outputs, size = [], 0
    for put in puts:
        number = row_partition(put.topic, put.key, partitions)
        output = Output(put.topic, number, put.key.encode(), encode_row(put.row), put.headers)
        size += output_bytes(output)
        outputs.append(output)
    return Finished(key, puts, outputs, size)


def output_bytes(output: Output) -> int:
    """Return the bytes of a record that count for a step's limit."""
    size = len(output.key) + len(output.value or b"")
    for name, value in output.headers:
        size += len(name) + len(value)
    return size


class StepLimits(NamedTuple):
    """The limits of one step.

    records: the number of records
    bytes: the size of all records together
    """

    records: int
    bytes: int

    @classmethod
    def of(cls, bus: Bus) -> "StepLimits":
        return cls(bus.step_records_max, bus.step_bytes_max)


class Running(NamedTuple):
    """A running reconciliation.

    number: its count within the lease
    began: when it began, in seconds of the monotonic clock
    """

    number: int
    began: float


class OpenLease(HeldLease):
    """One lease of a controller: plain data that the worker changes.

    Life of a key: `mark` makes it dirty and queues it; `take` makes it busy; `finish` ends that, once its
    rows are committed. A mark of a busy key does not queue it: `finish` does. `_undone` has (offset, key) of
    the records whose keys may not be done, in the order of each topic; `done_offsets` removes from its front
    what is done.

    last_step: when its last step ended, in seconds of the monotonic clock
    replayed: (offsets read, offsets to read) of its own tables, without the broadcast tables
    dirty: the keys that need a decision
    queue: the keys that are dirty and not busy, the longest waiting first
    busy: the running reconciliation of each key, until its rows are committed
    puts: the outcomes that wait for a step
    stepping: whether a step is under way
    refusals: parts of outcomes that the bus refused since its last accepted step
    will_offer_again: whether a restore is due that writes refused rows again
    attempts: failures in a row, by key
    defects: key -> error of the decisions that fail because of a bug
    next_offsets: topic -> the offset behind the last record applied
    """

    def __init__(
        self,
        lease: Lease,
        inputs: Iterable[str],
        clock: Clock,
        limits: StepLimits,
        on_end: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Open a lease without tables.

        inputs: the topics whose offsets are committed
        limits: the limits of one step
        on_end: called with the seconds of each reconciliation whose outcome is committed
        """
        super().__init__(lease, clock)
        self._on_end = on_end
        self._reconciliations = 0
        self.last_step = float("-inf")
        self._inputs = tuple(inputs)
        self._limits = limits
        self.clear()

    def clear(self) -> None:
        """Forget everything that came from the tables: they are about to be restored."""
        self.restore = self.replayed = (0, 0)
        self.dirty: set[str] = set()
        self.busy: dict[str, Running] = {}
        self.puts: list[Finished] = []
        self._waiting_records = self._waiting_bytes = 0
        self._gather_until: float | None = None
        self.stepping = False
        self.refusals = 0  # parts of outcomes that the bus refused since its last accepted step
        self.will_offer_again = False
        self.attempts: dict[str, int] = {}
        self.defects: dict[str, str] = {}  # keys whose decision fails because of a bug, with the error
        self.next_offsets: dict[str, int] = {}
        self.queue: deque[str] = deque()
        self._undone: dict[str, deque[tuple[int, str]]] = {topic: deque() for topic in self._inputs}
        self._committed: dict[str, int] = {}

    # ------------------------------------------------------------ keys

    def mark(self, key: str) -> None:
        if key not in self.dirty:
            self.dirty.add(key)
            if key not in self.busy:
                self.queue.append(key)

    def take(self) -> str | None:
        """Unmark and return the key that has waited longest; it is busy until `finish`."""
        if not self.queue:
            return None
        key = self.queue.popleft()
        self.dirty.discard(key)
        self._reconciliations += 1
        self.busy[key] = Running(self._reconciliations, self._clock.monotonic())
        return key

    def finish(self, key: str) -> None:
        self.progress_at = self._clock.monotonic()
        running = self.busy.pop(key, None)
        if running is not None:
            self._on_end(self.progress_at - running.began)
            if key in self.dirty:
                self.queue.append(key)

    def log_fields(self, service: str, key: str) -> dict[str, Any]:
        """Return the log fields of a key's reconciliation by a service.

        reconcile_id: `<partition>.<epoch of the lease>.<number>`, unique within a service for all time.
        """
        number, epoch = self.lease.partition, self.lease.epoch
        fields: dict[str, Any] = {"service": service, "key": key, "partition": number}
        if (running := self.busy.get(key)) is not None:
            fields["reconcile_id"] = f"{number}.{epoch}.{running.number}"
        return fields

    def add(self, outcome: Finished) -> None:
        self.puts.append(outcome)
        self._waiting_records += len(outcome.outputs)
        self._waiting_bytes += outcome.size

    def take_puts(self) -> list[Finished]:
        """Take finished outcomes for one step, at least one; the rows of one outcome stay together."""
        count = records = size = 0
        for outcome in self.puts:
            more, larger = records + len(outcome.outputs), size + outcome.size
            if count and (more > self._limits.records or larger > self._limits.bytes):
                break
            count, records, size = count + 1, more, larger
        batch, self.puts = self.puts[:count], self.puts[count:]
        self._gather_until = None
        self._waiting_records -= records
        self._waiting_bytes -= size
        return batch

    def gathers(self) -> bool:
        """Return whether waiting outcomes wait longer. Caller: only while other keys are in flight."""
        now = self._clock.monotonic()
        if self._gather_until is None:
            self._gather_until = now + GATHER_SECONDS
        return self.acts and now < self._gather_until and self._waiting_records < GATHER_RECORDS

    @property
    def is_backed_up(self) -> bool:
        """Whether enough rows wait for steps: deciding more keys would only fill memory."""
        records, size = self._limits
        return (
            self._waiting_records >= STEPS_WAITING_MAX * records
            or self._waiting_bytes >= STEPS_WAITING_MAX * size
        )

    # ------------------------------------------------------------ offsets

    def note_consumed(self, topic: str, offset: int, keys: Iterable[str]) -> None:
        """Note that a record was applied, and which keys must be done before it counts as done."""
        undone = self._undone[topic]
        for key in keys:
            undone.append((offset, key))
        self.next_offsets[topic] = offset + 1
        self.note_progress()

    def done_offsets(self, finishing: Collection[str] = ()) -> Mapping[str, int]:
        """Return the offsets that may be committed and are higher than those committed.

        finishing: keys whose outcome goes into the same step, and which are done with it.
        """
        result = {}
        for topic, undone in self._undone.items():
            while undone:
                key = undone[0][1]
                if key in self.dirty or (key in self.busy and key not in finishing):
                    break
                undone.popleft()
            done = undone[0][0] if undone else self.next_offsets.get(topic, 0)
            if done > self._committed.get(topic, 0):
                result[topic] = done
        return result

    def must_commit(self, now: float) -> bool:
        """Return whether offsets are to be committed without rows."""
        quiet, busy = COMMIT_SECONDS
        is_due = now - self.progress_at >= quiet or now - self.last_step >= busy
        return is_due and self.acts and bool(self.done_offsets())

    def note_step(self, offsets: Mapping[str, int]) -> None:
        """Note that the bus has accepted a step with these offsets."""
        self._committed.update(offsets)
        self.refusals = 0
        self.last_step = self.progress_at = self._clock.monotonic()

    def start_at(self, topic: str, offset: int, committed: int) -> None:
        """Begin at an offset, and remember the committed one, so that it is not committed again."""
        self.next_offsets[topic] = offset
        self._committed[topic] = committed

    # ------------------------------------------------------------ state

    @property
    def dirty_count(self) -> int:
        return len(self.dirty) + len(self.busy)

    @property
    def acts(self) -> bool:
        """Whether keys may be decided."""
        return self.state is LeaseState.RUNNING

    def may_write(self, membership: Membership | None, now: float, seconds: float) -> bool:
        """Whether writes to the cluster are allowed: not if the lease may have moved to another worker.

        seconds: maximum age of the last proof of ownership, a heartbeat or a step.
        """
        if membership is None or not self.acts:
            return False
        is_ours = membership.leases().get(self.lease.partition) == self.lease
        return is_ours and now - max(membership.last_heartbeat(), self.last_step) <= seconds

    @property
    def in_flight(self) -> bool:
        """Whether a decision is running or not written yet, and may still be written."""
        return self.restored and bool(self.busy or self.puts or self.stepping)

    @property
    def is_settled(self) -> bool:
        return self.restored and not self.in_flight

    @property
    def idle(self) -> bool:
        return self.acts and not (self.dirty or self.in_flight)
