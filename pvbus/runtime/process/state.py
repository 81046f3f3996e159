"""What a process tells about its services: which leases it holds, and how far each of them is.

`GET /state` answers with a `ProcessState` as JSON, `/metrics` shows the same numbers, and `pvbus lag`
reads the former. Fields may be added; those that are here keep their names and meanings.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from pvbus.core.effects import DEFECT
from pvbus.core.errors import PvbusError
from pvbus.ports.bus import Bus, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.runtime.ingest.worker import IngestWorker
from pvbus.runtime.process.assembly import INPUTS, Service
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.worker import Worker
from pvbus.telemetry.terminal import printable

ENDS_SECONDS_MAX = 1.0
"""How long the bus is asked where partitions end: what else there is to tell must not wait for it. Below
the two seconds that `pvbus lag` waits, and the ten of Prometheus."""


DEFECTS_SHOWN_MAX = 10  # a bug may fail every key alike


class LeaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """One lease.

    restored: its tables are what the bus says, and it works. restore: offsets read of those to read. lag:
    records of the service's inputs that are not read yet; None while that goes on, and while the bus
    does not answer. dirty: keys (of ingest: rows) that wait, or are being worked on.
    seconds_since_progress: since a record was applied, a key done, a step made or a part restored; it
    grows, too, when there is nothing to do.
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
        """0 to 1."""
        read, total = self.restore
        return 1.0 if self.restored else read / total if total else 0.0


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """One service. ready: every lease is restored, and there is one. idle: and nothing is under way.

    next_timer_seconds: until a key is looked at by itself, None where none waits for a time. dirty: of all
    its leases. behind: records of all that it reads, whole tables too, that are not read yet; None while
    the bus does not answer. observed: of ingest, whether every kind that its leases watch was listed.
    defects: keys whose decision fails by a bug of ours, and with what error; DEFECTS_SHOWN_MAX of them.
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
    """Return some of the keys whose decision fails by a bug of ours, and with what."""
    found = service.defects if isinstance(service, Worker) else {}
    return dict(islice(sorted(found.items()), DEFECTS_SHOWN_MAX))


def defect_lines(name: str, defects: Mapping[str, str]) -> list[str]:
    """Say in words which decisions of a service fail. defects: of its report."""
    return [f"{name}: {printable(key)}: {DEFECT}: {printable(error)}" for key, error in defects.items()]


class Observation(NamedTuple):
    """behind: records not read yet, of each partition that is read here, by its slowest reader."""

    state: ProcessState
    behind: Mapping[TopicPartition, int]


class Observer:
    """Looks at the services of this process.

    inputs: topics that a lease of each service consumes; what it reads besides is nobody's lag but its own.
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
        """Nothing where the bus does not answer: that there is no lag to see is what tells of it."""
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
            observed=service.observed if isinstance(service, IngestWorker) else True,
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
