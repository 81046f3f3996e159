"""Builds the services, for `python -m services.<name>`, `pvbus up` and `plan`."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pvbus.core.errors import UsageError
from pvbus.core.kernel.backoff import Jitter
from pvbus.core.kernel.effects import Controller, Notice
from pvbus.core.kernel.records import CONDITIONS, META
from pvbus.core.kernel.topics import ALL_SERVICES, SINK, inputs_of, topic_specs
from pvbus.ports.bus import Bus, TopicPartition
from pvbus.ports.clock import Clock
from pvbus.ports.cluster import Cluster
from pvbus.ports.monitoring import Monitoring
from pvbus.ports.sources import Sources
from pvbus.runtime.backoff import uniform
from pvbus.runtime.process.settings import ServicesConfig
from pvbus.runtime.reconcile.holder import HeldLease
from pvbus.runtime.reconcile.worker import Worker
from pvbus.telemetry import metrics

if TYPE_CHECKING:
    from pvbus.core.variants.conditions.controller import ConditionsController
    from pvbus.core.variants.unroll.opinion import Opinions

INPUTS: Mapping[str, tuple[str, ...]] = {
    **{service: inputs_of(service) for service in ALL_SERVICES},
    SINK: (CONDITIONS,),
}
"""The topics that a lease of each service consumes, and of the sink."""


class Service(Protocol):
    """A running service: ingest's worker or a controller's."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def ready(self) -> bool: ...

    @property
    def observed(self) -> bool:
        """Whether every kind that it lists is listed, or known not to be served."""
        ...

    @property
    def idle(self) -> bool: ...

    @property
    def dirty_keys(self) -> int: ...

    @property
    def next_timer_seconds(self) -> float | None: ...

    def positions(self) -> Mapping[TopicPartition, int]: ...

    def leases(self) -> Mapping[int, HeldLease]: ...


class Surroundings(NamedTuple):
    """What a worker meets beside bus, cluster and clock. A simulation and a preview have their own.

    monitoring: what answers queries, None if no Prometheus is set
    sources: where packages are read from, None for a process that reads none
    opinions: gives second opinions on expressions, None for none
    tell: takes the notices of rows that were written, None to drop them
    checks_plans: whether unroll holds a set that needs a signed plan and has none
    keeps_specs: whether the former specs of sets and policies are kept
    observe: wraps a controller
    nonce: returns a random text, which nobody can guess
    jitter: the source of the randomness of all waits
    """

    monitoring: Monitoring | None = None
    """Answers the queries of rollouts; None if no Prometheus is set."""
    sources: Sources | None = None
    """Of packages, for resolve and establish."""
    opinions: "Opinions | None" = None
    """Second ones, for unroll."""
    tell: Callable[[Notice], None] | None = None
    """Takes notices for people."""
    checks_plans: bool = True
    """Whether unroll holds a set that needs a signed plan; a preview shows what such a plan would do."""
    keeps_specs: bool = True
    """Whether conditions keeps the former specs of sets; a preview shows what follows for variants alone."""
    observe: Callable[[Controller], Controller] = lambda controller: controller
    """Wraps the controller, to see its decisions."""
    nonce: Callable[[], str] = token_hex
    """Random hex digits."""
    jitter: Jitter = uniform
    """The randomness of ingest's waits."""


def build_service(
    name: str,
    bus: Bus,
    cluster: Cluster,
    clock: Clock,
    config: ServicesConfig | None = None,
    around: Surroundings | None = None,
    *,
    partitions: int | None = None,
    children_report: bool = True,
) -> Service:
    """Build one worker of a service.

    config: the settings, None for the defaults
    around: what the worker meets beside bus, cluster and clock; None for the defaults
    partitions: the partition count of the bus, None for the default
    children_report: whether a running service reports if a PackageVariant is Ready
    """
    config, around = config or ServicesConfig(), around or Surroundings()
    count = partitions or partition_count()
    if name == "ingest":
        from pvbus.runtime.ingest.worker import IngestWorker

        return IngestWorker(
            bus, cluster, clock, partitions=count, jitter=around.jitter, namespaces=config.namespace_names
        )
    if name not in _MAKERS:
        raise UsageError(f'unknown service "{name}": expected one of {", ".join(ALL_SERVICES)}')
    make = _MAKERS[name](_Making(bus, clock, config, around, count, children_report))
    return Worker(
        lambda: around.observe(make()),
        bus,
        cluster,
        clock,
        partitions=count,
        monitoring=around.monitoring,
        sources=around.sources,
        tell=around.tell,
        jitter=around.jitter,
    )


class _Making(NamedTuple):
    """What the controllers of a service are made from: see `build_service`."""

    bus: Bus
    clock: Clock
    config: ServicesConfig
    around: Surroundings
    partitions: int
    children_report: bool


_Maker = Callable[[], Controller]


def _make_unroll(making: _Making) -> _Maker:
    from pvbus.core.variants.unroll.controller import CHUNK_PUTS, UnrollController

    return lambda: UnrollController(
        partitions=making.partitions,
        elapsed=making.clock.monotonic,
        nonce=making.around.nonce,
        limits=making.config.limits,
        chunk_puts=min(CHUNK_PUTS, making.bus.step_records_max),
        opinions=making.around.opinions,
        plans=making.config.plans._replace(is_checked=making.around.checks_plans),
    )


def _make_render(making: _Making) -> _Maker:
    from pvbus.core.variants.render.controller import SPEC_SHARE, RenderController

    return lambda: RenderController(spec_bytes_max=int(making.bus.record_bytes_max * SPEC_SHARE))


def _make_inject(making: _Making) -> _Maker:
    from pvbus.core.variants.inject.controller import InjectController

    return lambda: InjectController(partitions=making.partitions, elapsed=making.clock.monotonic)


def _make_conditions(making: _Making) -> _Maker:
    from pvbus.core.variants.conditions.controller import ConditionsController

    return lambda: _measured(
        ConditionsController(
            source=making.config.source or "/pvbus",
            partitions=making.partitions,
            children_report=making.children_report,
            keeps_specs=making.around.keeps_specs,
        )
    )


def _make_promote(making: _Making) -> _Maker:
    from pvbus.core.promotion.promote.controller import PromoteController

    return lambda: PromoteController(partitions=making.partitions, returns=making.config.promote_returns)


def _make_rollout(making: _Making) -> _Maker:
    from pvbus.core.promotion.rollout.controller import RolloutController

    return lambda: RolloutController(keeps_specs=making.around.keeps_specs)


def _make_release(making: _Making) -> _Maker:
    from pvbus.core.promotion.release.controller import ReleaseController

    return lambda: ReleaseController(partitions=making.partitions)


def _make_resolve(making: _Making) -> _Maker:
    from pvbus.core.platform.resolve.controller import ResolveController

    return lambda: ResolveController(
        partitions=making.partitions,
        settings=making.config.resolving,
        observe_seconds=making.config.observe_seconds,
        namespace=making.config.package_namespace,
    )


def _make_establish(making: _Making) -> _Maker:
    from pvbus.core.platform.establish.controller import EstablishController

    return lambda: EstablishController(making.config.installer, namespace=making.config.package_namespace)


_MAKERS: Mapping[str, Callable[[_Making], _Maker]] = {
    "unroll": _make_unroll,
    "render": _make_render,
    "inject": _make_inject,
    "conditions": _make_conditions,
    "promote": _make_promote,
    "rollout": _make_rollout,
    "release": _make_release,
    "resolve": _make_resolve,
    "establish": _make_establish,
}
"""Each imports its own controller: the nine of them take longer to import than a service takes to start."""


def partition_count() -> int:
    """Return the default partition count of the topics (all but `pvbus.meta` share one)."""
    return next(spec.partitions for spec in topic_specs() if spec.name != META)


async def is_settled(services: Iterable[Service], bus: Bus, *, horizon_seconds: float = 0.0) -> bool:
    """Return whether nothing is left to do: all idle, all records read, and no timer within the horizon."""
    for service in services:
        if not service.idle:
            return False
        timer = service.next_timer_seconds
        if timer is not None and timer <= horizon_seconds:
            return False
        positions = service.positions()
        ends = await bus.end_offsets(list(positions))
        if any(positions[tp] < end for tp, end in ends.items()):
            return False
    return all(service.idle for service in services)


def _measured(controller: "ConditionsController") -> "ConditionsController":
    """Read the metrics from this controller. A worker makes a new one when its tables are emptied."""
    for kind in ("PackageVariant", "PackageVariantSet"):
        metrics.ATTENTION.labels(kind).set_function(partial(controller.needing, kind))
    return controller


async def run_all(services: Sequence[Service]) -> None:
    """Run services side by side until all are stopped; the first failure ends them all."""
    async with asyncio.TaskGroup() as tasks:
        for service in services:
            tasks.create_task(service.run())
