"""One lease of ingest: its requests, its watches, and the rows that wait for a step.

They are written in the order of the queue, in steps of a bounded size.

A row that the bus refuses is left out: the bus keeps the former row of its object. Check requests that ask
about such an object are not answered, or its old row would count as current.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from pvbus.core.errors import PermanentError, TooLargeError, TransientError
from pvbus.core.kernel.keys import CHECK_PREFIX, SYNC_PREFIX
from pvbus.core.kernel.kinds import Kind
from pvbus.core.kernel.objectrows import POLICY, SET, VARIANT, Emission
from pvbus.core.kernel.packagerows import SCOPE
from pvbus.core.kernel.records import (
    DLQ,
    INJECTABLES,
    INSTALLS,
    OBJECTS,
    POLICIES,
    SETS,
    VARIANTS,
    CheckRequest,
    WatchRequest,
)
from pvbus.ports.bus import Bus, Lease, Output
from pvbus.ports.clock import Clock
from pvbus.runtime.ingest.digests import DIGEST_HEADER
from pvbus.runtime.ingest.informer import InformerShell
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.leases import StepLimits, output_bytes
from pvbus.telemetry import logs, metrics

_KINDS = {SETS: SET, VARIANTS: VARIANT, POLICIES: POLICY}
"""The kinds of topics whose keys do not name the kind."""
RowKey = tuple[str, str, int, int]
"""(topic, key, partition, segment)."""


class Watched(NamedTuple):
    """A running watch of one kind."""

    watch: InformerShell
    task: asyncio.Task[None]


class IngestLease(HeldLease):
    """The requests and watches of one lease, and the rows that wait for a step.

    Rows wait in `pending` in the order of their first emission. A later row of the same key replaces an
    earlier one in its position, which changes the order of rows. `segment` limits that: markers, answers and
    dead letters each have a segment of their own, so no row moves past one of them. `wait_until_flushed`
    begins a segment, too.

    step: the number of the last step, for the log
    requests: key -> watch request on the bus
    checks: key -> check request on the bus, answered or not
    answers: the keys of the answers that are on the bus or wait for a step
    refused: (topic, key) of each row that the bus refused; the bus has an older version of it
    watches: the running watch of each kind
    pending: the rows that wait, by topic, key, partition and segment
    segment: the segment of the next row
    following: whether the watches are being updated to the requests
    changed: set when the requests changed since the last update
    stepping: the segment of the first row of the step under way, 0 without one
    writing: the number of rows in the step under way
    """

    def __init__(self, lease: Lease, clock: Clock) -> None:
        super().__init__(lease, clock)
        self.step = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything: the requests are about to be read again, and the watches restart."""
        self.requests: dict[str, WatchRequest] = {}
        self.checks: dict[str, CheckRequest] = {}
        self.answers: set[str] = set()
        self.refused: set[tuple[str, str]] = set()
        self.watches: dict[Kind, Watched] = {}
        self.pending: dict[RowKey, Emission] = {}
        self.segment = 1
        self.wake = asyncio.Event()
        self.restore = (0, 0)
        self.following = False
        self.changed = asyncio.Event()
        self.stepping = 0
        self.writing = 0

    @property
    def is_settled(self) -> bool:
        """Whether the lease can continue from here if it returns.

        Its requests are read and have their watches, and each row is either written or pending.
        """
        return self.restored and not (self.stepping or self.following or self.changed.is_set())

    @property
    def dirty_count(self) -> int:
        return len(self.pending) + self.writing

    def add(self, topic: str, key: str, number: int, emission: Emission) -> None:
        """Queue a row; it replaces a queued row of the same key, unless a marker is between them.

        No row moves past an answer to a check request either. A dead letter replaces none: earlier ones
        belong to other records.
        """
        if key.startswith(CHECK_PREFIX):
            self.answers.add(key) if emission.value is not None else self.answers.discard(key)
        if key.startswith((SYNC_PREFIX, CHECK_PREFIX)) or topic == DLQ:
            self.segment += 1
            self.pending[topic, key, number, self.segment] = emission
            self.segment += 1
        else:
            self.pending[topic, key, number, self.segment] = emission
        self.wake.set()

    def oldest_segment(self) -> int:
        """Return the segment of the oldest row that is not written yet."""
        waiting = next(iter(self.pending))[3] if self.pending else self.segment + 1
        return min(waiting, self.stepping or waiting)

    def checks_of(self, kind: Kind) -> dict[str, CheckRequest]:
        return {key: check for key, check in self.checks.items() if (check.group, check.kind) == kind}

    def must_withhold(self, key: str) -> bool:
        """Tell whether a check must not be answered, because the bus refused a row that it asks about."""
        check = self.checks.get(key)
        if check is None or not self.refused:
            return False
        kind = Kind(check.group, check.kind)
        for topic, row in self.refused:
            if topic in (OBJECTS, INJECTABLES, INSTALLS) or "|" in row:
                of, _, name = row.removeprefix(f"{SCOPE}|").partition("|")
                name = name.replace("|", "/", 1)
            else:
                of, name = str(_KINDS[topic]), row
            if of == str(kind) and (not check.names or name in check.names):
                return True
        return False

    def end_watches(self) -> None:
        for watched in self.watches.values():
            watched.task.cancel()

    async def wait_until_flushed(self, clock: Clock) -> None:
        """Wait until everything emitted so far is written."""
        self.segment += 1
        target = self.segment
        while self.oldest_segment() < target:
            await clock.sleep(0.01)


_CHECK = CHECK_PREFIX.encode()


class IngestSteps:
    """Writes the rows of any lease.

    One task per lease runs one step at a time, so the rows are on the bus in the order of the queue. If the
    bus refuses a step for good, its rows are written one by one, in the same order, to find the refused ones.
    """

    def __init__(
        self, bus: Bus, log: Any, interrupting: Callable[[IngestLease], AbstractContextManager[None]]
    ) -> None:
        """Write nothing until `run`.

        interrupting: lets errors of the bus interrupt a lease
        """
        self._interrupting = interrupting
        self.limits = StepLimits.of(bus)
        self._bus = bus
        self._log = log
        self._number = 0
        self._steps_done = metrics.STEPS.labels("ingest", "done")

    async def run(self, opened: IngestLease) -> None:
        """Write pending rows until cancelled or the lease is interrupted."""
        with self._interrupting(opened):
            while True:
                await opened.wake.wait()
                opened.wake.clear()
                while opened.pending:
                    segment = next(iter(opened.pending))[3]
                    outputs = self._take(opened)
                    opened.stepping, opened.writing = segment, len(outputs)
                    self._number = opened.step = self._number + 1
                    await self._step(opened, outputs)
                    opened.stepping = opened.writing = 0
                    opened.note_progress()
                    self._steps_done.inc()
                    for topic, count in Counter(map(attrgetter("topic"), outputs)).items():
                        metrics.RECORDS_WRITTEN.labels(topic).inc(count)

    def _take(self, opened: IngestLease) -> list[Output]:
        """Take the oldest rows, as many as one step should hold."""
        outputs: list[Output] = []
        size = 0
        for (topic, key, number, _), emission in opened.pending.items():
            headers = ((DIGEST_HEADER, emission.digest.encode()),) if emission.digest else ()
            output = Output(topic, number, key.encode(), emission.value, headers)
            size += output_bytes(output)
            if outputs and (len(outputs) >= self.limits.records or size > self.limits.bytes):
                break
            outputs.append(output)
        for row_key in list(islice(opened.pending, len(outputs))):
            del opened.pending[row_key]
        return outputs

    async def _step(self, opened: IngestLease, outputs: list[Output]) -> None:
        if opened.refused:
            outputs = [output for output in outputs if not self._withheld(opened, output)]
        if not outputs:
            return
        try:
            await self._bus.step(opened.lease, outputs)
        except TransientError:
            metrics.STEPS.labels("ingest", "unknown").inc()
            raise
        except PermanentError as exc:
            if len(outputs) > 1:  # leave out the refused row, and report its object
                for output in outputs:
                    await self._step(opened, [output])
                return
            refused = (outputs[0].topic, outputs[0].key.decode())
            opened.refused.add(refused)
            event = "the bus refuses a row"
            if isinstance(exc, TooLargeError):
                event = "object is too large for the bus: make it smaller, or raise the bus's record limit"
            self._log.error(event, topic=refused[0], error=str(exc), **self._fields(opened, refused[1]))
        else:
            if logs.is_detailed():
                for output in outputs:
                    deleted = {"deleted": True} if output.value is None else {}
                    fields = self._fields(opened, output.key.decode())
                    self._log.debug("row written", topic=output.topic, **deleted, **fields)
            if opened.refused:
                opened.refused.difference_update((o.topic, o.key.decode()) for o in outputs)

    def _withheld(self, opened: IngestLease, output: Output) -> bool:
        """Tell whether a row is an answer to withhold: a row of its read is not on the bus."""
        if output.value is None or not output.key.startswith(_CHECK):
            return False
        key = output.key.decode()
        if not opened.must_withhold(key):
            return False
        check = opened.checks[key]
        watched = opened.watches.get(Kind(check.group, check.kind))
        if watched is not None:
            watched.watch.recheck(key, check)
        self._log.warning(
            "check request is not answered: the bus refused a row of its kind",
            **self._fields(opened, key),
        )
        return True

    def _fields(self, opened: IngestLease, key: str) -> dict[str, Any]:
        """Return the log fields of a row.

        reconcile_id: as that of a controller, with the number of the step
        """
        number, epoch = opened.lease.partition, opened.lease.epoch
        reconcile_id = f"{number}.{epoch}.{opened.step}"
        return {"service": "ingest", "key": key, "partition": number, "reconcile_id": reconcile_id}
