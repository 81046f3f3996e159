"""The waits of an informer: when to list, watch and probe again, and when rows are in doubt.

Pure: the caller gives the monotonic time, `now`, and the randomness of all waits, `jitter`.
"""

import math

from pvbus.core.kernel.backoff import Backoff, Jitter
from pvbus.core.variants.ingest.events import Fault

UNAVAILABLE_PROBE_SECONDS = 60.0
DEFINED_PROBE_SECONDS = 1.0  # a definition is sent before it is served: probe soon, then at growing intervals
UNWATCHED_SECONDS = 30.0  # without a watch for this long, absence is no longer reliable
BACKOFF_SECONDS = (0.2, 30.0)
RESUME_SECONDS = (0.2, 5.0)  # between two attempts to watch: many of them before UNWATCHED_SECONDS
STEADY_SECONDS = 5.0  # a watch that ends sooner restarts with a backoff: it may always end at once


class ListTimes:
    """When to list again. A list whose watch ended at once counts as a failure."""

    def __init__(self, jitter: Jitter) -> None:
        self._listed_at = math.inf
        self._backoff = Backoff(*BACKOFF_SECONDS, jitter)

    def note_list(self, now: float) -> None:
        self._listed_at = now

    def next_seconds(self, now: float, fault: Fault | None) -> float:
        if now - self._listed_at > STEADY_SECONDS:
            self._backoff.reset()
        self._listed_at = math.inf
        return self._backoff.next_seconds(fault)


class WatchTimes:
    """Since when there is no watch, and when to begin it again."""

    def __init__(self, jitter: Jitter) -> None:
        self._event_at = -math.inf
        self._lost_at: float | None = None
        self._backoff = Backoff(*RESUME_SECONDS, jitter)

    def note_list(self) -> None:
        """Note that a list has shown everything."""
        self._lost_at = None

    def began(self, now: float) -> None:
        self._event_at = now

    def note_delivery(self, now: float) -> None:
        """Note an event: the watch works."""
        self._lost_at, self._event_at = None, now

    def is_lost(self, now: float) -> bool:
        """Note that there is no watch, and return whether there has been none for too long."""
        if self._lost_at is None:
            self._lost_at = now
        return now - self._lost_at > UNWATCHED_SECONDS

    def is_lost_after(self, now: float, lasted: float, *, failed: bool, silent: bool) -> bool:
        """Note that a watch ended, and return whether there has been none for too long.

        lasted: how long it lasted, in seconds
        failed: whether it ended by an error
        silent: whether it ended because it showed nothing for too long
        """
        if silent:  # a quiet kind or a dead connection: the next try shows which
            self._lost_at = self._event_at
            return False
        if lasted > (UNWATCHED_SECONDS if failed else STEADY_SECONDS):
            self._lost_at = None  # the watch worked all the time, with nothing to send
            return False
        return self.is_lost(now)

    def resume_seconds(self, lasted: float, fault: Fault | None, *, failed: bool) -> float:
        """Return the wait before the watch resumes; 0 after one that lasted and did not fail."""
        if lasted > STEADY_SECONDS:
            self._backoff.reset()
            if not failed:
                return 0.0
        return self._backoff.next_seconds(fault)


class ProbeTimes:
    """When to probe how a kind is served: soon after a change of its definition or the end of its watch, then
    ever less often."""

    def __init__(self, jitter: Jitter) -> None:
        self._jitter = jitter
        self.look_at = math.inf
        self._look_seconds = DEFINED_PROBE_SECONDS
        self._wait_seconds = UNAVAILABLE_PROBE_SECONDS
        self._is_probed = False

    def note_probe(self, now: float) -> None:
        """Note that the definition changed."""
        self._wait_seconds = self._look_seconds = DEFINED_PROBE_SECONDS
        self.look_at = now
        self._is_probed = True

    def note_list(self) -> None:
        """Note that the kind was listed: should it end, it may be back soon.

        An API server that starts refuses everybody but administrators (403) until it has read the roles.
        """
        self._wait_seconds = DEFINED_PROBE_SECONDS

    def resolving(self) -> None:
        """Note that discovery is being read: later changes may be missing from its answer."""
        self._is_probed = False

    def wait_seconds(self) -> float:
        """Return the wait before a kind that is not served is resolved again."""
        seconds = self._wait_seconds
        self._wait_seconds = min(UNAVAILABLE_PROBE_SECONDS, 2 * seconds)
        return 0.0 if self._is_probed else seconds - self._jitter(0, seconds / 10)

    def note_look(self, now: float) -> None:
        """Note that the versions of a served kind are read; discovery reflects a definition with a delay."""
        seconds = self._look_seconds
        self.look_at = now + seconds - self._jitter(0, seconds / 2)
        self._look_seconds *= 2
        if self._look_seconds > 2 * UNAVAILABLE_PROBE_SECONDS:
            self.look_at = math.inf
