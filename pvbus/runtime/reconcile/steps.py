"""Steps of a worker's leases: outcomes gather while a step is under way or other keys are in flight.

They go together into the next step. If no other key of its lease is in flight, an outcome waits for nothing.

Tables store the rows of a step after it has returned. If its outcome is unknown, nothing is decided or
written for the lease until its tables are restored.
"""

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any

from pvbus.core.errors import FencedError, PermanentError, TooLargeError, TransientError
from pvbus.core.kernel.effects import Notice, Put
from pvbus.core.kernel.topics import child_of
from pvbus.ports.bus import Bus, Output
from pvbus.ports.clock import Clock
from pvbus.runtime.reconcile.leases import Finished, OpenLease, finished
from pvbus.runtime.reconcile.narration import Line, Narrator
from pvbus.runtime.reconcile.states import LeaseEvent
from pvbus.runtime.reconcile.tables import Tables
from pvbus.telemetry import logs, metrics

REPAIR_SECONDS = 60.0  # before single refused rows are written again: a person must act meanwhile
REFUSALS_MAX = 10  # of single parts in a row: with more, the bus is at fault, and not the rows
REFUSED_SECONDS = 5.0  # before tables are restored and the step is tried again: a person must act meanwhile


class Stepper:
    """Writes the outcomes of open leases, one step per lease at a time.

    A step has the rows of some outcomes, and the offsets of the records that are done with them, and the bus
    writes both or neither. Only then the tables store the rows, and the keys are done. If the bus refuses a
    step for good, its outcomes are written one by one, and those of a set child by child, to find the refused
    rows.
    """

    def __init__(
        self,
        name: str,
        tables: Tables,
        bus: Bus,
        clock: Clock,
        *,
        spawn: Callable[[OpenLease, Coroutine[Any, Any, None]], object],
        on_step: Callable[[], None],
        tell: Callable[[Notice], None] | None = None,
    ) -> None:
        """Write nothing until `flush`.

        spawn: runs a coroutine that ends with the lease
        on_step: called after each step
        tell: takes the notices of the rows that were written, None to drop them
        """
        self._name = name
        self._tables = tables
        self._bus = bus
        self._clock = clock
        self._spawn = spawn
        self._on_step = on_step
        self._tell = tell
        self._log = logs.get_logger(name)
        self._narrator = Narrator()
        self._steps_done = metrics.STEPS.labels(name, "done")

    def flush(self, opened: OpenLease, *, offsets_only: bool = False) -> None:
        """Start to write the waiting outcomes, unless a step is under way or more of them are near."""
        if (
            (opened.puts or offsets_only)
            and opened.restored
            and not opened.stepping
            and (offsets_only or len(opened.busy) <= len(opened.puts) or not opened.gathers())
        ):
            opened.stepping = True
            self._spawn(opened, self._run(opened))

    async def _run(self, opened: OpenLease) -> None:
        """Step until no outcome is left, or those that are left gather."""
        try:
            while True:
                await self._step(opened, opened.take_puts())
                if not opened.puts or (len(opened.busy) > len(opened.puts) and opened.gathers()):
                    return
        except FencedError:
            self._log.info("lease lost", partition=opened.lease.partition, epoch=opened.lease.epoch)
            opened.enter(LeaseEvent.FENCED)
        except TransientError as exc:
            self._log.warning("outcome of a step unknown", error=str(exc))
            metrics.STEPS.labels(self._name, "unknown").inc()
            opened.enter(LeaseEvent.INTERRUPTED)
        except PermanentError as exc:  # a damaged file, or a right that was taken away: nothing may be lost
            self._log.error("the bus refuses writes", error=str(exc))
            metrics.STEPS.labels(self._name, "unknown").inc()
            await self._clock.sleep(REFUSED_SECONDS)
            opened.enter(LeaseEvent.INTERRUPTED)
        finally:
            opened.stepping = False

    async def _step(self, opened: OpenLease, batch: list[Finished]) -> None:
        outputs: list[Output] = []
        keys: set[str] = set()
        for outcome in batch:
            outputs += outcome.outputs
            keys.add(outcome.key)
        offsets = opened.done_offsets(keys)
        if not outputs and not offsets:
            return
        try:
            await self._bus.step(opened.lease, outputs, offsets)
        except PermanentError as exc:
            await self._step_each(opened, batch, exc)
            return
        opened.note_step(offsets)
        self._steps_done.inc()
        for topic, count in Counter(map(attrgetter("topic"), outputs)).items():
            metrics.RECORDS_WRITTEN.labels(topic).inc(count)
        is_detailed = logs.is_detailed()
        for outcome in batch:
            self._write_lines(opened, outcome, is_detailed=is_detailed)
        for outcome in batch:
            self._tables.store(opened, outcome.puts)
            opened.finish(outcome.key)
        if self._tell is not None:
            self._tell_people(self._tell, batch)
        self._on_step()

    @staticmethod
    def _tell_people(tell: Callable[[Notice], None], batch: Sequence[Finished]) -> None:
        for notice in (put.notice for outcome in batch for put in outcome.puts):
            if notice is not None:
                tell(notice)

    def _write_lines(self, opened: OpenLease, outcome: Finished, *, is_detailed: bool) -> None:
        """Log what a committed outcome means and, in detail, each of its rows."""
        lines = [*self._narrator.lines(outcome.puts)]
        if is_detailed:
            lines += (Line("row written", {"topic": put.topic, "row": put.key}, True) for put in outcome.puts)
        if not lines:
            return
        with logs.bound(opened.log_fields(self._name, outcome.key)):
            for line in lines:
                (self._log.debug if line.is_detail else self._log.info)(line.event, **line.fields)

    async def _step_each(self, opened: OpenLease, batch: list[Finished], error: PermanentError) -> None:
        """Write outcome by outcome, and a refused outcome child by child.

        Too many refusals in a row end it, as the fault is then the bus's: see `_refuse`.
        """
        if not batch:
            raise error
        parts = batch if len(batch) > 1 else by_child(batch[0], self._tables.partitions)
        if len(parts) == 1:
            self._refuse(opened, parts[0], error)
            return
        unreported: PermanentError | None = None
        for part in parts:
            try:
                await self._step(opened, [part])
            except PermanentError as exc:
                if opened.refusals > REFUSALS_MAX:
                    raise
                unreported = exc
        if unreported is not None:
            raise unreported

    def _refuse(self, opened: OpenLease, outcome: Finished, error: PermanentError) -> None:
        """Leave out rows that the bus refuses, and let the controller report them.

        Raises PermanentError if no object can report them, or if the bus seems to refuse everything: nothing
        may be lost. Rows that are too large are left out in any case, as a retry cannot help.
        """
        is_reported = self._tables.note_refusal(opened, outcome, error)
        if not isinstance(error, TooLargeError):
            opened.refusals += 1
            if not is_reported or opened.refusals > REFUSALS_MAX:
                raise error
            self._offer_again(opened)
        keys = sorted({f"{put.topic}: {put.key}" for put in outcome.puts})
        with logs.bound(opened.log_fields(self._name, outcome.key)):
            self._log.error("rows cannot be written", rows=keys, error=str(error))
        metrics.RECONCILES.labels(self._name, "failed").inc()
        opened.finish(outcome.key)
        self._on_step()

    def _offer_again(self, opened: OpenLease) -> None:
        """Restore the tables after REPAIR_SECONDS: then the missing rows are decided and written again."""

        async def restore() -> None:
            await self._clock.sleep(REPAIR_SECONDS)
            opened.enter(LeaseEvent.INTERRUPTED)

        if not opened.will_offer_again:
            opened.will_offer_again = True
            self._spawn(opened, restore())


def by_child(outcome: Finished, partitions: int) -> list[Finished]:
    """Split an outcome of a set into one part per child.

    The last part has the key of the outcome, which is then done; the others have none.
    """
    units: dict[str, list[Put]] = {}
    for put in outcome.puts:
        units.setdefault(child_of(put.topic, put.key), []).append(put)
    keys = [""] * (len(units) - 1) + [outcome.key]
    return [finished(key, tuple(puts), partitions) for key, puts in zip(keys, units.values(), strict=True)]
