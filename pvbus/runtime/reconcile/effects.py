"""Effects applied to a cluster or a Prometheus: one call each, counted, errors left as the ports raise."""

from typing import Any

from pvbus.core.effects import Create, Delete, Effect, Get, KindRef, List, Patch, Query, Range, Update
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.cluster import Cluster, Kind, Resource
from pvbus.ports.monitoring import Monitoring
from pvbus.telemetry import metrics


async def perform(cluster: Cluster, effect: Effect, monitoring: Monitoring | None = None) -> Any:
    """Carry out one effect. Raises what the ports raise. monitoring: None if no Prometheus is set."""
    try:
        if isinstance(effect, Query):
            result = await _queried(monitoring, effect)
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
    else:
        metrics.EFFECTS.labels(type(effect).__name__.lower(), outcome).inc()


async def _call(cluster: Cluster, effect: Effect) -> Any:
    match effect:
        case Get(kind, namespace, name):
            return await cluster.get(await _resource(cluster, kind), namespace, name)
        case List(kind, namespace, labels, fields):
            resource = await _resource(cluster, kind)
            listing = await cluster.list(resource, namespace, label_selector=labels, field_selector=fields)
            return listing.items
        case Create(kind, obj):
            return await cluster.create(await _resource(cluster, kind), obj)
        case Update(kind, obj, subresource):
            return await cluster.update(await _resource(cluster, kind), obj, subresource=subresource)
        case Patch(kind, namespace, name, patch, subresource):
            resource = await _resource(cluster, kind)
            return await cluster.patch(resource, namespace, name, patch, subresource=subresource)
        case Delete(kind, namespace, name, uid, version):
            resource = await _resource(cluster, kind)
            return await cluster.delete(resource, namespace, name, uid=uid, resource_version=version)
    raise AssertionError(effect)


async def _queried(monitoring: Monitoring | None, query: Query) -> Range:
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
