"""Effects applied to a cluster: one call each, counted, errors left as the port raises them."""

from typing import Any

from pvbus.core.effects import Create, Delete, Effect, Get, KindRef, List, Patch, Update
from pvbus.core.errors import ConflictError, PermanentError, TransientError
from pvbus.ports.cluster import Cluster, Kind, Resource
from pvbus.telemetry import metrics


async def perform(cluster: Cluster, effect: Effect) -> Any:
    """Carry out one effect. Raises what the cluster port raises."""
    name = type(effect).__name__.lower()
    try:
        result = await _call(cluster, effect)
    except TransientError:
        metrics.EFFECTS.labels(name, "transient").inc()
        raise
    except ConflictError:
        metrics.EFFECTS.labels(name, "conflict").inc()
        raise
    except PermanentError:
        metrics.EFFECTS.labels(name, "permanent").inc()
        raise
    metrics.EFFECTS.labels(name, "done").inc()
    return result


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


async def _resource(cluster: Cluster, kind: KindRef) -> Resource:
    resource = await cluster.resource(Kind(kind.group, kind.kind), version=kind.version or None)
    if resource is None:
        version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        raise PermanentError(f'no matches for kind "{kind.kind}" in version "{version}"', reason="NoMatch")
    return resource
