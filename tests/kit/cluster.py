"""The objects of an API server by their kinds, as the people and programs of a test work with them."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pvbus.core.errors import ConflictError
from pvbus.ports.cluster import Cluster, Kind, Object, Reader, Resource

C = TypeVar("C", bound=Cluster)


async def resource_of(cluster: Reader, kind: Kind, **options: Any) -> Resource:
    """Return the resource of a kind, which must be served. options: of `Reader.resource`."""
    resource = await cluster.resource(kind, **options)
    assert resource is not None, f"{kind} is not served"
    return resource


class KindClient(Generic[C]):
    """The objects of one namespace. A kind that is not served fails the test."""

    def __init__(self, cluster: C, namespace: str = "default") -> None:
        self.cluster = cluster
        self.namespace = namespace

    async def get(self, kind: Kind, name: str) -> Any:
        """Return an object, None if it is not there."""
        return await self.cluster.get(await resource_of(self.cluster, kind), self.namespace, name)

    async def items(self, kind: Kind) -> list[Object]:
        listing = await self.cluster.list(await resource_of(self.cluster, kind), self.namespace)
        return list(listing.items)

    async def create(self, kind: Kind, name: str = "", **fields: Any) -> Object:
        """Create an object. labels, annotations: of its metadata; the other fields are its own."""
        resource = await resource_of(self.cluster, kind)
        marks: Object = {field: fields.pop(field) for field in ("labels", "annotations") if field in fields}
        metadata: Object = {"namespace": self.namespace, **({"name": name} if name else {}), **marks}
        body = {"apiVersion": resource.api_version, "kind": kind.kind, "metadata": metadata, **fields}
        return await self.cluster.create(resource, body)

    async def put(self, kind: Kind, obj: Object, subresource: str = "") -> Object:
        return await self.cluster.update(await resource_of(self.cluster, kind), obj, subresource=subresource)

    async def edit(self, kind: Kind, name: str, edit: Callable[[Any], None]) -> None:
        """Change an object, whatever others write meanwhile."""
        while True:
            found = await self.get(kind, name)
            edit(found)
            try:
                await self.put(kind, found)
            except ConflictError:
                continue
            return

    async def patch(self, kind: Kind, name: str, patch: Object) -> Object:
        return await self.cluster.patch(await resource_of(self.cluster, kind), self.namespace, name, patch)

    async def delete(self, kind: Kind, name: str) -> bool:
        """Delete an object; return whether it was there."""
        return bool(await self.cluster.delete(await resource_of(self.cluster, kind), self.namespace, name))
