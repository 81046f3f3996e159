"""Writes the rows of a lease of ingest in the order of the queue, in steps of a bounded size.

A row that the bus refuses is left out: the bus keeps the former row of its object. Check requests that ask
about such an object are not answered, or its old row would count as current.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import islice
from operator import attrgetter
from typing import Any

from pvbus.core.errors import PermanentError, TooLargeError, TransientError
from pvbus.core.kernel.keys import CHECK_PREFIX
from pvbus.core.kernel.kinds import Kind
from pvbus.ports.bus import Bus, Output
from pvbus.runtime.ingest.digests import DIGEST_HEADER
from pvbus.runtime.ingest.lease import IngestLease
from pvbus.runtime.reconcile.leases import StepLimits, output_bytes
from pvbus.telemetry import logs, metrics

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
