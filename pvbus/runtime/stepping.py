"""Steps of a worker's claims: outcomes gather while one step is under way, and go together into the next.

Tables take over what was written after the step returned. When its outcome is unknown, the claim is in
doubt: nothing is decided or written for it until its tables are restored.
"""

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from pvbus.errors import FencedError, PermanentError, PvbusError, TransientError
from pvbus.ports.bus import Bus
from pvbus.ports.clock import Clock
from pvbus.runtime.claims import Finished, OpenClaim
from pvbus.runtime.narration import Narrator
from pvbus.runtime.tables import Tables
from pvbus.telemetry import metrics
from pvbus.telemetry.logs import get_logger


class Stepper:
    """Writes the outcomes of open claims, one step per claim at a time."""

    def __init__(
        self,
        name: str,
        tables: Tables,
        bus: Bus,
        clock: Clock,
        *,
        spawn: Callable[[OpenClaim, Coroutine[Any, Any, None]], object],
        stepped: Callable[[], None],
    ) -> None:
        """spawn: runs something that ends with the claim. stepped: called after each step."""
        self._name = name
        self._tables = tables
        self._bus = bus
        self._clock = clock
        self._spawn = spawn
        self._stepped = stepped
        self._log = get_logger(name)
        self._narrator = Narrator()
        self._steps_done = metrics.STEPS.labels(name, "done")

    def kick(self, opened: OpenClaim, *, offsets_only: bool = False) -> None:
        """See to it that what waits is written, if nothing is being written already."""
        if (opened.puts or offsets_only) and not opened.stepping and not opened.doubt.is_set():
            opened.stepping = True
            self._spawn(opened, self._run(opened))

    async def _run(self, opened: OpenClaim) -> None:
        """Step until nothing is left."""
        try:
            while True:
                await self._step(opened, opened.take_puts())
                if not opened.puts:
                    return
        except FencedError:
            self._log.info("claim lost", partition=opened.claim.partition, epoch=opened.claim.epoch)
            opened.revoked = True
        except TransientError as exc:
            self._log.warning("outcome of a step unknown", error=str(exc))
            metrics.STEPS.labels(self._name, "unknown").inc()
            opened.doubt.set()
        finally:
            opened.stepping = False

    async def _step(self, opened: OpenClaim, batch: list[Finished]) -> None:
        outputs = [output for outcome in batch for output in outcome.outputs]
        offsets = opened.done_offsets({outcome.key for outcome in batch})
        if not outputs and not offsets:
            return
        try:
            await self._bus.step(opened.claim, outputs, offsets)
        except PermanentError as exc:  # too large: leave out the outcome that is, and say so
            await self._step_each(opened, batch, exc)
            return
        opened.last_step = self._clock.monotonic()
        opened.committed(offsets)
        opened.progressed()
        self._steps_done.inc()
        for topic, count in Counter(output.topic for output in outputs).items():
            metrics.RECORDS_WRITTEN.labels(topic).inc(count)
        for outcome in batch:
            self._tables.store(opened, outcome.puts)
            opened.done(outcome.key)
            for line in self._narrator.lines(outcome.puts):
                self._log.info(line.event, **line.fields)
        self._stepped()

    async def _step_each(self, opened: OpenClaim, batch: list[Finished], error: PvbusError) -> None:
        if len(batch) == 1:
            key, puts = batch[0].key, batch[0].puts
            topics = sorted({put.topic for put in puts})
            self._log.error("outcome cannot be written", key=key, topics=topics, error=str(error))
            metrics.RECONCILES.labels(self._name, "failed").inc()
            opened.done(key)
            return
        for outcome in batch:
            await self._step(opened, [outcome])
