"""Effects applied to what the ports reach: one call each, counted, errors left as the ports raise."""

from typing import Any

from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.core.kernel.effects import (
    Certify,
    Content,
    Create,
    Delete,
    Discover,
    Effect,
    Execute,
    Get,
    KindRef,
    List,
    Observation,
    Observe,
    Patch,
    Pull,
    Query,
    Range,
    Update,
)
from pvbus.ports.cluster import Cluster, Kind, Resource
from pvbus.ports.monitoring import Monitoring
from pvbus.ports.sources import Sources
from pvbus.telemetry import metrics


async def perform(
    cluster: Cluster,
    effect: Effect,
    monitoring: Monitoring | None = None,
    sources: Sources | None = None,
) -> Any:
    """Carry out one effect; return its result. Raises what the ports raise.

    monitoring: what answers queries, None if no Prometheus is set
    sources: where packages are read from, None if the service reads none
    """
    result: Any
    try:
        if isinstance(effect, Query):
            result = await _query(monitoring, effect)
        elif isinstance(effect, Observe | Pull):
            result = await _read(sources, effect)
        elif isinstance(effect, Certify):
            from pvbus.adapters.certificates import issue  # only establish asks for certificates

            result = issue(effect)
        elif isinstance(effect, Execute):
            from pvbus.runtime.reconcile.programs import execute  # only packages have templates

            result = await execute(effect)
        else:
            result = await _call(cluster, effect)
    except TransientError:
        _count(effect, "transient")
        raise
    except ConflictError:
        _count(effect, "conflict")
        raise
    except PermanentError:
        _count(effect, "permanent")
        raise
    _count(effect, "done")
    return result


def _count(effect: Effect, outcome: str) -> None:
    if isinstance(effect, Query):
        metrics.QUERIES.labels(outcome).inc()
    elif isinstance(effect, Execute):
        metrics.PROGRAMS.labels(effect.program, outcome).inc()
    elif isinstance(effect, Observe | Pull):
        metrics.SOURCE_READS.labels(type(effect).__name__.lower(), outcome).inc()
    else:
        metrics.EFFECTS.labels(type(effect).__name__.lower(), outcome).inc()


async def _call(cluster: Cluster, effect: Effect) -> Any:
    match effect:
        case Get(kind, namespace, name):
            reader = cluster.acting(as_user=effect.as_user) if effect.as_user else cluster
            return await reader.get(await _resource(cluster, kind), namespace, name)
        case List(kind, namespace, labels, fields):
            resource = await _resource(cluster, kind)
            listing = await cluster.list(resource, namespace, label_selector=labels, field_selector=fields)
            return listing.items
        case Create(kind, obj):
            return await _acting(cluster, effect).create(await _resource(cluster, kind), obj)
        case Update(kind, obj, subresource):
            resource = await _resource(cluster, kind)
            return await _acting(cluster, effect).update(resource, obj, subresource=subresource)
        case Patch(kind, namespace, name, patch, subresource):
            resource = await _resource(cluster, kind)
            return await cluster.patch(resource, namespace, name, patch, subresource=subresource)
        case Delete(kind, namespace, name, uid, version):
            resource = await _resource(cluster, kind)
            writer = cluster.acting(as_user=effect.as_user) if effect.as_user else cluster
            return await writer.delete(resource, namespace, name, uid=uid, resource_version=version)
        case Discover(kind):
            found = await cluster.resource(Kind(kind.group, kind.kind), version=kind.version or None)
            return found.namespaced if found is not None else None
    raise AssertionError(effect)


def _acting(cluster: Cluster, effect: Create | Update) -> Cluster:
    """Return the cluster for a write: as another user or as a dry run if the effect asks for that."""
    if not effect.is_dry_run and not effect.as_user:
        return cluster
    return cluster.acting(as_user=effect.as_user, is_dry_run=effect.is_dry_run)


async def _read(sources: Sources | None, effect: Observe | Pull) -> Observation | Content:
    if sources is None:
        raise PermanentError("this process has no sources of packages", reason="NotSet")
    if isinstance(effect, Observe):
        return await sources.observe(effect.source, effect.tags, effect.secrets)
    return await sources.pull(effect.source, effect.digest, effect.secrets)


async def _query(monitoring: Monitoring | None, query: Query) -> Range:
    if monitoring is None:
        raise PermanentError(
            "no Prometheus is set: set PVBUS_PROMETHEUS_URL of the service rollout to its address, such as "
            "http://prometheus.monitoring:9090",
            reason="NotSet",
        )
    return await monitoring.query(
        query.expression, start=query.start, end=query.end, step_seconds=query.step_seconds
    )


async def _resource(cluster: Cluster, kind: KindRef) -> Resource:
    resource = await cluster.resource(Kind(kind.group, kind.kind), version=kind.version or None)
    if resource is None:
        version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        raise PermanentError(f'no matches for kind "{kind.kind}" in version "{version}"', reason="NoMatch")
    return resource
