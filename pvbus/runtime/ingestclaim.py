"""One claim of ingest: what is asked of it, what it watches, and the rows that wait for a step."""

import asyncio

from pvbus.core.observe import KindName
from pvbus.core.records import DLQ, WatchRequest
from pvbus.core.tables import is_marker
from pvbus.ports.bus import Claim
from pvbus.ports.clock import Clock
from pvbus.runtime.claims import Advancing
from pvbus.runtime.clock import Stopwatch
from pvbus.runtime.kindwatch import Emission, KindWatch

Place = tuple[str, str, int, int]
"""(topic, key, partition, segment)."""


class Watched:
    """A running watch of one kind."""

    def __init__(self, watch: KindWatch, task: "asyncio.Task[None]") -> None:
        self.watch = watch
        self.task = task


class IngestClaim(Advancing):
    """What one claim observes, and the rows that wait for a step.

    Implements `pvbus.runtime.claims.ClaimState`. segment: counts the markers, and where a flush was asked
    for; rows of one segment may change places. resume_at: while the claim is gone, and may come back: the
    position in its requests.
    """

    def __init__(self, claim: Claim, clock: Clock) -> None:
        super().__init__(clock)
        self.claim = claim
        self.requests: dict[str, WatchRequest] = {}
        self.watches: dict[KindName, Watched] = {}
        self.pending: dict[Place, Emission] = {}
        self.segment = 1
        self.wake = asyncio.Event()
        self.life: asyncio.Task[None] | None = None
        self.restored = False
        self.following = False
        self.changed = asyncio.Event()
        self.outdated = asyncio.Event()
        self.resume_at: int | None = None
        self.away: Stopwatch | None = None
        self.stepping = 0
        self.writing = 0

    @property
    def can_wait(self) -> bool:
        """Whether a claim that goes can go on from here when it comes back: its requests have been read and
        have their watches, and each row was either written or is pending."""
        half_done = self.stepping or self.following or self.changed.is_set()
        return self.restored and self.resume_at is not None and not half_done

    @property
    def dirty_count(self) -> int:
        return len(self.pending) + self.writing

    def add(self, topic: str, key: str, number: int, emission: Emission) -> None:
        """Queue a row, in the place of an older row of its key if no marker stands between them.

        A dead letter stands for itself: the ones before it are of other records.
        """
        if is_marker(key) or topic == DLQ:
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

    def end_watches(self) -> None:
        for watched in self.watches.values():
            watched.task.cancel()

    async def flushed(self, clock: Clock) -> None:
        """Wait until everything emitted so far is written."""
        self.segment += 1
        target = self.segment
        while self.oldest_segment() < target:
            await clock.sleep(0.01)
