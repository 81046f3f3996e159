"""One lease of ingest: its requests, its watches, and the rows that wait for a step."""

import asyncio
from typing import NamedTuple

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
from pvbus.ports.bus import Lease
from pvbus.ports.clock import Clock
from pvbus.runtime.ingest.informer import InformerShell
from pvbus.runtime.reconcile.holder import HeldLease

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
