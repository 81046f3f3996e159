"""Writes notices to the API server as Kubernetes Events, beside the work of the services.

Events help people and decide nothing, so nothing waits for them: they are written one at a time from a
bounded queue, what does not fit is counted and dropped, and a refusal is one warning in the log.
"""

import asyncio
from collections import deque

from pvbus.core.errors import FORBIDDEN, AlreadyExistsError, ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import Notice, Patch
from pvbus.core.variants.conditions.recording import Recorder
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.runtime.reconcile.effects import perform
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger

QUEUE_MAX = 1000
"""Notices that wait, as many as client-go's broadcaster has; what a slow API server leaves is dropped."""

ATTEMPTS_MAX = 5
RETRY_SECONDS = (1.0, 10.0)
"""Least and most between two attempts: an API server that restarts is back within them."""

REFUSED_SECONDS = 600.0
"""How long nothing is written after a refusal; then the right may have been granted."""


class EventWriter:
    """Takes notices and writes them. `run` runs until cancelled."""

    def __init__(self, cluster: Cluster, clock: Clock, *, instance: str) -> None:
        """Write nothing until `run`.

        instance: the name of this process in the Events
        """
        self._cluster = cluster
        self._clock = clock
        self._recorder = Recorder(instance)
        self._queue: deque[Notice] = deque()
        self._wake = asyncio.Event()
        self._refused_until = float("-inf")
        self._is_refusal_logged = False
        self._log = get_logger("host")

    def tell(self, notice: Notice) -> None:
        """Queue a notice, if there is room for it."""
        if len(self._queue) >= QUEUE_MAX or self._clock.monotonic() < self._refused_until:
            metrics.KUBERNETES_EVENTS.labels("dropped").inc()
            return
        self._queue.append(notice)
        self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake.clear()
            while self._queue:
                metrics.KUBERNETES_EVENTS.labels(await self._write(self._queue.popleft())).inc()
            await self._wake.wait()

    async def _write(self, notice: Notice) -> str:
        """Write a notice; return the outcome."""
        now = self._clock.monotonic()
        effect = self._recorder.admit(notice, now) if now >= self._refused_until else None
        if effect is None:
            return "dropped"
        for _ in range(ATTEMPTS_MAX):
            try:
                await perform(self._cluster, effect)
                return "repeated" if isinstance(effect, Patch) else "written"
            except AlreadyExistsError:
                return "written"  # before a crash, or by an attempt whose answer was lost
            except ConflictError:  # the Event that it repeats is gone
                effect = self._recorder.create(notice, now)
            except TransientError as exc:
                least, most = RETRY_SECONDS
                await self._clock.sleep(min(max(exc.retry_after_seconds or least, least), most))
            except PermanentError as exc:
                self._note_refusal(exc)
                return "failed"
        return "failed"

    def _note_refusal(self, error: PermanentError) -> None:
        """Log the first refusal. One for another reason than rights concerns that Event alone."""
        if error.reason == FORBIDDEN:
            self._refused_until = self._clock.monotonic() + REFUSED_SECONDS
        if not self._is_refusal_logged:
            self._log.warning("Kubernetes Events are refused; everything else goes on", error=str(error))
            self._is_refusal_logged = True
