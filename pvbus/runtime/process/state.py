"""Reports the services of a process: their leases, and the progress of each.

`GET /state` returns a `ProcessState` as JSON, `/metrics` the same numbers, and `pvbus lag` reads the
former. Fields may be added; existing ones keep their names and meanings.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from pvbus.core.errors import PvbusError
from pvbus.core.kernel.effects import DEFECT
from pvbus.ports.bus import Bus, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.process.assembly import INPUTS, Service
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.worker import Worker
from pvbus.telemetry.terminal import printable

ENDS_SECONDS_MAX = 1.0
"""Timeout for the partitions' end offsets: the rest of the report must not wait for the bus. Below the two
seconds that `pvbus lag` waits, and the ten of Prometheus."""


DEFECTS_SHOWN_MAX = 10  # one bug may fail every key


class LeaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One lease of a service.

    partition: the partition of the lease
    epoch: the epoch of the lease
    restored: whether its tables equal the bus, and it reconciles
    restore: (offsets read, offsets to read) of the restore
    lag: records of the service's inputs that are not read yet; None during the restore, and while the bus
        does not answer
    dirty: keys (of ingest: rows) that wait or are in progress
    seconds_since_progress: seconds since the last record applied, key done, step made or part restored; it
        also grows while the lease is idle
    """

    partition: int
    epoch: int
    restored: bool
    restore: tuple[int, int]
    lag: int | None
    dirty: int
    seconds_since_progress: float

    @property
    def restore_share(self) -> float:
        """Restored share of the tables, 0 to 1."""
        read, total = self.restore
        return 1.0 if self.restored else read / total if total else 0.0


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One service of a process.

    ready: whether all its leases are restored, or it is a spare
    idle: whether it is ready and nothing is in progress
    next_timer_seconds: seconds until the next key is due, None if no key waits for a time
    dirty: keys (of ingest: rows) of all its leases that wait or are in progress
    leases: its leases, by partition
    behind: unread records of all its topics, broadcast tables included; None while the bus does not answer
    observed: for ingest, whether every kind that its leases watch was listed; True for others
    defects: key -> error of the decisions that fail because of a bug, at most DEFECTS_SHOWN_MAX
    """

    ready: bool
    idle: bool
    next_timer_seconds: float | None
    dirty: int
    leases: tuple[LeaseReport, ...]
    behind: int | None = None
    observed: bool = True
    defects: Mapping[str, str] = {}


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """All services of a process, by name."""

    services: Mapping[str, ServiceReport]


def defects_of(service: Service) -> Mapping[str, str]:
    """Return at most DEFECTS_SHOWN_MAX of the keys whose decision fails because of a bug, with the error."""
    found = service.defects if isinstance(service, Worker) else {}
    return dict(islice(sorted(found.items()), DEFECTS_SHOWN_MAX))


def defect_lines(name: str, defects: Mapping[str, str]) -> list[str]:
    """Return a line for each failing decision of a service.

    defects: key -> error, as its report has them
    """
    return [f"{name}: {printable(key)}: {DEFECT}: {printable(error)}" for key, error in defects.items()]


class Observation(NamedTuple):
    """The state of a process.

    state: the report of each service
    behind: unread records of each partition, for its slowest reader here
    """

    state: ProcessState
    behind: Mapping[TopicPartition, int]


class Observer:
    """Observes the services of this process.

    inputs: topics that a lease of each service consumes; the other topics do not count for a lease's lag.
    """

    def __init__(
        self,
        services: Mapping[str, Service],
        bus: Bus,
        clock: Clock,
        inputs: Mapping[str, tuple[str, ...]] = INPUTS,
    ) -> None:
        self.services = services
        self._bus = bus
        self._clock = clock
        self._inputs = inputs

    async def look(self) -> Observation:
        positions = {name: dict(service.positions()) for name, service in self.services.items()}
        ends = await self._ends({tp for each in positions.values() for tp in each})
        left = {
            name: {tp: max(0, ends[tp] - position) for tp, position in each.items() if tp in ends}
            for name, each in positions.items()
        }
        behind: dict[TopicPartition, int] = {}
        for each in left.values():
            for tp, records in each.items():
                behind[tp] = max(behind.get(tp, 0), records)
        reports = {name: self._report(name, service, left[name]) for name, service in self.services.items()}
        return Observation(ProcessState(services=reports), behind)

    async def _ends(self, topic_partitions: set[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Return the end offsets, or `{}` if the bus does not answer. The missing lag is the signal."""
        try:
            async with asyncio.timeout(ENDS_SECONDS_MAX):
                return await self._bus.end_offsets(sorted(topic_partitions))
        except (PvbusError, TimeoutError):
            return {}

    def _report(self, name: str, service: Service, left: Mapping[TopicPartition, int]) -> ServiceReport:
        return ServiceReport(
            ready=service.ready,
            idle=service.idle,
            next_timer_seconds=service.next_timer_seconds,
            dirty=service.dirty_keys,
            behind=sum(left.values()) if left.keys() == service.positions().keys() else None,
            observed=service.observed,
            defects=defects_of(service),
            leases=tuple(
                self._report_lease(lease, [(topic, number) for topic in self._inputs.get(name, ())], left)
                for number, lease in sorted(service.leases().items())
            ),
        )

    def _report_lease(
        self, lease: HeldLease, topic_partitions: list[TopicPartition], left: Mapping[TopicPartition, int]
    ) -> LeaseReport:
        is_known = lease.restored and all(tp in left for tp in topic_partitions)
        return LeaseReport(
            partition=lease.lease.partition,
            epoch=lease.lease.epoch,
            restored=lease.restored,
            restore=lease.restore,
            lag=sum(left[tp] for tp in topic_partitions) if is_known else None,
            dirty=lease.dirty_count,
            seconds_since_progress=round(max(0.0, self._clock.monotonic() - lease.progress_at), 3),
        )
